//! `DeleteSnapshot`: deletes the VolumeSnapshot object, and waits until the snapshot is forgotten.

use holdfast_crds::{VolumeGroupSnapshot, VolumeSnapshot};
use holdfast_proto::csi::v1::{DeleteSnapshotRequest, DeleteSnapshotResponse};
use tonic::{Request, Status};

use super::object_name::is_object_name;
use super::objects::Objects;
use super::snapshots::{condition, snapshot_id};
use crate::deadline;

pub(super) async fn answer(
    snapshots: &Objects<VolumeSnapshot>,
    groups: &Objects<VolumeGroupSnapshot>,
    request: Request<DeleteSnapshotRequest>,
) -> Result<DeleteSnapshotResponse, Status> {
    let until = deadline::of(&request);
    let DeleteSnapshotRequest { snapshot_id: id, secrets: _ } = request.into_inner();
    let name = snapshot_id(&id)?;
    // No snapshot can have such a name, so it does not exist.
    if !is_object_name(name) {
        return Ok(DeleteSnapshotResponse {});
    }
    let Some(snapshot) = snapshots.get(name).await? else { return Ok(DeleteSnapshotResponse {}) };
    if let Some(group) = &snapshot.spec.group
        && groups.get(group).await?.is_some()
    {
        return Err(Status::invalid_argument(format!(
            "snapshot_id: VolumeSnapshot {name} is one of VolumeGroupSnapshot {group}; delete the group"
        )));
    }
    snapshots.remove(snapshot, until, condition).await.map(|()| DeleteSnapshotResponse {})
}
