//! The CSI SnapshotMetadata service for snapshots of a served volume and of a volume created from one of its
//! snapshots. The scenario plays the sidecar, and knows the written data.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use holdfast_lab::csi::{Csi, Extent, MetadataResponse};
use holdfast_lab::node::NodeDaemon;
use holdfast_lab::report;
use holdfast_lab::rpc::GrpcError;
use holdfast_lab::s3::S3Server;
use holdfast_lab::world::World;

use super::provisioning::{apply, volume};
use super::story::{provision_store, serve};
use super::volume_snapshots::{BY_NODE, BY_OPERATOR, field, from_snapshot, snapshot, wait_taken};

const BUCKET: &str = "changed-blocks";
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Sectors that are written individually, in 256 MiB.
const SCATTERED: u64 = 200;

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    let operator = world.operator()?;
    provision_store(world, &s3, BUCKET)?;
    for (name, size) in [("data", "1Gi"), ("other", "64Mi")] {
        apply(world, &volume(name, "store", size))?;
        world.wait_for(&format!("volume/{name}"), "jsonpath={.status.phase}=Ready")?;
    }
    let id = field(world, "volume/data", "{.status.volumeId}")?;
    let node = world.node("a", "user-copy", "")?;
    let device = serve(world, &node, "data")?;
    let service = world.csi_snapshot_metadata()?;
    let csi = service.csi();

    report::step("the contents of a snapshot are reported to the sector");
    write(&node, &device, (0, MIB))?;
    write(&node, &device, (300 * MIB, 4 * KIB))?;
    apply(world, &snapshot("first", "data", "Delete"))?;
    wait_taken(world, "first", &id, BY_NODE)?;
    let allocated = all_ranges(&csi, None, "first")?;
    ensure!(allocated == [(0, MIB), (300 * MIB, 4 * KIB)], "the snapshot holds {allocated:?}");

    report::step("writes and discards since then are reported, and nothing else");
    node.vm().exec(&format!("blkdiscard --offset 0 --length {} {device}", 128 * KIB))?;
    write(&node, &device, (512 * KIB, 4 * KIB))?;
    write(&node, &device, (900 * MIB, 64 * KIB))?;
    apply(world, &snapshot("second", "data", "Delete"))?;
    wait_taken(world, "second", &id, BY_NODE)?;
    let changed = all_ranges(&csi, Some("first"), "second")?;
    let expected = [(0, 128 * KIB), (512 * KIB, 4 * KIB), (900 * MIB, 64 * KIB)];
    ensure!(changed == expected, "changed: {changed:?}");
    let allocated = all_ranges(&csi, None, "second")?;
    let expected = [(128 * KIB, MIB - 128 * KIB), (300 * MIB, 4 * KIB), (900 * MIB, 64 * KIB)];
    ensure!(allocated == expected, "the second snapshot holds {allocated:?}");
    ensure!(all_ranges(&csi, Some("second"), "second")?.is_empty(), "a snapshot differs from itself");

    let scattered = check_scattered_writes(world, &s3, &node, &device, &csi)?;
    check_refusals(world, &csi)?;

    report::step("the store does not answer: the rejection reports this, and later answers are complete");
    s3.stop();
    expect_refused(&csi, Some("first"), "second", 0, ("Unavailable", ""))?;
    s3.resume()?;
    ensure!(all_ranges(&csi, Some("second"), "third")? == scattered, "another answer after the outage");

    report::step("a volume created from a snapshot has the snapshot's contents");
    apply(world, &from_snapshot("copy", "second"))?;
    world.wait_for("volume/copy", "jsonpath={.status.phase}=Ready")?;
    let copy = field(world, "volume/copy", "{.status.volumeId}")?;
    apply(world, &snapshot("of-copy", "copy", "Delete"))?;
    wait_taken(world, "of-copy", &copy, BY_OPERATOR)?;
    ensure!(all_ranges(&csi, None, "of-copy")? == allocated, "the copy holds something else");
    let copied = serve(world, &node, "copy")?;
    write(&node, &copied, (64 * KIB, 4 * KIB))?;
    apply(world, &snapshot("written-copy", "copy", "Delete"))?;
    wait_taken(world, "written-copy", &copy, BY_NODE)?;
    let changed = all_ranges(&csi, Some("of-copy"), "written-copy")?;
    ensure!(changed == [(64 * KIB, 4 * KIB)], "changed in the copy: {changed:?}");

    service.kill();
    node.terminate()?;
    operator.stop()
}

/// Writes sectors all over the volume, and requests the changes in messages of a few ranges, and from the
/// middle on. Returns the changes.
fn check_scattered_writes(
    world: &World,
    s3: &S3Server,
    node: &NodeDaemon,
    device: &str,
    csi: &Csi,
) -> Result<Vec<Extent>> {
    report::step("scattered writes are reported individually, in messages of the requested size");
    // A step that is not a multiple of the granularity, and odd sectors only, so that none are adjacent.
    let places: BTreeSet<u64> = (0..SCATTERED).map(|number| (number * 7919 % 32_768) * 2 + 1).collect();
    let all: Vec<String> = places.iter().map(u64::to_string).collect();
    node.vm().exec(&format!(
        "dd if=/dev/urandom of=/tmp/sector bs=4k count=1 2>/dev/null; for place in {}; do \
         dd if=/tmp/sector of={device} bs=4k count=1 seek=$place oflag=direct 2>/dev/null; done",
        all.join(" ")
    ))?;
    let id = field(world, "volume/data", "{.status.volumeId}")?;
    apply(world, &snapshot("third", "data", "Delete"))?;
    wait_taken(world, "third", &id, BY_NODE)?;
    let before = s3.requests()?.len();
    let (messages, _) = request_ranges(csi, Some("second"), "third", 0, 7)?;
    report::step(format_args!("{} requests for the changes", s3.requests()?.len() - before));
    ensure!(messages.iter().all(|ranges| ranges.len() <= 7), "messages of {:?}", messages.first());
    let changed: Vec<Extent> = messages.concat();
    let expected: Vec<Extent> = places.iter().map(|place| (place * 4 * KIB, 4 * KIB)).collect();
    ensure!(changed == expected, "changed: {changed:?}");
    let (middle, _) = changed[changed.len() / 2];
    let (messages, _) = request_ranges(csi, Some("second"), "third", middle, 0)?;
    ensure!(messages.concat() == changed[changed.len() / 2..], "from {middle} on: {messages:?}");
    Ok(changed)
}

/// Each rejection names the field and the problem.
fn check_refusals(world: &World, csi: &Csi) -> Result<()> {
    report::step("an invalid request is rejected with the name of its field");
    apply(world, &snapshot("of-other", "other", "Delete"))?;
    world.wait_for("volumesnapshot/of-other", "condition=Ready")?;
    expect_refused(csi, None, "nothing", 0, ("NotFound", "snapshot_id: "))?;
    expect_refused(csi, Some("nothing"), "second", 0, ("NotFound", "base_snapshot_id: "))?;
    expect_refused(csi, None, "", 0, ("InvalidArgument", "snapshot_id: is empty"))?;
    expect_refused(csi, Some("of-other"), "second", 0, ("InvalidArgument", "different volumes"))?;
    expect_refused(csi, Some("second"), "first", 0, ("InvalidArgument", "was taken after"))?;
    expect_refused(csi, None, "first", (1 << 30) + 1, ("OutOfRange", "starting_offset: "))
}

/// Returns the complete allocated ranges of a snapshot, or all changes since `base`.
fn all_ranges(csi: &Csi, base: Option<&str>, target: &str) -> Result<Vec<Extent>> {
    let (messages, refused) = request_ranges(csi, base, target, 0, 0)?;
    if let Some(GrpcError { code, message }) = refused {
        anyhow::bail!("{target}: {code}: {message}");
    }
    ensure!(!messages.is_empty(), "{target}: no message says how large it is");
    Ok(messages.concat())
}

fn expect_refused(
    csi: &Csi,
    base: Option<&str>,
    target: &str,
    from: u64,
    (code, words): (&str, &str),
) -> Result<()> {
    let (_, refused) = request_ranges(csi, base, target, from, 0)?;
    let refused = refused.with_context(|| format!("{base:?} to {target:?} from {from}: was answered"))?;
    ensure!(
        refused.code == code && refused.message.contains(words),
        "not {code} with {words:?}: {refused:?}"
    );
    Ok(())
}

/// Returns the ranges of each message, and the error that ended them.
fn request_ranges(
    csi: &Csi,
    base: Option<&str>,
    target: &str,
    from: u64,
    most: i32,
) -> Result<(Vec<Vec<Extent>>, Option<GrpcError>)> {
    let MetadataResponse { messages, capacities, refused } = csi.changed_blocks(base, target, from, most)?;
    ensure!(capacities.iter().all(|bytes| *bytes == 1 << 30), "other capacities than 1 GiB: {capacities:?}");
    Ok((messages, refused))
}

fn write(node: &NodeDaemon, device: &str, (offset, bytes): Extent) -> Result<()> {
    let (skip, count) = (offset / (4 * KIB), bytes / (4 * KIB));
    node.vm()
        .exec(&format!(
            "dd if=/dev/urandom of={device} bs=4k seek={skip} count={count} oflag=direct 2>/dev/null"
        ))
        .map(drop)
}
