//! The daemon is ended repeatedly: alternately by kill -9, by SIGTERM and by a successor that waits for its
//! devices. Meanwhile file systems and a raw device get forced writes (FUA): journal commits, and fio with
//! `--sync=dsync`.
//!
//! Tested fault: the kernel can lose a device that announces a volatile cache without FUA if its server exits
//! during these writes. The device stays LIVE, cannot be recovered, and every task that waits for it waits
//! until the host restarts (`docs/kernels.md`). All volumes are on one ring thread, so that the loss of one
//! affects the others. With devices that did not announce FUA, this scenario hit the fault at the third exit
//! of the daemon (zero copy, Linux 7.3.4).
//!
//! Then another node attaches the volumes: `e2fsck`, `xfs_repair` and `btrfs scrub` find no errors, and each
//! file whose flush was reported exists.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::chance::Chance;
use holdfast_lab::churn::ensure_reported_exist;
use holdfast_lab::node::{ControlInterface, NodeDaemon};
use holdfast_lab::report;
use holdfast_lab::vm::machine::MachineOptions;
use holdfast_lab::vm::{Vm, bash};
use holdfast_lab::world::World;
use serde_json::Value;

const BUCKET: &str = "kills";
/// Rounds of the scenario.
const FEW: usize = 15;
const SEED: u64 = 20_261_122;
const SIGKILL: i32 = 9;
/// Makes fio report and exit.
const SIGINT: i32 = 2;
/// The raw volume, then those with file systems, named after them.
const RAW: &str = "raw";
const FILE_SYSTEMS: [TestedFileSystem; 3] = [
    TestedFileSystem { name: "ext4", make: "mkfs.ext4 -q -F", check: "e2fsck -fn" },
    TestedFileSystem {
        name: "xfs",
        make: "mkfs.xfs -q -f -c options=/usr/share/xfsprogs/mkfs/lts_6.6.conf",
        check: "xfs_repair -n",
    },
    TestedFileSystem { name: "btrfs", make: "mkfs.btrfs -q -f", check: "btrfs check" },
];
const SIZE: &str = "320Mi";
/// All volumes on one thread, with continuous uploads.
const DATA: &str = "ring_threads = 1\nslab_size = \"64Mi\"\nseal_size = \"8Mi\"\nmax_dirty_age = \"2s\"";
/// Threads that write to each file system.
const WORKERS: u32 = 2;
/// Minimum and maximum number of writes that each device completes between two exits of the daemon.
const WRITES_BETWEEN_ENDS: [u64; 2] = [20, 150];
const DEVICE_LIMIT: Duration = Duration::from_secs(60);
const END_LIMIT: Duration = Duration::from_secs(300);

/// A file system and the programs that create and check it.
struct TestedFileSystem {
    name: &'static str,
    make: &'static str,
    check: &'static str,
}

impl TestedFileSystem {
    fn mount_point(&self) -> String {
        format!("/mnt/{}", self.name)
    }
}

/// Result of the rounds.
#[derive(Debug, Default)]
pub struct KillsOutcome {
    /// Number of daemon exits that all volumes survived.
    pub rounds: usize,
    /// Failures: hanging devices, programs that saw an error, damaged file systems, missing files.
    pub errors: Vec<String>,
    /// The longest duration of a forced write to the raw volume, in the machine's time: it waited for the
    /// next daemon. Zero if the rounds did not complete.
    pub longest_gap: Duration,
}

impl KillsOutcome {
    /// Adds the outcome of another run.
    pub fn add(&mut self, Self { rounds, errors, longest_gap }: Self) {
        self.rounds += rounds;
        self.errors.extend(errors);
        self.longest_gap = self.longest_gap.max(longest_gap);
    }
}

pub(super) fn zero_copy(world: &World) -> Result<()> {
    run_few(world, "zero-copy")
}

pub(super) fn user_copy(world: &World) -> Result<()> {
    run_few(world, "user-copy")
}

pub(super) fn fuse(world: &World) -> Result<()> {
    check_outcome(without_ublk(world, FEW)?)
}

/// Runs [`rounds`] on machines without the ublk driver.
///
/// # Errors
/// Those of [`rounds`].
pub fn without_ublk(world: &World, due: usize) -> Result<KillsOutcome> {
    for name in ["a", "b"] {
        world.vm_with(name, MachineOptions::without_ublk)?;
    }
    rounds(world, "auto", due)
}

fn run_few(world: &World, transport: &str) -> Result<()> {
    check_outcome(rounds(world, transport, FEW)?)
}

fn check_outcome(KillsOutcome { rounds, errors, longest_gap }: KillsOutcome) -> Result<()> {
    report::step(format_args!("the longest forced write took {longest_gap:.1?}"));
    ensure!(errors.is_empty(), "after {rounds} of {FEW} rounds:\n{}", errors.join("\n"));
    Ok(())
}

/// Ends the daemon `due` times and compares.
///
/// # Errors
/// If anything fails that the rounds do not test.
pub fn rounds(world: &World, transport: &str, due: usize) -> Result<KillsOutcome> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let control = ControlInterface::standalone(&s3, BUCKET);
    let node = NodeDaemon::start(world.vm("a")?, &control, transport, DATA)?;
    let devices = begin(&node)?;

    let mut chance = Chance::new(SEED);
    let mut outcome = KillsOutcome::default();
    for number in 0..due {
        if let Err(error) = round(&node, &devices, number, &mut chance) {
            // On a machine that has lost a device, nothing can be ended or unmounted any more.
            outcome.errors.push(format!("round {number}: {error:#}"));
            return Ok(outcome);
        }
        outcome.rounds += 1;
    }
    report::step(format_args!(
        "the daemon ended {due} times; the load ends and another node looks at the volumes"
    ));
    outcome.longest_gap = end(&node)?;
    let other = NodeDaemon::start(world.vm("b")?, &control, transport, DATA)?;
    for file_system in &FILE_SYSTEMS {
        if let Err(error) = check(&node, &other, file_system) {
            outcome.errors.push(format!("{}: {error:#}", file_system.name));
        }
    }
    Ok(outcome)
}

/// Creates and attaches the volumes and puts them under load; returns their devices.
fn begin(node: &NodeDaemon) -> Result<Vec<String>> {
    let raw = attach_new(node, RAW)?;
    let mut devices = vec![raw.clone()];
    for file_system in &FILE_SYSTEMS {
        let TestedFileSystem { name, make, check: _ } = file_system;
        let device = attach_new(node, name)?;
        let at = file_system.mount_point();
        node.vm().exec(&format!("{make} {device} >&2; mkdir -p {at}; mount {device} {at}"))?;
        node.vm().spawn(name, &bash(&format!("exec holdfast-e2e churn {at} {WORKERS}")))?;
        devices.push(device);
    }
    // Several forced writes are in progress at any time: the loss of a device requires two.
    let fio = format!(
        "exec fio --name=raw --filename={raw} --direct=1 --sync=dsync --rw=randwrite --bs=4k --ioengine=psync --thread \
         --numjobs=4 --offset_increment=8M --size=8M --time_based --runtime=100000 --group_reporting --output-format=json"
    );
    node.vm().spawn(RAW, &bash(&fio))?;
    Ok(devices)
}

fn attach_new(node: &NodeDaemon, name: &str) -> Result<String> {
    node.cli(&["create", name, "--size", SIZE, "--store", "store"])?;
    attach(node, name)
}

fn attach(node: &NodeDaemon, name: &str) -> Result<String> {
    let device = node.cli(&["attach", name, "--store", "store"])?.trim().to_owned();
    node.vm().wait_block_device(&device, DEVICE_LIMIT)?;
    Ok(device)
}

/// Ends the daemon once under load, and starts the next one.
fn round(node: &NodeDaemon, devices: &[String], number: usize, chance: &mut Chance) -> Result<()> {
    let [least, most] = WRITES_BETWEEN_ENDS;
    wait_written(node.vm(), devices, least + chance.below(most - least))?;
    let end = [
        |node: &NodeDaemon| node.kill().and_then(|()| node.restart()),
        |node: &NodeDaemon| node.terminate().and_then(|()| node.restart()),
        |node: &NodeDaemon| node.hand_over(),
    ];
    end[number % end.len()](node)?;
    wait_written(node.vm(), devices, least)?;
    for program in FILE_SYSTEMS.iter().map(|file_system| file_system.name).chain([RAW]) {
        let ended = node.vm().status(program)?;
        ensure!(ended.is_none(), "{program} ended: {ended:?}\n{}", node.vm().log(program)?);
    }
    report::step(format_args!("round {number} is over"));
    Ok(())
}

/// Waits until the kernel has completed this many more writes on each device.
fn wait_written(vm: &Vm, devices: &[String], writes: u64) -> Result<()> {
    let names = devices.iter().map(|device| device.trim_start_matches("/dev/")).collect::<Vec<_>>().join(" ");
    let limit = DEVICE_LIMIT.as_secs();
    let script = format!(
        "declare -A from\n\
         writes() {{ read -r -a stat < /sys/block/$1/stat; }}\n\
         for name in {names}; do writes $name; from[$name]=${{stat[4]}}; done\n\
         for name in {names}; do\n\
           until writes $name; [ ${{stat[4]}} -ge $((from[$name] + {writes})) ]; do\n\
             [ $SECONDS -lt {limit} ] || {{ echo \"$name hangs after $((stat[4] - from[$name])) writes\"; holdfast-node list; exit 1; }}\n\
             sleep 0.1\n\
           done\n\
         done"
    );
    vm.exec(&script).map(drop)
}

/// Ends the load and detaches the volumes. Returns the longest duration of a forced write.
fn end(node: &NodeDaemon) -> Result<Duration> {
    let vm = node.vm();
    for program in FILE_SYSTEMS.iter().map(|file_system| file_system.name) {
        vm.signal(program, SIGKILL)?;
        vm.wait(program, END_LIMIT)?;
    }
    vm.signal(RAW, SIGINT)?;
    vm.wait(RAW, END_LIMIT)?;
    let longest = longest_write(&vm.log(RAW)?)?;
    for file_system in &FILE_SYSTEMS {
        vm.exec(&format!("umount {}", file_system.mount_point()))?;
    }
    vm.exec("! dmesg | grep -iE 'I/O error|corrupt'")?;
    for name in FILE_SYSTEMS.iter().map(|file_system| file_system.name).chain([RAW]) {
        node.cli(&["detach", name])?;
    }
    Ok(longest)
}

/// Returns the longest duration of a write from fio's final report.
///
/// # Errors
/// If fio printed no report.
pub fn longest_write(printed: &str) -> Result<Duration> {
    let start = printed.find('{').context("fio printed no report")?;
    let mut values = serde_json::Deserializer::from_str(&printed[start..]).into_iter::<Value>();
    let report = values.next().context("fio printed no report")?.context("read fio's report")?;
    let longest = report.pointer("/jobs/0/write/lat_ns/max").and_then(Value::as_u64);
    longest.map(Duration::from_nanos).context("no longest write in fio's report")
}

/// Checks a volume from another node.
fn check(wrote: &NodeDaemon, reads: &NodeDaemon, file_system: &TestedFileSystem) -> Result<()> {
    let TestedFileSystem { name, make: _, check } = file_system;
    let device = attach(reads, name)?;
    let at = file_system.mount_point();
    let scrub = if *name == "btrfs" { format!("btrfs scrub start -B {at} >&2;") } else { String::new() };
    let found = reads.vm().exec(&format!(
        "{check} {device} >&2; mkdir -p {at}; mount {device} {at}; {scrub} holdfast-e2e churn-check {at}; umount {at}; \
         ! dmesg | grep -iE 'I/O error|corrupt' >&2"
    ))?;
    ensure_reported_exist(&wrote.vm().log(name)?, &found)?;
    reads.cli(&["detach", name]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_write_is_read_from_the_report() {
        let printed =
            "fio: terminating on signal 2\n{\"jobs\": [{\"write\": {\"lat_ns\": {\"max\": 1500000000}}}]}\n";
        assert_eq!(longest_write(printed).unwrap(), Duration::from_millis(1500));
        assert!(longest_write("killed").is_err());
    }
}
