//! `ListSnapshots` and `GetSnapshot`: the VolumeSnapshots that were taken.

use holdfast_crds::{VolumeGroupSnapshot, VolumeSnapshot};
use holdfast_proto::csi::v1::list_snapshots_response::Entry;
use holdfast_proto::csi::v1::{
    GetSnapshotRequest, GetSnapshotResponse, ListSnapshotsRequest, ListSnapshotsResponse,
};
use tonic::Status;

use super::group_members::to_csi_responses;
use super::object_name::is_object_name;
use super::objects::{ApiFailure, Objects};
use super::readers::not_for_readers;
use super::snapshots::{missing, snapshot_id};

/// Objects per request to the API server.
const PAGE: u32 = 500;

pub(super) async fn answer(
    snapshots: &Objects<VolumeSnapshot>,
    groups: &Objects<VolumeGroupSnapshot>,
    request: ListSnapshotsRequest,
) -> Result<ListSnapshotsResponse, Status> {
    let ListSnapshotsRequest { max_entries, starting_token, source_volume_id, snapshot_id, secrets: _ } =
        request;
    let limit = u32::try_from(max_entries).map_err(|_negative| {
        Status::invalid_argument(format!("max_entries: {max_entries} is negative; write 0 for no limit"))
    })?;
    if !snapshot_id.is_empty() {
        let found = if is_object_name(&snapshot_id) { snapshots.get(&snapshot_id).await? } else { None };
        let found = found.filter(|it| source_volume_id.is_empty() || it.spec.volume == source_volume_id);
        return response(groups, found.into_iter().collect(), String::new()).await;
    }
    if source_volume_id.is_empty() {
        let (page, next) = page(snapshots, limit, &starting_token).await?;
        return response(groups, page, next).await;
    }
    // The API server cannot select by volume: this returns all of a volume's snapshots in one response.
    let (mut of_volume, mut token) = (Vec::new(), String::new());
    loop {
        let (page, next) = page(snapshots, PAGE, &token).await?;
        of_volume.extend(page.into_iter().filter(|it| it.spec.volume == source_volume_id));
        if next.is_empty() {
            return response(groups, of_volume, next).await;
        }
        token = next;
    }
}

/// Returns the snapshot with an id.
pub(super) async fn get(
    snapshots: &Objects<VolumeSnapshot>,
    groups: &Objects<VolumeGroupSnapshot>,
    request: GetSnapshotRequest,
) -> Result<GetSnapshotResponse, Status> {
    let GetSnapshotRequest { snapshot_id: id, secrets: _ } = request;
    let name = snapshot_id(&id)?;
    let found = if is_object_name(name) { snapshots.get(name).await? } else { None };
    match to_csi_responses(groups, found.into_iter().collect()).await?.pop() {
        Some(snapshot) => Ok(GetSnapshotResponse { snapshot: Some(snapshot) }),
        None => Err(missing("snapshot_id", name)),
    }
}

async fn page(
    snapshots: &Objects<VolumeSnapshot>,
    limit: u32,
    token: &str,
) -> Result<(Vec<VolumeSnapshot>, String), Status> {
    match snapshots.page(&not_for_readers(), limit, token).await {
        Ok(page) => Ok((page.items, page.metadata.continue_.unwrap_or_default())),
        Err(ApiFailure::Stale | ApiFailure::Invalid(_)) if !token.is_empty() => {
            Err(Status::aborted("starting_token: is no longer valid; start the list again without one"))
        }
        Err(failure) => Err(failure.into()),
    }
}

/// Returns only taken snapshots: others cannot be restored.
async fn response(
    groups: &Objects<VolumeGroupSnapshot>,
    found: Vec<VolumeSnapshot>,
    next_token: String,
) -> Result<ListSnapshotsResponse, Status> {
    let told = to_csi_responses(groups, found).await?;
    let entries = told.into_iter().map(|snapshot| Entry { snapshot: Some(snapshot) }).collect();
    Ok(ListSnapshotsResponse { entries, next_token })
}
