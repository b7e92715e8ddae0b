//! The snapshot that a volume starts from: `spec.source.snapshot`.
//!
//! The VolumeSnapshot is looked up by name until it is Ready. The identity it then has is recorded in
//! `status.restoredFrom` before anything is created, and every later attempt restores that snapshot: the name
//! may be reused in the meantime. The log of the source volume shows whether the snapshot still exists, and
//! the uid registered there proves that it belongs to the VolumeSnapshot. A restored bucket, or another
//! bucket, may have a snapshot of the same name. So nothing is created without the VolumeSnapshot.

use holdfast_crds::{ByteSize, MAX_SIZE_BYTES, VolumePhase, VolumeSource};
use holdfast_types::{SnapshotName, SnapshotUid};

use super::facts::{ClusterFacts, StoreFact};
use super::home::{Obstacle, SourceSnapshot, failed};
use super::snapshot_fact::{SnapshotFact, TakenSnapshot};

impl ClusterFacts {
    /// Returns the field that names the volume's source.
    pub(crate) fn source_field(&self) -> &'static str {
        match &self.spec.source {
            VolumeSource::Volume(_) => "spec.source.volume.name",
            VolumeSource::Snapshot(_)
            | VolumeSource::Empty(_)
            | VolumeSource::Existing(_)
            | VolumeSource::Unknown(_) => "spec.source.snapshot.name",
        }
    }

    /// Returns the name of the VolumeSnapshot that the plan depends on.
    pub(crate) fn snapshot_in_question(&self) -> Option<&str> {
        let VolumeSource::Snapshot(source) = &self.spec.source else { return None };
        let is_open = !self.deleting && self.needs_store();
        (is_open && self.store == StoreFact::Ready).then_some(source.name.as_str())
    }
}

/// Returns the snapshot in the object store that the volume starts from: the recorded one, otherwise the
/// current one of the VolumeSnapshot `source`. `wanted` is the spec's size in bytes.
///
/// # Errors
/// Reason why the volume cannot start from it now; the message names the field to change.
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
    match &facts.content.snapshot {
        SnapshotFact::NotRead => Err(Obstacle::new(
            VolumePhase::Pending,
            "Provisioning",
            format!("reading VolumeSnapshot {source}"),
        )),
        SnapshotFact::Missing => failed(
            "SnapshotNotFound",
            format!(
                "{field}: no VolumeSnapshot has the name `{source}`; create it, or create the Volume with the \
                 name of one that exists. To adopt a volume that the object store already holds, use spec.source \
                 `existing`"
            ),
        ),
        SnapshotFact::Deleting => failed(
            "SnapshotDeleted",
            format!(
                "{field}: VolumeSnapshot `{source}` is being deleted, so no volume is created from it; create \
                 the Volume with the name of another"
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

/// Returns the recorded snapshot's uid, if the VolumeSnapshot is still the one it was recorded from.
fn recorded_uid(facts: &ClusterFacts, recorded: &SnapshotName) -> Option<SnapshotUid> {
    match &facts.content.snapshot {
        SnapshotFact::Ready(taken) => {
            let is_same = taken.name == *recorded && taken.object_store == facts.store_name();
            is_same.then_some(taken.uid)
        }
        SnapshotFact::NotRead
        | SnapshotFact::Missing
        | SnapshotFact::Deleting
        | SnapshotFact::NotReady { .. }
        | SnapshotFact::Failed { .. } => None,
    }
}

/// Checks that the spec's volume can hold the snapshot, and uses the same store.
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
                "spec.objectStore: VolumeSnapshot `{source}` is in ObjectStore `{object_store}`, and a volume \
                 created from it cannot be in `{store}`; create the Volume with `{object_store}`"
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
                "spec.size: VolumeSnapshot `{source}` has {size_bytes} bytes, and a volume created from it \
                 cannot have {wanted}; write `{}` or more",
                ByteSize(*size_bytes)
            ),
        ),
        Some(_) | None => Ok(()),
    }
}
