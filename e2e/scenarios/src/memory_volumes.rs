//! Memory volumes of the command line: the daemon is killed, ended and replaced while they are in use, and
//! each page is unchanged, in memory or in the spill file; volumes grow in the meantime; a full one fails
//! writes and loses nothing; a detach leaves nothing behind.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::churn::ensure_reported_exist;
use holdfast_lab::node::{ControlInterface, NodeDaemon, SIGKILL};
use holdfast_lab::report;
use holdfast_lab::vm::machine::MachineOptions;
use holdfast_lab::vm::{Vm, bash};
use holdfast_lab::wait::until;
use holdfast_lab::wire::Exit;
use holdfast_lab::world::World;

use super::load::Load;

const BUCKET: &str = "memory";
/// More than the maximum of its volumes together.
const MEMORY: &str = "memory_volumes = \"1Gi\"\nmemory_spill = \"64Mi\"\nring_threads = 4";
/// Fills the state disk completely.
const FILL: &str = "fallocate -l $(($(stat -f -c '%f * %S' /state))) /state/filler || true; \
                    dd if=/dev/zero of=/state/filler.rest bs=4k status=none || true; sync";
const EMPTY: &str = "rm /state/filler*";
const SOURCE: &str = "/dev/shm/source";
/// Exits of the daemon, in this order.
const ENDS: [DaemonEnd; 5] =
    [DaemonEnd::Kill, DaemonEnd::Handoff, DaemonEnd::Kill, DaemonEnd::Restart, DaemonEnd::Kill];
/// Maximum run time of fio, in seconds of the machine's time: it is ended before.
const LOAD_SECONDS: u32 = 900;
const LIMIT: Duration = Duration::from_secs(60);
const END_LIMIT: Duration = Duration::from_secs(300);
/// Threads that write to the file system.
const WORKERS: u32 = 2;
/// Sizes of a volume under load, in MiB: each exit of the daemon interrupts a growth.
const FIRST_MIB: u32 = 256;
const STEP_MIB: u32 = 16;
const MAX_MIB: u32 = 336;
/// The first kernel that resizes a device in use. An older one rejects the growth.
const RESIZES_SINCE: &str = "Linux 6.16";
/// Maximum bytes of one discard.
const MAX_DISCARD_BYTES: u32 = 4 << 20;
const AT: &str = "/mnt";

/// A way for the daemon to exit.
#[derive(Debug, Clone, Copy)]
enum DaemonEnd {
    Kill,
    Restart,
    /// A successor is started first.
    Handoff,
}

impl DaemonEnd {
    /// Ends the daemon of the node, and starts the next one.
    fn play(self, node: &NodeDaemon) -> Result<()> {
        match self {
            Self::Kill => node.kill().and_then(|()| node.restart()),
            Self::Restart => node.terminate().and_then(|()| node.restart()),
            Self::Handoff => node.hand_over(),
        }
    }
}

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let node =
        NodeDaemon::start(machine(world)?, &ControlInterface::standalone(&s3, BUCKET), "auto", MEMORY)?;
    end_daemon(&node, &ENDS)?;
    take_processor_offline(&node)?;
    check_full_volume(&node)?;
    check_overwrites(&node)?;
    check_spill(&node)?;
    check_refusals(&node)?;
    ensure!(node.cli(&["list", "--json"])?.contains("\"volumes\": []"), "all are detached");
    Ok(())
}

/// Runs this many kills of the daemon, each followed by a handoff.
///
/// # Errors
/// A page differs from the written one, or a device hangs.
pub fn rounds(world: &World, kills: usize) -> Result<()> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let node =
        NodeDaemon::start(machine(world)?, &ControlInterface::standalone(&s3, BUCKET), "auto", MEMORY)?;
    end_daemon(&node, &[DaemonEnd::Kill, DaemonEnd::Handoff].repeat(kills))
}

/// Ends the daemon while a file system is in use and fio verifies its writes.
fn end_daemon(node: &NodeDaemon, all: &[DaemonEnd]) -> Result<()> {
    let vm = node.vm();
    let files = attach(node, &["files", "--memory", &format!("{FIRST_MIB}Mi")])?;
    vm.exec(&format!("mkfs.ext4 -q -F {files} >&2; mount {files} {AT}"))?;
    vm.spawn("churn", &bash(&format!("exec holdfast-e2e churn {AT} {WORKERS}")))?;
    let raw = attach(node, &["raw", "--memory", "64Mi", "--compression", "zstd"])?;
    let listed = node.cli(&["list", "--json"])?;
    ensure!(listed.matches("\"ublk-kernel-copy\"").count() == 2, "no system call moves data: {listed}");
    // The daemon has four ring threads, and each queue two processors.
    vm.exec(&format!(
        "queues=$(($(nproc) < 4 ? 1 : 2)); for device in {files} {raw}; do \
         test $(ls /sys/block/${{device#/dev/}}/mq | wc -l) = $queues || exit 1; done"
    ))?;
    // Meanwhile, a ring thread serves nothing else.
    let queue = raw.replace("/dev/", "/sys/block/");
    vm.exec(&format!("test $(cat {queue}/queue/discard_max_bytes) = {MAX_DISCARD_BYTES}"))?;
    let load = Load::start(vm, &raw, LOAD_SECONDS)?;
    let grows = can_grow_in_use(node)?;
    let mut mib = FIRST_MIB;
    for (number, end) in all.iter().enumerate() {
        // The size of the last ones is requested again.
        mib = MAX_MIB.min(mib + STEP_MIB);
        let grow = ["grow", "files", &format!("{mib}Mi")];
        vm.spawn(&format!("grow-{number}"), &bash(&format!("exec holdfast-node {}", grow.join(" "))))?;
        end.play(node)?;
        // The successor may still be recovering the volume.
        until("the growth", LIMIT, || match node.cli(&grow) {
            Err(refused) if !grows && refused.to_string().contains(RESIZES_SINCE) => Ok(Some(())),
            grown => Ok(grown.inspect_err(|error| report::step(error)).ok().map(drop)),
        })?;
        let bytes = u64::from(if grows { mib } else { FIRST_MIB }) << 20;
        vm.exec(&format!("test $(blockdev --getsize64 {files}) = {bytes} && resize2fs {files} >&2"))?;
        load.wait_progress()?;
        let ended = vm.status("churn")?;
        ensure!(ended.is_none(), "churn ended: {ended:?}\n{}", vm.log("churn")?);
        report::step(format_args!("{end:?} is over"));
    }
    load.stop()?;
    vm.signal("churn", SIGKILL)?;
    vm.wait("churn", END_LIMIT)?;
    let refused = node.cli(&["detach", "files"]).err().context("it is mounted")?;
    ensure!(format!("{refused:#}").contains("is in use"), "{refused:#}");
    // Not from the page cache: the device has the only relevant copy.
    let found = vm.exec(&format!(
        "umount {AT}; echo 3 > /proc/sys/vm/drop_caches; e2fsck -fn {files} >&2; mount {files} {AT}; \
         holdfast-e2e churn-check {AT}; umount {AT}; ! dmesg | grep -iE 'I/O error|corrupt' >&2"
    ))?;
    ensure_reported_exist(&vm.log("churn")?, &found)?;
    for name in ["files", "raw"] {
        let refused = node.metric("holdfast_volume_memory_refused_pages_total", name)?;
        ensure!(refused == Some(0.0), "{name}: {refused:?} pages were refused");
        node.cli(&["detach", name])?;
    }
    vm.exec(&format!("! test -e {files}; ! test -e {raw}"))?;
    // A new one of the same name has none of its content.
    let files = attach(node, &["files", "--memory", "256Mi"])?;
    vm.exec(&format!("cmp -n 268435456 {files} /dev/zero"))?;
    node.cli(&["detach", "files"]).map(drop)
}

/// Returns a machine on which devices have two queues, if its kernel boots with enough processors.
fn machine(world: &World) -> Result<Arc<Vm>> {
    world.vm_with("a", || MachineOptions { processors: 4, ..MachineOptions::node() })
}

/// A processor goes offline while one of its requests waits for the next daemon. Regression: with one queue
/// per processor, this waited for the request, and the start of the daemon for the processor.
fn take_processor_offline(node: &NodeDaemon) -> Result<()> {
    let vm = node.vm();
    if vm.exec("nproc")?.trim() == "1" {
        report::step("SKIP a processor goes offline: the machine has one");
        return Ok(());
    }
    let device = attach(node, &["offline", "--memory", "64Mi"])?;
    node.kill()?;
    let write =
        format!("exec taskset -c 1 dd if=/dev/zero of={device} bs=64k count=64 oflag=direct status=none");
    vm.spawn("offline-writer", &bash(&write))?;
    vm.exec("sleep 1; timeout 30 bash -c 'echo 0 > /sys/devices/system/cpu/cpu1/online'")?;
    node.restart()?;
    let written = vm.wait("offline-writer", END_LIMIT)?;
    ensure!(written == Exit::Code(0), "{written:?}: {}", vm.log("offline-writer")?);
    vm.exec("echo 1 > /sys/devices/system/cpu/cpu1/online")?;
    node.cli(&["detach", "offline"]).map(drop)
}

/// At its limit, a volume fails writes with ENOSPC, keeps its content, and accepts writes again after a
/// discard.
fn check_full_volume(node: &NodeDaemon) -> Result<()> {
    let device = attach(node, &["full", "--memory", "64Mi", "--memory-limit", "16Mi"])?;
    let vm = node.vm();
    let write = |at: u32, mib: u32| {
        format!(
            "dd if=/dev/urandom of={device} bs=1M count={mib} seek={at} oflag=direct conv=notrunc status=none"
        )
    };
    let sum = || vm.exec(&format!("dd if={device} bs=1M count=8 iflag=direct status=none | sha256sum"));
    vm.exec(&write(0, 8))?;
    let before = sum()?;
    let found = vm.exec(&format!("if {} 2>&1; then echo written; fi", write(8, 56)))?;
    ensure!(found.contains("No space left on device"), "{found}");
    ensure!(sum()? == before, "what was stored changed when the volume was full");
    node.kill()?;
    node.restart()?;
    ensure!(sum()? == before, "what was stored changed when the daemon was killed");
    vm.exec(&format!("blkdiscard -o 8M -l 56M {device}; {}", write(20, 4)))?;
    ensure!(sum()? == before, "what was stored changed when other pages were discarded");
    // With a higher limit, it accepts as much as permitted.
    node.cli(&["grow", "full", "64Mi", "--memory-limit", "128Mi"])?;
    vm.exec(&write(8, 56))?;
    ensure!(sum()? == before, "what was stored changed when the limit rose");
    node.cli(&["detach", "full"]).map(drop)
}

/// A full volume of pages that compress by a fifth is overwritten in random order with pages that do not
/// compress. Regression: without compaction, writes failed with ENOSPC after a fifth of the pages.
fn check_overwrites(node: &NodeDaemon) -> Result<()> {
    let device = attach(node, &["overwritten", "--memory", "64Mi"])?;
    let vm = node.vm();
    let fio = |name: &str, options: &str| {
        let common = "--thread --ioengine=psync --direct=1 --size=64M --bs=4k --randseed=7";
        vm.exec(&format!("fio --name={name} --filename={device} {common} {options} >&2"))
    };
    fio("fill", "--rw=write --refill_buffers --buffer_compress_percentage=20 --buffer_compress_chunk=4k")?;
    fio("overwrite", "--rw=randwrite --verify=crc32c --verify_fatal=1")?;
    let moved = || node.metric("holdfast_volume_memory_moved_pages_total", "overwritten");
    until("the figures", LIMIT, || Ok(moved()?.filter(|pages| *pages > 0.0)))?;
    let count = "holdfast_volume_request_seconds_count{volume=\"overwritten\",operation=\"write\"} ";
    let metrics = node.metrics()?;
    let timed = metrics.lines().find_map(|line| line.strip_prefix(count)?.trim().parse().ok());
    ensure!(timed.is_some_and(|writes: u64| writes >= 2 * 16_384 / 64), "{timed:?} writes are timed");
    node.kill()?;
    node.restart()?;
    fio("read", "--rw=randwrite --verify=crc32c --verify_fatal=1 --verify_only")?;
    node.cli(&["detach", "overwritten"]).map(drop)
}

/// Pages beyond the limit go to the spill file: they are unchanged after kills and a handoff, a discard frees
/// their space, and a full disk fails writes and loses nothing.
fn check_spill(node: &NodeDaemon) -> Result<()> {
    let arguments = ["--memory", "64Mi", "--memory-limit", "16Mi", "--memory-spill"];
    let device = attach(node, &[&["spill"][..], &arguments, &["56Mi"]].concat())?;
    let vm = node.vm();
    // All of the device is written, four times its memory.
    let copy = |skip: u32, mib: u32| {
        format!(
            "dd if={SOURCE} of={device} bs=1M skip={skip} seek={skip} count={mib} oflag=direct conv=notrunc status=none"
        )
    };
    let compare = format!("echo 3 > /proc/sys/vm/drop_caches; cmp {SOURCE} {device}");
    vm.exec(&format!("head -c 64M /dev/urandom > {SOURCE}; {}; {compare}", copy(0, 64)))?;
    let spilled_mib = || {
        let bytes = node.metric("holdfast_volume_memory_spilled_bytes", "spill")?.unwrap_or_default();
        anyhow::Ok(bytes / f64::from(1 << 20))
    };
    let blocks_mib = || {
        let found = vm.exec("du -m /var/lib/holdfast/memory.d/spill | cut -f 1")?;
        found.trim().parse::<u32>().context("du prints a number")
    };
    vm.exec("sleep 1")?;
    let spilled = spilled_mib()?;
    ensure!((48.0..=52.0).contains(&spilled), "{spilled} MiB are spilled");
    let load = Load::start(vm, &device, LOAD_SECONDS)?;
    for end in [DaemonEnd::Kill, DaemonEnd::Handoff, DaemonEnd::Kill] {
        end.play(node)?;
        load.wait_progress()?;
        report::step(format_args!("{end:?} is over with pages in the spill file"));
    }
    load.stop()?;
    let refused = node.metric("holdfast_volume_memory_refused_pages_total", "spill")?;
    ensure!(refused == Some(0.0), "{refused:?} pages were refused below the limit");
    vm.exec(&format!("{}; {compare}", copy(0, 64)))?;
    node.kill()?;
    node.restart()?;
    vm.exec(&compare)?;
    let before = blocks_mib()?;
    ensure!((44..=57).contains(&before), "the spill file has {before} MiB");
    vm.exec(&format!("blkdiscard {device}"))?;
    let after = blocks_mib()?;
    ensure!(after <= 1, "the spill file keeps {after} MiB of {before} that were discarded");
    // The disk of the spill file is full: stored content stays, and its space is available again later.
    vm.exec(&format!("{}; {FILL}", copy(0, 20)))?;
    let found = vm.exec(&format!("if {} 2>&1; then echo written; fi", copy(20, 44)))?;
    ensure!(found.contains("No space left on device"), "{found}");
    let first = format!("echo 3 > /proc/sys/vm/drop_caches; cmp -n 20971520 {SOURCE} {device}");
    vm.exec(&first)?;
    node.kill()?;
    node.restart()?;
    vm.exec(&format!("{first}; {EMPTY}; {}; {compare}; rm {SOURCE}", copy(20, 44)))?;
    let more = [&["more"][..], &arguments, &["9Mi"]].concat();
    let refused = node.cli(&[&["attach"][..], &more].concat()).err().context("56 of 64 MiB are taken")?;
    ensure!(format!("{refused:#}").contains("8Mi of data.memory_spill (64Mi) is left"), "{refused:#}");
    // It grows by the rest of the disk, and its new pages spill. The limit rises on every kernel.
    let mib = if can_grow_in_use(node)? { 72 } else { 64 };
    node.cli(&["grow", "spill", &format!("{mib}Mi"), "--memory-spill", "64Mi"])?;
    vm.exec(&format!(
        "head -c {mib}M /dev/urandom > {SOURCE}; {}; echo 3 > /proc/sys/vm/drop_caches; \
         cmp {SOURCE} {device}; rm {SOURCE}",
        copy(0, mib)
    ))?;
    node.kill()?;
    node.restart()?;
    vm.exec(&format!("test $(blockdev --getsize64 {device}) = {}", mib << 20))?;
    node.cli(&["detach", "spill"])?;
    vm.exec("! ls -d /var/lib/holdfast/memory.d/* >&2").map(drop)
}

/// Requests that do not apply to memory volumes are rejected with the field and the fix.
fn check_refusals(node: &NodeDaemon) -> Result<()> {
    attach(node, &["small", "--memory", "4Mi"])?;
    let beyond_node = if can_grow_in_use(node)? { "is left on this node" } else { RESIZES_SINCE };
    for (arguments, words) in [
        (&["grow", "small", "2Mi"][..], "is attached on this node with 4Mi, and the request has 2Mi"),
        (&["grow", "small", "8Mi", "--memory-spill", "8Mi"], "cannot gain a spill file"),
        (&["grow", "small", "2Gi"], beyond_node),
        (&["configure", "small", "--durability", "object"], "has no durability"),
        (&["snapshot", "create", "small"], "has no snapshots. Nothing was changed. Copy its files"),
        (&["attach", "small", "--store", "store"], "has no store"),
    ] {
        let refused = node.cli(arguments).err().context("it is refused")?;
        ensure!(format!("{refused:#}").contains(words), "{arguments:?}: {refused:#}");
    }
    node.cli(&["detach", "small"]).map(drop)
}

/// Returns true if the node's kernel resizes devices in use.
fn can_grow_in_use(node: &NodeDaemon) -> Result<bool> {
    let kernels = format!("printf '%s\\n' '{RESIZES_SINCE}' \"Linux $(uname -r)\"");
    Ok(!node.vm().exec(&format!("{kernels} | sort -VC && echo it does || true"))?.is_empty())
}

fn attach(node: &NodeDaemon, arguments: &[&str]) -> Result<String> {
    let device = node.cli(&[&["attach"], arguments].concat())?.trim().to_owned();
    node.vm().wait_block_device(&device, LIMIT)?;
    Ok(device)
}
