//! The snapshot that a volume begins with: `spec.source.snapshot`.
//!
//! The name of the VolumeSnapshot is looked up until it is Ready. What it names then is recorded in
//! `status.restoredFrom` before anything is created, and every later attempt restores that: another
//! VolumeSnapshot may have the name meanwhile. The log of the snapshot's volume says if it still exists, and
//! that it is the one of the VolumeSnapshot: its uid is registered there. A bucket that was set back, or
//! another bucket, may have a snapshot of the same name. So nothing is created without the VolumeSnapshot.

use holdfast_crds::{
    ByteSize, MAX_SIZE_BYTES, READY, VolumePhase, VolumeSnapshot, VolumeSource, find_condition,
    is_final_snapshot_reason,
};
use holdfast_types::{SnapshotName, SnapshotUid};

use super::facts::{ClusterFacts, StoreFact};
use super::provisionable::{Obstacle, failed};

/// Observed state of the VolumeSnapshot that a volume names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotFact {
    /// Not read, because the plan does not depend on it.
    NotLooked,
    /// No VolumeSnapshot has that name.
    Missing,
    /// Its deletion was requested.
    Deleting,
    /// It is not taken yet.
    NotReady {
        /// Reason and message of its condition.
        why: String,
    },
    /// It will never be taken.
    Failed {
        /// Reason and message of its condition.
        why: String,
    },
    /// It is taken.
    Ready(TakenSnapshot),
}

/// A snapshot in an object store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TakenSnapshot {
    /// Its name there.
    pub(crate) name: SnapshotName,
    /// The uid that it is registered with: that of the VolumeSnapshot.
    pub(crate) uid: SnapshotUid,
    /// Name of the ObjectStore.
    pub(crate) object_store: String,
    /// Logical size of the volume when it was taken.
    pub(crate) size_bytes: u64,
}

/// The snapshot that a volume begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceSnapshot {
    /// Its name in the object store.
    pub(crate) name: SnapshotName,
    /// Its uid; none where the VolumeSnapshot that it was recorded from is gone: then nothing is created.
    pub(crate) uid: Option<SnapshotUid>,
}

impl SnapshotFact {
    /// Reads the fact off a VolumeSnapshot.
    pub(crate) fn of(snapshot: Option<&VolumeSnapshot>) -> Self {
        let Some(snapshot) = snapshot else { return Self::Missing };
        if snapshot.metadata.deletion_timestamp.is_some() {
            return Self::Deleting;
        }
        let is_right = snapshot.is_what_it_adopts();
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

impl ClusterFacts {
    /// The field that names what the volume begins with.
    pub(crate) fn source_field(&self) -> &'static str {
        match &self.spec.source {
            VolumeSource::Volume(_) => "spec.source.volume.name",
            VolumeSource::Snapshot(_)
            | VolumeSource::Empty(_)
            | VolumeSource::Image(_)
            | VolumeSource::Existing(_) => "spec.source.snapshot.name",
        }
    }

    /// Name of the VolumeSnapshot that the plan depends on.
    pub(crate) fn snapshot_in_question(&self) -> Option<&str> {
        let VolumeSource::Snapshot(source) = &self.spec.source else { return None };
        let is_open = !self.deleting && self.needs_store();
        (is_open && self.store == StoreFact::Ready).then_some(source.name.as_str())
    }
}

/// The snapshot in the object store that the volume begins with: the recorded one, else the one that the
/// VolumeSnapshot `source` stands for now. `wanted` is the size of the spec in bytes.
///
/// # Errors
/// Why the volume cannot begin with it now; the message names the field to change.
pub(super) fn restorable(
    facts: &ClusterFacts,
    source: &str,
    wanted: Option<u64>,
) -> Result<SourceSnapshot, Obstacle> {
    if let Some(recorded) = &facts.status.restored_from {
        return match recorded.parse() {
            Ok(name) => Ok(SourceSnapshot { uid: recorded_uid(facts, &name), name }),
            Err(error) => failed(
                "InvalidStatus",
                format!("status.restoredFrom: {error}; delete this Volume and create it again"),
            ),
        };
    }
    let field = "spec.source.snapshot.name";
    match &facts.snapshot {
        SnapshotFact::NotLooked => Err(Obstacle::new(
            VolumePhase::Pending,
            "Provisioning",
            format!("reading VolumeSnapshot {source}"),
        )),
        SnapshotFact::Missing => failed(
            "SnapshotNotFound",
            format!(
                "{field}: no VolumeSnapshot has the name `{source}`; create it, or create the Volume with the name of one that exists. A volume that the object store holds already is adopted with spec.source `existing`"
            ),
        ),
        SnapshotFact::Deleting => failed(
            "SnapshotDeleted",
            format!(
                "{field}: VolumeSnapshot `{source}` is being deleted, and no volume begins with it; create the Volume with the name of another"
            ),
        ),
        SnapshotFact::NotReady { why } => Err(Obstacle::new(
            VolumePhase::Pending,
            "SnapshotNotReady",
            format!("{field}: waiting for VolumeSnapshot `{source}` to be Ready ({why})"),
        )),
        SnapshotFact::Failed { why } => failed(
            "SnapshotFailed",
            format!(
                "{field}: VolumeSnapshot `{source}` will not be taken ({why}); create the Volume with the name of another"
            ),
        ),
        SnapshotFact::Ready(taken) => fits(facts, source, taken, wanted)
            .map(|()| SourceSnapshot { name: taken.name.clone(), uid: Some(taken.uid) }),
    }
}

/// The uid of the recorded snapshot, if the VolumeSnapshot is still the one that it was recorded from.
fn recorded_uid(facts: &ClusterFacts, recorded: &SnapshotName) -> Option<SnapshotUid> {
    match &facts.snapshot {
        SnapshotFact::Ready(taken) => {
            let is_same = taken.name == *recorded && taken.object_store == facts.store_name();
            is_same.then_some(taken.uid)
        }
        SnapshotFact::NotLooked
        | SnapshotFact::Missing
        | SnapshotFact::Deleting
        | SnapshotFact::NotReady { .. }
        | SnapshotFact::Failed { .. } => None,
    }
}

/// Checks that the volume of the spec can hold a snapshot, and is in its store.
fn fits(
    facts: &ClusterFacts,
    source: &str,
    taken: &TakenSnapshot,
    wanted: Option<u64>,
) -> Result<(), Obstacle> {
    let TakenSnapshot { name: _, uid: _, object_store, size_bytes } = taken;
    let store = facts.store_name();
    if object_store != store {
        return failed(
            "SnapshotInOtherStore",
            format!(
                "spec.objectStore: VolumeSnapshot `{source}` is in ObjectStore `{object_store}`, and a volume that begins with it cannot be in `{store}`; create the Volume with `{object_store}`"
            ),
        );
    }
    if *size_bytes > MAX_SIZE_BYTES {
        return failed(
            "InvalidSize",
            format!(
                "{}: VolumeSnapshot `{source}` has {size_bytes} bytes, more than the {} of spec.size; restore it with `holdfast-node create --from`",
                facts.source_field(),
                ByteSize(MAX_SIZE_BYTES)
            ),
        );
    }
    match wanted {
        Some(wanted) if wanted < *size_bytes => failed(
            "InvalidSize",
            format!(
                "spec.size: VolumeSnapshot `{source}` has {size_bytes} bytes, and a volume that begins with it cannot have {wanted}; write `{}` or more",
                ByteSize(*size_bytes)
            ),
        ),
        Some(_) | None => Ok(()),
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
