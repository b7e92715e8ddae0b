//! Limits of a volume under load: they hold within 5 %, change while programs run, survive restarts of the
//! daemon, and keep a busy volume from slowing a quiet one down. The machine's clock counts instructions and
//! its disk is in memory, so that a busy host does not lower the rates.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use holdfast_lab::node::{ControlInterface, NodeDaemon};
use holdfast_lab::report;
use holdfast_lab::s3::S3Server;
use holdfast_lab::vm::machine::MachineOptions;
use holdfast_lab::vm::{Vm, bash};
use holdfast_lab::wait::until;
use holdfast_lab::world::World;
use serde_json::Value;

use super::load::Load;

const BUCKET: &str = "limits";
/// Delayed uploads: only the device is measured. One ring thread, which volumes share.
const CONFIG: &str =
    "seal_size = \"2Gi\"\nmax_dirty_age = \"1h\"\nmemory_volumes = \"256Mi\"\nring_threads = 1";
/// Maximum run time of fio, in seconds of the machine's time: it is ended before.
const LOAD_SECONDS: u32 = 600;
const LIMIT: Duration = Duration::from_secs(60);
/// Maximum relative deviation of a measured rate from its limit.
const ERROR: f64 = 0.05;
/// Maximum 99th percentile of the quiet volume next to a memory volume, in microseconds: with zstd a turn of
/// the ring thread has up to 6 ms by the machine's clock.
const MEMORY_P99_US: f64 = 20_000.0;
/// Maximum requests of 128 KiB of a volume in flight on local files: 2 MiB (`MOVING_BYTES`).
const MAX_LARGE: u64 = 16;
/// Requests of the file system itself at the same time: its journal, pages of the map.
const MAX_OTHERS: u64 = 8;
/// Name of the busy neighbour's fio among the machine's programs.
const NOISE: &str = "noise";
const SIGKILL: i32 = 9;

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let vm = world.vm_with("a", MachineOptions::benchmark)?;
    vm.exec(
        "modprobe brd rd_nr=1 rd_size=1048576; mkfs.ext4 -q -F /dev/ram0; mount /dev/ram0 /var/lib/holdfast",
    )?;
    let node = NodeDaemon::start(vm, &ControlInterface::standalone(&s3, BUCKET), "zero-copy", CONFIG)?;
    let busy = attach(&node, "busy", &["--max-iops", "500"])?;
    let quiet = attach(&node, "quiet", &[])?;
    check_rates(&node, &busy)?;
    change_under_load(&node, &busy)?;
    check_neighbour(&node, &busy, &quiet)?;
    check_memory_neighbour(&node, &quiet)?;
    for volume in ["busy", "quiet"] {
        node.cli(&["detach", volume])?;
    }
    drop(node);
    check_slow_disk(world, &s3)
}

/// Checks on a disk that takes 2 ms per request that a busy volume does not fill its queue.
fn check_slow_disk(world: &World, s3: &S3Server) -> Result<()> {
    report::step("a noisy neighbour on a slow disk");
    let vm = world.vm_with("b", MachineOptions::benchmark)?;
    vm.exec(
        "modprobe null_blk nr_devices=0; mount -t configfs none /sys/kernel/config; cd /sys/kernel/config/nullb; \
         mkdir slow; cd slow; echo 1024 > size; echo 1 > memory_backed; echo 4096 > blocksize; \
         echo 128 > hw_queue_depth; echo 2 > irqmode; echo 2000000 > completion_nsec; echo 1 > power; cd /; \
         mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 /dev/slow; mount /dev/slow /var/lib/holdfast",
    )?;
    let node = NodeDaemon::start(vm, &ControlInterface::standalone(s3, BUCKET), "zero-copy", CONFIG)?;
    let busy = attach(&node, "busy-2", &[])?;
    start_noise(&node, &busy)?;
    let script = "cat /sys/block/slow/queue/max_sectors_kb; for at in {1..200}; do \
                  read -r reads writes < /sys/block/slow/inflight; echo $((reads + writes)); sleep 0.01; done | \
                  sort -n | tail -n 1";
    let out = node.vm().exec(script)?;
    let numbers: Vec<u64> = out.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [longest_kib, most] = numbers[..] else { bail!("two numbers, not {out:?}") };
    node.vm().signal(NOISE, SIGKILL)?;
    node.vm().wait(NOISE, LIMIT)?;
    // The disk divides requests that are longer than its longest.
    let allowed = MAX_LARGE * 128_u64.div_ceil(longest_kib);
    report::step(format_args!("{most} requests in flight on the disk, of {allowed}"));
    ensure!((allowed / 2..=allowed + MAX_OTHERS).contains(&most), "{most} requests in flight on the disk");
    Ok(())
}

/// Attaches a volume, and writes its first 64 MiB.
fn attach(node: &NodeDaemon, volume: &str, limits: &[&str]) -> Result<String> {
    node.cli(&["create", volume, "--size", "256Mi", "--store", "store"])?;
    let device = node.cli(&[&["attach", volume, "--store", "store"], limits].concat())?.trim().to_owned();
    node.vm().wait_block_device(&device, LIMIT)?;
    node.vm().exec(&format!("dd if=/dev/zero of={device} bs=128k count=512 oflag=direct status=none"))?;
    Ok(device)
}

fn configure(node: &NodeDaemon, limits: &[&str]) -> Result<()> {
    node.cli(&[&["configure", "busy"], limits].concat()).map(drop)
}

/// Tests each limit alone, for each type of load that it affects.
fn check_rates(node: &NodeDaemon, device: &str) -> Result<()> {
    report::step("rates at their limits");
    let listed: Value = serde_json::from_str(&node.cli(&["list", "--json"])?)?;
    ensure!(listed["volumes"][0]["limits"]["iops"] == 500, "{listed}");
    let mut worst: f64 = 0.0;
    for (limit, pattern, depth) in [(500, "randwrite", 32), (2000, "randread", 32), (100, "randrw", 1)] {
        configure(node, &["--max-iops", &limit.to_string()])?;
        let job = format!("--rw={pattern} --bs=4k --iodepth={depth}");
        let measured = rate(&fio(node.vm(), device, &job)?, "iops")?;
        worst = worst.max(deviation(&format!("{pattern}, {depth} in flight"), measured, f64::from(limit)));
    }
    report::step(format_args!("limit_iops_error {worst:.4}"));
    ensure!(worst <= ERROR, "a rate is {:.1} % off its limit", worst * 100.0);
    configure(node, &["--max-iops", "none", "--max-throughput", "16Mi"])?;
    let job = "--rw=randrw --bs=128k --iodepth=8";
    let off = deviation("bytes", rate(&fio(node.vm(), device, job)?, "bw_bytes")?, f64::from(16 << 20));
    ensure!(off <= ERROR, "the throughput is {:.1} % off its limit", off * 100.0);
    let limited =
        node.metric("holdfast_volume_limited_seconds_total", "busy")?.context("the time of waits")?;
    ensure!(limited > 1.0, "requests waited for {limited} s");
    for (limits, words) in [
        (["--max-iops", "9"], "limits.iops: 9 is out of range"),
        (["--max-throughput", "512Ki"], "limits.bytes_per_second: 524288 is out of range"),
    ] {
        let refused = configure(node, &limits).err().context("the limit is too small")?;
        ensure!(format!("{refused:#}").contains(words), "{refused:#}");
    }
    Ok(())
}

/// The limits change, and the daemon is killed and replaced, while a program verifies its writes.
fn change_under_load(node: &NodeDaemon, device: &str) -> Result<()> {
    report::step("changes and restarts under load");
    configure(node, &["--max-throughput", "none", "--max-iops", "300"])?;
    let load = Load::start(node.vm(), device, LOAD_SECONDS)?;
    let holds = |when: &str, limit: u32| -> Result<()> {
        load.check()?;
        let off = deviation(when, measure_rate(node.vm(), device, 5)?, f64::from(limit));
        ensure!(off <= ERROR, "{when}: {:.1} % off", off * 100.0);
        load.check()
    };
    holds("at 300", 300)?;
    configure(node, &["--max-iops", "500"])?;
    holds("raised to 500", 500)?;
    configure(node, &["--max-iops", "150"])?;
    holds("lowered to 150", 150)?;
    node.kill()?;
    node.restart()?;
    holds("after a kill", 150)?;
    node.terminate()?;
    node.restart()?;
    holds("after a restart", 150)?;
    configure(node, &["--max-iops", "none"])?;
    let free = measure_rate(node.vm(), device, 2)?;
    report::step(format_args!("without a limit: {free:.0} IOPS"));
    ensure!(free > 400.0, "{free} IOPS once the limit is gone");
    load.stop()
}

/// The 99th percentile of reads of a quiet volume: alone, next to a neighbour without a limit, and next to
/// one with a limit.
fn check_neighbour(node: &NodeDaemon, busy: &str, quiet: &str) -> Result<()> {
    report::step("a noisy neighbour");
    let alone = p99(node, quiet, "alone")?;
    start_noise(node, busy)?;
    let noisy = p99_with_noise(node, quiet, busy, "next to a neighbour without a limit")?;
    configure(node, &["--max-iops", "200"])?;
    let limited = p99_with_noise(node, quiet, busy, "next to one with 200 IOPS")?;
    node.vm().signal(NOISE, SIGKILL)?;
    node.vm().wait(NOISE, LIMIT)?;
    report::step(format_args!(
        "noisy_neighbour_p99 {:.2} of that alone with the limit, {:.2} without",
        limited / alone,
        noisy / alone
    ));
    configure(node, &["--max-iops", "none"])?;
    ensure!(limited < noisy, "p99 {limited:.0} us with the limit, {noisy:.0} us without");
    Ok(())
}

/// Measures next to a memory volume: the ring thread itself compresses its requests.
fn check_memory_neighbour(node: &NodeDaemon, quiet: &str) -> Result<()> {
    report::step("a noisy memory volume");
    let device = node.cli(&["attach", "memory", "--memory", "128Mi", "--compression", "zstd"])?;
    let device = device.trim().to_owned();
    node.vm().wait_block_device(&device, LIMIT)?;
    start_noise(node, &device)?;
    let noisy = p99_with_noise(node, quiet, &device, "next to a memory volume")?;
    node.vm().signal(NOISE, SIGKILL)?;
    node.vm().wait(NOISE, LIMIT)?;
    ensure!(noisy <= MEMORY_P99_US, "p99 {noisy:.0} us next to a memory volume");
    node.cli(&["detach", "memory"]).map(drop)
}

/// Returns the 99th percentile of single reads with noise at another volume. Fails if that noise has ended.
fn p99_with_noise(node: &NodeDaemon, quiet: &str, busy: &str, of: &str) -> Result<f64> {
    let us = p99(node, quiet, of)?;
    let rate = measure_rate(node.vm(), busy, 2)?;
    report::step(format_args!("the neighbour has {rate:.0} requests a second"));
    ensure!(rate > 10.0, "the neighbour is quiet");
    Ok(us)
}

/// Returns the 99th percentile of single reads of a volume, in microseconds.
fn p99(node: &NodeDaemon, device: &str, of: &str) -> Result<f64> {
    let job = "--rw=randread --bs=4k --iodepth=1 --rate_iops=200";
    let report = fio(node.vm(), device, job)?;
    let ns = report.pointer("/read/clat_ns/percentile/99.000000").and_then(Value::as_f64);
    let us = ns.context("fio's percentile")? / 1000.0;
    report::step(format_args!("p99 of the quiet volume, {of}: {us:.0} us"));
    Ok(us)
}

/// Keeps 64 requests of 128 KiB in flight at a device.
fn start_noise(node: &NodeDaemon, device: &str) -> Result<()> {
    let noise = format!(
        "exec fio --name=noise --thread --filename={device} --direct=1 --ioengine=io_uring --rw=randrw --bs=128k \
         --iodepth=64 --size=64M --norandommap --time_based --runtime={LOAD_SECONDS}"
    );
    node.vm().spawn(NOISE, &bash(&noise))?;
    until("the neighbour to begin", LIMIT, || Ok((measure_rate(node.vm(), device, 1)? > 0.0).then_some(())))
}

/// Returns the relative deviation of a measured rate from its limit.
fn deviation(of: &str, measured: f64, limit: f64) -> f64 {
    let off = (measured / limit - 1.0).abs();
    report::step(format_args!("{of}: {measured:.1} a second, limit {limit:.0}, {:.2} % off", off * 100.0));
    off
}

/// Returns the requests per second that the kernel completed on the device, over this much of the machine's
/// time. A preceding second and a half does not count: a change takes effect, and credit is used up.
fn measure_rate(vm: &Vm, device: &str, seconds: u32) -> Result<f64> {
    let name = device.trim_start_matches("/dev/");
    let script = format!(
        "look() {{ read -r -a stat < /sys/block/{name}/stat; read -r up _ < /proc/uptime;\n\
         echo $((stat[0] + stat[4])) $up; }}\n sleep 1.5; look; sleep {seconds}; look"
    );
    let out = vm.exec(&script)?;
    let numbers: Vec<f64> = out.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [done, since, done_later, later] = numbers[..] else { bail!("four numbers, not {out:?}") };
    Ok((done_later - done) / (later - since))
}

/// Returns the report of a job of eight seconds, after two in which credit is used up.
fn fio(vm: &Vm, device: &str, job: &str) -> Result<Value> {
    let script = format!(
        "exec fio --name=job --filename={device} --direct=1 --ioengine=io_uring --norandommap --size=64M \
         --time_based --ramp_time=2 --runtime=8 --output-format=json {job}"
    );
    let out = vm.exec(&script)?;
    let start = out.find('{').context("fio printed no JSON")?;
    let report: Value = serde_json::from_str(&out[start..]).context("read fio's report")?;
    let job = report.pointer("/jobs/0").context("fio reports no job")?;
    ensure!(job["error"] == 0, "fio saw error {}", job["error"]);
    Ok(job.clone())
}

/// Returns a figure for reads and writes together.
fn rate(report: &Value, name: &str) -> Result<f64> {
    let of = |side: &str| report[side][name].as_f64().with_context(|| format!("{side} has no {name}"));
    Ok(of("read")? + of("write")?)
}
