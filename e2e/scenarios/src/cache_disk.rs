//! The node's disk is full, cannot read, or cannot flush: writes wait and do not fail; data that is also in
//! the store is read from there; reads of other unreadable data fail, and no upload omits it; and a failed
//! flush is not reported as completed, even if the next one succeeds.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::chance::Chance;
use holdfast_lab::node::{ControlInterface, NodeDaemon, PROGRAM};
use holdfast_lab::report;
use holdfast_lab::s3::proxy::FaultProxy;
use holdfast_lab::vm::machine::{MachineDisk, MachineOptions};
use holdfast_lab::vm::recorded::{RecordedDisk, Survivors};
use holdfast_lab::vm::{Vm, bash};
use holdfast_lab::wait::until;
use holdfast_lab::wire::Exit;
use holdfast_lab::world::World;

const BUCKET: &str = "disk";
const SEED: u64 = 20_261_121;
const STATE_BYTES: u64 = 1 << 30;
const DATA: &str = "slab_size = \"64Mi\"\nseal_size = \"4Mi\"";
/// Directory of the node's volumes.
const LOCAL: &str = "/var/lib/holdfast/volumes";
/// Volume that is uploaded immediately.
const CLEAN: &str = "clean";
/// Volume that is not uploaded before its detach.
const DIRTY: &str = "dirty";
/// Less than the size of a seal.
const DIRTY_MIB: u32 = 3;
/// Volume that is uploaded once its unreadable range was overwritten.
const OVERWRITTEN: &str = "overwritten";
/// Volume that is written and flushed before, during and after the disk's inability to flush.
const LOST: &str = "lost";
/// Volume that is written until the disk is full.
const FULL: &str = "full";
/// Volume that is dirty when other data fills the disk completely.
const LAST: &str = "last";
/// Volume whose data is only in the store at that time.
const COLD: &str = "cold";
const COLD_MIB: u32 = 8;
/// Fills the state disk completely, including the blocks reserved for root.
const FILL: &str = "fallocate -l $(($(stat -f -c '%f * %S' /state))) /state/filler || true; \
    dd if=/dev/zero of=/state/filler.rest bs=4k status=none || true; sync; df /state >&2";
const EMPTY: &str = "rm /state/filler*";
/// The unit of extents, in bytes: a block of the state disk's ext4.
const EXTENT_BYTES: u64 = 4096;
/// The part of a volume whose reads fail: the second MiB.
const DAMAGED: Range<u64> = 1 << 20..2 << 20;
const LIMIT: Duration = Duration::from_secs(300);
const DEVICE_LIMIT: Duration = Duration::from_secs(60);

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let proxy = FaultProxy::start(s3.port())?;
    let control =
        ControlInterface::Standalone { endpoint: proxy.endpoint_in_vm(), bucket: BUCKET.to_owned() };
    let options = MachineOptions { state: MachineDisk::Recorded(STATE_BYTES), ..MachineOptions::node() };
    let vm = world.vm_with("a", || options)?;
    let node = NodeDaemon::start(Arc::clone(&vm), &control, "auto", DATA)?;
    let disk = vm.recorded_disk()?;
    report::step("the disk cannot read data that the store has");
    check_clean_reads(&node, disk)?;
    report::step("the disk cannot read the only copy of data");
    let (device, sum) = check_dirty_reads(&node, disk)?;
    report::step("the disk cannot read data to be uploaded");
    check_overwrite(&node, disk)?;
    report::step("the disk is full");
    check_full_disk(&node, &proxy)?;
    report::step("other programs fill the disk to its last block");
    check_last_block(&node)?;
    report::step("the disk cannot flush, and recovers");
    let mut flushed = vec![(DIRTY, sum)];
    flushed.push((LOST, check_lost_flush(&node, disk)?));
    report::step("the disk cannot flush, and loses its power");
    check_failed_flushes(&node, disk, &device)?;
    vm.cut_power();
    check_power_cut(world, disk, &flushed)
}

/// Reads of uploaded data go to the store.
fn check_clean_reads(node: &NodeDaemon, disk: &RecordedDisk) -> Result<()> {
    let device = create(node, CLEAN, "16Mi", "1s")?;
    let sum = write_noise(node.vm(), &device, 4)?;
    wait_committed(node, CLEAN)?;
    disk.fail_reads(extents(node.vm(), CLEAN)?);
    ensure!(read(node.vm(), &device, 4)? == sum, "what was read is not what was written");
    ensure!(disk.failed_reads() > 0, "no read of the disk failed");
    disk.fail_reads(Vec::new());
    wait_counted(node, "holdfast_volume_local_read_errors_total", CLEAN)?;
    let failed = node.metric("holdfast_volume_failed_requests_total", CLEAN)?;
    ensure!(failed == Some(0.0), "failed requests: {failed:?}");
    node.cli(&["detach", CLEAN]).map(drop)
}

/// Reads of data that was not uploaded fail, and succeed again once the disk can read. Returns the device and
/// the sum.
fn check_dirty_reads(node: &NodeDaemon, disk: &RecordedDisk) -> Result<(String, String)> {
    let device = create(node, DIRTY, "16Mi", "1h")?;
    let sum = write_noise(node.vm(), &device, DIRTY_MIB)?;
    disk.fail_reads(extents(node.vm(), DIRTY)?);
    let error = read(node.vm(), &device, DIRTY_MIB).err().context("what the disk cannot read was served")?;
    ensure!(format!("{error:#}").contains("Input/output error"), "{error:#}");
    node.vm().wait_log(PROGRAM, "the local disk cannot read the only copy of data", LIMIT)?;
    wait_counted(node, "holdfast_volume_failed_requests_total", DIRTY)?;
    disk.fail_reads(Vec::new());
    ensure!(read(node.vm(), &device, DIRTY_MIB)? == sum, "what was read is not what was written");
    Ok((device, sum))
}

/// Nothing is uploaded while the range is unreadable, and the node reports this; once it is overwritten,
/// everything is uploaded.
fn check_overwrite(node: &NodeDaemon, disk: &RecordedDisk) -> Result<()> {
    let vm = node.vm();
    let device = create(node, OVERWRITTEN, "16Mi", "1h")?;
    let write = |from: u32, mib: u32| {
        vm.exec(&format!(
            "dd if=/tmp/overwritten of={device} bs=1M skip={from} seek={from} count={mib} oflag=direct conv=fsync,notrunc status=none"
        ))
    };
    vm.exec("head -c 6M /dev/urandom > /tmp/overwritten")?;
    write(0, DIRTY_MIB)?;
    disk.fail_reads(extents(vm, OVERWRITTEN)?);
    // Enough for an upload.
    write(DIRTY_MIB, 6 - DIRTY_MIB)?;
    vm.wait_log(PROGRAM, "nothing is uploaded until it can", LIMIT)?;
    wait_counted(node, "holdfast_volume_unreadable_bytes", OVERWRITTEN)?;
    let refused = node.cli(&["detach", OVERWRITTEN]).err().context("a detach that cannot end has begun")?;
    ensure!(format!("{refused:#}").contains("Overwrite or discard that range on its device"), "{refused:#}");
    vm.exec(&format!(
        "dd if={device} bs=1M skip=2 count=4 iflag=direct status=none | cmp - <(tail -c 4M /tmp/overwritten)"
    ))?;
    report::step(format_args!("nothing is uploaded\n{}", node.cli(&["list"])?));
    vm.exec(
        "head -c 1M /dev/urandom | dd of=/tmp/overwritten bs=1M seek=1 conv=notrunc iflag=fullblock status=none",
    )?;
    write(1, 1)?;
    wait_committed(node, OVERWRITTEN)?;
    ensure!(
        node.metric("holdfast_volume_unreadable_bytes", OVERWRITTEN)? == Some(0.0),
        "something is still unreadable"
    );
    node.cli(&["detach", OVERWRITTEN])?;
    disk.fail_reads(Vec::new());
    vm.exec(&format!("rm -r {LOCAL}/{OVERWRITTEN}"))?;
    let device = attach(node, OVERWRITTEN, "1s")?;
    let sum = vm.exec("sha256sum < /tmp/overwritten")?;
    ensure!(read(vm, &device, 6)? == sum, "the store has not what was written");
    node.cli(&["detach", OVERWRITTEN]).map(drop)
}

/// Writes wait for space and for the store, then continue.
fn check_full_disk(node: &NodeDaemon, proxy: &FaultProxy) -> Result<()> {
    let vm = node.vm();
    let device = create(node, FULL, "256Mi", "1s")?;
    let sum = vm.exec("head -c 96M /dev/urandom > /tmp/noise; sha256sum < /tmp/noise")?;
    // Nothing can be uploaded, so nothing can be evicted.
    proxy.make_unreachable();
    vm.exec(FILL)?;
    vm.spawn(
        "dd",
        &bash(&format!("exec dd if=/tmp/noise of={device} bs=1M oflag=direct conv=fsync status=none")),
    )?;
    until("writes that wait", LIMIT, || {
        let ended = vm.status("dd")?;
        ensure!(ended.is_none(), "dd ended: {ended:?} {}", vm.log("dd")?);
        Ok((node.metric("holdfast_volume_waiting_requests", FULL)? > Some(0.0)).then_some(()))
    })?;
    report::step(format_args!("writes wait\n{}", node.cli(&["list"])?));
    vm.exec(EMPTY)?;
    proxy.make_reachable();
    let exit = vm.wait("dd", LIMIT)?;
    ensure!(exit == Exit::Code(0), "dd ended by {exit:?}: {}", vm.log("dd")?);
    ensure!(read(vm, &device, 96)? == sum, "what was read is not what was written");
    let failed = node.metric("holdfast_volume_failed_requests_total", FULL)?;
    ensure!(failed == Some(0.0), "failed requests: {failed:?}");
    node.cli(&["detach", FULL])?;
    vm.exec(&format!("rm -r {LOCAL}/{FULL}"))?;
    let device = attach(node, FULL, "1s")?;
    ensure!(read(vm, &device, 96)? == sum, "the store has not what was written");
    node.cli(&["detach", FULL]).map(drop)
}

/// With 0 bytes free, data in the store is read, dirty data is committed, and detaches end.
fn check_last_block(node: &NodeDaemon) -> Result<()> {
    let vm = node.vm();
    let device = create(node, COLD, "16Mi", "1s")?;
    let cold = write_noise(vm, &device, COLD_MIB)?;
    node.cli(&["detach", COLD])?;
    vm.exec(&format!("rm -r {LOCAL}/{COLD}"))?;
    let device = attach(node, COLD, "1s")?;
    let last = write_noise(vm, &create(node, LAST, "16Mi", "1h")?, DIRTY_MIB)?;
    vm.exec(FILL)?;
    ensure!(read(vm, &device, COLD_MIB)? == cold, "what was read is not what the store has");
    node.cli(&["detach", LAST])?;
    node.cli(&["detach", COLD])?;
    report::step(format_args!("detached with a full disk\n{}", vm.exec("df /state")?));
    vm.exec(EMPTY)?;
    vm.exec(&format!("rm -r {LOCAL}/{LAST}"))?;
    let device = attach(node, LAST, "1s")?;
    ensure!(read(vm, &device, DIRTY_MIB)? == last, "the store has not what was written");
    node.cli(&["detach", LAST]).map(drop)
}

/// A flush fails together with the disk's, which loses the writes that it was to make durable; the next one
/// succeeds, and covers all writes. Returns the sum of the written data.
fn check_lost_flush(node: &NodeDaemon, disk: &RecordedDisk) -> Result<String> {
    let vm = node.vm();
    let device = create(node, LOST, "16Mi", "1h")?;
    write_noise(vm, &device, DIRTY_MIB)?;
    let overwrite = |mib: u32| {
        vm.exec(&format!(
            "head -c 1M /dev/urandom | dd of={device} bs=1M seek={mib} iflag=fullblock oflag=direct conv=fsync,notrunc status=none"
        ))
    };
    // The journal must have nothing to write in the meantime: a failed flush of its own would shut the file
    // system down.
    vm.exec("mount -o remount,lazytime,commit=600 /state; sync --file-system /state")?;
    disk.fail_flushes(true);
    let failed = overwrite(0);
    disk.fail_flushes(false);
    let error = failed.err().context("a flush that was not done was called done")?;
    ensure!(format!("{error:#}").contains("Input/output error"), "{error:#}");
    overwrite(1)?;
    read(vm, &device, DIRTY_MIB)
}

/// Flushes of the volume fail until flushes of the disk succeed.
fn check_failed_flushes(node: &NodeDaemon, disk: &RecordedDisk, device: &str) -> Result<()> {
    disk.fail_flushes(true);
    let flushed = node.vm().exec(&format!(
        "dd if=/dev/urandom of={device} bs=64k count=1 seek=200 oflag=direct conv=fsync status=none"
    ));
    let error = flushed.err().context("a flush that was not done was called done")?;
    ensure!(format!("{error:#}").contains("Input/output error"), "{error:#}");
    Ok(())
}

/// The disk returns without its unflushed data, and the volumes with all data that was flushed on them.
fn check_power_cut(world: &World, disk: &RecordedDisk, flushed: &[(&str, String)]) -> Result<()> {
    let image = world.dir().join("cut.ext4");
    let cut = disk.rebuild(disk.position(), Survivors::Nothing, &mut Chance::new(SEED), &image)?;
    report::step(format_args!("the disk after the power cut: {cut:?}"));
    let options = || MachineOptions { state: MachineDisk::Image(image), ..MachineOptions::node() };
    let node = NodeDaemon::resume(world.vm_with("after", options)?)?;
    for (name, sum) in flushed {
        let device = attach(&node, name, "1h")?;
        ensure!(read(node.vm(), &device, DIRTY_MIB)? == *sum, "what was flushed on {name} is not there");
        node.cli(&["detach", name])?;
    }
    node.terminate()
}

fn create(node: &NodeDaemon, name: &str, size: &str, age: &str) -> Result<String> {
    node.cli(&["create", name, "--size", size, "--store", "store"])?;
    attach(node, name, age)
}

fn attach(node: &NodeDaemon, name: &str, age: &str) -> Result<String> {
    let attached = node.cli(&["attach", name, "--store", "store", "--max-dirty-age", age])?;
    let device = attached.trim().to_owned();
    node.vm().wait_block_device(&device, DEVICE_LIMIT)?;
    Ok(device)
}

/// Fills the first `mib` MiB and returns their sum.
fn write_noise(vm: &Vm, device: &str, mib: u32) -> Result<String> {
    vm.exec(&format!(
        "head -c {mib}M /dev/urandom > /tmp/noise; dd if=/tmp/noise of={device} bs=1M oflag=direct conv=fsync status=none; \
         sha256sum < /tmp/noise"
    ))
}

/// Returns the sum of the first `mib` MiB.
fn read(vm: &Vm, device: &str, mib: u32) -> Result<String> {
    vm.exec(&format!("dd if={device} bs=1M count={mib} iflag=direct status=none | sha256sum"))
}

fn wait_committed(node: &NodeDaemon, name: &str) -> Result<()> {
    until("the commit", LIMIT, || {
        Ok((node.metric("holdfast_volume_dirty_bytes", name)? == Some(0.0)).then_some(()))
    })
}

/// Waits until a counter of a volume is above zero: figures are published a few milliseconds late.
fn wait_counted(node: &NodeDaemon, counter: &str, volume: &str) -> Result<()> {
    until(counter, LIMIT, || Ok((node.metric(counter, volume)? > Some(0.0)).then_some(())))
}

/// Returns the ranges on the state disk where both sides of a volume store [`DAMAGED`].
fn extents(vm: &Vm, name: &str) -> Result<Vec<Range<u64>>> {
    let text = vm.exec(&format!("cd {LOCAL}/{name}; filefrag -v -b{EXTENT_BYTES} a.data b.data"))?;
    let found: Vec<Range<u64>> = text.lines().filter_map(extent).collect();
    ensure!(!found.is_empty(), "no extents of {name} in\n{text}");
    Ok(found)
}

/// Returns the part of [`DAMAGED`] in a line of `filefrag -v`, in bytes of the disk. Lines of extents have
/// the format `   0:        0..     511:      34816..     35327:    512:             last,eof`.
fn extent(line: &str) -> Option<Range<u64>> {
    let mut columns = line.split(':').skip(1);
    let mut span = || {
        let (first, last) = columns.next()?.split_once("..")?;
        let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        Some(first * EXTENT_BYTES..(last + 1) * EXTENT_BYTES)
    };
    let (logical, physical) = (span()?, span()?);
    let start = logical.start.max(DAMAGED.start);
    let end = logical.end.min(DAMAGED.end);
    (start < end).then(|| physical.start + start - logical.start..physical.start + end - logical.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_extent_of_a_file_is_read() {
        let line = "   0:        0..     511:      34816..     35327:    512:             last,eof";
        let first = 34816 * EXTENT_BYTES;
        assert_eq!(extent(line), Some(first + (1 << 20)..first + (2 << 20)));
        assert_eq!(extent("File size of a.data is 16777216 (4096 blocks of 4096 bytes)"), None);
        assert_eq!(
            extent(" ext:     logical_offset:        physical_offset: length:   expected: flags:"),
            None
        );
    }
}
