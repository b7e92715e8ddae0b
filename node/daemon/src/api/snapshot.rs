//! Conversion of snapshots to and from messages.

use std::time::{Duration, UNIX_EPOCH};

use holdfast_format::snapshot::Snapshot;
use holdfast_proto::node::v1 as wire;
use holdfast_types::{SECTOR_BYTES, SnapshotUid, VolumeId};
use tonic::Status;

/// Checks a `uid`.
pub(super) fn uid(text: &str) -> Result<SnapshotUid, Status> {
    text.parse().map_err(|error| Status::invalid_argument(format!("uid: {error}")))
}

/// Builds the message for a snapshot.
pub(super) fn wire(volume: &VolumeId, snapshot: &Snapshot) -> wire::Snapshot {
    let Snapshot { seq, uid, unix_ms, sectors } = *snapshot;
    wire::Snapshot {
        volume_id: volume.to_string(),
        seq: seq.0,
        uid: uid.to_string(),
        created: Some((UNIX_EPOCH + Duration::from_millis(unix_ms)).into()),
        size_bytes: sectors * SECTOR_BYTES,
    }
}
