//! The CSI GroupController service: snapshots of several volumes at one point, as VolumeGroupSnapshot
//! objects.
//!
//! Owns: the responses; one file per request.
//! Does not own: any state, like the Controller service; the VolumeSnapshots of a group, which the operator
//! creates.
//! On failure: a status with the message of the condition that the operator wrote. `ABORTED` while the
//! request still waits.

mod capabilities;
mod create_group_snapshot;
mod delete_group_snapshot;
mod get_group_snapshot;
mod groups;

use holdfast_crds::{Volume, VolumeGroupSnapshot, VolumeSnapshot};
use holdfast_proto::csi::v1::{
    CreateVolumeGroupSnapshotRequest, CreateVolumeGroupSnapshotResponse, DeleteVolumeGroupSnapshotRequest,
    DeleteVolumeGroupSnapshotResponse, GetVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotResponse,
    GroupControllerGetCapabilitiesRequest, GroupControllerGetCapabilitiesResponse, group_controller_server,
};
use kube::Client;
use tonic::{Request, Response, Status};

use crate::controller::objects::Objects;
use crate::requests::{RequestKind, Requests};

/// The GroupController service.
#[derive(Clone)]
pub(crate) struct GroupController {
    volumes: Objects<Volume>,
    snapshots: Objects<VolumeSnapshot>,
    groups: Objects<VolumeGroupSnapshot>,
    requests: Requests,
}

impl GroupController {
    /// Creates the service over the API server of `client`.
    pub(crate) fn new(client: Client, requests: Requests) -> Self {
        Self {
            volumes: Objects::new(client.clone()),
            snapshots: Objects::new(client.clone()),
            groups: Objects::new(client),
            requests,
        }
    }
}

#[tonic::async_trait]
impl group_controller_server::GroupController for GroupController {
    async fn group_controller_get_capabilities(
        &self,
        request: Request<GroupControllerGetCapabilitiesRequest>,
    ) -> Result<Response<GroupControllerGetCapabilitiesResponse>, Status> {
        Ok(Response::new(capabilities::answer(request.into_inner())))
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<CreateVolumeGroupSnapshotRequest>,
    ) -> Result<Response<CreateVolumeGroupSnapshotResponse>, Status> {
        let about = request.get_ref().name.clone();
        let answer = create_group_snapshot::answer(&self.volumes, &self.snapshots, &self.groups, request);
        self.requests.answer(RequestKind::CreateVolumeGroupSnapshot, &about, answer).await
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<DeleteVolumeGroupSnapshotRequest>,
    ) -> Result<Response<DeleteVolumeGroupSnapshotResponse>, Status> {
        let about = request.get_ref().group_snapshot_id.clone();
        let answer = delete_group_snapshot::answer(&self.snapshots, &self.groups, request);
        self.requests.answer(RequestKind::DeleteVolumeGroupSnapshot, &about, answer).await
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<GetVolumeGroupSnapshotRequest>,
    ) -> Result<Response<GetVolumeGroupSnapshotResponse>, Status> {
        let about = request.get_ref().group_snapshot_id.clone();
        let answer = get_group_snapshot::answer(&self.snapshots, &self.groups, request.into_inner());
        self.requests.answer(RequestKind::GetVolumeGroupSnapshot, &about, answer).await
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use holdfast_crds::VolumeGroupSnapshot;
    use serde_json::json;

    /// Group `nightly` of volumes `data` and `log`, with this reason of its condition and these snapshots; it
    /// is ready if the reason is `Taken`.
    pub(crate) fn group(reason: &str, snapshots: &[(&str, &str)]) -> VolumeGroupSnapshot {
        let members =
            snapshots.iter().map(|(volume, snapshot)| json!({ "volume": volume, "snapshot": snapshot }));
        let mut status = json!({
            "conditions": [{
                "type": "Ready", "status": if reason == "Taken" { "True" } else { "False" }, "reason": reason,
                "message": "waits for node a", "lastTransitionTime": "2026-11-23T12:00:01Z"
            }],
            "snapshots": members.collect::<Vec<_>>(),
        });
        if !snapshots.is_empty() {
            status["takenTime"] = json!("2026-11-23T12:00:00Z");
        }
        serde_json::from_value(json!({
            "apiVersion": "storage.holdfast.dev/v1alpha1", "kind": "VolumeGroupSnapshot",
            "metadata": { "name": "nightly", "uid": "02020202-0202-0202-0202-020202020202" },
            "spec": { "volumes": ["data", "log"] },
            "status": status,
        }))
        .expect("a VolumeGroupSnapshot")
    }
}
