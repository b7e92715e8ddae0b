//! A node with 512 devices: memory, files and idle work of the daemon per device, and recovery after a kill.

use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::report;
use holdfast_lab::vm::machine::MachineOptions;
use holdfast_lab::vm::{Vm, bash};
use holdfast_lab::wire::Exit;
use holdfast_lab::world::World;

use super::daemon::DaemonBench;
use super::{Bar, Figure};

/// Number of volumes attached at the same time.
const VOLUMES: u32 = 512;
/// Number of volumes of the baseline.
const FIRST: u32 = 2;
/// Maximum number of volumes that one script creates or attaches, because of its time limit.
const AT_A_TIME: u32 = 64;
/// No uploads, and two ring threads on any number of processors.
const DATA: &str = "ring_threads = 2\nslab_size = \"64Mi\"\nseal_size = \"2Gi\"\nmax_dirty_age = \"1h\"";
/// Volumes under verified load. A ring has buffers for 128 devices. With two rings, which get volumes
/// alternately, the last two of these volumes share buffers with the first two.
const LOADED: [u32; 4] = [1, 2, 257, 258];
/// Time of observing an idle daemon.
const IDLE_SECONDS: u32 = 240;
/// Maximum memory in KiB and number of files per device, and instructions per second of all devices.
const MAX_RSS_KIB: f64 = 64.0;
const MAX_FILES: f64 = 3.0;
const MAX_IDLE: f64 = 1e6;
/// Maximum wait for the daemon to serve all devices again, and for fio to exit.
const RECOVERY_LIMIT: Duration = Duration::from_secs(300);
const FIO: &str = "fio";
const SIGINT: i32 = 2;
/// Exit status of fio after that signal.
const INTERRUPTED: Exit = Exit::Code(128);

/// Prints the daemon's resident memory in KiB, its open files without connections, its processor time in
/// hundredths of a second, including ended threads, and the machine's uptime in seconds. It counts files for
/// five seconds and takes the fewest, because the measurement of the cache opens directories for a moment.
const SAMPLE: &str = r#"for process in /proc/[0-9]*; do
  if [ "$(cat "$process/comm" 2> /dev/null)" = holdfast-node ]; then daemon=$process; fi
done
rss=$(awk '/^VmRSS/ { print $2 }' "$daemon/status")
for _ in 1 2 3 4 5; do
  count=$(ls -l "$daemon/fd" | grep -c -v 'socket:')
  if [ -z "$files" ] || [ "$count" -lt "$files" ]; then files=$count; fi
  sleep 1
done
echo "$rss $files $(sed 's/.*) //' "$daemon/stat" | awk '{ print $12 + $13 }') $(cut -d ' ' -f 1 /proc/uptime)""#;
/// Instructions per hundredth of a second of the machine's clock.
const OF_A_HUNDREDTH: f64 = 1e7;

/// The daemon's resource use at a point in time.
struct DaemonUse {
    rss_kib: f64,
    files: f64,
    hundredths: f64,
    uptime_seconds: f64,
}

pub(super) fn run_zero_copy(world: &World) -> Result<Vec<Figure>> {
    let bench = DaemonBench::start_on(world, MachineOptions::benchmark(), DATA)?;
    let figures = measure(&bench, "")?;
    bench.vm.power_off()?;
    Ok(figures)
}

pub(super) fn run_user_copy(world: &World) -> Result<Vec<Figure>> {
    let mut bench = DaemonBench::start_on(world, MachineOptions::benchmark(), DATA)?;
    bench.restart_with("user-copy", DATA)?;
    let figures = measure(&bench, "usercopy_")?;
    bench.vm.power_off()?;
    Ok(figures)
}

fn measure(bench: &DaemonBench, prefix: &str) -> Result<Vec<Figure>> {
    let vm = &*bench.vm;
    each(vm, 1..=VOLUMES, "create \"$volume\" --size 64Mi --store store")?;
    // One volume per ring thread.
    each(vm, 1..=FIRST, "attach \"$volume\" --store store")?;
    let few = sample(vm)?;
    each(vm, FIRST + 1..=VOLUMES, "attach \"$volume\" --store store")?;
    let attached = devices(vm)?;
    let all = sample(vm)?;
    report::step("watch the idle daemon");
    let begin = sample(vm)?;
    vm.exec(&format!("sleep {IDLE_SECONDS}"))?;
    let end = sample(vm)?;
    let seconds = end.uptime_seconds - begin.uptime_seconds;
    let idle = (end.hundredths - begin.hundredths) * OF_A_HUNDREDTH / seconds;
    report::step("kill the daemon under load");
    let recovered = recovered(bench)?;
    let more = f64::from(VOLUMES - FIRST);
    let figure = |name: &str, value, unit, against: String, bar| Figure {
        name: format!("{prefix}{name}"),
        value,
        unit,
        against,
        bar: Some(bar),
    };
    Ok(vec![
        figure(
            "devices",
            f64::from(attached),
            "devices",
            format!("of {VOLUMES} on two ring threads"),
            Bar::AtLeast(VOLUMES.into()),
        ),
        figure(
            "rss_kib_per_device",
            (all.rss_kib - few.rss_kib) / more,
            "KiB",
            format!("{:.0} KiB with {VOLUMES}, {:.0} with {FIRST}", all.rss_kib, few.rss_kib),
            Bar::AtMost(MAX_RSS_KIB),
        ),
        figure(
            "fds_per_device",
            (all.files - few.files) / more,
            "files",
            format!("{:.0} with {VOLUMES}, {:.0} with {FIRST}", all.files, few.files),
            Bar::AtMost(MAX_FILES),
        ),
        figure(
            "idle_instructions_per_second_512",
            idle,
            "instructions",
            format!("of the daemon, user and kernel, over {seconds:.0} s; at most {MAX_IDLE}"),
            Bar::AtMost(MAX_IDLE),
        ),
        figure(
            "recovered",
            f64::from(recovered.devices),
            "devices",
            format!(
                "that answer a read after a kill, {:.1} s after the next daemon began; {:.0} of {:.0} requests copied before it",
                recovered.seconds, recovered.copied, recovered.requests
            ),
            Bar::AtLeast(VOLUMES.into()),
        ),
    ])
}

/// Recovery of the devices after a kill.
struct Recovered {
    devices: u32,
    /// Time until the successor reports all devices as attached, in seconds of the machine.
    seconds: f64,
    /// Requests of fio before the kill, and those that the daemon copied for lack of a buffer.
    requests: f64,
    copied: f64,
}

/// Kills the daemon while fio verifies its writes, and reads each device afterwards.
fn recovered(bench: &DaemonBench) -> Result<Recovered> {
    let vm = &*bench.vm;
    let paths = LOADED.map(|number| format!("$(device volume-{number})"));
    let jobs: String = paths.iter().map(|path| format!(" --name=job --filename={path}")).collect();
    vm.spawn(
        FIO,
        &bash(&format!(
            "{DEVICE}\nexec fio --direct=1 --ioengine=io_uring --iodepth=64 --rw=randrw --bs=4k --size=32M \
             --verify=crc32c --verify_backlog=64 --verify_fatal=1 --time_based --runtime=3600{jobs}"
        )),
    )?;
    let before = requests(vm)?;
    wait_requests(vm, 4000.0)?;
    // After the recovery, its order decides which devices share buffers.
    let (requests, copied) = (requests(vm)? - before, copied(bench)?);
    bench.node.kill()?;
    let begin = uptime(vm)?;
    bench.node.restart()?;
    vm.exec(&format!(
        "for _ in $(seq {}); do [ \"$(holdfast-node list | grep -c ' Attached ')\" = {VOLUMES} ] && exit 0; \
         sleep 1; done; holdfast-node list | grep -v ' Attached ' | head; exit 1",
        RECOVERY_LIMIT.as_secs()
    ))?;
    let seconds = uptime(vm)? - begin;
    let answered = vm.exec(&format!(
        "{DEVICE}\nanswered=0; for device in /dev/ublkb*; do \
         if timeout 20 dd if=$device bs=4096 count=1 iflag=direct status=none > /dev/null; then \
         answered=$((answered + 1)); fi; done; echo $answered"
    ))?;
    wait_requests(vm, 4000.0)?;
    vm.signal(FIO, SIGINT)?;
    let exit = vm.wait(FIO, RECOVERY_LIMIT)?;
    let log = vm.log(FIO)?;
    let is_right = log.contains("err= 0") && log.matches("err=").count() == log.matches("err= 0").count();
    ensure!(exit == INTERRUPTED && is_right, "fio ended by {exit:?}: {log}");
    let devices = answered.trim().parse().with_context(|| format!("devices that answered: {answered:?}"))?;
    Ok(Recovered { devices, seconds, requests, copied })
}

/// Returns the number of requests that the daemon copied for lack of a buffer.
fn copied(bench: &DaemonBench) -> Result<f64> {
    let metrics = bench.node.metrics()?;
    let counts = metrics.lines().filter(|line| line.starts_with("holdfast_ring_copied_requests_total"));
    Ok(counts.filter_map(|line| line.rsplit(' ').next()?.trim().parse::<f64>().ok()).sum())
}

/// A shell function that prints the path of a volume's device.
const DEVICE: &str = "device() { holdfast-node list | awk -v volume=\"$1\" '$1 == volume { print $3 }'; }";

/// Runs the daemon's command line once per volume.
fn each(vm: &Vm, volumes: RangeInclusive<u32>, order: &str) -> Result<()> {
    for first in volumes.clone().step_by(AT_A_TIME as usize) {
        let last = volumes.end().min(&(first + AT_A_TIME - 1)).to_owned();
        vm.exec(&format!(
            "for volume in $(seq -f volume-%.0f {first} {last}); do holdfast-node {order} > /dev/null; done"
        ))?;
        report::step(format_args!("{order}: {last}"));
    }
    Ok(())
}

/// Returns the number of block devices.
fn devices(vm: &Vm) -> Result<u32> {
    let counted = vm.exec("ls /sys/block | grep -c '^ublkb'")?;
    counted.trim().parse().with_context(|| format!("count the devices: {counted:?}"))
}

fn sample(vm: &Vm) -> Result<DaemonUse> {
    let said = vm.exec(SAMPLE)?;
    let values: Vec<f64> = said.split_whitespace().filter_map(|value| value.parse().ok()).collect();
    let [rss_kib, files, hundredths, uptime_seconds] =
        values.try_into().ok().with_context(|| format!("a sample of the daemon: {said:?}"))?;
    Ok(DaemonUse { rss_kib, files, hundredths, uptime_seconds })
}

/// Returns the machine's uptime in seconds.
fn uptime(vm: &Vm) -> Result<f64> {
    let said = vm.exec("cut -d ' ' -f 1 /proc/uptime")?;
    said.trim().parse().with_context(|| format!("the time of the machine: {said:?}"))
}

/// Returns the number of reads and writes completed by all devices.
fn requests(vm: &Vm) -> Result<f64> {
    let said = vm.exec("cat /sys/block/ublkb*/stat | awk '{ sum += $1 + $5 } END { print sum }'")?;
    said.trim().parse().with_context(|| format!("count the requests: {said:?}"))
}

/// Waits until the devices have completed `more` further requests.
fn wait_requests(vm: &Vm, more: f64) -> Result<()> {
    let due = requests(vm)? + more;
    for _ in 0..RECOVERY_LIMIT.as_secs() {
        ensure!(vm.status(FIO)?.is_none(), "fio ended: {}", vm.log(FIO)?);
        if requests(vm)? >= due {
            return Ok(());
        }
        vm.exec("sleep 1")?;
    }
    anyhow::bail!("no {more} requests within {RECOVERY_LIMIT:?}: {}", vm.log(FIO)?)
}
