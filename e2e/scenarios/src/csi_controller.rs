//! The CSI Controller service with the real operator and the real API server. The scenario plays the sidecars
//! and the node daemon: it writes the status that a daemon would write for a served volume.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::csi::{Answer, Csi, CsiService, LIMIT, Listed, NewVolume, SHORT, Use, granted, refused};
use holdfast_lab::operator::{NAMESPACE, Operator};
use holdfast_lab::report;
use holdfast_lab::s3::S3Server;
use holdfast_lab::wait::until;
use holdfast_lab::world::World;
use serde_json::{Value, json};

use super::provisioning::{apply, creates};
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

    refuse_what_is_not_offered(&csi)?;
    create(world, &s3, &csi)?;
    older_definitions(world, &csi)?;

    report::step("kill the driver while it waits for the operator");
    operator.kill();
    killed_while_creating(&controller)?;
    operator.restart()?;
    granted("create again after the kill", csi.create(&NewVolume::new("pvc-2", GIB, "store"), LIMIT)?)?;
    granted("delete", csi.delete("pvc-2", LIMIT)?)?;

    snapshots(world, &controller, &operator)?;
    groups::run(world, &csi, &operator)?;
    publish(world, &csi)?;
    withdraw(world, &controller)?;

    report::step("expand a free volume, and delete it");
    let grown = granted("expand", csi.expand("pvc-1", 3 * GIB)?)?;
    let size = world.kubectl(["get", "volume/pvc-1", "--output=jsonpath={.spec.size}"])?;
    ensure!(grown == 3 * GIB && size == "3Gi", "the volume has {grown} bytes and spec.size {size}");
    for volume in ["pvc-1", "pvc-1", "pvc-unknown", "No Name Of A Volume"] {
        granted("delete", csi.delete(volume, LIMIT)?)?;
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

fn refuse_what_is_not_offered(csi: &Csi) -> Result<()> {
    report::step("refuse what is not offered");
    let volume = || NewVolume::new("pvc-refused", GIB, "store");
    let ask = |new: NewVolume| csi.create(&new, LIMIT);
    let replicas = ask(volume().parameter("replicas", "3"))?;
    refused("a parameter", replicas, "InvalidArgument", "parameters.replicas: is not known")?;
    refused("RWX", ask(volume().used(&Use::shared()))?, "InvalidArgument", "ReadWriteOnce")?;
    let zfs = ask(volume().used(&Use::mounted("zfs")))?;
    refused("a file system", zfs, "InvalidArgument", "write ext4, xfs or btrfs")?;
    refused("no name", ask(NewVolume::new("", GIB, "store"))?, "InvalidArgument", "name: is empty")?;
    refused("the size", ask(NewVolume::new("pvc-refused", 1 << 50, "store"))?, "OutOfRange", "64Ti")?;
    let listed = granted("list", csi.list()?)?;
    ensure!(listed.is_empty(), "a refused volume is there: {listed:?}");

    report::step("a store that does not exist is waited for, and named");
    let missing = csi.create(&NewVolume::new("pvc-missing", GIB, "missing"), SHORT)?;
    refused("a missing store", missing, "Aborted", "no ObjectStore is named `missing`")?;
    granted("delete it", csi.delete("pvc-missing", LIMIT)?)
}

fn create(world: &World, s3: &S3Server, csi: &Csi) -> Result<()> {
    report::step("create a volume, twice");
    let before = creates(s3)?;
    let new = NewVolume::new("pvc-1", GIB, "store")
        .parameter("durability", "object")
        // No daemon renews a Lease for the nodes that the scenario plays.
        .parameter("failoverPolicy", "Manual")
        .parameter("csi.storage.k8s.io/pvc/name", "data")
        .parameter("csi.storage.k8s.io/pvc/namespace", "shop");
    let first = granted("create", csi.create(&new, LIMIT)?)?;
    let again = granted("create again", csi.create(&new, LIMIT)?)?;
    ensure!(first == again && first.capacity_bytes == GIB, "{first:?} and {again:?}");
    ensure!(creates(s3)? == before + 1, "a volume was created with {} PUTs", creates(s3)? - before);
    let uid = world.kubectl(["get", "volume/pvc-1", "--output=jsonpath={.status.volumeId}"])?;
    ensure!(first.volume_context.get("volumeID") == Some(&uid), "{first:?} is not {uid}");
    let path =
        "--output=jsonpath={.spec.durability} {.metadata.annotations.holdfast\\.dev/persistentvolumeclaim}";
    let written = world.kubectl(["get", "volume/pvc-1", path])?;
    ensure!(written == "object shop/data", "the Volume says {written:?}");
    let larger =
        csi.create(&NewVolume::new("pvc-1", 2 * GIB, "store").parameter("durability", "object"), LIMIT)?;
    refused("another size", larger, "AlreadyExists", "exists with 1073741824 bytes")?;
    let other = csi.create(&NewVolume::new("pvc-1", GIB, "store"), LIMIT)?;
    refused("another durability", other, "AlreadyExists", "another durability")?;

    let attributes = [("durability", "object"), ("maxDirtyAge", "5s")];
    let attributed = NewVolume::new("pvc-attributes", GIB, "store").attributes(&attributes);
    for _ in 0..2 {
        granted("create with attributes", csi.create(&attributed, LIMIT)?)?;
    }
    let path = "--output=jsonpath={.spec.durability} {.spec.maxDirtyAge}";
    let written = world.kubectl(["get", "volume/pvc-attributes", path])?;
    ensure!(written == "object 5s", "the Volume says {written:?}");
    granted("modify a free volume", csi.modify("pvc-attributes", &[("durability", "local")], SHORT)?)?;
    let written = world.kubectl(["get", "volume/pvc-attributes", path])?;
    ensure!(written == "local 5s", "the Volume says {written:?}");
    granted("delete it", csi.delete("pvc-attributes", LIMIT)?)?;

    let long = granted("create", csi.create(&NewVolume::new(&"N".repeat(128), GIB, "store"), LIMIT)?)?;
    ensure!(long.volume_id.len() == 42, "a long name became {}", long.volume_id);
    granted("delete it", csi.delete(&long.volume_id, LIMIT)?)
}

/// Regression: the driver was upgraded but the CRDs were not: they lack a field.
fn older_definitions(world: &World, csi: &Csi) -> Result<()> {
    report::step("definitions that lack a field of the driver are named, and no other volume is made");
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
    let new = NewVolume::new("pvc-newer", GIB, "store").parameter("transport", "ublk");
    let answer = until("the driver to name the definitions", LIMIT, || match csi.create(&new, LIMIT)? {
        Err(answer) => Ok(Some(answer)),
        Ok(_) => csi.delete("pvc-newer", LIMIT).map(|_| None),
    })?;
    refused::<()>("a newer field", Err(answer), "FailedPrecondition", "older than this driver")?;
    let left = world.kubectl(["get", "volumes", "--output=name"])?;
    ensure!(!left.contains("pvc-newer"), "a volume without the field was made: {left}");
    granted("create without it", csi.create(&NewVolume::new("pvc-older", GIB, "store"), LIMIT)?)?;
    let limited = csi.modify("pvc-older", &[("maxThroughput", "1Mi")], SHORT)?;
    refused("limits", limited, "FailedPrecondition", "unknown field \"spec.limits.throughput\"")?;
    change(&added)?;
    until("the definition that has limits", LIMIT, || {
        Ok(csi.modify("pvc-older", &[("maxThroughput", "1Mi")], SHORT)?.is_ok().then_some(()))
    })?;
    granted("delete it", csi.delete("pvc-older", LIMIT)?)
}

/// The driver dies after it created the object and before it is provisioned.
fn killed_while_creating(controller: &CsiService) -> Result<()> {
    let csi = controller.csi();
    let waiting = thread::spawn(move || csi.create(&NewVolume::new("pvc-2", GIB, "store"), LIMIT));
    let csi = controller.csi();
    until("the driver to create the object", LIMIT, || {
        let listed = granted("list", csi.list()?)?;
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
    refused("no such volume", none, "NotFound", "source_volume_id: no Volume is named `pvc-none`")?;
    let first = granted("snapshot", csi.snapshot("backup", "pvc-1", LIMIT)?)?;
    let again = granted("snapshot again", csi.snapshot("backup", "pvc-1", LIMIT)?)?;
    ensure!(first == again && first.ready_to_use && first.size_bytes == GIB, "{first:?} and {again:?}");
    granted("another volume", csi.create(&NewVolume::new("pvc-other", GIB, "store"), LIMIT)?)?;
    let other = csi.snapshot("backup", "pvc-other", LIMIT)?;
    refused("another source", other, "AlreadyExists", "Volume `pvc-1` as its source")?;

    report::step("kill the driver while it waits for a snapshot: there is one");
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
    let waits = csi.snapshot("later", "pvc-1", SHORT)?;
    refused("without an operator", waits, "Aborted", "VolumeSnapshot later is not taken yet")?;
    operator.restart()?;
    granted("snapshot after the kill", csi.snapshot("later", "pvc-1", LIMIT)?)?;
    let mut listed = granted("list", csi.snapshots("pvc-1")?)?;
    listed.sort();
    ensure!(listed == ["backup", "later"], "listed: {listed:?}");
    ensure!(granted("list", csi.snapshots("pvc-other")?)?.is_empty(), "snapshots of another volume");

    report::step("volumes begin with a snapshot and with a volume, and outlive them");
    let restored = NewVolume::new("pvc-restored", 0, "store").from_snapshot("backup");
    let made = granted("restore", csi.create(&restored, LIMIT)?)?;
    ensure!(made.capacity_bytes == GIB && made.content_source.is_some(), "{made:?}");
    let larger = NewVolume::new("pvc-clone", 2 * GIB, "store").from_volume("pvc-1");
    let made = granted("clone", csi.create(&larger, LIMIT)?)?;
    ensure!(made.capacity_bytes == 2 * GIB && made.content_source.is_some(), "{made:?}");
    let small = NewVolume::new("pvc-small", GIB / 2, "store").from_snapshot("backup");
    refused("a smaller one", csi.create(&small, LIMIT)?, "OutOfRange", "volume_content_source")?;
    let lost = NewVolume::new("pvc-lost", GIB, "store").from_snapshot("nothing");
    refused("no such snapshot", csi.create(&lost, LIMIT)?, "NotFound", "is named `nothing`")?;
    let empty = csi.create(&NewVolume::new("pvc-restored", GIB, "store"), LIMIT)?;
    refused("another content", empty, "AlreadyExists", "another initial content")?;
    for snapshot in ["backup", "backup", "later", "nothing", "No Name"] {
        granted("delete a snapshot", csi.delete_snapshot(snapshot)?)?;
    }
    let again = granted("restore again", csi.create(&restored, LIMIT)?)?;
    ensure!(again.capacity_bytes == GIB, "{again:?}");
    let left = world.kubectl(["get", "volumesnapshots.storage.holdfast.dev", "--output=name"])?;
    ensure!(left.is_empty(), "snapshots are left: {left}");
    for volume in ["pvc-restored", "pvc-clone", "pvc-other"] {
        granted("delete", csi.delete(volume, LIMIT)?)?;
    }
    Ok(())
}

fn publish(world: &World, csi: &Csi) -> Result<()> {
    report::step("publish a volume on a node");
    refused("no such volume", csi.publish("pvc-none", "n1", LIMIT)?, "NotFound", "no Volume is named")?;
    refused("no such node", csi.publish("pvc-1", "n1", LIMIT)?, "NotFound", "no StorageNode is named")?;
    for node in ["n1", "n2"] {
        apply(world, &storage_node(node))?;
    }
    let waits = csi.publish("pvc-1", "n1", SHORT)?;
    refused("a silent node", waits, "Aborted", "Volume pvc-1 is not attached on node n1 yet")?;
    let waiting = in_background(csi, |csi| csi.publish("pvc-1", "n1", LIMIT));
    world.wait_for("volume/pvc-1", "jsonpath={.status.assignedNode}=n1")?;
    served_by(world, "n1")?;
    let context = granted("publish", waiting.join().ok().context("the request ends")??)?;
    ensure!(context.get("epoch").is_some_and(|epoch| epoch == "1"), "{context:?}");
    ensure!(context.contains_key("volumeID"), "{context:?}");
    let again = granted("publish again", csi.publish("pvc-1", "n1", SHORT)?)?;
    ensure!(again == context, "{again:?} is not {context:?}");

    let elsewhere = csi.publish("pvc-1", "n2", LIMIT)?;
    refused("a second node", elsewhere, "FailedPrecondition", "published on node n1")?;
    let deleted = csi.delete("pvc-1", LIMIT)?;
    refused("delete in use", deleted, "FailedPrecondition", "published on node n1")?;
    let waiting = in_background(csi, |csi| csi.expand("pvc-1", 2 * GIB));
    world.wait_for("volume/pvc-1", "jsonpath={.spec.size}=2Gi")?;
    served_with(world, "n1", 2 * GIB)?;
    let grown = granted("expand in use", waiting.join().ok().context("the request ends")??)?;
    ensure!(grown == 2 * GIB, "grown to {grown} bytes");
    modify(world, csi)?;
    let listed = granted("list", csi.list()?)?;
    let expected = Listed { volume: "pvc-1".to_owned(), nodes: vec!["n1".to_owned()] };
    ensure!(listed == [expected], "{listed:?}");
    Ok(())
}

/// A VolumeAttributesClass of a served volume: the response waits until the node has applied it.
fn modify(world: &World, csi: &Csi) -> Result<()> {
    report::step("modify a volume in use");
    let ask = |parameters: &[(&str, &str)]| csi.modify("pvc-1", parameters, SHORT);
    let immutable = ask(&[("objectStore", "other"), ("durability", "local")])?;
    let words = "mutable_parameters.objectStore: is immutable";
    refused("another store", immutable, "InvalidArgument", words)?;
    let unknown = ask(&[("replicas", "3")])?;
    refused("a parameter", unknown, "InvalidArgument", "mutable_parameters.replicas: is not known")?;
    let far = ask(&[("maxDirtyAge", "2h")])?;
    refused("an age", far, "InvalidArgument", "mutable_parameters.maxDirtyAge: ")?;
    let small = ask(&[("maxThroughput", "512Ki")])?;
    refused(
        "a limit",
        small,
        "InvalidArgument",
        "mutable_parameters.maxThroughput: `512Ki` is out of range",
    )?;
    let none = csi.modify("pvc-none", &[("durability", "local")], SHORT)?;
    refused("no such volume", none, "NotFound", "no Volume is named")?;

    let wanted = [("durability", "local"), ("maxDirtyAge", "90s"), ("failoverPolicy", "Manual")];
    serves_as(world, "object", "30s")?;
    let waits = csi.modify("pvc-1", &wanted, SHORT)?;
    refused(
        "before it is in effect",
        waits,
        "Aborted",
        "its node reports durability object, maxDirtyAge 30s, maxIops none",
    )?;
    let path = "--output=jsonpath={.spec.durability} {.spec.maxDirtyAge} {.spec.objectStore}";
    let spec = world.kubectl(["get", "volume/pvc-1", path])?;
    ensure!(spec == "local 90s store", "the Volume says {spec:?}");
    let waiting = in_background(csi, move |csi| csi.modify("pvc-1", &wanted, LIMIT));
    thread::sleep(Duration::from_millis(500));
    serves_as(world, "local", "1m30s")?;
    granted("modify in use", waiting.join().ok().context("the request ends")??)?;
    granted("modify again", csi.modify("pvc-1", &wanted, SHORT)?)
}

/// Writes the status of the daemon of `n1` for a volume served with these settings.
fn serves_as(world: &World, durability: &str, age: &str) -> Result<()> {
    served_and(
        world,
        "n1",
        2 * GIB,
        &format!("\"durability\": \"{durability}\", \"maxDirtyAge\": \"{age}\", "),
    )
}

fn withdraw(world: &World, controller: &CsiService) -> Result<()> {
    report::step("unpublish it: wait for the final commit, also over a kill of the driver");
    let csi = controller.csi();
    granted("unpublish elsewhere", csi.unpublish("pvc-1", "n2", SHORT)?)?;
    let waits = csi.unpublish("pvc-1", "n1", SHORT)?;
    refused("a node that still serves", waits, "Aborted", "waiting for its final commit")?;
    controller.kill();
    controller.restart()?;
    let waiting = in_background(&csi, |csi| csi.unpublish("pvc-1", "n1", LIMIT));
    thread::sleep(Duration::from_millis(500));
    report_status(world, "{\"status\": {\"conditions\": []}}")?;
    granted("unpublish", waiting.join().ok().context("the request ends")??)?;
    granted("unpublish again", csi.unpublish("pvc-1", "n1", SHORT)?)?;
    granted("unpublish what is gone", csi.unpublish("pvc-none", "n1", SHORT)?)
}

fn in_background<T: Send + 'static>(
    csi: &Csi,
    ask: impl FnOnce(&Csi) -> Result<Answer<T>> + Send + 'static,
) -> thread::JoinHandle<Result<Answer<T>>> {
    let csi = csi.clone();
    thread::spawn(move || ask(&csi))
}

fn storage_node(name: &str) -> String {
    format!(
        "apiVersion: storage.holdfast.dev/v1alpha1\nkind: StorageNode\nmetadata: {{name: {name}}}\nspec: {{}}\n"
    )
}

/// Writes the status of the daemon of `node` for a served volume.
fn served_by(world: &World, node: &str) -> Result<()> {
    served_with(world, node, GIB)
}

/// Does the same with a device of this many bytes.
fn served_with(world: &World, node: &str, bytes: i64) -> Result<()> {
    served_and(world, node, bytes, "")
}

/// Does the same with additional fields.
fn served_and(world: &World, node: &str, bytes: i64, fields: &str) -> Result<()> {
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
