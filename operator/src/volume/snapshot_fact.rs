//! Observed state of the VolumeSnapshot that a volume names.

use holdfast_crds::{READY, VolumeSnapshot, find_condition, is_final_snapshot_reason};
use holdfast_types::{SnapshotName, SnapshotUid};

/// Observed state of the VolumeSnapshot that a volume names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotFact {
    /// Not read, because the plan does not depend on it.
    NotRead,
    /// No VolumeSnapshot has that name.
    Missing,
    /// Its deletion was requested.
    Deleting,
    /// It has not been taken yet.
    NotReady {
        /// Reason and message of its condition.
        why: String,
    },
    /// It will never be taken.
    Failed {
        /// Reason and message of its condition.
        why: String,
    },
    /// It was taken.
    Ready(TakenSnapshot),
}

/// A snapshot in an object store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TakenSnapshot {
    /// Its name in the object store.
    pub(crate) name: SnapshotName,
    /// The uid that it is registered under: that of the VolumeSnapshot.
    pub(crate) uid: SnapshotUid,
    /// Name of the ObjectStore.
    pub(crate) object_store: String,
    /// Logical size of the volume at the snapshot.
    pub(crate) size_bytes: u64,
}

impl SnapshotFact {
    /// Reads the fact from a VolumeSnapshot.
    pub(crate) fn of(snapshot: Option<&VolumeSnapshot>) -> Self {
        let Some(snapshot) = snapshot else { return Self::Missing };
        if snapshot.metadata.deletion_timestamp.is_some() {
            return Self::Deleting;
        }
        let is_right = snapshot.is_adoption_complete();
        let status = snapshot.status.clone().unwrap_or_default();
        let name = status.snapshot_id.and_then(|name| name.parse().ok());
        let uid = snapshot.uid_in_store().and_then(|uid| uid.parse().ok());
        if let (Some(name), Some(uid), Some(object_store), Some(size_bytes)) =
            (name, uid, status.object_store, status.size_bytes)
            && is_right
        {
            return Self::Ready(TakenSnapshot { name, uid, object_store, size_bytes });
        }
        let said = find_condition(&status.conditions, READY);
        let why = said.map_or_else(
            || "it was just created".to_owned(),
            |said| format!("{}: {}", said.reason, said.message),
        );
        if said.is_some_and(|said| is_final_snapshot_reason(&said.reason)) {
            Self::Failed { why }
        } else {
            Self::NotReady { why }
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_crds::VolumeSnapshotStatus;
    use serde_json::json;

    use super::*;

    const UID: &str = "8f14e45f-ceea-467f-a1d4-91e2f1f0a9c4";

    fn snapshot(status: serde_json::Value) -> VolumeSnapshot {
        let spec = serde_json::from_value(json!({ "volume": "data" })).expect("a spec");
        let mut snapshot = VolumeSnapshot::new("nightly", spec);
        snapshot.metadata.uid = Some(UID.to_owned());
        snapshot.status = Some(serde_json::from_value::<VolumeSnapshotStatus>(status).expect("a status"));
        snapshot
    }

    fn ready(status: &str, reason: &str) -> serde_json::Value {
        json!([{ "type": "Ready", "status": status, "reason": reason, "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z" }])
    }

    #[test]
    fn a_snapshot_counts_once_it_is_taken() {
        assert_eq!(SnapshotFact::of(None), SnapshotFact::Missing);
        let why = "it was just created".to_owned();
        assert_eq!(SnapshotFact::of(Some(&snapshot(json!({})))), SnapshotFact::NotReady { why });
        let asked = json!({ "volumeId": "v", "objectStore": "store", "node": "a", "conditions": ready("False", "Taking") });
        let why = "Taking: m".to_owned();
        assert_eq!(SnapshotFact::of(Some(&snapshot(asked))), SnapshotFact::NotReady { why });
        for reason in ["VolumeDeleted", "VolumeReplaced"] {
            let of = snapshot(json!({ "conditions": ready("False", reason) }));
            assert_eq!(SnapshotFact::of(Some(&of)), SnapshotFact::Failed { why: format!("{reason}: m") });
        }
        let mut taken = snapshot(json!({
            "volumeId": "v", "objectStore": "store", "snapshotId": "v@17", "sizeBytes": 8192, "conditions": ready("True", "Taken"),
        }));
        let name = "v@17".parse().expect("a name");
        let uid = UID.parse().expect("a UUID");
        let expected = TakenSnapshot { name, uid, object_store: "store".to_owned(), size_bytes: 8192 };
        assert_eq!(SnapshotFact::of(Some(&taken)), SnapshotFact::Ready(expected));
        taken.metadata.deletion_timestamp =
            Some(holdfast_crds::Time("2026-01-01T00:00:00Z".parse().expect("a time")));
        assert_eq!(SnapshotFact::of(Some(&taken)), SnapshotFact::Deleting);
    }
}
