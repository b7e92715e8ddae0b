//! The CSI Controller service with the real operator and the real API server. The scenario plays the sidecars
//! and the node daemon: it writes the status that a daemon would write for a served volume.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::csi::{
    Csi, CsiResponse, CsiService, LIMIT, ListedVolume, RequestedVolume, SHORT, Use, expect_granted,
    expect_refused,
};
use holdfast_lab::operator::{NAMESPACE, Operator};
use holdfast_lab::report;
use holdfast_lab::s3::S3Server;
use holdfast_lab::wait::until;
use holdfast_lab::world::World;
use serde_json::{Value, json};

use super::provisioning::{apply, count_created_objects};
use super::story::provision_store_at;

mod groups;

const BUCKET: &str = "csi";
const GIB: i64 = 1 << 30;
/// Requests that the API server must deny the driver.
const FORBIDDEN: [&[&str]; 4] = [
    &["patch", "volumes.storage.holdfast.dev", "--subresource=status"],
    &["patch", "storagenodes.storage.holdfast.dev"],
    &["get", "secrets"],
    &["list", "objectstores.storage.holdfast.dev"],
];

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    let operator = world.operator()?;
    provision_store_at(world, &s3, BUCKET, &s3.endpoint())?;
    let controller = world.csi_controller()?;
    let csi = controller.csi();

    refuse_unsupported_requests(&csi)?;
    create(world, &s3, &csi)?;
    older_definitions(world, &csi)?;

    report::step("kill the driver while it waits for the operator");
    operator.kill();
    kill_while_creating(&controller)?;
    operator.restart()?;
    expect_granted(
        "create again after the kill",
        csi.create(&RequestedVolume::new("pvc-2", GIB, "store"), LIMIT)?,
    )?;
    expect_granted("delete", csi.delete("pvc-2", LIMIT)?)?;

    snapshots(world, &controller, &operator)?;
    groups::run(world, &csi, &operator)?;
    publish(world, &csi)?;
    withdraw(world, &controller)?;

    report::step("expand a free volume, and delete it");
    let grown = expect_granted("expand", csi.expand("pvc-1", 3 * GIB)?)?;
    let size = world.kubectl(["get", "volume/pvc-1", "--output=jsonpath={.spec.size}"])?;
    ensure!(grown == 3 * GIB && size == "3Gi", "the volume has {grown} bytes and spec.size {size}");
    for volume in ["pvc-1", "pvc-1", "pvc-unknown", "No Name Of A Volume"] {
        expect_granted("delete", csi.delete(volume, LIMIT)?)?;
    }
    let left = s3.keys(BUCKET, "")?;
    ensure!(!left.iter().any(|key| key.contains("/segments/")), "data is left: {left:?}");

    for what in FORBIDDEN {
        let account = format!("--as=system:serviceaccount:{NAMESPACE}:holdfast-csi-controller");
        let ask = ["auth", "can-i", &account];
        let may = world.kubectl(ask.iter().chain(what));
        ensure!(may.is_err(), "the driver may {}", what.join(" "));
    }
    operator.stop()
}

fn refuse_unsupported_requests(csi: &Csi) -> Result<()> {
    report::step("reject unsupported requests");
    let volume = || RequestedVolume::new("pvc-refused", GIB, "store");
    let ask = |new: RequestedVolume| csi.create(&new, LIMIT);
    let replicas = ask(volume().parameter("replicas", "3"))?;
    expect_refused("a parameter", replicas, "InvalidArgument", "parameters.replicas: is not known")?;
    expect_refused("RWX", ask(volume().with_use(&Use::shared()))?, "InvalidArgument", "ReadWriteOnce")?;
    let zfs = ask(volume().with_use(&Use::mounted("zfs")))?;
    expect_refused("a file system", zfs, "InvalidArgument", "write ext4, xfs or btrfs")?;
    expect_refused(
        "no name",
        ask(RequestedVolume::new("", GIB, "store"))?,
        "InvalidArgument",
        "name: is empty",
    )?;
    expect_refused(
        "the size",
        ask(RequestedVolume::new("pvc-refused", 1 << 50, "store"))?,
        "OutOfRange",
        "64Ti",
    )?;
    let listed = expect_granted("list", csi.list()?)?;
    ensure!(listed.is_empty(), "a refused volume is there: {listed:?}");

    report::step("a request waits for a missing store, and names it");
    let missing = csi.create(&RequestedVolume::new("pvc-missing", GIB, "missing"), SHORT)?;
    expect_refused("a missing store", missing, "Aborted", "no ObjectStore is named `missing`")?;
    expect_granted("delete it", csi.delete("pvc-missing", LIMIT)?)
}

fn create(world: &World, s3: &S3Server, csi: &Csi) -> Result<()> {
    report::step("create a volume, twice");
    let before = count_created_objects(s3)?;
    let new = RequestedVolume::new("pvc-1", GIB, "store")
        .parameter("durability", "object")
        // No daemon renews a Lease for the nodes that the scenario plays.
        .parameter("failoverPolicy", "Manual")
        .parameter("csi.storage.k8s.io/pvc/name", "data")
        .parameter("csi.storage.k8s.io/pvc/namespace", "shop");
    let first = expect_granted("create", csi.create(&new, LIMIT)?)?;
    let repeated = expect_granted("create again", csi.create(&new, LIMIT)?)?;
    ensure!(first == repeated && first.capacity_bytes == GIB, "{first:?} and {repeated:?}");
    ensure!(
        count_created_objects(s3)? == before + 1,
        "a volume was created with {} PUTs",
        count_created_objects(s3)? - before
    );
    let uid = world.kubectl(["get", "volume/pvc-1", "--output=jsonpath={.status.volumeId}"])?;
    ensure!(first.volume_context.get("volumeID") == Some(&uid), "{first:?} is not {uid}");
    let path =
        "--output=jsonpath={.spec.durability} {.metadata.annotations.holdfast\\.dev/persistentvolumeclaim}";
    let written = world.kubectl(["get", "volume/pvc-1", path])?;
    ensure!(written == "object shop/data", "the Volume says {written:?}");
    let larger = csi
        .create(&RequestedVolume::new("pvc-1", 2 * GIB, "store").parameter("durability", "object"), LIMIT)?;
    expect_refused("another size", larger, "AlreadyExists", "exists with 1073741824 bytes")?;
    let other = csi.create(&RequestedVolume::new("pvc-1", GIB, "store"), LIMIT)?;
    expect_refused("another durability", other, "AlreadyExists", "another durability")?;

    let attributes = [("durability", "object"), ("maxDirtyAge", "5s")];
    let attributed = RequestedVolume::new("pvc-attributes", GIB, "store").attributes(&attributes);
    for _ in 0..2 {
        expect_granted("create with attributes", csi.create(&attributed, LIMIT)?)?;
    }
    let path = "--output=jsonpath={.spec.durability} {.spec.maxDirtyAge}";
    let written = world.kubectl(["get", "volume/pvc-attributes", path])?;
    ensure!(written == "object 5s", "the Volume says {written:?}");
    expect_granted("modify a free volume", csi.modify("pvc-attributes", &[("durability", "local")], SHORT)?)?;
    let written = world.kubectl(["get", "volume/pvc-attributes", path])?;
    ensure!(written == "local 5s", "the Volume says {written:?}");
    expect_granted("delete it", csi.delete("pvc-attributes", LIMIT)?)?;

    let long =
        expect_granted("create", csi.create(&RequestedVolume::new(&"N".repeat(128), GIB, "store"), LIMIT)?)?;
    ensure!(long.volume_id.len() == 42, "a long name became {}", long.volume_id);
    expect_granted("delete it", csi.delete(&long.volume_id, LIMIT)?)
}

/// Regression: the driver was upgraded but the CRDs were not: they lack a field.
fn older_definitions(world: &World, csi: &Csi) -> Result<()> {
    report::step("CRDs without a field of the driver are named, and no other volume is created");
    let fields = ["transport", "limits/properties/throughput"]
        .map(|name| format!("/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/{name}"));
    let change = |operations: &Value| {
        let patch = format!("--patch={operations}");
        world.kubectl(["patch", "crd/volumes.storage.holdfast.dev", "--type=json", &patch])
    };
    let definition = world.kubectl(["get", "crd/volumes.storage.holdfast.dev", "--output=json"])?;
    let definition: Value = serde_json::from_str(&definition)?;
    let added = fields.iter().map(|field| {
        let schema = definition.pointer(field).with_context(|| format!("the definition has no {field}"))?;
        Ok(json!({ "op": "add", "path": field, "value": schema }))
    });
    let added = added.collect::<Result<Value>>()?;
    change(&fields.iter().map(|field| json!({ "op": "remove", "path": field })).collect())?;
    // The server takes a moment to apply a CRD.
    let new = RequestedVolume::new("pvc-newer", GIB, "store").parameter("transport", "ublk");
    let answer = until("the driver to name the definitions", LIMIT, || match csi.create(&new, LIMIT)? {
        Err(answer) => Ok(Some(answer)),
        Ok(_) => csi.delete("pvc-newer", LIMIT).map(|_| None),
    })?;
    expect_refused::<()>("a newer field", Err(answer), "FailedPrecondition", "older than this driver")?;
    let left = world.kubectl(["get", "volumes", "--output=name"])?;
    ensure!(!left.contains("pvc-newer"), "a volume without the field was made: {left}");
    expect_granted(
        "create without it",
        csi.create(&RequestedVolume::new("pvc-older", GIB, "store"), LIMIT)?,
    )?;
    let limited = csi.modify("pvc-older", &[("maxThroughput", "1Mi")], SHORT)?;
    expect_refused("limits", limited, "FailedPrecondition", "unknown field \"spec.limits.throughput\"")?;
    change(&added)?;
    until("the definition that has limits", LIMIT, || {
        Ok(csi.modify("pvc-older", &[("maxThroughput", "1Mi")], SHORT)?.is_ok().then_some(()))
    })?;
    expect_granted("delete it", csi.delete("pvc-older", LIMIT)?)
}

/// The driver dies after it created the object and before it is provisioned.
fn kill_while_creating(controller: &CsiService) -> Result<()> {
    let csi = controller.csi();
    let waiting = thread::spawn(move || csi.create(&RequestedVolume::new("pvc-2", GIB, "store"), LIMIT));
    let csi = controller.csi();
    until("the driver to create the object", LIMIT, || {
        let listed = expect_granted("list", csi.list()?)?;
        Ok(listed.iter().any(|one| one.volume == "pvc-2").then_some(()))
    })?;
    controller.kill();
    let cut_off = waiting.join().ok().context("the request ends")?;
    ensure!(!matches!(cut_off, Ok(Ok(_))), "a driver that was killed answered {cut_off:?}");
    controller.restart()
}

/// Snapshots, volumes created from one, and clones.
fn snapshots(world: &World, controller: &CsiService, operator: &Operator) -> Result<()> {
    let csi = controller.csi();
    report::step("take a snapshot, twice");
    let none = csi.snapshot("backup", "pvc-none", LIMIT)?;
    expect_refused("no such volume", none, "NotFound", "source_volume_id: no Volume is named `pvc-none`")?;
    let first = expect_granted("snapshot", csi.snapshot("backup", "pvc-1", LIMIT)?)?;
    let repeated = expect_granted("snapshot again", csi.snapshot("backup", "pvc-1", LIMIT)?)?;
    ensure!(first == repeated && first.ready_to_use && first.size_bytes == GIB, "{first:?} and {repeated:?}");
    expect_granted("another volume", csi.create(&RequestedVolume::new("pvc-other", GIB, "store"), LIMIT)?)?;
    let other = csi.snapshot("backup", "pvc-other", LIMIT)?;
    expect_refused("another source", other, "AlreadyExists", "Volume `pvc-1` as its source")?;

    report::step("kill the driver while it waits for a snapshot: one snapshot exists");
    operator.kill();
    let asks = controller.csi();
    let waiting = thread::spawn(move || asks.snapshot("later", "pvc-1", LIMIT));
    until("the driver to create the object", LIMIT, || {
        Ok(world.kubectl(["get", "volumesnapshot.storage.holdfast.dev", "later"]).is_ok().then_some(()))
    })?;
    controller.kill();
    let cut_off = waiting.join().ok().context("the request ends")?;
    ensure!(!matches!(cut_off, Ok(Ok(_))), "a driver that was killed answered {cut_off:?}");
    controller.restart()?;
    let pending = csi.snapshot("later", "pvc-1", SHORT)?;
    expect_refused("without an operator", pending, "Aborted", "VolumeSnapshot later is not taken yet")?;
    operator.restart()?;
    expect_granted("snapshot after the kill", csi.snapshot("later", "pvc-1", LIMIT)?)?;
    let mut listed = expect_granted("list", csi.snapshots("pvc-1")?)?;
    listed.sort();
    ensure!(listed == ["backup", "later"], "listed: {listed:?}");
    ensure!(expect_granted("list", csi.snapshots("pvc-other")?)?.is_empty(), "snapshots of another volume");

    report::step("volumes are created from a snapshot and from a volume, and outlive them");
    let restored = RequestedVolume::new("pvc-restored", 0, "store").from_snapshot("backup");
    let created = expect_granted("restore", csi.create(&restored, LIMIT)?)?;
    ensure!(created.capacity_bytes == GIB && created.content_source.is_some(), "{created:?}");
    let larger = RequestedVolume::new("pvc-clone", 2 * GIB, "store").from_volume("pvc-1");
    let created = expect_granted("clone", csi.create(&larger, LIMIT)?)?;
    ensure!(created.capacity_bytes == 2 * GIB && created.content_source.is_some(), "{created:?}");
    let small = RequestedVolume::new("pvc-small", GIB / 2, "store").from_snapshot("backup");
    expect_refused("a smaller one", csi.create(&small, LIMIT)?, "OutOfRange", "volume_content_source")?;
    for of_xfs in [
        RequestedVolume::new("pvc-xfs", GIB, "store").from_snapshot("backup"),
        RequestedVolume::new("pvc-xfs", GIB, "store").from_volume("pvc-1"),
    ] {
        let refused = csi.create(&of_xfs.with_use(&Use::mounted("xfs")), LIMIT)?;
        expect_refused("another file system", refused, "InvalidArgument", "fstype is ext4")?;
    }
    let lost = RequestedVolume::new("pvc-lost", GIB, "store").from_snapshot("nothing");
    expect_refused("no such snapshot", csi.create(&lost, LIMIT)?, "NotFound", "is named `nothing`")?;
    let empty = csi.create(&RequestedVolume::new("pvc-restored", GIB, "store"), LIMIT)?;
    expect_refused("another content", empty, "AlreadyExists", "another initial content")?;
    for snapshot in ["backup", "backup", "later", "nothing", "No Name"] {
        expect_granted("delete a snapshot", csi.delete_snapshot(snapshot)?)?;
    }
    let repeated = expect_granted("restore again", csi.create(&restored, LIMIT)?)?;
    ensure!(repeated.capacity_bytes == GIB, "{repeated:?}");
    let left = world.kubectl(["get", "volumesnapshots.storage.holdfast.dev", "--output=name"])?;
    ensure!(left.is_empty(), "snapshots are left: {left}");
    for volume in ["pvc-restored", "pvc-clone", "pvc-other"] {
        expect_granted("delete", csi.delete(volume, LIMIT)?)?;
    }
    Ok(())
}

fn publish(world: &World, csi: &Csi) -> Result<()> {
    report::step("publish a volume on a node");
    expect_refused(
        "no such volume",
        csi.publish("pvc-none", "n1", LIMIT)?,
        "NotFound",
        "no Volume is named",
    )?;
    expect_refused(
        "no such node",
        csi.publish("pvc-1", "n1", LIMIT)?,
        "NotFound",
        "no StorageNode is named",
    )?;
    for node in ["n1", "n2"] {
        apply(world, &storage_node(node))?;
    }
    let pending = csi.publish("pvc-1", "n1", SHORT)?;
    expect_refused("a silent node", pending, "Aborted", "Volume pvc-1 is not attached on node n1 yet")?;
    let waiting = in_background(csi, |csi| csi.publish("pvc-1", "n1", LIMIT));
    world.wait_for("volume/pvc-1", "jsonpath={.status.assignedNode}=n1")?;
    report_served(world, "n1")?;
    let context = expect_granted("publish", waiting.join().ok().context("the request ends")??)?;
    ensure!(context.get("epoch").is_some_and(|epoch| epoch == "1"), "{context:?}");
    ensure!(context.contains_key("volumeID"), "{context:?}");
    let repeated = expect_granted("publish again", csi.publish("pvc-1", "n1", SHORT)?)?;
    ensure!(repeated == context, "{repeated:?} is not {context:?}");

    let elsewhere = csi.publish("pvc-1", "n2", LIMIT)?;
    expect_refused("a second node", elsewhere, "FailedPrecondition", "published on node n1")?;
    let deleted = csi.delete("pvc-1", LIMIT)?;
    expect_refused("delete in use", deleted, "FailedPrecondition", "published on node n1")?;
    let waiting = in_background(csi, |csi| csi.expand("pvc-1", 2 * GIB));
    world.wait_for("volume/pvc-1", "jsonpath={.spec.size}=2Gi")?;
    report_served_size(world, "n1", 2 * GIB)?;
    let grown = expect_granted("expand in use", waiting.join().ok().context("the request ends")??)?;
    ensure!(grown == 2 * GIB, "grown to {grown} bytes");
    modify(world, csi)?;
    let listed = expect_granted("list", csi.list()?)?;
    let expected = ListedVolume { volume: "pvc-1".to_owned(), nodes: vec!["n1".to_owned()] };
    ensure!(listed == [expected], "{listed:?}");
    Ok(())
}

/// A VolumeAttributesClass of a served volume: the response waits until the node has applied it.
fn modify(world: &World, csi: &Csi) -> Result<()> {
    report::step("modify a volume in use");
    let ask = |parameters: &[(&str, &str)]| csi.modify("pvc-1", parameters, SHORT);
    let immutable = ask(&[("objectStore", "other"), ("durability", "local")])?;
    let words = "mutable_parameters.objectStore: is immutable";
    expect_refused("another store", immutable, "InvalidArgument", words)?;
    let unknown = ask(&[("replicas", "3")])?;
    expect_refused("a parameter", unknown, "InvalidArgument", "mutable_parameters.replicas: is not known")?;
    let far = ask(&[("maxDirtyAge", "2h")])?;
    expect_refused("an age", far, "InvalidArgument", "mutable_parameters.maxDirtyAge: ")?;
    let small = ask(&[("maxThroughput", "512Ki")])?;
    expect_refused(
        "a limit",
        small,
        "InvalidArgument",
        "mutable_parameters.maxThroughput: `512Ki` is out of range",
    )?;
    let none = csi.modify("pvc-none", &[("durability", "local")], SHORT)?;
    expect_refused("no such volume", none, "NotFound", "no Volume is named")?;

    let wanted = [("durability", "local"), ("maxDirtyAge", "90s"), ("failoverPolicy", "Manual")];
    report_settings(world, "object", "30s")?;
    let pending = csi.modify("pvc-1", &wanted, SHORT)?;
    expect_refused(
        "before it is in effect",
        pending,
        "Aborted",
        "its node reports durability object, maxDirtyAge 30s, maxIops none",
    )?;
    let path = "--output=jsonpath={.spec.durability} {.spec.maxDirtyAge} {.spec.objectStore}";
    let spec = world.kubectl(["get", "volume/pvc-1", path])?;
    ensure!(spec == "local 90s store", "the Volume says {spec:?}");
    let waiting = in_background(csi, move |csi| csi.modify("pvc-1", &wanted, LIMIT));
    thread::sleep(Duration::from_millis(500));
    report_settings(world, "local", "1m30s")?;
    expect_granted("modify in use", waiting.join().ok().context("the request ends")??)?;
    expect_granted("modify again", csi.modify("pvc-1", &wanted, SHORT)?)
}

/// Writes the status of the daemon of `n1` for a volume served with these settings.
fn report_settings(world: &World, durability: &str, age: &str) -> Result<()> {
    report_served_fields(
        world,
        "n1",
        2 * GIB,
        &format!("\"durability\": \"{durability}\", \"maxDirtyAge\": \"{age}\", "),
    )
}

fn withdraw(world: &World, controller: &CsiService) -> Result<()> {
    report::step("unpublish it: wait for the final commit, despite a kill of the driver");
    let csi = controller.csi();
    expect_granted("unpublish elsewhere", csi.unpublish("pvc-1", "n2", SHORT)?)?;
    let pending = csi.unpublish("pvc-1", "n1", SHORT)?;
    expect_refused("a node that still serves", pending, "Aborted", "waiting for its final commit")?;
    controller.kill();
    controller.restart()?;
    let waiting = in_background(&csi, |csi| csi.unpublish("pvc-1", "n1", LIMIT));
    thread::sleep(Duration::from_millis(500));
    report_status(world, "{\"status\": {\"conditions\": []}}")?;
    expect_granted("unpublish", waiting.join().ok().context("the request ends")??)?;
    expect_granted("unpublish again", csi.unpublish("pvc-1", "n1", SHORT)?)?;
    expect_granted("unpublish what is gone", csi.unpublish("pvc-none", "n1", SHORT)?)
}

fn in_background<T: Send + 'static>(
    csi: &Csi,
    ask: impl FnOnce(&Csi) -> Result<CsiResponse<T>> + Send + 'static,
) -> thread::JoinHandle<Result<CsiResponse<T>>> {
    let csi = csi.clone();
    thread::spawn(move || ask(&csi))
}

fn storage_node(name: &str) -> String {
    format!(
        "apiVersion: storage.holdfast.dev/v1alpha1\nkind: StorageNode\nmetadata: {{name: {name}}}\nspec: {{}}\n"
    )
}

/// Writes the status of the daemon of `node` for a served volume.
fn report_served(world: &World, node: &str) -> Result<()> {
    report_served_size(world, node, GIB)
}

/// Writes the status of the daemon of `node` for a served volume, with a device of this many bytes.
fn report_served_size(world: &World, node: &str, bytes: i64) -> Result<()> {
    report_served_fields(world, node, bytes, "")
}

/// Writes the status of the daemon of `node` for a served volume, with a device of this many bytes and
/// additional fields.
fn report_served_fields(world: &World, node: &str, bytes: i64, fields: &str) -> Result<()> {
    let generation = world.kubectl(["get", "volume/pvc-1", "--output=jsonpath={.metadata.generation}"])?;
    let attached = format!(
        "{{\"type\": \"Attached\", \"status\": \"True\", \"reason\": \"Attached\", \"message\": \"served\", \
         \"observedGeneration\": {generation}, \"lastTransitionTime\": \"2026-01-01T00:00:00Z\"}}"
    );
    report_status(
        world,
        &format!(
            "{{\"status\": {{\"node\": \"{node}\", \"devicePath\": \"/dev/ublkb0\", \"epoch\": 1, {fields}\
             \"attachedSizeBytes\": {bytes}, \"conditions\": [{attached}]}}}}"
        ),
    )
}

/// Writes the daemon's part of the status: missing fields are removed.
fn report_status(world: &World, status: &str) -> Result<()> {
    let file = world.dir().join("status.json");
    let head = "{\"apiVersion\": \"storage.holdfast.dev/v1alpha1\", \"kind\": \"Volume\", \
                \"metadata\": {\"name\": \"pvc-1\"}, ";
    std::fs::write(&file, format!("{head}{}", status.trim_start_matches('{'))).context("write a status")?;
    let file = file.display().to_string();
    let words = [
        "apply",
        "--server-side",
        "--field-manager=holdfast-node",
        "--force-conflicts",
        "--subresource=status",
    ];
    world.kubectl(words.into_iter().chain(["--filename", &file])).map(drop)
}
