//! Bit rot: one byte of a segment, of a log record, or of the durable map differs from the written one. It is
//! detected, named, and never served; with the byte restored, everything is available again. A scrub finds it
//! before a reader does, and stores the data again that the node still holds.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use holdfast_lab::node::{ControlInterface, NodeDaemon, PROGRAM};
use holdfast_lab::s3::S3Server;
use holdfast_lab::vm::Vm;
use holdfast_lab::world::World;

const BUCKET: &str = "damage";
const VOLUME: &str = "disk";
/// The volume that is scrubbed.
const SCRUBBED: &str = "scrubbed";
/// Bytes of an index with two frames: envelope, count, entries.
const INDEX_BYTES: u64 = 32 + 4 + 2 * 48;
/// Directory of the node's data of the volume.
const LOCAL: &str = "/var/lib/holdfast/volumes/disk";
/// The node's cache of fetched blocks.
const CACHE: &str = "/var/lib/holdfast/slab.data";
/// Bytes of a block, the unit of a read from S3.
const BLOCK_BYTES: u64 = 128 << 10;
/// Two blocks written with noise, as stored in the segment: the first one's bytes come first. Not the
/// volume's first block, which the kernel reads by itself when it scans for partitions.
const DAMAGED_BLOCK: u64 = 8;
const SOUND_BLOCK: u64 = 16;
/// The two slots of the durable map's first page.
const PAGE_SLOTS: [u64; 2] = [8192, 8192 + 4096];
/// Offset of the generation within a slot.
const GENERATION: u64 = 32 + 8;
/// The damaged part of a slot: a power failure leaves it in its old or its new state as a whole.
const UNIT_BYTES: u64 = 512;
const DAMAGED_UNIT: u64 = 2;
const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let vm = world.vm("a")?;
    let node = NodeDaemon::start(Arc::clone(&vm), &ControlInterface::standalone(&s3, BUCKET), "auto", "")?;
    node.cli(&["create", VOLUME, "--size", "256Mi", "--store", "store"])?;
    let device = attach(&node)?;
    let sound = vm.exec(&format!(
        "dd if=/dev/urandom of=/tmp/noise bs={BLOCK_BYTES} count=1 status=none; \
         for block in {DAMAGED_BLOCK} {SOUND_BLOCK}; do \
         dd if=/tmp/noise of={device} bs={BLOCK_BYTES} seek=$block oflag=direct status=none; done; \
         sha256sum < /tmp/noise"
    ))?;
    node.cli(&["detach", VOLUME])?;

    scrub(&s3, &node)?;
    damage_segment(&s3, &node, &sound)?;
    damage_record(&s3, &node, &sound)?;
    damage_map(&node, &sound)
}

/// A byte of a segment, found by a scrub; the node's copy is stored again, so that another node can read it.
fn scrub(s3: &S3Server, node: &NodeDaemon) -> Result<()> {
    let vm = node.vm();
    node.cli(&["create", SCRUBBED, "--size", "256Mi", "--store", "store"])?;
    node.cli(&["attach", SCRUBBED, "--store", "store"])?;
    vm.wait_block_device("/dev/ublkb0", LIMIT)?;
    vm.exec(&format!(
        "for block in {DAMAGED_BLOCK} {SOUND_BLOCK}; do \
         dd if=/tmp/noise of=/dev/ublkb0 bs={BLOCK_BYTES} seek=$block oflag=direct status=none; done"
    ))?;
    node.cli(&["detach", SCRUBBED])?;
    let sound = node.cli(&["scrub", SCRUBBED, "--store", "store"])?;
    let end = format!("bytes of segments {}\nnothing is damaged\n", 2 * BLOCK_BYTES + INDEX_BYTES);
    ensure!(sound.ends_with(&end), "{sound}");

    let segments = s3.keys(BUCKET, &format!("volumes/{SCRUBBED}/segments/"))?;
    let [segment] = segments.as_slice() else { bail!("one segment was uploaded, not {segments:?}") };
    s3.flip_byte(BUCKET, segment, BLOCK_BYTES / 2)?;
    let damaged =
        node.cli(&["scrub", SCRUBBED, "--store", "store"]).err().context("the damage was not found")?;
    let damaged = format!("{damaged:#}");
    for part in [
        "Code(6)",
        &format!("{segment} has damaged frames (1): frame of block {DAMAGED_BLOCK} fails its checksum"),
        &format!("lost: 128Ki at byte {}\n", DAMAGED_BLOCK * BLOCK_BYTES),
        "damage that affects the volume remains (objects: 1)",
    ] {
        ensure!(damaged.contains(part), "{part:?} is not in: {damaged}");
    }

    // The node still has its written data: it detached, and no other node has written since.
    node.cli(&["attach", SCRUBBED, "--store", "store"])?;
    let repaired = node.cli(&["scrub", SCRUBBED, "--repair"])?;
    ensure!(repaired.contains(segment) && repaired.contains("  repaired\n"), "{repaired}");
    let after = node.cli(&["scrub", SCRUBBED])?;
    ensure!(after.contains("  harmless: something newer replaces it"), "{after}");
    node.cli(&["detach", SCRUBBED])?;
    node.terminate()?;
    vm.exec(&format!("rm -r /var/lib/holdfast/volumes/{SCRUBBED}"))?;
    node.restart()?;
    node.cli(&["attach", SCRUBBED, "--store", "store"])?;
    vm.wait_block_device("/dev/ublkb0", LIMIT)?;
    let noise = vm.exec("sha256sum < /tmp/noise")?;
    for block in [DAMAGED_BLOCK, SOUND_BLOCK] {
        ensure!(read(vm, "/dev/ublkb0", block)? == noise, "block {block} is not what was written");
    }
    node.cli(&["detach", SCRUBBED]).map(drop)
}

/// A byte of a segment: reads of its block fail, the log names the object, other blocks are served.
fn damage_segment(s3: &S3Server, node: &NodeDaemon, sound: &str) -> Result<()> {
    let segments = s3.keys(BUCKET, &format!("volumes/{VOLUME}/segments/"))?;
    let [segment] = segments.as_slice() else { bail!("one segment was uploaded, not {segments:?}") };
    s3.flip_byte(BUCKET, segment, BLOCK_BYTES / 2)?;
    // The node has the blocks of its own writes, and in its cache those of the scrubbed volume, which are the
    // same: only a node without any data reads the segment.
    node.terminate()?;
    node.vm().exec(&format!("rm -r {LOCAL} {CACHE}"))?;
    node.restart()?;
    let device = attach(node)?;

    let error = read(node.vm(), &device, DAMAGED_BLOCK).err().context("a damaged block was served")?;
    ensure!(format!("{error:#}").contains("Input/output error"), "{error:#}");
    node.vm().wait_log(PROGRAM, &format!("object {segment} is damaged"), LIMIT)?;
    ensure!(read(node.vm(), &device, SOUND_BLOCK)? == sound, "the other block is not what was written");
    s3.flip_byte(BUCKET, segment, BLOCK_BYTES / 2)?;
    ensure!(read(node.vm(), &device, DAMAGED_BLOCK)? == sound, "the repaired block is not what was written");
    node.cli(&["detach", VOLUME]).map(drop)
}

/// A byte of the log record that an attach reads, written by the detach: the volume is not attached, and the
/// object is named. A byte of the commit before it: a scrub names it, and the volume is served, even by the
/// next daemon, which reads the following records.
fn damage_record(s3: &S3Server, node: &NodeDaemon, sound: &str) -> Result<()> {
    let vm = node.vm();
    let records = s3.keys(BUCKET, &format!("volumes/{VOLUME}/log/"))?;
    let detach = records.last().context("there is no log")?;
    s3.flip_byte(BUCKET, detach, 40)?;
    expect_attach_refused(node, &[detach, "is damaged"])?;
    s3.flip_byte(BUCKET, detach, 40)?;

    // The third one is the commit: it follows the creation and the attach.
    let commit = records.get(2).with_context(|| format!("{records:?} holds no commit"))?;
    s3.flip_byte(BUCKET, commit, 40)?;
    let found = node.cli(&["scrub", VOLUME, "--store", "store"])?;
    for part in [commit, "  harmless: something newer replaces it"] {
        ensure!(found.contains(part), "{part:?} is not in: {found}");
    }
    attach(node)?;
    // The next writer has only the log: the host was lost, with its state. It was the third writer.
    vm.reset()?;
    vm.exec(&format!("rm -r {LOCAL}"))?;
    node.restart()?;
    let device = node.cli(&["attach", VOLUME, "--store", "store", "--take-over", "3"])?.trim().to_owned();
    vm.wait_block_device(&device, LIMIT)?;
    ensure!(read(vm, &device, SOUND_BLOCK)? == sound, "the block is not what was written");
    vm.exec(&format!(
        "dd if={device} of=/tmp/noise bs={BLOCK_BYTES} skip={SOUND_BLOCK} count=1 iflag=direct status=none"
    ))?;
    node.cli(&["detach", VOLUME])?;
    s3.flip_byte(BUCKET, commit, 40)
}

/// The newest slot of a page, synced before the power failure: its content is unknown, and the other slot is
/// older, so nothing is served. If only the daemon restarts, the next one recovers the device and rewrites
/// the page.
fn damage_map(node: &NodeDaemon, sound: &str) -> Result<()> {
    let vm = node.vm();
    let device = attach(node)?;
    vm.exec(&format!(
        "for round in 1 2; do dd if=/tmp/noise of={device} bs={BLOCK_BYTES} seek=$((32 + round)) oflag=direct \
         conv=fsync status=none; done"
    ))?;
    vm.reset()?;
    for fill in [0, 0xff] {
        damage_newest(vm, fill)?;
        node.restart()?;
        expect_attach_refused(node, &[&format!("{LOCAL}/map"), "is damaged", "page 0"])?;
        node.terminate()?;
        repair_header(vm)?;
    }
    node.restart()?;
    let device = attach(node)?;
    let all_sound = || -> Result<()> {
        for block in [DAMAGED_BLOCK, SOUND_BLOCK, 33, 34] {
            ensure!(read(vm, &device, block)? == sound, "block {block} is not what was written");
        }
        Ok(())
    };
    all_sound()?;

    vm.exec(&format!(
        "dd if={device} of=/tmp/noise bs={BLOCK_BYTES} skip=34 count=1 iflag=direct status=none; \
         dd if=/tmp/noise of={device} bs={BLOCK_BYTES} seek=33 oflag=direct conv=fsync status=none"
    ))?;
    damage_newest(vm, 0xff)?;
    node.kill()?;
    node.restart()?;
    for _ in 0..2 {
        vm.exec(&format!(
            "dd if=/tmp/noise of={device} bs={BLOCK_BYTES} seek=34 oflag=direct conv=fsync status=none"
        ))?;
    }
    all_sound()?;
    vm.reset()?;
    node.restart()?;
    ensure!(attach(node)? == device, "the device has another name");
    all_sound()?;
    node.cli(&["detach", VOLUME]).map(drop)
}

fn attach(node: &NodeDaemon) -> Result<String> {
    let device = node.cli(&["attach", VOLUME, "--store", "store"])?.trim().to_owned();
    node.vm().wait_block_device(&device, LIMIT)?;
    Ok(device)
}

/// An attach fails, reports all of `because`, and leaves no device.
fn expect_attach_refused(node: &NodeDaemon, because: &[&str]) -> Result<()> {
    let error = attach(node).err().context("a damaged volume was attached")?;
    let text = format!("{error:#}");
    for part in because {
        ensure!(text.contains(part), "{part:?} is not in: {text}");
    }
    node.vm().exec("! ls /dev/ublkb*").map(drop)
}

/// Returns the checksum of a block as read from the device.
fn read(vm: &Vm, device: &str, block: u64) -> Result<String> {
    vm.exec(&format!(
        "dd if={device} bs={BLOCK_BYTES} skip={block} count=1 iflag=direct status=none | sha256sum"
    ))
}

/// Fills one unit of the newest slot of the page with `fill`, and saves a copy of the original file.
fn damage_newest(vm: &Vm, fill: u8) -> Result<()> {
    let [first, second] = PAGE_SLOTS;
    let unit = DAMAGED_UNIT * UNIT_BYTES;
    vm.exec(&format!(
        "generation() {{ od -An -tu8 -j $(($1 + {GENERATION})) -N 8 {LOCAL}/map; }}; \
         cp --sparse=always {LOCAL}/map /var/lib/holdfast/map.sound; \
         at={first}; if [ $(generation {second}) -gt $(generation {first}) ]; then at={second}; fi; \
         head -c {UNIT_BYTES} /dev/zero | tr '\\0' '\\{fill:o}' | \
         dd of={LOCAL}/map bs=1 seek=$((at + {unit})) conv=notrunc,fsync status=none"
    ))
    .map(drop)
}

/// Restores the file.
fn repair_header(vm: &Vm) -> Result<()> {
    vm.exec(&format!("cp --sparse=always /var/lib/holdfast/map.sound {LOCAL}/map && sync")).map(drop)
}
