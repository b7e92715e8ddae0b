//! The VolumeSnapshots of a group: their names and owners.

use holdfast_crds::{
    DeletionPolicy, SNAPSHOT_FINALIZER, VolumeGroupSnapshot, VolumeSnapshot, VolumeSnapshotSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};

/// Returns the name of the VolumeSnapshot for the volume at this index of `spec.volumes`.
pub(super) fn member_name(group: &str, attempt: i64, place: usize) -> String {
    format!("{group}-{attempt}-{place}")
}

/// Returns the attempt encoded in the name of a group's VolumeSnapshot.
pub(super) fn attempt_of(group: &str, member: &str) -> Option<i64> {
    member.strip_prefix(group)?.strip_prefix('-')?.split_once('-')?.0.parse().ok()
}

/// Builds the VolumeSnapshot for the volume at this index of `spec.volumes`. It has its finalizer from
/// creation, so that a deletion cleans up every snapshot taken. It inherits the group's deletion policy once
/// the group is complete: the garbage collector may delete it before the operator notices the group's
/// deletion.
pub(super) fn member(group: &VolumeGroupSnapshot, attempt: i64, place: usize) -> Option<VolumeSnapshot> {
    let spec = VolumeSnapshotSpec {
        volume: group.spec.volumes.get(place)?.clone(),
        group: Some(group.name_any()),
        snapshot_id: None,
        deletion_policy: DeletionPolicy::Delete,
    };
    let mut snapshot = VolumeSnapshot::new(&member_name(&group.name_any(), attempt, place), spec);
    snapshot.metadata.finalizers = Some(vec![SNAPSHOT_FINALIZER.to_owned()]);
    snapshot.metadata.owner_references = Some(vec![OwnerReference {
        api_version: VolumeGroupSnapshot::api_version(&()).into_owned(),
        kind: VolumeGroupSnapshot::kind(&()).into_owned(),
        name: group.name_any(),
        uid: group.uid().unwrap_or_default(),
        controller: Some(true),
        // The finalizer of the group waits for it.
        block_owner_deletion: Some(false),
    }]);
    Some(snapshot)
}

/// Returns true if the VolumeGroupSnapshot named in the spec created the snapshot. The garbage collector
/// deletes members of a deleted group.
pub(crate) fn is_member(snapshot: &VolumeSnapshot) -> bool {
    snapshot.spec.group.as_deref().is_some_and(|group| {
        snapshot.owner_references().iter().any(|owner| is_controlling_group(owner) && owner.name == group)
    })
}

/// Returns true if the group of this uid created the snapshot.
pub(super) fn is_member_of(snapshot: &VolumeSnapshot, uid: &str) -> bool {
    is_member(snapshot)
        && snapshot.owner_references().iter().any(|owner| is_controlling_group(owner) && owner.uid == uid)
}

fn is_controlling_group(owner: &OwnerReference) -> bool {
    owner.controller == Some(true)
        && owner.kind == VolumeGroupSnapshot::kind(&())
        && owner.api_version == VolumeGroupSnapshot::api_version(&())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn group() -> VolumeGroupSnapshot {
        let spec = json!({ "volumes": ["data", "wal"], "deletionPolicy": "Retain" });
        let mut group = VolumeGroupSnapshot::new("nightly", serde_json::from_value(spec).expect("a spec"));
        group.metadata.uid = Some("uid-1".to_owned());
        group
    }

    #[test]
    fn a_member_carries_what_its_group_says() {
        let snapshot = member(&group(), 3, 1).expect("it has two volumes");
        assert_eq!((snapshot.name_any().as_str(), snapshot.spec.volume.as_str()), ("nightly-3-1", "wal"));
        assert_eq!(snapshot.spec.deletion_policy, DeletionPolicy::Delete, "the group is not complete");
        assert_eq!(snapshot.finalizers(), [SNAPSHOT_FINALIZER]);
        assert!(is_member(&snapshot) && is_member_of(&snapshot, "uid-1"));
        assert_eq!(member(&group(), 3, 2), None);
        assert_eq!(attempt_of("nightly", &snapshot.name_any()), Some(3));
        assert_eq!(attempt_of("nightly", "other-3-1"), None);
    }

    /// Covers a later group of the same name, and an owner that is not a group.
    #[test]
    fn the_uid_of_the_owner_decides_and_not_its_name() {
        let mut snapshot = member(&group(), 1, 0).expect("it has two volumes");
        assert!(!is_member_of(&snapshot, "uid-2"));
        let owner = |snapshot: &mut VolumeSnapshot, change: fn(&mut OwnerReference)| {
            change(&mut snapshot.owner_references_mut()[0]);
            assert!(!is_member(snapshot) && !is_member_of(snapshot, "uid-1"));
        };
        owner(&mut snapshot.clone(), |owner| owner.kind = "Volume".to_owned());
        owner(&mut snapshot.clone(), |owner| owner.controller = None);
        owner(&mut snapshot.clone(), |owner| owner.name = "hourly".to_owned());
        snapshot.spec.group = None;
        assert!(!is_member(&snapshot));
    }
}
