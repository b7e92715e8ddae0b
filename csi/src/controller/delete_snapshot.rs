//! `DeleteSnapshot`: deletes the VolumeSnapshot object, and waits until the snapshot is forgotten.

use holdfast_crds::VolumeSnapshot;
use holdfast_proto::csi::v1::{DeleteSnapshotRequest, DeleteSnapshotResponse};
use kube::ResourceExt;
use tokio::time::Instant;
use tonic::{Request, Status};

use super::object_name::is_object_name;
use super::objects::{ApiFailure, Objects, TimedOut};
use super::snapshots::{condition, snapshot_id};
use crate::deadline;

pub(super) async fn answer(
    snapshots: &Objects<VolumeSnapshot>,
    request: Request<DeleteSnapshotRequest>,
) -> Result<DeleteSnapshotResponse, Status> {
    let until = deadline::of(&request);
    let DeleteSnapshotRequest { snapshot_id: id, secrets: _ } = request.into_inner();
    let name = snapshot_id(&id)?;
    // No snapshot can have another name, so there is none.
    if !is_object_name(name) {
        return Ok(DeleteSnapshotResponse {});
    }
    let Some(snapshot) = snapshots.get(name).await? else { return Ok(DeleteSnapshotResponse {}) };
    remove(snapshots, snapshot, until).await.map(|()| DeleteSnapshotResponse {})
}

/// Deletes a snapshot, and waits until it is gone.
///
/// # Errors
/// `ABORTED`: it is not gone yet, or changed meanwhile.
pub(super) async fn remove(
    snapshots: &Objects<VolumeSnapshot>,
    snapshot: VolumeSnapshot,
    until: Instant,
) -> Result<(), Status> {
    if snapshot.metadata.deletion_timestamp.is_none() {
        match snapshots.delete(&snapshot).await {
            Ok(()) => {}
            Err(ApiFailure::Stale) => {
                return Err(Status::aborted("the VolumeSnapshot changed meanwhile; it is tried again"));
            }
            Err(failure) => return Err(failure.into()),
        }
    }
    let (name, uid) = (snapshot.name_any(), snapshot.uid());
    let is_gone = |now: Option<&VolumeSnapshot>| now.is_none_or(|now| now.metadata.uid != uid).then_some(());
    let gone = snapshots.wait(&name, Some(snapshot), until, is_gone).await;
    gone.map_err(|TimedOut { last }| {
        let why = last.as_ref().map(condition).unwrap_or_default();
        Status::aborted(format!("VolumeSnapshot {name} is still being deleted: {why}"))
    })
}
