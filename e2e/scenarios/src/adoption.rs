//! Identities of volumes: Volumes saved and reapplied, Volumes that claim another one's id, and adoption.

use anyhow::{Context, Result, ensure};
use holdfast_lab::command::output;
use holdfast_lab::report;
use holdfast_lab::s3::S3Server;
use holdfast_lab::world::World;

use super::provisioning::{
    adopting_volume, apply, condition, count_created_objects, expect_removed, object_store, volume,
};
use super::restore::restore_command;
use super::story::provision_store_at;

const BUCKET: &str = "identities";
/// Fields of a saved object to which the API server assigns new values.
const NOT_SAVED: [&str; 2] = ["  uid:", "  resourceVersion:"];

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    let operator = world.operator()?;
    provision_store_at(world, &s3, BUCKET, &s3.endpoint())?;
    let id = save_and_apply_again(world, &s3)?;
    refuse_a_taken_id(world, &s3, &id)?;
    refuse_smaller_size(world, &s3, &id)?;
    adopt(world, &s3, &id)?;
    undelete(world, &s3)?;
    report::step("a deleted volume is neither adopted nor provisioned again");
    apply(world, &adopting_volume("late", &id, "1Gi"))?;
    wait_unprovisioned(world, "late", "VolumeDeleted: spec.volumeID")?;
    world.kubectl(["delete", "volume", "late", "--timeout=60s"])?;
    apply(world, &with_id("later", &id))?;
    wait_unprovisioned(world, "later", "IdTaken: spec.volumeID: volume")?;
    world.kubectl(["delete", "volume", "later", "--timeout=60s"])?;
    expect_removed(&s3, BUCKET, 2)?;
    operator.stop()
}

/// Returns the id of the Volume `kept`.
fn save_and_apply_again(world: &World, s3: &S3Server) -> Result<String> {
    report::step("save a Volume, delete it with its objects retained, and apply it again");
    let retained = volume("kept", "store", "1Gi").replace("{size", "{deletionPolicy: Retain, size");
    apply(world, &retained)?;
    world.wait_for("volume/kept", "jsonpath={.status.phase}=Ready")?;
    let fields = "{.metadata.uid} {.spec.volumeID} {.status.volumeId}";
    let before = field(world, "kept", fields)?;
    let saved = world.kubectl(["get", "volume", "kept", "--output=yaml"])?;
    world.kubectl(["delete", "volume", "kept", "--timeout=60s"])?;
    let objects = s3.keys(BUCKET, "volumes/")?;
    ensure!(objects.len() == 1, "not only the create record but {objects:?}");
    let stripped = saved.lines().filter(|line| !NOT_SAVED.iter().any(|field| line.starts_with(field)));
    apply(world, &stripped.collect::<Vec<_>>().join("\n"))?;
    world.wait_for("volume/kept", "jsonpath={.status.phase}=Ready")?;
    let after = field(world, "kept", fields)?;
    let id = |text: &str| text.split(' ').skip(1).map(str::to_owned).collect::<Vec<_>>();
    ensure!(id(&before) == id(&after) && before != after, "{before} is {after} after it was applied again");
    ensure!(id(&after)[0] == id(&after)[1], "the identity is not in the spec: {after}");
    ensure!(s3.keys(BUCKET, "volumes/")? == objects, "another volume was created");
    id(&after).pop().context("an id")
}

fn refuse_a_taken_id(world: &World, s3: &S3Server, id: &str) -> Result<()> {
    report::step("another Volume with its id is rejected, and its deletion removes nothing");
    let objects = s3.keys(BUCKET, "volumes/")?;
    apply(world, &with_id("thief", id))?;
    wait_unprovisioned(world, "thief", "IdTaken: spec.volumeID: Volume `kept` also has the identity")?;
    apply(world, &object_store("second", BUCKET, "store", &s3.endpoint()))?;
    world.wait_for("objectstore/second", "condition=Ready")?;
    apply(world, &adopting_volume("elsewhere", id, "").replace("objectStore: store", "objectStore: second"))?;
    wait_unprovisioned(world, "elsewhere", "IdTaken: spec.volumeID: Volume `kept` also has the identity")?;
    world.kubectl(["delete", "volume", "elsewhere", "--timeout=60s"])?;
    world.kubectl(["delete", "volume", "thief", "kept", "--timeout=60s"])?;
    apply(world, &with_id("thief", id))?;
    let refused = wait_unprovisioned(world, "thief", "IdTaken: spec.volumeID: volume")?;
    for part in ["created by Volume `kept` of cluster ", "`spec.source.existing: {}`"] {
        ensure!(refused.contains(part), "{part} is not in {refused}");
    }
    world.kubectl(["delete", "volume", "thief", "--timeout=60s"])?;
    ensure!(s3.keys(BUCKET, "volumes/")? == objects, "objects of another Volume were changed");
    Ok(())
}

fn refuse_smaller_size(world: &World, s3: &S3Server, id: &str) -> Result<()> {
    report::step("a Volume of its name with a smaller size is rejected, and its deletion removes nothing");
    let objects = s3.keys(BUCKET, "volumes/")?;
    apply(world, &with_id("kept", id).replace("1Gi", "512Mi"))?;
    wait_unprovisioned(world, "kept", "InvalidSize: spec.size")?;
    world.kubectl(["delete", "volume", "kept", "--timeout=60s"])?;
    ensure!(s3.keys(BUCKET, "volumes/")? == objects, "objects that were retained were removed");
    Ok(())
}

fn adopt(world: &World, s3: &S3Server, id: &str) -> Result<()> {
    report::step("adopt the existing volume with its size, without a PUT");
    let before = count_created_objects(s3)?;
    apply(world, &adopting_volume("small", id, "512Mi"))?;
    wait_unprovisioned(world, "small", "InvalidSize: spec.size")?;
    world.kubectl(["delete", "volume", "small", "--timeout=60s"])?;
    apply(world, &adopting_volume("adopted", id, ""))?;
    world.wait_for("volume/adopted", "jsonpath={.status.phase}=Ready")?;
    let found = field(world, "adopted", "{.spec.size} {.status.volumeId}")?;
    ensure!(found == format!("1Gi {id}"), "it was adopted as {found}");
    let reported = condition(world, "volume/adopted", "Provisioned")?;
    ensure!(
        reported.starts_with("Adopted: ") && reported.contains("no node has attached it yet"),
        "{reported}"
    );
    ensure!(
        count_created_objects(s3)? == before,
        "an adoption sent {} PUTs",
        count_created_objects(s3)? - before
    );
    apply(world, &adopting_volume("nothing", "no-such-volume", "1Gi"))?;
    wait_unprovisioned(world, "nothing", "VolumeNotFound: spec.volumeID")?;
    world.kubectl(["delete", "volume", "adopted", "nothing", "--timeout=60s"])?;
    Ok(())
}

/// A Volume is deleted by mistake, and restored from the trash.
fn undelete(world: &World, s3: &S3Server) -> Result<()> {
    report::step("a Volume that was deleted by mistake is restored completely");
    let keeping = object_store("keeping", BUCKET, "store", &s3.endpoint())
        .replace("keepDeleted: 0s", "keepDeleted: 24h");
    apply(world, &keeping)?;
    world.wait_for("objectstore/keeping", "condition=Ready")?;
    apply(world, &volume("mistaken", "keeping", "1Gi"))?;
    world.wait_for("volume/mistaken", "jsonpath={.status.phase}=Ready")?;
    let id = field(world, "mistaken", "{.status.volumeId}")?;
    let objects = s3.keys(BUCKET, "volumes/")?;
    world.kubectl(["delete", "volume", "mistaken", "--timeout=60s"])?;
    let entries = s3.keys(BUCKET, "trash/")?;
    ensure!(
        entries.len() == 1 && entries[0].starts_with(&format!("trash/{id}/")),
        "in the trash: {entries:?}"
    );
    let documents = output(restore_command(world, "keeping")?.arg("--deleted"))?;
    ensure!(documents.contains(&format!("volumeID: {id}")), "restore --deleted prints {documents}");
    apply(world, &documents)?;
    world.wait_for("volume/mistaken", "jsonpath={.status.phase}=Ready")?;
    let remaining = (s3.keys(BUCKET, "volumes/")?, s3.keys(BUCKET, "trash/")?);
    ensure!(remaining == (objects, Vec::new()), "it was taken back as {remaining:?}");
    report::step("in a store without retention, the deletion of a Volume is final");
    let nothing = "--patch={\"spec\":{\"keepDeleted\":\"0s\"}}";
    world.kubectl(["patch", "objectstore", "keeping", "--type=merge", nothing])?;
    world.wait_for("objectstore/keeping", "condition=Ready")?;
    let delete = "--patch={\"spec\":{\"deletionPolicy\":\"Delete\"}}";
    world.kubectl(["patch", "volume", "mistaken", "--type=merge", delete])?;
    world.kubectl(["delete", "volume", "mistaken", "--timeout=60s"])?;
    apply(world, &documents)?;
    wait_unprovisioned(world, "mistaken", "VolumeDeleted: spec.volumeID")?;
    world.kubectl(["delete", "volume", "mistaken", "--timeout=60s"])?;
    Ok(())
}

/// Waits until a volume is not provisioned, with a message that begins like this, and returns the message.
fn wait_unprovisioned(world: &World, name: &str, prefix: &str) -> Result<String> {
    let object = format!("volume/{name}");
    world.wait_for(&object, "jsonpath={.status.phase}=Failed")?;
    let reported = condition(world, &object, "Provisioned")?;
    ensure!(reported.starts_with(prefix), "{object} says {reported}");
    Ok(reported)
}

fn with_id(name: &str, id: &str) -> String {
    volume(name, "store", "1Gi").replace("{size", &format!("{{volumeID: {id}, size"))
}

fn field(world: &World, name: &str, path: &str) -> Result<String> {
    world.kubectl(["get", "volume", name, &format!("--output=jsonpath={path}")])
}
