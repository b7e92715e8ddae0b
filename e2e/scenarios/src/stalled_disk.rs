//! A disk that stalls while the daemon is killed. The dead daemon's write reaches the disk late, and must not
//! overwrite a newer one: the next daemon waits for it.

use std::time::Duration;

use anyhow::{Result, ensure};
use holdfast_lab::node::{ControlInterface, NodeDaemon};
use holdfast_lab::report;
use holdfast_lab::vm::machine::MachineOptions;
use holdfast_lab::vm::{Vm, bash};
use holdfast_lab::wait::until;
use holdfast_lab::wire::Exit;
use holdfast_lab::world::World;

const BUCKET: &str = "stalled";
const VOLUME: &str = "disk";
/// Few rounds, so that only the write of the volume waits for the disk.
const DATA: &str = "slab_size = \"64Mi\"\nmax_dirty_age = \"1h\"";
const GROUP: &str = "/sys/fs/cgroup/stalled";
const LIMIT: Duration = Duration::from_secs(120);

pub(super) fn user_copy(world: &World) -> Result<()> {
    run(world, "user-copy", MachineOptions::node())
}

pub(super) fn zero_copy(world: &World) -> Result<()> {
    run(world, "zero-copy", MachineOptions::node())
}

pub(super) fn fuse(world: &World) -> Result<()> {
    run(world, "auto", MachineOptions::without_ublk())
}

fn run(world: &World, transport: &str, options: MachineOptions) -> Result<()> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let vm = world.vm_with("a", || options)?;
    let node = NodeDaemon::start(vm, &ControlInterface::standalone(&s3, BUCKET), transport, DATA)?;
    let vm = node.vm();
    node.cli(&["create", VOLUME, "--size", "64Mi", "--store", "store"])?;
    let device = node.cli(&["attach", VOLUME, "--store", "store"])?.trim().to_owned();
    vm.wait_block_device(&device, LIMIT)?;
    vm.exec("for name in old first second; do printf '%4096s' $name > /tmp/$name; done")?;
    vm.exec(&write("old", &device))?;

    report::step("the disk stalls, a write waits for it, and the daemon is killed");
    stall(vm)?;
    vm.spawn("first", &bash(&write("first", &device)))?;
    wait_in_flight(vm, &device)?;
    node.kill()?;

    report::step("the next daemon reports what it waits for, and gives no answer");
    node.restart_until("still in flight")?;
    ensure!(vm.status("first")?.is_none(), "the write was completed: {}", vm.log("first")?);

    report::step("the disk continues; a later write of the same sector stays");
    vm.exec(&format!("echo $(cat /tmp/stalled.disk) wbps=max > {GROUP}/io.max"))?;
    node.wait_ready("200 OK")?;
    let exit = vm.wait("first", LIMIT)?;
    ensure!(exit == Exit::Code(0), "the write ended by {exit:?}: {}", vm.log("first")?);
    vm.exec(&format!(
        "{}; sleep 2; dd if={device} bs=4k count=1 iflag=direct status=none | cmp - /tmp/second; \
         ! dmesg | grep -i 'I/O error'",
        write("second", &device)
    ))?;
    node.cli(&["detach", VOLUME])?;
    node.terminate()
}

/// Returns the command that writes a file to the first sector, past the page cache.
fn write(name: &str, device: &str) -> String {
    format!("dd if=/tmp/{name} of={device} bs=4k count=1 oflag=direct status=none")
}

/// Delays each write of the daemon to its disk by more than half an hour (the kernel accepts no lower limit).
/// It stays in effect for those that are in flight when the daemon ends.
fn stall(vm: &Vm) -> Result<()> {
    vm.exec(&format!(
        "mount -t cgroup2 none /sys/fs/cgroup; echo +io > /sys/fs/cgroup/cgroup.subtree_control; mkdir {GROUP}; \
         for pid in $(pgrep -x holdfast-node); do echo $pid > {GROUP}/cgroup.procs; done; \
         findmnt --noheadings --output MAJ:MIN --target /var/lib/holdfast > /tmp/stalled.disk; \
         echo $(cat /tmp/stalled.disk) wbps=2 > {GROUP}/io.max; cat {GROUP}/io.max >&2"
    ))
    .map(drop)
}

/// Waits until the device has a request, and the daemon has passed it to the disk.
fn wait_in_flight(vm: &Vm, device: &str) -> Result<()> {
    let name = device.trim_start_matches("/dev/");
    until("the write to wait", LIMIT, || {
        let waiting = vm.exec(&format!("cat /sys/block/{name}/inflight"))?;
        Ok((waiting.split_whitespace().nth(1) == Some("1")).then_some(()))
    })?;
    vm.exec("sleep 1").map(drop)
}
