//! The main job's figures: what each step asks of S3, what a request costs beside the kernel's own server,
//! what many volumes cost.
//!
//! One machine counts its instructions and serves everything from ext4 on a ramdisk. The S3 server runs on
//! the host: how long it takes means nothing, so requests are counted and their time is taken out of what is
//! timed.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use holdfast_lab::node::{Control, Node, PROGRAM};
use holdfast_lab::report;
use holdfast_lab::s3::S3Server;
use holdfast_lab::vm::machine::Options;
use holdfast_lab::vm::{Vm, bash};
use holdfast_lab::wait::until;
use holdfast_lab::world::World;

use super::fio::{self, Job};
use super::kublk::{self, Kublk, Mode};
use super::{Bar, Figure, median};

mod many;
mod requests;

const BUCKET: &str = "bench";
/// The daemon's state directory, here on a ramdisk with ext4.
const STATE_DIR: &str = "/var/lib/holdfast";
/// Uploads held back: nothing is sealed unless a volume is detached or attached with another age.
const HELD_BACK: &str = "slab_size = \"64Mi\"\nseal_size = \"2Gi\"\nmax_dirty_age = \"1h\"";
/// A seal for every MiB written.
const SEAL_OFTEN: &str = "slab_size = \"64Mi\"\nseal_size = \"1Mi\"\nmax_dirty_age = \"1h\"";
const DEPTH: u32 = 32;
/// Rounds; the median of each side counts.
const ROUNDS: u32 = 3;
/// Name of the figure, fio pattern.
const JOBS: [(&str, &str); 2] = [("randread4k_vs_kublk", "randread"), ("randwrite4k_vs_kublk", "randwrite")];
const JOB_REQUESTS: u32 = 12_000;
/// Least ratio of a volume's figure to the reference.
const LEAST_RATIO: f64 = 0.85;
/// The volume that is compared with kublk.
const SPEED: &str = "speed";
const DEVICE_LIMIT: Duration = Duration::from_secs(60);
const COMMIT_LIMIT: Duration = Duration::from_secs(300);

/// The daemon and what surrounds it.
struct Bench {
    vm: Arc<Vm>,
    s3: Arc<S3Server>,
    control: Control,
    node: Node,
}

pub(super) fn run(world: &World) -> Result<Vec<Figure>> {
    kublk::share(world)?;
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let vm = world.vm_with("bench", Options::benchmark)?;
    vm.exec(&format!(
        "modprobe brd rd_nr=1 rd_size=1572864; mkfs.ext4 -q -F /dev/ram0; mount /dev/ram0 {STATE_DIR}"
    ))?;
    let control = Control::standalone(&s3, BUCKET);
    let node = Node::start(Arc::clone(&vm), &control, "zero-copy", SEAL_OFTEN)?;
    let mut bench = Bench { vm: Arc::clone(&vm), s3, control, node };
    report::step("count the requests to S3");
    let mut figures = requests::measure(&mut bench)?;
    report::step("4 KiB requests, against kublk on the same ramdisk");
    figures.extend(speed(&bench)?);
    report::step("attach many volumes");
    figures.extend(many::measure(&bench)?);
    vm.power_off()?;
    Ok(figures)
}

impl Bench {
    /// Restarts the daemon with other `data` settings, and with nothing of any volume left on the node. No
    /// volume may be attached.
    fn restart_with(&mut self, data: &str) -> Result<()> {
        self.node.terminate()?;
        self.vm.exec(&format!("rm -r {STATE_DIR}/*"))?;
        self.node = Node::start(Arc::clone(&self.vm), &self.control, "zero-copy", data)?;
        Ok(())
    }

    fn create(&self, volume: &str, size: &str) -> Result<()> {
        self.node.cli(&["create", volume, "--size", size, "--store", "store"]).map(drop)
    }

    fn attach(&self, volume: &str, more: &[&str]) -> Result<String> {
        let device = self.node.cli(&[&["attach", volume, "--store", "store"], more].concat())?;
        let device = device.trim().to_owned();
        self.vm.wait_block_device(&device, DEVICE_LIMIT)?;
        Ok(device)
    }

    fn detach(&self, volume: &str) -> Result<()> {
        self.node.cli(&["detach", volume]).map(drop)
    }

    /// Waits until the volume has committed a record later than `seq` and holds nothing that is not
    /// committed.
    fn wait_committed_after(&self, volume: &str, seq: f64) -> Result<()> {
        until("the commit", COMMIT_LIMIT, || {
            let committed = self.node.metric("holdfast_volume_committed_seq", volume)?;
            let dirty = self.node.metric("holdfast_volume_dirty_bytes", volume)?;
            Ok((committed > Some(seq) && dirty == Some(0.0)).then_some(()))
        })
    }

    fn committed_seq(&self, volume: &str) -> Result<f64> {
        let seq = self.node.metric("holdfast_volume_committed_seq", volume)?;
        seq.with_context(|| format!("{volume} has no committed_seq"))
    }
}

/// A volume whose sides are filled against a file on the same ramdisk, one after the other, round after
/// round.
fn speed(bench: &Bench) -> Result<Vec<Figure>> {
    let vm = &bench.vm;
    bench.create(SPEED, "256Mi")?;
    let device = bench.attach(SPEED, &[])?;
    let reference_file = format!("{STATE_DIR}/kublk.img");
    vm.exec(&format!(
        "for to in {device} {reference_file}; do dd if=/dev/zero of=$to bs=1M count=256 oflag=direct status=none; done; \
         sync"
    ))?;
    let mut ours = vec![Vec::new(); JOBS.len()];
    let mut theirs = vec![Vec::new(); JOBS.len()];
    for _ in 0..ROUNDS {
        measure(vm, &device, &mut ours)?;
        let reference = Kublk::serve(vm, 9, &reference_file, DEPTH, Mode::ZeroCopy)?;
        measure(vm, &reference.device(), &mut theirs)?;
        reference.remove()?;
    }
    // Nothing is to be uploaded later but holes.
    vm.exec(&format!("blkdiscard {device}; rm {reference_file}"))?;
    bench.detach(SPEED)?;
    let mut figures = Vec::new();
    for (((name, _), ours), theirs) in JOBS.iter().zip(ours).zip(theirs) {
        let (ours, theirs) = (median(ours), median(theirs));
        figures.push(Figure {
            name: (*name).to_owned(),
            value: ours / theirs,
            unit: "ratio",
            against: format!(
                "{ours:.0} of {theirs:.0} IOPS, zero copy, queue depth {DEPTH}; at least {LEAST_RATIO}"
            ),
            bar: Some(Bar::AtLeast(LEAST_RATIO)),
        });
    }
    Ok(figures)
}

fn measure(vm: &Vm, device: &str, results: &mut [Vec<f64>]) -> Result<()> {
    for ((_, pattern), result) in JOBS.iter().zip(results) {
        let job = Job {
            target: device,
            pattern,
            block_bytes: 4096,
            depth: DEPTH,
            requests: JOB_REQUESTS,
            region: 0..0,
        };
        result.push(fio::run(vm, &job)?.iops);
    }
    Ok(())
}
