//! The CSI Controller service: PersistentVolumes as Volume objects, attachments as `spec.nodeName`.
//!
//! Owns: the responses; one file per request. Their plans are pure functions of the API server's objects.
//! Does not own: any state. A request reads the Volume, writes fields of its spec, its annotations and
//! labels, and watches until the status matches. A process killed between any two of these steps leaves only
//! the desired state behind, and the same request resumes.
//! Invariants: of an existing Volume, writes the spec, annotations and labels, never the status, and only
//! over the version it has read.
//! On failure: a status with the message of the condition that the operator or the node wrote. `ABORTED`
//! while the request still waits.

mod capabilities;
mod capacity;
mod content_source;
mod create_snapshot;
mod create_volume;
mod delete_snapshot;
mod delete_volume;
mod expand_volume;
mod get_capacity;
pub(crate) mod group_members;
mod limit_parameters;
mod list_snapshots;
mod list_volumes;
mod memory;
mod modify_volume;
pub(crate) mod object_name;
pub(crate) mod objects;
mod parameters;
mod publish_volume;
mod readers;
mod reason;
mod serving_node;
pub(crate) mod snapshots;
mod unpublish_volume;
mod validate_capabilities;
mod volume_id;
mod volumes;

use holdfast_crds::{VolumeGroupSnapshot, VolumeSnapshot};
use holdfast_proto::csi::v1::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, ControllerGetCapabilitiesRequest,
    ControllerGetCapabilitiesResponse, ControllerGetVolumeHealthRequest, ControllerGetVolumeHealthResponse,
    ControllerGetVolumeRequest, ControllerGetVolumeResponse, ControllerListVolumeHealthRequest,
    ControllerListVolumeHealthResponse, ControllerModifyVolumeRequest, ControllerModifyVolumeResponse,
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse, ControllerUnpublishVolumeRequest,
    ControllerUnpublishVolumeResponse, CreateSnapshotRequest, CreateSnapshotResponse, CreateVolumeRequest,
    CreateVolumeResponse, DeleteSnapshotRequest, DeleteSnapshotResponse, DeleteVolumeRequest,
    DeleteVolumeResponse, GetCapacityRequest, GetCapacityResponse, GetSnapshotRequest, GetSnapshotResponse,
    ListSnapshotsRequest, ListSnapshotsResponse, ListVolumesRequest, ListVolumesResponse,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, controller_server,
};
use kube::Client;
use tonic::{Request, Response, Status};

use crate::requests::{RequestKind, Requests, not_built};
use objects::Objects;
use volumes::ClusterVolumes;

/// The Controller service.
#[derive(Clone)]
pub(crate) struct Controller {
    volumes: ClusterVolumes,
    snapshots: Objects<VolumeSnapshot>,
    groups: Objects<VolumeGroupSnapshot>,
    requests: Requests,
}

impl Controller {
    /// Creates the service over the API server of `client`.
    pub(crate) fn new(client: Client, requests: Requests) -> Self {
        let (snapshots, groups) = (Objects::new(client.clone()), Objects::new(client.clone()));
        Self { volumes: ClusterVolumes::new(client), snapshots, groups, requests }
    }
}

#[tonic::async_trait]
impl controller_server::Controller for Controller {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let about = request.get_ref().name.clone();
        self.requests
            .answer(
                RequestKind::CreateVolume,
                &about,
                create_volume::answer(&self.volumes, &self.snapshots, request),
            )
            .await
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let about = request.get_ref().volume_id.clone();
        self.requests
            .answer(
                RequestKind::DeleteVolume,
                &about,
                delete_volume::answer(&self.volumes, &self.snapshots, request),
            )
            .await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        let about = request.get_ref().volume_id.clone();
        self.requests
            .answer(
                RequestKind::ControllerPublishVolume,
                &about,
                publish_volume::answer(&self.volumes, &self.snapshots, request),
            )
            .await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        let about = request.get_ref().volume_id.clone();
        self.requests
            .answer(
                RequestKind::ControllerUnpublishVolume,
                &about,
                unpublish_volume::answer(&self.volumes, request),
            )
            .await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        let about = request.get_ref().volume_id.clone();
        let answer = validate_capabilities::answer(&self.volumes, request);
        self.requests.answer(RequestKind::ValidateVolumeCapabilities, &about, answer).await
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        self.requests.answer(RequestKind::ListVolumes, "", list_volumes::answer(&self.volumes, request)).await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        let about = request.get_ref().volume_id.clone();
        self.requests
            .answer(
                RequestKind::ControllerExpandVolume,
                &about,
                expand_volume::answer(&self.volumes, request),
            )
            .await
    }

    async fn controller_get_capabilities(
        &self,
        request: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        Ok(Response::new(capabilities::answer(request.into_inner())))
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        let answer = get_capacity::answer(&self.volumes, request.into_inner());
        self.requests.answer(RequestKind::GetCapacity, "", answer).await
    }

    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Result<Response<CreateSnapshotResponse>, Status> {
        let about = request.get_ref().source_volume_id.clone();
        let answer = create_snapshot::answer(&self.volumes, &self.snapshots, request);
        self.requests.answer(RequestKind::CreateSnapshot, &about, answer).await
    }

    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Result<Response<DeleteSnapshotResponse>, Status> {
        let about = request.get_ref().snapshot_id.clone();
        let answer = delete_snapshot::answer(&self.snapshots, &self.groups, request);
        self.requests.answer(RequestKind::DeleteSnapshot, &about, answer).await
    }

    async fn list_snapshots(
        &self,
        request: Request<ListSnapshotsRequest>,
    ) -> Result<Response<ListSnapshotsResponse>, Status> {
        let answer = list_snapshots::answer(&self.snapshots, &self.groups, request.into_inner());
        self.requests.answer(RequestKind::ListSnapshots, "", answer).await
    }

    async fn get_snapshot(
        &self,
        request: Request<GetSnapshotRequest>,
    ) -> Result<Response<GetSnapshotResponse>, Status> {
        let about = request.get_ref().snapshot_id.clone();
        let answer = list_snapshots::get(&self.snapshots, &self.groups, request.into_inner());
        self.requests.answer(RequestKind::GetSnapshot, &about, answer).await
    }

    async fn controller_get_volume(
        &self,
        _: Request<ControllerGetVolumeRequest>,
    ) -> Result<Response<ControllerGetVolumeResponse>, Status> {
        Err(not_built("ControllerGetVolume"))
    }

    async fn controller_modify_volume(
        &self,
        request: Request<ControllerModifyVolumeRequest>,
    ) -> Result<Response<ControllerModifyVolumeResponse>, Status> {
        let about = request.get_ref().volume_id.clone();
        self.requests
            .answer(
                RequestKind::ControllerModifyVolume,
                &about,
                modify_volume::answer(&self.volumes, request),
            )
            .await
    }

    async fn controller_list_volume_health(
        &self,
        _: Request<ControllerListVolumeHealthRequest>,
    ) -> Result<Response<ControllerListVolumeHealthResponse>, Status> {
        Err(not_built("ControllerListVolumeHealth"))
    }

    async fn controller_get_volume_health(
        &self,
        _: Request<ControllerGetVolumeHealthRequest>,
    ) -> Result<Response<ControllerGetVolumeHealthResponse>, Status> {
        Err(not_built("ControllerGetVolumeHealth"))
    }
}

#[cfg(test)]
mod tests {
    /// Provisioner, resizer and snapshotter watch all of these, and do nothing without the permission.
    #[test]
    fn the_sidecars_may_read_what_they_watch() {
        let roles = include_str!("../../charts/holdfast/roles/csi-sidecars.yaml");
        let watched = roles.split("- apiGroups:").filter(|rule| rule.contains("verbs: [get, list, watch]"));
        let watched: String = watched.collect();
        for kind in [
            "storageclasses",
            "csinodes",
            "volumeattributesclasses",
            "nodes",
            "pods",
            "volumesnapshotclasses",
            "volumegroupsnapshotclasses",
        ] {
            assert!(watched.contains(kind), "{kind}");
        }
    }
}
