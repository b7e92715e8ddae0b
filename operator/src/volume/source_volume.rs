//! The Volume that another one starts from: `spec.source.volume`.
//!
//! The operator creates a VolumeSnapshot of it, named after the uid of the new Volume, and restores that like
//! `source_snapshot.rs`. The VolumeSnapshot names the identity of the source, so a Volume that reuses the
//! source's name is not cloned. The VolumeSnapshot is deleted as soon as the new volume exists, before
//! `Provisioned` reports it, or together with the new Volume if that is deleted earlier.

use holdfast_crds::{
    ByteSize, DeletionPolicy, Volume, VolumePhase, VolumeSnapshot, VolumeSnapshotSpec, VolumeSource,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};

use super::facts::{ClusterFacts, StoreFact};
use super::home::{Home, Obstacle, failed};
use super::snapshot_fact::SnapshotFact;
use super::source_fact::SourceFact;
use super::source_snapshot::restorable;
use crate::snapshot::facts::OF_VOLUME_ID;

/// Label of a VolumeSnapshot that the operator created for a clone: the clone's Volume name.
const CLONE_LABEL: &str = "holdfast.dev/clone";

impl ClusterFacts {
    /// Returns the name of the VolumeSnapshot for this clone.
    pub(crate) fn clone_snapshot(&self) -> Option<String> {
        matches!(self.spec.source, VolumeSource::Volume(_)).then(|| clone_snapshot_name(&self.identity.uid))
    }

    /// Returns the source Volume's name, while the plan depends on its VolumeSnapshot.
    pub(crate) fn source_in_question(&self) -> Option<&str> {
        let VolumeSource::Volume(source) = &self.spec.source else { return None };
        let is_open = !self.deleting && self.needs_store();
        (is_open && self.store == StoreFact::Ready).then_some(source.name.as_str())
    }
}

/// Returns the name of the VolumeSnapshot for the clone with this uid.
pub(super) fn clone_snapshot_name(uid: &str) -> String {
    format!("clone-{uid}")
}

/// Returns true if the VolumeSnapshot was created for the Volume with this uid.
pub(super) fn is_made_for(snapshot: &VolumeSnapshot, uid: &str) -> bool {
    snapshot.owner_references().iter().any(|owner| owner.controller == Some(true) && owner.uid == uid)
}

/// Builds the VolumeSnapshot for `clone`, of Volume `source` with exactly this identity.
pub(super) fn clone_snapshot(clone: &Volume, source: &str, volume_id: &str) -> VolumeSnapshot {
    let uid = clone.uid().unwrap_or_default();
    let spec = VolumeSnapshotSpec {
        volume: source.to_owned(),
        group: None,
        snapshot_id: None,
        deletion_policy: DeletionPolicy::Delete,
    };
    let mut snapshot = VolumeSnapshot::new(&clone_snapshot_name(&uid), spec);
    snapshot.labels_mut().insert(CLONE_LABEL.to_owned(), clone.name_any());
    snapshot.annotations_mut().insert(OF_VOLUME_ID.to_owned(), volume_id.to_owned());
    snapshot.metadata.owner_references = Some(vec![OwnerReference {
        api_version: Volume::api_version(&()).into_owned(),
        kind: Volume::kind(&()).into_owned(),
        name: clone.name_any(),
        uid,
        controller: Some(true),
        block_owner_deletion: Some(false),
    }]);
    snapshot
}

/// Decides the next step of a clone of Volume `source`. `wanted` is the spec's size in bytes.
///
/// # Errors
/// Reason why the volume cannot start from it now; the message names the field to change.
pub(super) fn clonable(facts: &ClusterFacts, source: &str, wanted: Option<u64>) -> Result<Home, Obstacle> {
    let name = clone_snapshot_name(&facts.identity.uid);
    let restored =
        || restorable(facts, &name, wanted).map(|snapshot| Home::Restored { size_bytes: wanted, snapshot });
    if facts.status.restored_from.is_some() {
        return restored();
    }
    let field = "spec.source.volume.name";
    if facts.content.is_clone_name_taken {
        return failed(
            "SnapshotNameTaken",
            format!(
                "{field}: VolumeSnapshot `{name}` was not created for this Volume; delete that VolumeSnapshot"
            ),
        );
    }
    let waiting = |reason, message| Err(Obstacle::new(VolumePhase::Pending, reason, message));
    match &facts.content.snapshot {
        SnapshotFact::Missing => snapshottable(facts, source, wanted),
        SnapshotFact::NotRead => waiting("Provisioning", format!("reading VolumeSnapshot {name}")),
        SnapshotFact::Deleting => waiting(
            "SnapshotNotReady",
            format!("{field}: VolumeSnapshot `{name}` is being deleted; the operator then creates it again"),
        ),
        SnapshotFact::NotReady { why } => waiting(
            "SnapshotNotReady",
            format!("{field}: waiting for VolumeSnapshot `{name}` of Volume `{source}` to be Ready ({why})"),
        ),
        SnapshotFact::Failed { why } => failed(
            "SnapshotFailed",
            format!(
                "{field}: VolumeSnapshot `{name}` of Volume `{source}` will not be taken ({why}); delete this Volume and create it again"
            ),
        ),
        SnapshotFact::Ready(_) => restored(),
    }
}

/// Checks that a snapshot of the Volume can be taken for this one.
fn snapshottable(facts: &ClusterFacts, source: &str, wanted: Option<u64>) -> Result<Home, Obstacle> {
    let field = "spec.source.volume.name";
    let store = facts.store_name();
    if source == facts.identity.name {
        return failed(
            "InvalidSource",
            format!("{field}: `{source}` is this Volume itself; create the Volume with the name of another"),
        );
    }
    match &facts.content.source {
        SourceFact::NotRead => {
            Err(Obstacle::new(VolumePhase::Pending, "Provisioning", format!("reading Volume {source}")))
        }
        SourceFact::Missing => failed(
            "VolumeNotFound",
            format!(
                "{field}: no Volume has the name `{source}`; create it, or create this Volume with the name of one that exists"
            ),
        ),
        SourceFact::Deleting => failed(
            "VolumeDeleted",
            format!(
                "{field}: Volume `{source}` is being deleted, so no volume is created from it; create this \
                 Volume with the name of another"
            ),
        ),
        SourceFact::NotProvisioned => Err(Obstacle::new(
            VolumePhase::Pending,
            "VolumeNotReady",
            format!(
                "{field}: Volume `{source}` is not provisioned yet; its conditions say what it waits for"
            ),
        )),
        SourceFact::Memory => failed(
            "InvalidSource",
            format!(
                "{field}: Volume `{source}` is a memory volume, which has no snapshots and no clones; create this Volume with spec.source `empty`, and copy the files"
            ),
        ),
        SourceFact::Ready { object_store, .. } if object_store != store => failed(
            "VolumeInOtherStore",
            format!(
                "spec.objectStore: Volume `{source}` is in ObjectStore `{object_store}`, and a clone cannot be in `{store}`; create the Volume with `{object_store}`"
            ),
        ),
        SourceFact::Ready { size_bytes: Some(size_bytes), .. }
            if wanted.is_some_and(|wanted| wanted < *size_bytes) =>
        {
            failed(
                "InvalidSize",
                format!(
                    "spec.size: Volume `{source}` has {size_bytes} bytes, and a clone cannot be smaller; write `{}` or more",
                    ByteSize(*size_bytes)
                ),
            )
        }
        SourceFact::Ready { volume_id, .. } => {
            Ok(Home::Cloned { source: source.to_owned(), volume_id: volume_id.clone() })
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The owner's uid decides, not its name: another Volume of the same name has another uid.
    #[test]
    fn a_snapshot_is_made_for_one_clone() {
        let spec = json!({ "objectStore": "store", "source": { "volume": { "name": "original" } } });
        let mut clone = Volume::new("copy", serde_json::from_value(spec).expect("a spec"));
        clone.metadata.uid = Some("uid-1".to_owned());
        let mut snapshot = clone_snapshot(&clone, "original", "id-1");
        assert_eq!(snapshot.annotations().get(OF_VOLUME_ID).map(String::as_str), Some("id-1"));
        assert_eq!(
            (snapshot.name_any().as_str(), snapshot.spec.volume.as_str()),
            ("clone-uid-1", "original")
        );
        assert_eq!(snapshot.spec.deletion_policy, DeletionPolicy::Delete);
        assert_eq!(snapshot.labels().get(CLONE_LABEL).map(String::as_str), Some("copy"));
        assert!(is_made_for(&snapshot, "uid-1"));
        assert!(!is_made_for(&snapshot, "uid-2"));
        snapshot.metadata.owner_references = None;
        assert!(!is_made_for(&snapshot, "uid-1"));
    }
}
