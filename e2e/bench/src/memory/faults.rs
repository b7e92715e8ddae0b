//! Memory volumes under faults: repeated ends of the daemon, pages without memory, and a control group of the
//! daemon at its limit.

use anyhow::{Context, Result};
use holdfast_lab::node::{ControlInterface, NodeDaemon};
use holdfast_lab::report;
use holdfast_lab::vm::machine::MachineOptions;
use holdfast_lab::world::World;
use holdfast_scenarios::memory_volumes;

use super::corpus::{CORPUS_BYTES, Corpus, make};
use super::load::{self, DeviceLoad, PlaceOrder};
use super::{BUCKET, Bar, Figure};
use crate::play;

/// Number of kills of the daemon, and of handoffs.
const KILLS: usize = 20;
/// Requests per row.
const REQUESTS: u64 = 4096;
/// Memory of the volume whose pages spill: the minimum.
const LIMIT: &str = "1Mi";
const SPILL_DATA: &str = "memory_volumes = \"1Gi\"\nmemory_spill = \"64Mi\"";
/// A file on the disk of the spill file.
const PLAIN: &str = "/state/plain";
/// The control group of the daemon, the memory for volumes in it, and its limit. The difference is for the
/// daemon and its program without other volumes.
const CGROUP: &str = "/sys/fs/cgroup/node";
const CONFINED_DATA: &str = "memory_volumes = \"128Mi\"\nmemory_spill = \"32Mi\"\nupload_memory = \"64Mi\"";
const CONFINED_MIB: u32 = 128 + 96;

pub(in super::super) fn run(world: &World) -> Result<Vec<Figure>> {
    let kills = play(world, "kills", |world| memory_volumes::rounds(world, KILLS));
    if let Err(error) = &kills {
        report::step(format_args!("kills: {error:#}"));
    }
    let against = format!("{KILLS} kills and {KILLS} handoffs under ext4 and under fio, which verifies");
    let mut figures = vec![
        Figure {
            name: "memory_kill_rounds".to_owned(),
            value: if kills.is_ok() { 2.0 * KILLS as f64 } else { 0.0 },
            unit: "count",
            against: against.clone(),
            bar: Some(Bar::AtLeast(2.0 * KILLS as f64)),
        },
        Figure {
            name: "memory_kill_errors".to_owned(),
            value: f64::from(u8::from(kills.is_err())),
            unit: "count",
            against,
            bar: Some(Bar::AtMost(0.0)),
        },
    ];
    figures.extend(spill_vs_disk(world)?);
    figures.push(oom_kills(world)?);
    Ok(figures)
}

/// Compares requests to a volume with pages in the spill file to requests to a plain file on the same disk.
fn spill_vs_disk(world: &World) -> Result<Vec<Figure>> {
    world.share(&world.programs()?.join("examples/load"), "bin/load")?;
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let vm = world.vm_with("bench", MachineOptions::benchmark)?;
    vm.exec(&make(Corpus::Random))?;
    let node = NodeDaemon::start(vm, &ControlInterface::standalone(&s3, BUCKET), "auto", SPILL_DATA)?;
    let (vm, corpus) = (node.vm(), Corpus::Random.path());
    let size = CORPUS_BYTES.to_string();
    let attach = ["attach", "spilled", "--memory", &size, "--memory-limit", LIMIT, "--memory-spill", &size];
    let device = node.cli(&attach)?.trim().to_owned();
    vm.exec(&format!("cp {corpus} {PLAIN}; sync {PLAIN}"))?;
    load::fill(vm, &device, &corpus, CORPUS_BYTES)?;
    load::check(vm, &device, &corpus, CORPUS_BYTES)?;
    let mut figures = Vec::new();
    for (name, write) in [("memory_spill_read_vs_disk", false), ("memory_spill_write_vs_disk", true)] {
        let load =
            DeviceLoad { write, order: PlaceOrder::Random, block_bytes: 4096, depth: 32, requests: REQUESTS };
        let [ours, theirs] = [&*device, PLAIN].map(|device| load.run(vm, device, &corpus));
        let (ours, theirs) = (ours?, theirs?);
        figures.push(Figure {
            name: name.to_owned(),
            value: ours / theirs,
            unit: "ratio",
            against: format!("{ours:.0} to {theirs:.0} random requests of 4 KiB a second, 32 in flight"),
            bar: Some(Bar::AtLeast(0.5)),
        });
    }
    node.cli(&["detach", "spilled"])?;
    node.terminate()?;
    vm.power_off()?;
    Ok(figures)
}

/// Repeatedly fills all of the node's memory for memory volumes, in a control group with little more.
fn oom_kills(world: &World) -> Result<Figure> {
    let s3 = world.s3()?;
    let vm = world.vm("confined")?;
    let node = NodeDaemon::start(vm, &ControlInterface::standalone(&s3, BUCKET), "auto", CONFINED_DATA)?;
    let vm = node.vm();
    vm.exec(&format!(
        "mount -t cgroup2 none /sys/fs/cgroup; echo +memory > /sys/fs/cgroup/cgroup.subtree_control; mkdir {CGROUP}; \
         echo {CONFINED_MIB}M > {CGROUP}/memory.max; pgrep -x holdfast-node > {CGROUP}/cgroup.procs"
    ))?;
    let mut devices = Vec::new();
    for (name, limit, spill) in [("one", "40Mi", Some("32Mi")), ("two", "40Mi", None)] {
        let mut attach = vec!["attach", name, "--memory", "96Mi", "--memory-limit", limit];
        attach.extend(spill.iter().flat_map(|spill| ["--memory-spill", *spill]));
        devices.push(node.cli(&attach)?.trim().to_owned());
    }
    for _ in 0..3 {
        for device in &devices {
            // Both volumes' limits are smaller than their devices.
            let found = vm.exec(&format!(
                "dd if=/dev/urandom of={device} bs=1M oflag=direct conv=notrunc status=none 2>&1 || true; blkdiscard -o 8M -l 8M {device}"
            ))?;
            anyhow::ensure!(found.contains("No space left on device"), "{device}: {found}");
        }
    }
    let peak = vm.exec(&format!("cat {CGROUP}/memory.peak"))?;
    let kills = vm.exec(&format!("grep oom_kill {CGROUP}/memory.events | head -n 1"))?;
    let kills: f64 = kills.trim().rsplit(' ').next().context("a count")?.parse().context("a count")?;
    for name in ["one", "two"] {
        node.cli(&["detach", name])?;
    }
    node.terminate()?;
    Ok(Figure {
        name: "memory_oom_kills".to_owned(),
        value: kills,
        unit: "count",
        against: format!("{} bytes of {CONFINED_MIB} MiB at the peak", peak.trim()),
        bar: Some(Bar::AtMost(0.0)),
    })
}
