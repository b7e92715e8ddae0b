//! Power failures that lose unflushed data.
//!
//! A machine's state disk records its writes and flushes. While volumes on it are written, flushed and
//! uploaded, the store is frozen briefly at intervals and its bucket saved: a power failure at any point in
//! that moment leaves that bucket. Then the disk is rebuilt for each moment, as of a position in the record
//! soon after a reported flush, with some of the unflushed writes. Another machine boots from it. No flushed
//! data may be missing, no stale or foreign data may be served.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use holdfast_lab::chance::Chance;
use holdfast_lab::node::{ControlInterface, NodeDaemon};
use holdfast_lab::report;
use holdfast_lab::s3::S3Server;
use holdfast_lab::s3::proxy::FaultProxy;
use holdfast_lab::stamp::check::Reports;
use holdfast_lab::vm::machine::{MachineDisk, MachineOptions};
use holdfast_lab::vm::recorded::Survivors;
use holdfast_lab::vm::{Vm, bash};
use holdfast_lab::wait::until;
use holdfast_lab::world::World;

const BUCKET: &str = "cuts";
/// Power failures in the scenario.
const FEW: usize = 4;
const SEED: u64 = 20_261_121;
const STATE_BYTES: u64 = 2 << 30;
/// Stamped sectors: three writers of 1 MiB each, spread over eight map pages each.
const STAMPS: &str = "stamps";
const LANES: u32 = 3;
/// An ext4 with a program that writes files and flushes each.
const FILES: &str = "files";
/// fio, which checks every byte it reads.
const LOAD: &str = "load";
const VOLUMES: [(&str, &str); 3] = [(STAMPS, "384Mi"), (FILES, "64Mi"), (LOAD, "2Mi")];
/// Continuous seals and commits.
const DATA: &str = "slab_size = \"64Mi\"\nseal_size = \"2Mi\"\nmax_dirty = \"8Mi\"\nmax_dirty_age = \"1s\"";
/// Minimum distance between two power failures: rounds of the stamp writers.
const ROUNDS_APART: usize = 15;
/// Minimum number of writes and flushes in a moment.
const WINDOW: usize = 60;
/// A power failure follows a report by fewer writes and flushes than this.
const SOON: usize = 12;
/// Number of positions tried to find a power failure that loses something.
const MAX_DRAWS: u32 = 100;
const LIMIT: Duration = Duration::from_secs(300);
const DEVICE_LIMIT: Duration = Duration::from_secs(60);
/// The fio job's settings shared by writer and reader.
const FIO: &str = "--name=cut --direct=1 --size=2M --verify=crc32c --verify_interval=4k --ioengine=io_uring";

/// A moment of the run in which the store did not change.
struct Moment {
    positions: std::ops::Range<usize>,
    bucket: PathBuf,
}

/// Result of the power failures.
pub struct PowerCutsOutcome {
    /// Number of power failures.
    pub cuts: usize,
    /// Losses, one for each power failure that lost flushed data.
    pub lost: Vec<String>,
}

pub(super) fn run(world: &World) -> Result<()> {
    let PowerCutsOutcome { cuts, lost } = cut(world, FEW)?;
    ensure!(lost.is_empty(), "{} of {cuts} cuts lost something:\n{}", lost.len(), lost.join("\n"));
    Ok(())
}

/// Simulates `cuts` power failures and compares.
///
/// # Errors
/// If anything fails that the power failures do not test.
pub fn cut(world: &World, cuts: usize) -> Result<PowerCutsOutcome> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let proxy = FaultProxy::start(s3.port())?;
    let control =
        ControlInterface::Standalone { endpoint: proxy.endpoint_in_vm(), bucket: BUCKET.to_owned() };
    let options = MachineOptions { state: MachineDisk::Recorded(STATE_BYTES), ..MachineOptions::node() };
    let vm = world.vm_with("recorded", || options)?;
    let node = NodeDaemon::start(Arc::clone(&vm), &control, "auto", DATA)?;
    let recorded = Arc::clone(&vm);
    let position = move || recorded.recorded_disk().map_or(0, |disk| disk.position());
    let reports = Reports::listen(SEED, LANES, position)?;
    begin(&node, &reports)?;
    let mut moments = Vec::new();
    for number in 0..cuts {
        moments.push(record_moment(world, &vm, &s3, &proxy, &reports, number)?);
    }
    vm.cut_power();
    report::step(format_args!(
        "{} flushed rounds, {} writes and flushes recorded",
        reports.rounds(),
        vm.recorded_disk()?.position()
    ));
    proxy.release();

    let mut aftermath = Aftermath {
        world,
        recorded: &vm,
        s3: &s3,
        reports: &reports,
        chance: Chance::new(SEED),
        machine: None,
    };
    let mut lost = Vec::new();
    for (number, moment) in moments.iter().enumerate() {
        if let Err(error) = aftermath.play(number, moment) {
            report::step(format_args!("cut {number}: {error:#}"));
            lost.push(format!("cut {number}: {error:#}"));
        }
    }
    Ok(PowerCutsOutcome { cuts, lost })
}

/// Creates and attaches the volumes and puts them under load.
fn begin(node: &NodeDaemon, reports: &Reports) -> Result<()> {
    for (name, size) in VOLUMES {
        node.cli(&["create", name, "--size", size, "--store", "store"])?;
    }
    let [stamps, files, load] = attach(node)?;
    let vm = node.vm();
    vm.exec(&format!(
        "mkfs.ext4 -q {files}; mount {files} /mnt; fio {FIO} --filename={load} --rw=write --bs=4k --do_verify=0 --end_fsync=1 >&2; \
         sync {load}"
    ))?;
    let address = reports.address_in_vm();
    vm.spawn(
        STAMPS,
        &bash(&format!("exec nice -n 19 holdfast-e2e stamp-write {stamps} {LANES} {SEED} {address}")),
    )?;
    // A file's name is printed once the file and its directory are flushed; after a power failure, the log is
    // read from the disk.
    vm.spawn(
        FILES,
        &bash(
            "renice -n 19 $$ > /dev/null; for n in $(seq 100000); do echo file $n > /mnt/$n; sync /mnt/$n /mnt; echo $n; sync /var/log/holdfast/files.log; done",
        ),
    )?;
    vm.spawn(
        LOAD,
        &bash(&format!(
            "exec nice -n 19 fio {FIO} --filename={load} --rw=randwrite --bs=4k --iodepth=8 --fsync=64 --rate_iops=200 --do_verify=0 --time_based --runtime=3600"
        )),
    )?;
    Ok(())
}

/// Runs the load for a while, freezes the store for a moment and saves its bucket.
fn record_moment(
    world: &World,
    vm: &Vm,
    s3: &S3Server,
    proxy: &FaultProxy,
    reports: &Reports,
    number: usize,
) -> Result<Moment> {
    let disk = vm.recorded_disk()?;
    let alive = || {
        for program in [STAMPS, FILES, LOAD] {
            let ended = vm.status(program)?;
            ensure!(ended.is_none(), "{program} ended: {ended:?}\n{}", vm.log(program)?);
        }
        Ok(())
    };
    let from = reports.rounds();
    until("the writers to continue", LIMIT, || {
        alive()?;
        Ok((reports.rounds() >= from + ROUNDS_APART).then_some(()))
    })?;
    // In every second moment, the store has processed requests whose responses the machine has not received.
    if number % 2 == 1 {
        proxy.hold_answers();
        let passed = proxy.received().len();
        until("a request whose answer is held", LIMIT, || {
            Ok((proxy.received().len() > passed + 1).then_some(()))
        })?;
    }
    proxy.hold_requests()?;
    let bucket = world.dir().join(format!("bucket-{number}"));
    s3.save_bucket(BUCKET, &bucket)?;
    let first = disk.position();
    let last = until("a report and writes after it in the frozen moment", LIMIT, || {
        alive()?;
        let last = disk.position();
        let reported = reports.positions(&(first..last));
        let enough = |report: &usize| last >= (report + SOON).max(first + WINDOW);
        Ok(reported.first().is_some_and(enough).then_some(last))
    })?;
    let positions = first..last + 1;
    proxy.release();
    report::step(format_args!(
        "moment {number}: positions {positions:?} of the record, {} rounds",
        reports.rounds()
    ));
    Ok(Moment { positions, bucket })
}

/// State of the steps after the power failures.
struct Aftermath<'a> {
    world: &'a World,
    recorded: &'a Vm,
    s3: &'a S3Server,
    reports: &'a Reports,
    chance: Chance,
    /// The machine that boots from the rebuilt disks.
    machine: Option<Arc<Vm>>,
}

impl Aftermath<'_> {
    /// Boots a machine from the disk left by a power failure and compares the contents of its volumes.
    fn play(&mut self, number: usize, moment: &Moment) -> Result<()> {
        // A missing flush would lose the data reported last.
        let reported = self.reports.positions(&moment.positions);
        let left = if number % 3 == 1 { Survivors::Nothing } else { Survivors::Some };
        let image = self.world.dir().join("cut.ext4");
        // A power failure without lost writes is useless: a reset machine tests the same.
        let mut draws = 0;
        let (position, cut) = loop {
            ensure!(draws < MAX_DRAWS, "no unflushed write at {draws} places of the moment");
            draws += 1;
            let report = reported[usize::try_from(self.chance.below(reported.len() as u64))?];
            let soon = report + usize::try_from(self.chance.below(SOON as u64))?;
            let position = soon.min(moment.positions.end - 1);
            let cut = self.recorded.recorded_disk()?.rebuild(position, left, &mut self.chance, &image)?;
            if cut.lost + cut.torn > 0 {
                break (position, cut);
            }
        };
        self.s3.restore_bucket(BUCKET, &moment.bucket)?;
        report::step(format_args!("cut {number} at {position} of the record ({left:?}): {cut:?}"));
        let options = MachineOptions { state: MachineDisk::Image(image), ..MachineOptions::node() };
        let vm = match &mut self.machine {
            Some(vm) => {
                vm.boot()?;
                vm
            }
            none @ None => none.insert(self.world.vm_with("after", || options)?),
        };
        let checked = check(vm, self.reports, position);
        vm.cut_power();
        checked
    }
}

fn check(vm: &Arc<Vm>, reports: &Reports, position: usize) -> Result<()> {
    let node = NodeDaemon::resume(Arc::clone(vm))?;
    let [stamps, files, load] = attach(&node)?;
    let text = vm.exec(&format!("holdfast-e2e stamp-read {stamps} {LANES} {SEED}"))?;
    reports.check(position, &text)?;
    vm.exec(&format!(
        "mount {files} /mnt; while read -r n; do read -r line < /mnt/$n; [ \"$line\" = \"file $n\" ]; done < /var/log/holdfast/{FILES}.log; \
         umount /mnt; e2fsck -fn {files} >&2; \
         fio {FIO} --filename={load} --rw=read --bs=128k --iodepth=8 --verify_header_seed=0 --verify_fatal=1 >&2"
    ))?;
    Ok(())
}

/// Attaches the volumes concurrently, and returns their devices.
fn attach(node: &NodeDaemon) -> Result<[String; 3]> {
    let attach = |name: &str| -> Result<String> {
        let device = node.cli_with_retries(&["attach", name, "--store", "store"])?.trim().to_owned();
        node.vm().wait_block_device(&device, DEVICE_LIMIT)?;
        Ok(device)
    };
    let attached = std::thread::scope(|scope| {
        let attaching = VOLUMES.map(|(name, _)| scope.spawn(move || attach(name)));
        attaching.map(|attaching| attaching.join().expect("an attach does not panic"))
    });
    let [stamps, files, load] = attached;
    Ok([stamps?, files?, load?])
}
