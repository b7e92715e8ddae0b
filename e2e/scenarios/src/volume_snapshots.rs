//! VolumeSnapshots are taken of a served and of a detached Volume, and during the death of the operator and
//! of the daemon. Some are deleted while they are taken; they block their Volume's deletion. Volumes created
//! from them, on another node, outlive that Volume. Once those are deleted, a sweep deletes the objects that
//! they read.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::node::{ControlInterface, NodeDaemon};
use holdfast_lab::report;
use holdfast_lab::s3::S3Server;
use holdfast_lab::wait::until;
use holdfast_lab::world::World;

use super::provisioning::{apply, condition, volume};
use super::story::{provision_store, serve};

const BUCKET: &str = "volume-snapshots";
/// Part of the message about a snapshot taken by the daemon.
pub(super) const BY_NODE: &str = "as after a power cut";
/// The same for the operator.
pub(super) const BY_OPERATOR: &str = "no node served the volume";
const LIMIT: Duration = Duration::from_secs(60);
/// Less than the operator's interval: a reaction within this time was triggered by an event.
const SOON: Duration = Duration::from_secs(20);

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    let operator = world.operator()?;
    provision_store(world, &s3, BUCKET)?;
    apply(world, &volume("data", "store", "1Gi"))?;
    world.wait_for("volume/data", "jsonpath={.status.phase}=Ready")?;
    let id = field(world, "volume/data", "{.status.volumeId}")?;
    let control = ControlInterface::Kubernetes { kubeconfig: world.node_kubeconfig()? };
    let node = NodeDaemon::start(world.vm("a")?, &control, "user-copy", "")?;
    let device = serve(world, &node, "data")?;

    report::step("take a snapshot of the Volume that node a serves");
    node.vm().exec(&format!("dd if=/dev/urandom of={device} bs=1M count=2 oflag=direct"))?;
    let written = content_sum(&node, &device)?;
    apply(world, &snapshot("served", "data", "Delete"))?;
    let first = wait_taken(world, "served", &id, BY_NODE)?;
    report::step(world.kubectl(["get", "volumesnapshots"])?);

    report::step("kill operator and daemon: snapshots requested meanwhile are taken once");
    operator.kill();
    apply(world, &snapshot("later", "data", "Delete"))?;
    operator.restart()?;
    world.wait_for("volumesnapshot/later", "jsonpath={.status.node}=a")?;
    node.kill()?;
    node.restart()?;
    let second = wait_taken(world, "later", &id, BY_NODE)?;
    ensure!(first != second && count_objects(&s3, &id, "snapshots")? == 2, "{first}, {second}, and others");

    report::step("delete a snapshot that waits for the store: it leaves nothing behind");
    node.vm().exec(&format!("dd if=/dev/urandom of={device} bs=4k count=1 oflag=direct"))?;
    s3.stop();
    apply(world, &snapshot("waiting", "data", "Delete"))?;
    world.wait_for("volumesnapshot/waiting", "jsonpath={.status.node}=a")?;
    world.kubectl(["delete", "volumesnapshot", "waiting", "--wait=false"])?;
    s3.resume()?;
    world.kubectl(["wait", "--for=delete", "volumesnapshot/waiting", "--timeout=120s"])?;
    let live = |expected: usize| -> Result<()> {
        let (all, forgotten) = (count_objects(&s3, &id, "snapshots")?, count_objects(&s3, &id, "forgotten")?);
        ensure!(all == expected + forgotten, "{all} snapshots, {forgotten} of them forgotten");
        Ok(())
    };
    live(2)?;

    report::step("take a snapshot of the detached Volume");
    let none = "{\"spec\": {\"nodeName\": null}}";
    world.kubectl(["patch", "volume", "data", "--type=merge", "--patch", none])?;
    world.wait_for("volume/data", "jsonpath={.status.phase}=Ready")?;
    apply(world, &snapshot("detached", "data", "Delete"))?;
    wait_taken(world, "detached", &id, BY_OPERATOR)?;
    live(3)?;
    check_obstacles(world)?;
    check_retained(world, &s3)?;
    let other = NodeDaemon::start(world.vm("b")?, &control, "user-copy", "")?;
    let copied = check_restored_volumes(world, &other, &first, &written)?;
    check_clones(world, &other, &copied)?;

    report::step("a Volume with snapshots is not removed");
    world.kubectl(["delete", "volume", "data", "--wait=false"])?;
    wait_blocked_deletion(world, "HasSnapshots: ")?;
    report::step("without snapshots, it is removed; another Volume that reads its objects keeps its content");
    world.kubectl(["delete", "volumesnapshot", "served", "later", "detached", "--timeout=60s"])?;
    world.kubectl(["wait", "--for=delete", "volume/data", "--timeout=120s"])?;
    let device = serve(world, &node, "copy")?;
    ensure!(content_sum(&node, &device)? == copied, "the copy lost content with the Volume");
    world.kubectl(["delete", "volume", "copy", "--timeout=60s"])?;
    other.terminate()?;
    node.terminate()?;
    check_sweep(world, &s3, &id)?;
    operator.stop()
}

/// A sweep deletes the objects that the deleted volume `id` left for its readers.
fn check_sweep(world: &World, s3: &S3Server, id: &str) -> Result<()> {
    report::step("a sweep deletes the objects that no Volume reads any more");
    ensure!(count_objects(s3, id, "segments")? > 0, "the Volume left nothing for the copy");
    let node = NodeDaemon::start(world.vm("a")?, &ControlInterface::standalone(s3, BUCKET), "user-copy", "")?;
    let young = node.cli_with_retries(&["gc", "--store", "store"])?;
    ensure!(count_objects(s3, id, "segments")? > 0, "deleted within the grace: {young}");
    // The clock of the machine may be behind that of the server.
    let text = until("the sweep to delete all of it", LIMIT, || {
        let text = node.cli_with_retries(&["gc", "--store", "store", "--grace", "0s"])?;
        Ok((count_objects(s3, id, "segments")? == 0).then_some(text))
    })?;
    report::step(text);
    node.terminate()
}

/// Waits until the Volume reports that its deletion waits for this; it reports it once.
fn wait_blocked_deletion(world: &World, reason: &str) -> Result<()> {
    until("the Volume to say what it waits for", LIMIT, || {
        let text = condition(world, "volume/data", "Provisioned")?;
        Ok(text.starts_with(reason).then_some(()))
    })?;
    let version = || field(world, "volume/data", "{.metadata.resourceVersion}");
    let before = version()?;
    std::thread::sleep(Duration::from_secs(3));
    ensure!(version()? == before, "the Volume is written again and again while it waits");
    Ok(())
}

/// Creates volumes from the snapshot `served`, whose name in the store is `first`, and from one that is taken
/// later. Returns the sum of the content of the first of them, `copy`, afterwards.
fn check_restored_volumes(world: &World, node: &NodeDaemon, first: &str, expected: &str) -> Result<String> {
    report::step("a Volume is created from a snapshot, and has its content on another node");
    apply(world, &from_snapshot("copy", "served"))?;
    world.wait_for("volume/copy", "jsonpath={.status.phase}=Ready")?;
    let copy = field(world, "volume/copy", "{.spec.size} {.status.restoredFrom}")?;
    ensure!(copy == format!("1Gi {first}"), "the copy is {copy}");
    let device = serve(world, node, "copy")?;
    ensure!(content_sum(node, &device)? == expected, "the copy is not what the Volume was");

    report::step("a Volume that is smaller than its snapshot names the size to write");
    let small = from_snapshot("small", "served").replace("{objectStore", "{size: 64Mi, objectStore");
    apply(world, &small)?;
    wait_unprovisioned(world, "volume/small", "InvalidSize: spec.size: ")?;
    world.kubectl(["delete", "volume", "small", "--timeout=60s"])?;

    report::step("a Volume waits for its VolumeSnapshot, a snapshot of the copy, and is created from it");
    apply(world, &from_snapshot("late", "after"))?;
    wait_unprovisioned(world, "volume/late", "SnapshotNotFound: spec.source.snapshot.name: ")?;
    node.vm().exec(&format!("dd if=/dev/zero of={device} bs=1M count=1 oflag=direct"))?;
    let changed = content_sum(node, &device)?;
    apply(world, &snapshot("after", "copy", "Delete"))?;
    world.wait_for("volumesnapshot/after", "condition=Ready")?;
    until("the Volume to be created", SOON, || {
        Ok((field(world, "volume/late", "{.status.phase}")? == "Ready").then_some(()))
    })?;
    let device = serve(world, node, "late")?;
    ensure!(content_sum(node, &device)? == changed && changed != expected, "it is not what the copy was");
    world.kubectl(["delete", "volume", "late", "--timeout=60s"])?;
    world.kubectl(["delete", "volumesnapshot", "after", "--timeout=60s"])?;
    Ok(changed)
}

/// Clones volumes: `copy`, which `node` serves and whose content is `expected`, and a detached one. The
/// VolumeSnapshots created by the operator for this are deleted afterwards.
fn check_clones(world: &World, node: &NodeDaemon, expected: &str) -> Result<()> {
    report::step("a clone of a missing Volume reports this, and is created once the Volume exists");
    apply(world, &from_volume("twin", "parent"))?;
    wait_unprovisioned(world, "volume/twin", "VolumeNotFound: spec.source.volume.name: ")?;
    apply(world, &volume("parent", "store", "64Mi"))?;
    until("the clone of a detached Volume", SOON, || {
        Ok((field(world, "volume/twin", "{.status.phase} {.spec.size}")? == "Ready 64Mi").then_some(()))
    })?;

    report::step("a Volume that is served and written is cloned without a pause");
    let device = field(world, "volume/copy", "{.status.devicePath}")?;
    let writer = format!("dd if=/dev/urandom of={device} bs=64k seek=64 count=4000 oflag=direct 2>/dev/null");
    node.vm().exec(&format!("(while {writer}; do :; done) >/dev/null 2>&1 & echo $! > /tmp/writer"))?;
    apply(world, &from_volume("live", "copy"))?;
    world.wait_for("volume/live", "jsonpath={.status.phase}=Ready")?;
    node.vm().exec("kill $(cat /tmp/writer); pkill dd; true")?;
    let restored = field(world, "volume/live", "{.status.restoredFrom}")?;
    let id = field(world, "volume/copy", "{.status.volumeId}")?;
    ensure!(restored.starts_with(&format!("{id}@")), "the clone begins with {restored}");
    let device = serve(world, node, "live")?;
    ensure!(content_sum(node, &device)? == expected, "the clone is not what the Volume was");

    report::step("the snapshots of the clones are deleted, including that of a clone deleted early");
    apply(world, &from_volume("never", "nothing"))?;
    wait_unprovisioned(world, "volume/never", "VolumeNotFound: ")?;
    world.kubectl(["delete", "volume", "never", "live", "twin", "parent", "--timeout=60s"])?;
    let left = world.kubectl(["get", "volumesnapshots", "--output=name"])?;
    ensure!(!left.contains("/clone-"), "left: {left}");
    Ok(())
}

/// Waits until a Volume reports that it is not provisioned for this reason.
fn wait_unprovisioned(world: &World, volume: &str, why: &str) -> Result<()> {
    until("the Volume to say what it lacks", LIMIT, || {
        Ok(condition(world, volume, "Provisioned")?.starts_with(why).then_some(()))
    })
}

/// Returns the sum of the first 2 MiB of a device.
fn content_sum(node: &NodeDaemon, device: &str) -> Result<String> {
    node.vm().exec(&format!("dd if={device} bs=1M count=2 iflag=direct status=none | sha256sum"))
}

/// Returns a Volume created from a VolumeSnapshot.
pub fn from_snapshot(name: &str, snapshot: &str) -> String {
    format!(
        "apiVersion: storage.holdfast.dev/v1alpha1\nkind: Volume\nmetadata: {{name: {name}}}\n\
         spec: {{objectStore: store, source: {{snapshot: {{name: {snapshot}}}}}}}\n"
    )
}

/// Returns a Volume created from the content of another one.
pub fn from_volume(name: &str, source: &str) -> String {
    format!(
        "apiVersion: storage.holdfast.dev/v1alpha1\nkind: Volume\nmetadata: {{name: {name}}}\n\
         spec: {{objectStore: store, source: {{volume: {{name: {source}}}}}}}\n"
    )
}

/// A snapshot that cannot be taken reports this.
fn check_obstacles(world: &World) -> Result<()> {
    report::step("a snapshot of a missing Volume reports this, and can be deleted");
    apply(world, &snapshot("lost", "nothing", "Delete"))?;
    until("the snapshot to say what it lacks", LIMIT, || {
        Ok(condition(world, "volumesnapshot/lost", "Ready")?.starts_with("VolumeNotFound: ").then_some(()))
    })?;
    world.kubectl(["delete", "volumesnapshot", "lost", "--timeout=60s"]).map(drop)
}

/// `deletionPolicy: Retain` leaves the snapshot in the log.
fn check_retained(world: &World, s3: &S3Server) -> Result<()> {
    report::step("a retained snapshot stays in the log");
    let policy = "{deletionPolicy: Retain, size";
    apply(world, &volume("other", "store", "64Mi").replace("{size", policy))?;
    world.wait_for("volume/other", "jsonpath={.status.phase}=Ready")?;
    let id = field(world, "volume/other", "{.status.volumeId}")?;
    apply(world, &snapshot("kept", "other", "Retain"))?;
    wait_taken(world, "kept", &id, BY_OPERATOR)?;
    world.kubectl(["delete", "volumesnapshot", "kept", "--timeout=60s"])?;
    ensure!(count_objects(s3, &id, "forgotten")? == 0, "it was forgotten");
    world.kubectl(["delete", "volume", "other", "--timeout=60s"])?;
    ensure!(count_objects(s3, &id, "snapshots")? == 1, "it was removed");
    Ok(())
}

/// Returns a VolumeSnapshot of a Volume.
pub fn snapshot(name: &str, volume: &str, policy: &str) -> String {
    format!(
        "apiVersion: storage.holdfast.dev/v1alpha1\nkind: VolumeSnapshot\nmetadata: {{name: {name}}}\n\
         spec: {{volume: {volume}, deletionPolicy: {policy}}}\n"
    )
}

/// Waits until a snapshot of the volume `id` is taken, and returns its name in the store.
pub(super) fn wait_taken(world: &World, name: &str, id: &str, by: &str) -> Result<String> {
    let object = format!("volumesnapshot/{name}");
    world.wait_for(&object, "condition=Ready")?;
    let status = field(world, &object, "{.status.snapshotId} {.status.takenTime} {.status.sizeBytes}")?;
    let mut parts = status.split(' ');
    let (place, at, size) = (parts.next(), parts.next(), parts.next());
    let place = place.context("a snapshotId")?.to_owned();
    ensure!(place.starts_with(&format!("{id}@")), "{object} is {status}");
    ensure!(at.is_some_and(|at| at.starts_with("20")), "{object} was taken at {at:?}");
    ensure!(size.is_some_and(|size| size.parse::<u64>().is_ok_and(|size| size > 0)), "{object}: {size:?}");
    let text = condition(world, &object, "Ready")?;
    ensure!(text.starts_with("Taken: ") && text.contains(by), "{object} says {text}");
    until("no node to be asked for it", LIMIT, || {
        Ok(field(world, &object, "{.status.node}")?.is_empty().then_some(()))
    })?;
    Ok(place)
}

/// Returns the number of objects of a volume in this folder.
fn count_objects(s3: &S3Server, id: &str, folder: &str) -> Result<usize> {
    Ok(s3.keys(BUCKET, &format!("volumes/{id}/{folder}/"))?.len())
}

pub(super) fn field(world: &World, object: &str, path: &str) -> Result<String> {
    world.kubectl(["get", object, &format!("--output=jsonpath={path}")])
}
