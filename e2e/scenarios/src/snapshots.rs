//! Snapshots on the command line: taken under load, listed, deleted, and rejections that name their fix.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::node::{ControlInterface, NodeDaemon};
use holdfast_lab::report;
use holdfast_lab::s3::S3Server;
use holdfast_lab::wait::until;
use holdfast_lab::world::World;
use serde_json::Value;

use super::load::Load;

const BUCKET: &str = "snapshots";
/// Maximum run time of fio, in seconds of the machine's time: it is ended before.
const LOAD_SECONDS: u32 = 600;
/// Bytes of a copy that are compared: each of its sectors may be a separate request.
const COMPARED_BYTES: u32 = 1 << 20;
/// Maximum time until a node uses a store that is available again.
const STORE_BACK_LIMIT: Duration = Duration::from_secs(60);
/// Maximum time until the list of a detached fork is stored.
const LIST_LIMIT: Duration = Duration::from_secs(30);
const UID: &str = "6f8f5771-5090-4a26-b245-3988d9a1501b";

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let control = ControlInterface::standalone(&s3, BUCKET);
    let first = NodeDaemon::start(world.vm("a")?, &control, "user-copy", "")?;
    first.cli(&["create", "disk", "--size", "1Gi", "--store", "store"])?;
    let device = first.cli(&["attach", "disk", "--store", "store"])?.trim().to_owned();

    report::step("take two snapshots under load");
    let load = Load::start(first.vm(), &device, LOAD_SECONDS)?;
    let first_snapshot = take_snapshot(&first, &["disk"])?;
    let two = take_snapshot(&first, &["disk", "--uid", UID])?;
    ensure!(take_snapshot(&first, &["disk", "--uid", UID])? == two, "a uid answers the same snapshot again");
    load.wait_progress()?;
    report::step("kill the daemon under load: its successor knows them");
    first.kill()?;
    first.restart()?;
    load.wait_progress()?;
    load.stop()?;
    ensure!(names(&first, &["disk"])? == [first_snapshot.clone(), two.clone()], "the log has both");
    ensure!(take_snapshot(&first, &["disk", "--uid", UID])? == two, "a restarted daemon knows the uid");
    report::step("create a volume from the attached one");
    first.cli(&["create", "copy", "--from", "disk", "--store", "store"])?;
    let copy = first.cli(&["attach", "copy", "--store", "store"])?.trim().to_owned();
    first.vm().exec(&format!("cmp -n {COMPARED_BYTES} {device} {copy}"))?;
    first.cli(&["detach", "copy"])?;
    ensure!(
        names(&first, &["disk"])? == [first_snapshot.clone(), two.clone()],
        "its own snapshot is deleted"
    );
    report::step("delete one");
    first.cli(&["snapshot", "delete", &first_snapshot])?;
    first.cli(&["snapshot", "delete", &first_snapshot]).context("a deletion may be repeated")?;
    ensure!(names(&first, &["disk"])? == [two.clone()], "one is left");

    check_refusals(&first, &two)?;
    let second = NodeDaemon::start(world.vm("b")?, &control, "user-copy", "")?;
    check_other_node(&first, &second, &two)?;
    check_prefetch_list(&first, &second)?;
    check_unreachable_store(&s3, &first)
}

/// An impossible request is rejected with the alternative.
fn check_refusals(node: &NodeDaemon, there: &str) -> Result<()> {
    let beyond = format!("{there}9");
    for (arguments, says) in [
        (&["create", "nothing"][..], "store"),
        (&["create", "nothing", "--store", "store"], "volume nothing does not exist in this object store"),
        (&["list", "nothing", "--store", "store"], "volume nothing does not exist in this object store"),
        (&["list", "nothing", "--store", "elsewhere"], "elsewhere"),
        (&["delete", &beyond], "list its snapshots"),
        (&["delete", "disk"], "names no snapshot: write <volume>@<number>"),
        (&["create", "disk", "--uid", "today"], "uid"),
    ] {
        expect_refused(node, arguments, says)?;
    }
    Ok(())
}

/// A node that does not serve the volume refers to the one that does; for a detached volume, any node takes
/// one.
fn check_other_node(first: &NodeDaemon, second: &NodeDaemon, there: &str) -> Result<()> {
    let at_store = ["disk", "--store", "store"];
    expect_refused(second, &["create", "disk", "--store", "store"], "take the snapshot on that node")?;
    ensure!(names(second, &at_store)? == [there.to_owned()], "any node lists them");
    first.cli(&["detach", "disk"])?;
    let detached = take_snapshot(second, &at_store)?;
    ensure!(names(second, &at_store)? == [there.to_owned(), detached.clone()], "the log has both");
    second.cli(&["snapshot", "delete", &detached, "--store", "store"])?;
    // The local data is still valid: only the list of snapshots changed.
    first.cli(&["attach", "disk", "--store", "store"])?;
    ensure!(names(first, &["disk"])? == [there.to_owned()], "one is left");
    Ok(())
}

/// The blocks that the first fork of an image reads are prefetched for a fork on another node.
fn check_prefetch_list(first: &NodeDaemon, second: &NodeDaemon) -> Result<()> {
    report::step("boot two forks of an image on two nodes: the second one's blocks are prefetched");
    first.cli(&["create", "image", "--size", "256Mi", "--store", "store"])?;
    let image = first.cli(&["attach", "image", "--store", "store"])?.trim().to_owned();
    first.vm().exec(&format!("dd if=/dev/urandom of={image} bs=1M count=64 oflag=direct status=none"))?;
    first.cli(&["snapshot", "create", "image"])?;
    first.cli(&["detach", "image"])?;
    let snapshots = first.cli(&["snapshot", "list", "--json", "image", "--store", "store"])?;
    let snapshots: Value = serde_json::from_str(&snapshots)?;
    let snapshot = snapshots["snapshots"][0]["name"].as_str().context("a snapshot")?.to_owned();
    let boot = |node: &NodeDaemon, fork: &str| -> Result<String> {
        node.cli(&["create", fork, "--from", &snapshot, "--store", "store"])?;
        let device = node.cli(&["attach", fork, "--store", "store"])?.trim().to_owned();
        // A block of each 640 KiB, in falling order: not sequential.
        let sums = node.vm().exec(&format!(
            "for block in $(seq 500 -5 5); do \
               dd if={device} bs=128K count=1 skip=$block iflag=direct status=none; done | sha256sum"
        ))?;
        node.cli(&["detach", fork])?;
        Ok(sums)
    };
    let sums = boot(first, "boot-a")?;
    until("the prefetch list to be stored", LIST_LIMIT, || {
        Ok((counter(first, "holdfast_prefetch_lists_stored")? >= 1.0).then_some(()))
    })?;
    ensure!(boot(second, "boot-b")? == sums, "both forks have the bytes of the image");
    ensure!(counter(second, "holdfast_prefetch_lists_used")? == 1.0, "the second fork has a list");
    let fetched = counter(second, "holdfast_read_ahead_blocks")?;
    let used = counter(second, "holdfast_read_ahead_used_blocks")?;
    report::step(format!("of 100 blocks {fetched} were prefetched, of these {used} before they were read"));
    ensure!(used >= 1.0 && fetched <= 100.0, "{fetched} blocks were prefetched, and {used} used");
    Ok(())
}

/// Returns a counter of the node that has no label.
fn counter(node: &NodeDaemon, name: &str) -> Result<f64> {
    let metrics = node.metrics()?;
    let start = format!("{name}_total ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&start));
    Ok(value.with_context(|| format!("the node has no {name}"))?.trim().parse()?)
}

/// With an unresponsive store, the command reports this and may be repeated. For a while after the outage,
/// the node answers from its last attempt.
fn check_unreachable_store(s3: &S3Server, node: &NodeDaemon) -> Result<()> {
    report::step("take a snapshot while the store is unreachable, and again");
    s3.stop();
    let refused =
        expect_refused(node, &["create", "disk", "--uid", UID], "the object store is not available");
    s3.resume()?;
    refused?;
    until("the store to be reachable again", STORE_BACK_LIMIT, || {
        match take_snapshot(node, &["disk", "--uid", UID]) {
            Ok(name) => Ok(Some(name)),
            Err(error) if format!("{error:#}").contains("the object store is not available") => Ok(None),
            Err(error) => Err(error),
        }
    })?;
    node.cli(&["detach", "disk"])?;
    Ok(())
}

fn take_snapshot(node: &NodeDaemon, arguments: &[&str]) -> Result<String> {
    let name = node.cli(&[&["snapshot", "create"], arguments].concat())?.trim().to_owned();
    ensure!(name.starts_with("disk@"), "create prints {name:?}");
    Ok(name)
}

/// Returns the names of the snapshots of a volume of 1 GiB, oldest first.
fn names(node: &NodeDaemon, arguments: &[&str]) -> Result<Vec<String>> {
    let list = node.cli(&[&["snapshot", "list", "--json"], arguments].concat())?;
    let list: Value = serde_json::from_str(&list).with_context(|| list.clone())?;
    let list = list["snapshots"].as_array().context("a list")?;
    for snapshot in list {
        ensure!(snapshot["size_bytes"] == 1u64 << 30 && snapshot["created"].is_string(), "{snapshot}");
    }
    list.iter().map(|known| known["name"].as_str().map(str::to_owned).context("a name")).collect()
}

fn expect_refused(node: &NodeDaemon, arguments: &[&str], says: &str) -> Result<()> {
    let refused = node.cli(&[&["snapshot"], arguments].concat()).err();
    let refused = refused.with_context(|| format!("snapshot {arguments:?} should be refused"))?;
    report::step(format!("{refused:#}"));
    ensure!(format!("{refused:#}").contains(says), "it does not say {says:?}: {refused:#}");
    Ok(())
}
