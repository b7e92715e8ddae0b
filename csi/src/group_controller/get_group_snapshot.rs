//! `GetVolumeGroupSnapshot`: a group that was taken.

use holdfast_crds::{VolumeGroupSnapshot, VolumeSnapshot};
use holdfast_proto::csi::v1::{GetVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotResponse};
use tonic::Status;

use super::groups::{check_members, condition, described, group_id};
use crate::controller::object_name::is_object_name;
use crate::controller::objects::Objects;

pub(super) async fn answer(
    snapshots: &Objects<VolumeSnapshot>,
    groups: &Objects<VolumeGroupSnapshot>,
    request: GetVolumeGroupSnapshotRequest,
) -> Result<GetVolumeGroupSnapshotResponse, Status> {
    let GetVolumeGroupSnapshotRequest { group_snapshot_id: id, snapshot_ids, secrets: _ } = request;
    let name = group_id(&id)?;
    let found = if is_object_name(name) { groups.get(name).await? } else { None };
    let Some(group) = found else {
        return Err(Status::not_found(format!(
            "group_snapshot_id: no VolumeGroupSnapshot of storage.holdfast.dev is named `{name}`"
        )));
    };
    check_members(&group, &snapshot_ids)?;
    let Some(group_snapshot) = described(snapshots, &group).await? else {
        return Err(Status::not_found(format!(
            "group_snapshot_id: VolumeGroupSnapshot {name} is not taken yet: {}",
            condition(&group)
        )));
    };
    Ok(GetVolumeGroupSnapshotResponse { group_snapshot: Some(group_snapshot) })
}
