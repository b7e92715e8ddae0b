//! VolumeSnapshot objects in CSI's format. The id of a snapshot is the name of its object.

use std::time::SystemTime;

use holdfast_crds::{READY, VolumeSnapshot, find_condition, is_true};
use holdfast_proto::csi::v1::Snapshot;
use kube::ResourceExt;
use tonic::Status;

use super::capacity::{SECTOR_BYTES, signed};
use crate::capability::FileSystem;

/// A size that is a multiple of this is taken as requested, not as rounded up, in bytes.
const PLAIN_BYTES: u64 = 1 << 20;

/// Returns the response for a taken snapshot; `None` for any other. For snapshots of a group, see also
/// [`super::group_members`].
pub(crate) fn described(snapshot: &VolumeSnapshot) -> Option<Snapshot> {
    let status = snapshot.status.as_ref()?;
    if !is_true(&status.conditions, READY) {
        return None;
    }
    let taken = status.taken_time.as_ref()?.0;
    Some(Snapshot {
        size_bytes: restore_size(status.size_bytes?),
        snapshot_id: snapshot.name_any(),
        source_volume_id: snapshot.spec.volume.clone(),
        creation_time: Some(SystemTime::from(taken).into()),
        ready_to_use: true,
        group_snapshot_id: snapshot.spec.group.clone().unwrap_or_default(),
        ..Snapshot::default()
    })
}

/// Returns the minimum size of a claim that starts from a snapshot of this size. A claim whose request was
/// rounded up must be able to use its snapshot, and the provisioner compares the request: so this is the
/// smallest request that is rounded up to `bytes`, or 0, which means unknown, at a file system's minimum.
fn restore_size(bytes: u64) -> i64 {
    if FileSystem::ALL.iter().any(|one| one.min_bytes() == bytes) {
        return 0;
    }
    let is_plain = bytes.is_multiple_of(PLAIN_BYTES);
    signed(if is_plain { bytes } else { bytes.saturating_sub(SECTOR_BYTES - 1) })
}

/// Describes the condition of a snapshot.
pub(crate) fn condition(snapshot: &VolumeSnapshot) -> String {
    let said = snapshot.status.as_ref().and_then(|status| find_condition(&status.conditions, READY));
    said.map_or_else(
        || "neither the operator nor a node has reported on it yet".to_owned(),
        |said| format!("{} ({}={}, {})", said.message, said.type_, said.status, said.reason),
    )
}

/// Checks the id of a snapshot in a request.
///
/// # Errors
/// `INVALID_ARGUMENT`: it is missing.
pub(super) fn snapshot_id(id: &str) -> Result<&str, Status> {
    if id.is_empty() {
        Err(Status::invalid_argument("snapshot_id: is empty; name a snapshot"))
    } else {
        Ok(id)
    }
}

/// Returns the error for a snapshot that does not exist.
pub(crate) fn missing(field: &str, name: &str) -> Status {
    Status::not_found(format!("{field}: no VolumeSnapshot of storage.holdfast.dev is named `{name}`"))
}

#[cfg(test)]
pub(crate) mod tests {
    use holdfast_proto::csi::v1::CapacityRange;
    use serde_json::json;

    use super::super::capacity::Capacity;
    use super::*;

    /// Snapshot `backup` of volume `data`, with this condition.
    pub(crate) fn snapshot(ready: bool, reason: &str) -> VolumeSnapshot {
        let status = if ready { "True" } else { "False" };
        serde_json::from_value(json!({
            "apiVersion": "storage.holdfast.dev/v1alpha1", "kind": "VolumeSnapshot",
            "metadata": { "name": "backup", "uid": "01010101-0101-0101-0101-010101010101" },
            "spec": { "volume": "data" },
            "status": {
                "objectStore": "main", "sizeBytes": 1 << 30, "takenTime": "2026-11-23T12:00:00Z",
                "snapshotId": "id@7",
                "conditions": [{
                    "type": "Ready", "status": status, "reason": reason, "message": "as after a power cut",
                    "lastTransitionTime": "2026-11-23T12:00:01Z"
                }]
            }
        }))
        .expect("a VolumeSnapshot")
    }

    #[test]
    fn only_a_snapshot_that_is_taken_is_described() {
        let told = described(&snapshot(true, "Taken")).expect("it is taken");
        assert_eq!(
            (told.snapshot_id.as_str(), told.source_volume_id.as_str(), told.size_bytes),
            ("backup", "data", 1 << 30)
        );
        assert!(told.ready_to_use && told.creation_time.is_some_and(|time| time.seconds == 1_795_435_200));
        assert_eq!(described(&snapshot(false, "Taking")), None);
        assert_eq!([restore_size(8 << 20), restore_size((8 << 20) + 4096)], [0, (8 << 20) + 1]);
        assert!(condition(&snapshot(false, "Taking")).ends_with("(Ready=False, Taking)"));
    }

    /// Regression, found in review: the provisioner refused `10G` for the snapshot of a claim of `10G`.
    #[test]
    fn a_claim_can_be_restored_with_the_size_it_requested() {
        for requested in [10_000_000_000, 1_500_000_000, 5001, 10 << 30, 1 << 20] {
            let range = CapacityRange { required_bytes: requested, limit_bytes: 0 };
            let capacity = Capacity::choose(Some(range)).expect("a size");
            let least = restore_size(capacity.bytes);
            assert!(least <= requested, "{requested} is less than {least}");
            for enough in [least, requested] {
                let range = CapacityRange { required_bytes: enough, limit_bytes: 0 };
                let restored = Capacity::choose(Some(range)).and_then(|one| one.with_source(capacity.bytes));
                assert_eq!(restored.expect("it is enough").bytes, capacity.bytes);
            }
        }
        assert_eq!(restore_size(10 << 30), 10 << 30);
    }
}
