//! Volumes that many nodes read (ReadOnlyMany): each node attaches its own fork, its *reader*.
//!
//! ```text
//! Volume V, never attached <- VolumeSnapshot of V <- reader on node a
//!                                                 <- reader on node b
//! ```
//!
//! Owns: the names and labels of these objects, and the removal of a reader.
//! Invariants: a reader belongs to one V and one node, and its name contains both. While V is being deleted,
//! no reader is created. The VolumeSnapshot is deleted after the readers, and V after the VolumeSnapshot,
//! because a volume with snapshots is not removed: an interrupted deletion finds its leftovers by V.
//! On failure: `ABORTED` while the request waits; the same request resumes.

use std::collections::BTreeMap;

use futures::future::try_join_all;
use holdfast_crds::{
    DeletionPolicy, FailoverPolicy, PROVISIONED, READ_ONLY_MANY, READERS_OF, SnapshotSource, TRACEPARENT,
    Volume, VolumeSnapshot, VolumeSnapshotSpec, VolumeSource, VolumeSpec, find_condition,
};
use holdfast_service::trace;
use kube::{Resource, ResourceExt};
use tokio::time::Instant;
use tonic::Status;

use super::objects::Objects;
use super::reason;
use super::snapshots::condition;
use super::volumes::ClusterVolumes;
use super::{create_snapshot, volume_id};

/// Value of [`READ_ONLY_MANY`].
const MARKED: &str = "true";
/// Longest part of a Volume's name in the names of its readers' objects, in bytes.
const NAME_BYTES: usize = 40;
/// Reasons for which the operator does not provision a reader whose VolumeSnapshot was deleted.
const SNAPSHOT_GONE: [&str; 2] = ["SnapshotNotFound", "SnapshotDeleted"];
/// Hex digits of the hash in these names.
const HASH_DIGITS: usize = 16;

/// Returns true if many nodes read the volume, and none attaches it.
pub(super) fn has_readers(volume: &Volume) -> bool {
    volume.labels().contains_key(READ_ONLY_MANY)
}

/// Labels a volume as one that many nodes read.
pub(super) fn mark(volume: &mut Volume) {
    volume.labels_mut().insert(READ_ONLY_MANY.to_owned(), MARKED.to_owned());
}

/// Returns a label selector for objects that do not belong to readers.
pub(super) fn not_for_readers() -> String {
    format!("!{READERS_OF}")
}

/// Takes the VolumeSnapshot that a volume's readers start from, unless it already exists.
///
/// # Errors
/// `ABORTED`: it was not taken yet. Those of the requests.
pub(super) async fn prepare(
    snapshots: &Objects<VolumeSnapshot>,
    volume: &Volume,
    until: Instant,
) -> Result<(), Status> {
    let name = snapshot_name(&volume.name_any());
    let found = match snapshots.get(&name).await? {
        Some(found) => found,
        None => snapshots.create(&snapshot(volume)).await?,
    };
    check_owner(&found, "VolumeSnapshot", volume)?;
    create_snapshot::wait(snapshots, found, until).await.map(drop)
}

/// Returns the reader of a volume on a node, if it exists.
///
/// # Errors
/// `ABORTED`: an earlier one is still being deleted. `FAILED_PRECONDITION`: its name is taken.
pub(super) async fn find(
    volumes: &ClusterVolumes,
    volume: &Volume,
    node: &str,
) -> Result<Option<Volume>, Status> {
    let Some(found) = volumes.get(&reader_name(&volume.name_any(), node)).await? else { return Ok(None) };
    check_owner(&found, "Volume", volume)?;
    Ok(Some(found))
}

/// Creates the reader of a volume on a node, and requests the node for it.
///
/// # Errors
/// `FAILED_PRECONDITION`: the volume is being deleted. Those of [`find`].
pub(super) async fn create(
    volumes: &ClusterVolumes,
    volume: &Volume,
    node: &str,
    until: Instant,
) -> Result<Volume, Status> {
    let made = volumes.create(&reader(volume, node)).await?;
    check_owner(&made, "Volume", volume)?;
    // A concurrent deletion may have listed the readers before this one existed.
    let name = volume.name_any();
    let now = volumes.get(&name).await?.filter(|now| now.metadata.uid == volume.metadata.uid);
    if now.is_some_and(|now| now.metadata.deletion_timestamp.is_none()) {
        return Ok(made);
    }
    delete_one(volumes, made, until).await?;
    Err(Status::failed_precondition(format!("volume_id: Volume {name} is being deleted")))
}

/// Returns a reader that is not provisioned yet. If its VolumeSnapshot was deleted before, the reader is
/// ended: it may have recorded a snapshot that no longer exists.
///
/// # Errors
/// `ABORTED`: it was ended, and the next attempt creates it again. Those of [`end`].
pub(super) async fn with_snapshot(
    volumes: &ClusterVolumes,
    reader: Volume,
    until: Instant,
) -> Result<Volume, Status> {
    if !lacks_snapshot(&reader) {
        return Ok(reader);
    }
    let name = reader.name_any();
    delete_one(volumes, reader, until).await?;
    Err(Status::aborted(format!(
        "the snapshot of Volume {name} was deleted; a later attempt creates it again"
    )))
}

fn lacks_snapshot(reader: &Volume) -> bool {
    let status = reader.status.as_ref();
    let provisioned = status.and_then(|status| find_condition(&status.conditions, PROVISIONED));
    reason::refused(reader).is_some()
        && provisioned.is_some_and(|said| SNAPSHOT_GONE.contains(&said.reason.as_str()))
}

/// Returns the readers of that volume on a node, or on all nodes if `node` is empty.
///
/// # Errors
/// Those of the requests.
pub(super) async fn of(volumes: &ClusterVolumes, name: &str, node: &str) -> Result<Vec<Volume>, Status> {
    if node.is_empty() {
        return Ok(volumes.list(&format!("{READERS_OF}={name}")).await?);
    }
    let found = volumes.get(&reader_name(name, node)).await?;
    Ok(found.into_iter().filter(|found| is_made_for(found, name)).collect())
}

/// Withdraws readers from their nodes, and deletes them.
///
/// # Errors
/// `ABORTED`: a node has not released one yet, or one is still being deleted.
pub(super) async fn end(
    volumes: &ClusterVolumes,
    readers: Vec<Volume>,
    until: Instant,
) -> Result<(), Status> {
    try_join_all(readers.into_iter().map(|reader| delete_one(volumes, reader, until))).await.map(drop)
}

async fn delete_one(volumes: &ClusterVolumes, reader: Volume, until: Instant) -> Result<(), Status> {
    let name = reader.name_any();
    volumes.release(reader, "", until).await?;
    let Some(released) = volumes.get(&name).await? else { return Ok(()) };
    let unpublished = |reader: &Volume| match reader.spec.desired_node() {
        None => Ok(()),
        Some(_) => Err(Status::aborted(format!(
            "Volume {name} was published again during the request; the caller retries"
        ))),
    };
    match volumes.delete(released, until, unpublished).await? {
        Some(deleted) => volumes.wait_until_gone(deleted, until).await,
        None => Ok(()),
    }
}

/// Deletes the objects for the readers of a volume that is being deleted.
///
/// # Errors
/// Those of [`end`], and of the snapshot's deletion.
pub(super) async fn end_all(
    volumes: &ClusterVolumes,
    snapshots: &Objects<VolumeSnapshot>,
    name: &str,
    until: Instant,
) -> Result<(), Status> {
    end(volumes, of(volumes, name, "").await?, until).await?;
    match snapshots.get(&snapshot_name(name)).await?.filter(|found| is_made_for(found, name)) {
        Some(snapshot) => snapshots.remove(snapshot, until, condition).await,
        None => Ok(()),
    }
}

/// Builds the reader of a volume on a node. Its data is disposable: a lost node is force-detached
/// automatically, regardless of the volume's policy.
fn reader(volume: &Volume, node: &str) -> Volume {
    let name = volume.name_any();
    let spec = VolumeSpec {
        volume_id: Some(volume_id::fresh()),
        source: VolumeSource::Snapshot(SnapshotSource { name: snapshot_name(&name) }),
        node_name: Some(node.to_owned()),
        deletion_policy: DeletionPolicy::Delete,
        failover_policy: FailoverPolicy::Automatic,
        ..volume.spec.clone()
    };
    let mut reader = Volume::new(&reader_name(&name, node), spec);
    mark_as_made_for(&mut reader, volume);
    reader.metadata.annotations =
        trace::current().map(|trace| BTreeMap::from([(TRACEPARENT.to_owned(), trace)]));
    reader
}

/// Builds the VolumeSnapshot that the readers of a volume start from.
fn snapshot(volume: &Volume) -> VolumeSnapshot {
    let name = volume.name_any();
    let spec = VolumeSnapshotSpec {
        volume: name.clone(),
        group: None,
        snapshot_id: None,
        deletion_policy: DeletionPolicy::Delete,
    };
    let mut snapshot = VolumeSnapshot::new(&snapshot_name(&name), spec);
    mark_as_made_for(&mut snapshot, volume);
    snapshot
}

fn mark_as_made_for(object: &mut impl ResourceExt, volume: &Volume) {
    object.labels_mut().insert(READERS_OF.to_owned(), volume.name_any());
    object.owner_references_mut().extend(volume.owner_ref(&()));
}

/// Returns true if the object was created for the readers of the volume of that name, or of an earlier one.
pub(super) fn is_made_for(object: &impl ResourceExt, name: &str) -> bool {
    object.labels().get(READERS_OF).is_some_and(|of| of == name)
}

/// Checks that an existing object of the expected name was created for this volume.
///
/// # Errors
/// `ABORTED`: it is still being deleted. `FAILED_PRECONDITION`: its name is taken.
fn check_owner(object: &impl ResourceExt, kind: &str, volume: &Volume) -> Result<(), Status> {
    let (name, of) = (object.name_any(), volume.name_any());
    if !is_made_for(object, &of) {
        return Err(Status::failed_precondition(format!(
            "volume_id: {kind} {name} has a name that the readers of Volume {of} need. Delete it first"
        )));
    }
    let is_old =
        !object.owner_references().iter().any(|owner| Some(&owner.uid) == volume.metadata.uid.as_ref());
    if is_old || object.meta().deletion_timestamp.is_some() {
        return Err(Status::aborted(format!(
            "{kind} {name} is still being deleted; a later attempt creates it again"
        )));
    }
    Ok(())
}

fn snapshot_name(volume: &str) -> String {
    name_for(volume, "")
}

fn reader_name(volume: &str, node: &str) -> String {
    name_for(volume, node)
}

/// Returns the name of a readers' object, for one node or for all (empty name).
fn name_for(volume: &str, node: &str) -> String {
    let hash = blake3::hash(format!("{volume}/{node}").as_bytes()).to_hex();
    let begin = &volume[..volume.len().min(NAME_BYTES)];
    format!("{begin}-ro-{}", &hash[..HASH_DIGITS])
}

#[cfg(test)]
mod tests {
    use holdfast_proto::csi::v1::volume_capability::access_mode::Mode;
    use holdfast_proto::csi::v1::volume_capability::{AccessMode, AccessType, MountVolume};
    use holdfast_proto::csi::v1::{ControllerPublishVolumeRequest, VolumeCapability};
    use serde_json::{Value, json};
    use tonic::{Code, Request};

    use super::super::memory::fake::FakeApi;
    use super::super::object_name::is_object_name;
    use super::super::publish_volume::{self, tests::volume};
    use super::super::snapshots::tests::snapshot as taken;
    use super::*;

    /// Volume `data` with this uid, which many nodes read.
    fn shared(uid: &str) -> Volume {
        let mut shared = volume(None, None);
        shared.metadata.uid = Some(uid.to_owned());
        mark(&mut shared);
        shared
    }

    #[test]
    fn each_node_has_a_reader_of_its_own() {
        let long = "v".repeat(63);
        let node = "node-1.example.com";
        let names = [
            reader_name("data", node),
            reader_name("data", "node-2"),
            reader_name("data2", node),
            reader_name(&long, node),
            reader_name(&long[1..], node),
            snapshot_name("data"),
        ];
        for (at, name) in names.iter().enumerate() {
            assert!(is_object_name(name), "{name}");
            assert!(!names[..at].contains(name), "{name}");
        }
        assert_eq!(reader_name("data", node), names[0]);
        assert!(names[0].starts_with("data-ro-"), "{}", names[0]);
    }

    #[test]
    fn a_reader_begins_with_the_snapshot_and_goes_with_its_node() {
        let mut shared = shared("uid-1");
        shared.spec.failover_policy = FailoverPolicy::Manual;
        shared.spec.volume_id = Some("id".to_owned());
        let reader = reader(&shared, "a");
        let source = SnapshotSource { name: snapshot(&shared).name_any() };
        assert_eq!(reader.spec.source, VolumeSource::Snapshot(source));
        assert_eq!((reader.spec.desired_node(), &reader.spec.size), (Some("a"), &shared.spec.size));
        assert_eq!(reader.spec.object_store, shared.spec.object_store);
        assert_eq!(reader.spec.failover_policy, FailoverPolicy::Automatic);
        assert_ne!(reader.spec.volume_id, shared.spec.volume_id);
        assert!(has_readers(&shared) && !has_readers(&reader));
        check_owner(&reader, "Volume", &shared).expect("it is the one");
    }

    #[test]
    fn an_object_of_another_volume_is_not_used() {
        let old = reader(&shared("uid-1"), "a");
        let waits = check_owner(&old, "Volume", &shared("uid-2")).expect_err("of an earlier one");
        assert_eq!(waits.code(), Code::Aborted);
        assert!(is_made_for(&old, "data"), "the deletion of the later one finds it");
        let taken = check_owner(&volume(None, None), "Volume", &shared("uid-1")).expect_err("of a user");
        assert_eq!(taken.code(), Code::FailedPrecondition);
        let mut deleted = reader(&shared("uid-1"), "a");
        deleted.metadata.deletion_timestamp =
            Some(holdfast_crds::Time("2026-01-01T00:00:00Z".parse().expect("a time")));
        assert_eq!(
            check_owner(&deleted, "Volume", &shared("uid-1")).expect_err("goes").code(),
            Code::Aborted
        );
    }

    /// Publishes volume `data` for a reader on node `a`, in a cluster with these objects. Returns the error,
    /// and the names of the objects afterwards.
    async fn publish(objects: Vec<Value>) -> (Status, Vec<String>) {
        let (client, server) = FakeApi::serve(objects, 0, |_| {});
        let (volumes, snapshots) = (ClusterVolumes::new(client.clone()), Objects::new(client));
        let access_mode = Some(AccessMode { mode: Mode::MultiNodeReaderOnly.into() });
        let access_type = Some(AccessType::Mount(MountVolume::default()));
        let request = ControllerPublishVolumeRequest {
            volume_id: "data".to_owned(),
            node_id: "a".to_owned(),
            volume_capability: Some(VolumeCapability { access_mode, access_type }),
            readonly: true,
            ..ControllerPublishVolumeRequest::default()
        };
        let answer = publish_volume::answer(&volumes, &snapshots, Request::new(request)).await;
        let names = server.volumes().into_iter().map(|(name, _size)| name).collect();
        (answer.expect_err("no node serves it"), names)
    }

    /// Regression, found in review: a user deleted the VolumeSnapshot before the reader was provisioned, and
    /// each later publication on that node failed.
    #[tokio::test(start_paused = true)]
    async fn a_reader_whose_snapshot_was_deleted_is_created_again() {
        let shared = shared("uid-1");
        let mut refused = reader(&shared, "a");
        let name = refused.name_any();
        refused.metadata.uid = Some("uid-2".to_owned());
        refused.metadata.resource_version = Some("1".to_owned());
        let said = json!({
            "type": "Provisioned", "status": "False", "reason": "SnapshotNotFound", "message": "it is gone",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let status = json!({ "phase": "Failed", "restoredFrom": "id@7", "conditions": [said] });
        refused.status = Some(serde_json::from_value(status).expect("a status"));
        let (waits, names) = publish(vec![json!(shared), json!(refused)]).await;
        assert_eq!((waits.code(), names.len()), (Code::Aborted, 3), "{waits:?}");
        assert!(names.contains(&snapshot_name("data")), "it is taken again: {names:?}");

        let mut retaken = snapshot(&shared);
        retaken.metadata.uid = Some("uid-3".to_owned());
        retaken.status = taken(true, "Taken").status;
        let (ended, names) = publish(vec![json!(shared), json!(refused), json!(retaken)]).await;
        assert_eq!(ended.code(), Code::Aborted, "{ended:?}");
        assert!(ended.message().ends_with("creates it again"), "{}", ended.message());
        assert!(!names.contains(&name), "{names:?}");

        let (_, names) = publish(vec![json!(shared), json!(retaken)]).await;
        assert!(names.contains(&name), "{names:?}");
    }
}
