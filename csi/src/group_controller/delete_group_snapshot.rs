//! `DeleteVolumeGroupSnapshot`: deletes the VolumeGroupSnapshot object, and waits until its snapshots are
//! forgotten.

use futures::future::try_join_all;
use holdfast_crds::{VolumeGroupSnapshot, VolumeSnapshot};
use holdfast_proto::csi::v1::{DeleteVolumeGroupSnapshotRequest, DeleteVolumeGroupSnapshotResponse};
use tokio::time::Instant;
use tonic::{Request, Status};

use super::groups::{check_members, condition, group_id};
use crate::controller::object_name::is_object_name;
use crate::controller::objects::Objects;
use crate::controller::snapshots;
use crate::deadline;

pub(super) async fn answer(
    snapshots: &Objects<VolumeSnapshot>,
    groups: &Objects<VolumeGroupSnapshot>,
    request: Request<DeleteVolumeGroupSnapshotRequest>,
) -> Result<DeleteVolumeGroupSnapshotResponse, Status> {
    let until = deadline::of(&request);
    let DeleteVolumeGroupSnapshotRequest { group_snapshot_id: id, snapshot_ids, secrets: _ } =
        request.into_inner();
    let name = group_id(&id)?;
    // No group can have such a name, so it does not exist.
    if !is_object_name(name) {
        return Ok(DeleteVolumeGroupSnapshotResponse {});
    }
    if let Some(group) = groups.get(name).await? {
        check_members(&group, &snapshot_ids)?;
        groups.remove(group, until, condition).await?;
    }
    try_join_all(snapshot_ids.iter().map(|id| remove_member(snapshots, name, id, until))).await?;
    Ok(DeleteVolumeGroupSnapshotResponse {})
}

/// Deletes a remaining snapshot of a deleted group, for example after a deletion with `--cascade=orphan`.
async fn remove_member(
    snapshots: &Objects<VolumeSnapshot>,
    group: &str,
    id: &str,
    until: Instant,
) -> Result<(), Status> {
    if !is_object_name(id) {
        return Ok(());
    }
    match snapshots.get(id).await?.filter(|found| found.spec.group.as_deref() == Some(group)) {
        Some(left) => snapshots.remove(left, until, snapshots::condition).await,
        None => Ok(()),
    }
}
