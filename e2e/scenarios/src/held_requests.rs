//! Forced writes to a volume of `durability: object` wait for an unreachable store, until they occupy all of
//! the device's requests. Reads are served while one is free, and wait afterwards; nothing fails. The node's
//! other volumes are served, a detach is rejected, and the daemon exits on SIGTERM and is killed while all of
//! them are waiting.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::node::{ControlInterface, NodeDaemon};
use holdfast_lab::report;
use holdfast_lab::vm::{Vm, bash};
use holdfast_lab::wait::until;
use holdfast_lab::wire::Exit;
use holdfast_lab::world::World;

const BUCKET: &str = "held";
/// Its forced writes wait for the store.
const HELD: &str = "held";
/// On the same ring thread; a flush needs no store.
const OTHER: &str = "other";
const DATA: &str = "ring_threads = 1\nslab_size = \"64Mi\"";
/// Requests per device.
const REQUESTS: u32 = 128;
/// Number of concurrent requests of each of two programs: the first leaves some free, both together do not.
const SENT: [u32; 2] = [96, 64];
/// Forced writes of each, in MiB.
const WRITTEN_MIB: u32 = 1;
const LIMIT: Duration = Duration::from_secs(300);

pub(super) fn zero_copy(world: &World) -> Result<()> {
    run(world, "zero-copy")
}

pub(super) fn user_copy(world: &World) -> Result<()> {
    run(world, "user-copy")
}

fn run(world: &World, transport: &str) -> Result<()> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let node =
        NodeDaemon::start(world.vm("a")?, &ControlInterface::standalone(&s3, BUCKET), transport, DATA)?;
    let vm = node.vm();
    let device = attach(&node, HELD, "object")?;
    let other = attach(&node, OTHER, "local")?;
    vm.exec(&format!(
        "head -c 4M /dev/urandom > /tmp/noise; dd if=/tmp/noise of={device} bs=1M oflag=direct conv=fsync status=none"
    ))?;

    report::step("the store becomes unreachable; forced writes wait, reads continue");
    s3.stop();
    force_writes(vm, &device, 0)?;
    wait_writes_in_flight(vm, &device, SENT[0])?;
    let read = format!("dd if={device} bs=1M count=4 iflag=direct status=none | cmp - /tmp/noise");
    vm.exec(&format!("timeout 60 bash -c 'set -o pipefail; {read}'"))?;

    report::step("they occupy every request; the other volume is served");
    force_writes(vm, &device, 1)?;
    wait_writes_in_flight(vm, &device, REQUESTS)?;
    vm.spawn("reader", &bash(&format!("set -o pipefail; {read}")))?;
    vm.exec(&format!(
        "timeout 60 dd if=/tmp/noise of={other} bs=1M oflag=direct conv=fsync status=none; \
         timeout 60 dd if={other} bs=1M count=4 iflag=direct status=none | cmp - /tmp/noise"
    ))?;
    let refused = node.cli(&["detach", HELD]).err().context("a device in use was detached")?;
    ensure!(format!("{refused:#}").contains("in use"), "{refused:#}");

    report::step("the daemon exits with all of them waiting, and its successor gets them");
    node.terminate()?;
    node.restart()?;
    wait_writes_in_flight(vm, &device, REQUESTS)?;
    node.kill()?;
    node.restart()?;
    wait_writes_in_flight(vm, &device, REQUESTS)?;
    ensure!(vm.status("reader")?.is_none(), "the reader ended: {}", vm.log("reader")?);

    report::step("the store is back");
    s3.resume()?;
    for program in ["writer-0", "writer-1", "reader"] {
        let exit = vm.wait(program, LIMIT)?;
        ensure!(exit == Exit::Code(0), "{program} ended by {exit:?}: {}", vm.log(program)?);
    }
    vm.exec("! dmesg | grep -i 'I/O error'")?;
    for volume in [HELD, OTHER] {
        let failed = node.metric("holdfast_volume_failed_requests_total", volume)?;
        ensure!(failed == Some(0.0), "failed requests of {volume}: {failed:?}");
        node.cli(&["detach", volume])?;
    }
    node.terminate()
}

fn attach(node: &NodeDaemon, name: &str, durability: &str) -> Result<String> {
    node.cli(&["create", name, "--size", "64Mi", "--store", "store"])?;
    let attached = node.cli(&["attach", name, "--store", "store", "--durability", durability])?;
    let device = attached.trim().to_owned();
    node.vm().wait_block_device(&device, LIMIT)?;
    Ok(device)
}

/// Starts forced writes after the data written so far, which are read back when they complete.
fn force_writes(vm: &Vm, device: &str, number: u32) -> Result<()> {
    let (sent, offset_mib) = (SENT[number as usize], 8 * (number + 1));
    let fio = format!(
        "exec fio --name=writer-{number} --filename={device} --direct=1 --sync=dsync --rw=randwrite --bs=4k \
         --ioengine=io_uring --iodepth={sent} --offset={offset_mib}M --size={WRITTEN_MIB}M --verify=crc32c --verify_fatal=1"
    );
    vm.spawn(&format!("writer-{number}"), &bash(&fio)).map(drop)
}

/// Waits until this many writes of the device are in flight.
fn wait_writes_in_flight(vm: &Vm, device: &str, writes: u32) -> Result<()> {
    let name = device.trim_start_matches("/dev/");
    until(&format!("{writes} writes to wait"), LIMIT, || {
        let waiting = vm.exec(&format!("cat /sys/block/{name}/inflight"))?;
        Ok((waiting.split_whitespace().nth(1) == Some(writes.to_string().as_str())).then_some(()))
    })
}
