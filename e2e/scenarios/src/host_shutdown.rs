//! An orderly shutdown of the machine completes, even with file systems under load and with requests that
//! wait for the store; flushed data is available after the next boot.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::node::{ControlInterface, NodeDaemon, PROGRAM};
use holdfast_lab::report;
use holdfast_lab::vm::{Vm, bash};
use holdfast_lab::wait::until;
use holdfast_lab::world::World;

const BUCKET: &str = "shutdown";
const LIMIT: Duration = Duration::from_secs(120);
/// Maximum duration of a shutdown, in time of the host: the machine is emulated.
const SHUT_DOWN_LIMIT: Duration = Duration::from_secs(180);
/// Stays mounted until the machine powers off.
const MOUNTED: &str = "mounted";
/// Is unmounted once its program is asked to exit, like a mount unit of systemd.
const UNMOUNTED: &str = "unmounted";
/// Its flushes wait for the store.
const WAITING: &str = "waiting";
/// Beginning of `/proc/PID/syscall` in fsync(2) on x86-64. Before Linux 6.10 the counters of a block device
/// contain no flush.
const FSYNC: &str = "74 ";

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let control = ControlInterface::standalone(&s3, BUCKET);
    let node = NodeDaemon::start(world.vm("a")?, &control, "auto", "memory_volumes = \"128Mi\"")?;
    let vm = node.vm();
    for name in [MOUNTED, UNMOUNTED, WAITING] {
        node.cli(&["create", name, "--size", "256Mi", "--store", "store"])?;
        let device = attach(&node, name)?;
        if name != WAITING {
            vm.exec(&format!("mkfs.ext4 -q {device}"))?;
        }
        mount(vm, name, &device)?;
    }

    // Regression, found in review: its device was left to the next daemon, and the shutdown waited for it.
    let scratch = node.cli(&["attach", "scratch", "--memory", "64Mi"])?.trim().to_owned();
    vm.wait_block_device(&scratch, LIMIT)?;
    vm.exec(&format!(
        "mkfs.ext4 -q {scratch}; mkdir -p /run/scratch; mount {scratch} /run/scratch; dd if=/dev/zero of=/run/scratch/file \
         bs=1M count=8 status=none"
    ))?;

    report::step("shut the machine down while two file systems are written and flushed");
    let flushed = load_and_shut_down(vm)?;
    check_log(vm, "phase=LastPhase")?;
    node.restart()?;
    ensure!(node.cli(&["list", "--json"])?.contains("\"volumes\": []"), "a volume is attached");
    for name in [MOUNTED, UNMOUNTED] {
        let device = attach(&node, name)?;
        if name == UNMOUNTED {
            vm.exec(&format!("e2fsck -fn {device}"))?;
        }
        mount(vm, name, &device)?;
    }
    check_files(vm, flushed)?;

    report::step("the store is stopped, a flush waits for it; shut the machine down again");
    let device = attach(&node, WAITING)?;
    s3.stop();
    vm.spawn(
        "waiter",
        &bash(&format!("exec dd if=/dev/zero of={device} bs=4k count=4 oflag=direct conv=fsync,notrunc")),
    )?;
    until("a flush to wait", LIMIT, || {
        let call = vm.exec("cat /proc/$(pgrep -x dd)/syscall 2>/dev/null || true")?;
        Ok(call.starts_with(FSYNC).then_some(()))
    })?;
    let again = load_and_shut_down(vm)?;
    s3.resume()?;
    node.restart()?;
    for name in [MOUNTED, UNMOUNTED] {
        let device = attach(&node, name)?;
        mount(vm, name, &device)?;
    }
    check_files(vm, again)?;
    vm.exec("umount /run/mounted /run/unmounted")?;
    attach(&node, WAITING)?;
    for name in [MOUNTED, UNMOUNTED, WAITING] {
        node.cli(&["detach", name])?;
    }
    node.terminate()
}

fn attach(node: &NodeDaemon, name: &str) -> Result<String> {
    let durability = if name == WAITING { "object" } else { "local" };
    let device = node.cli_with_retries(&["attach", name, "--store", "store", "--durability", durability])?;
    node.vm().wait_block_device(device.trim(), LIMIT)?;
    Ok(device.trim().to_owned())
}

fn mount(vm: &Vm, name: &str, device: &str) -> Result<()> {
    if name == WAITING {
        return Ok(());
    }
    vm.exec(&format!("mkdir -p /run/{name}; mount {device} /run/{name}")).map(drop)
}

/// Writes files with individual flushes to both file systems, and shuts the machine down in the meantime.
/// After the next boot, returns how many were flushed to each.
fn load_and_shut_down(vm: &Vm) -> Result<[usize; 2]> {
    for (name, at_the_end) in [(MOUNTED, "''"), (UNMOUNTED, "'umount /run/unmounted; exit'")] {
        let write = format!(
            "trap {at_the_end} TERM; rm -f /run/{name}/*.file; n=0; \
             while echo $n > /run/{name}/$n.file && sync /run/{name}/$n.file; do \
               n=$((n + 1)); echo $n > /state/{name}.new; sync /state/{name}.new; mv /state/{name}.new /state/{name}.flushed; \
             done; echo ended"
        );
        vm.exec(&format!("rm -f /state/{name}.flushed"))?;
        vm.spawn(&format!("write-{name}"), &bash(&write))?;
    }
    for name in [MOUNTED, UNMOUNTED] {
        until("some files to be flushed", LIMIT, || {
            Ok(flushed(vm, name)?.filter(|files| *files > 5).map(drop))
        })?;
    }
    let duration = vm.shut_down(SHUT_DOWN_LIMIT)?;
    report::step(format_args!("the machine was off after {} s", duration.as_secs()));
    vm.boot()?;
    let files = |name| flushed(vm, name)?.context("no file was flushed");
    Ok([files(MOUNTED)?, files(UNMOUNTED)?])
}

fn flushed(vm: &Vm, name: &str) -> Result<Option<usize>> {
    let output = vm.exec(&format!("cat /state/{name}.flushed 2>/dev/null || true"))?;
    Ok(output.trim().parse().ok())
}

/// Checks that each flushed file exists.
fn check_files(vm: &Vm, flushed: [usize; 2]) -> Result<()> {
    for (name, files) in [MOUNTED, UNMOUNTED].into_iter().zip(flushed) {
        report::step(format_args!("{files} files were flushed to the file system that was {name}"));
        vm.exec(&format!(
            "cd /run/{name}; for n in $(seq 0 $(({files} - 1))); do [ $(cat $n.file) = $n ]; done"
        ))?;
    }
    Ok(())
}

fn check_log(vm: &Vm, text: &str) -> Result<()> {
    let log = vm.log(PROGRAM)?;
    ensure!(log.contains(text), "{text} is not in the daemon's log:\n{log}");
    Ok(())
}
