//! The CSI Node service: from a block device of the node daemon to a path of a pod.
//!
//! Owns: the responses, one file per request; the order of checks before anything is written to a device.
//! Does not own: the decision whether the node serves a volume. It asks the node daemon on its socket, and
//! never the API server.
//! Invariants: a device is formatted only if it has no known signature and the daemon reports that it holds
//! no data, or after the user allowed it, or if a format of the same attach was interrupted. No system call
//! touches a device that the daemon does not serve. One operation on a volume at a time, even if a program
//! outlives this process: its programs hold a lock file.
//! On failure: `UNAVAILABLE` while the daemon does not serve the device; `ABORTED` while an earlier operation
//! still runs, which is never interrupted.

mod capabilities;
mod content;
mod daemon;
mod device_number;
mod expand;
mod info;
mod interrupted_format;
mod mounts;
mod operations;
mod paths;
mod publish;
mod stage;
mod stats;
mod tool;
mod unmount;
mod unpublish;
mod unstage;

use std::path::PathBuf;
use std::sync::Arc;

use holdfast_proto::csi::v1::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
    NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse, NodeGetStorageHealthRequest,
    NodeGetStorageHealthResponse, NodeGetVolumeHealthRequest, NodeGetVolumeHealthResponse,
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodePublishVolumeResponse, NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse, node_server,
};
use tonic::{Request, Response, Status};

pub(crate) use self::daemon::DaemonClient;
use self::interrupted_format::InterruptedFormats;
use self::operations::VolumeOperations;
use self::tool::Tools;
use crate::requests::{RequestKind, Requests, not_built};

/// The Node service. Clones share the service.
#[derive(Clone)]
pub(crate) struct NodeService(Arc<NodeServiceState>);

/// State shared by the operations.
struct NodeServiceState {
    /// Name of the node, as in its StorageNode.
    name: String,
    daemon: DaemonClient,
    operations: VolumeOperations,
    tools: Tools,
    formats: InterruptedFormats,
    requests: Requests,
}

impl NodeService {
    /// Creates the service of the node of that name. `directory` keeps state that must outlive the process.
    pub(crate) fn new(name: String, daemon: DaemonClient, directory: PathBuf, requests: Requests) -> Self {
        Self(Arc::new(NodeServiceState {
            name,
            daemon,
            operations: VolumeOperations::new(),
            tools: Tools::new(directory.join("locks")),
            formats: InterruptedFormats::new(directory.join("formats")),
            requests,
        }))
    }

    /// Ends the operations in progress, and prevents new ones.
    pub(crate) async fn stop(&self) {
        self.0.operations.stop().await;
    }
}

#[tonic::async_trait]
impl node_server::Node for NodeService {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let about = request.get_ref().volume_id.clone();
        self.0.requests.answer(RequestKind::NodeStageVolume, &about, stage::answer(self, request)).await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let about = request.get_ref().volume_id.clone();
        self.0.requests.answer(RequestKind::NodeUnstageVolume, &about, unstage::answer(self, request)).await
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let about = request.get_ref().volume_id.clone();
        self.0.requests.answer(RequestKind::NodePublishVolume, &about, publish::answer(self, request)).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let about = request.get_ref().volume_id.clone();
        self.0
            .requests
            .answer(RequestKind::NodeUnpublishVolume, &about, unpublish::answer(self, request))
            .await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        stats::answer(self, request).await.map(Response::new)
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let about = request.get_ref().volume_id.clone();
        self.0.requests.answer(RequestKind::NodeExpandVolume, &about, expand::answer(self, request)).await
    }

    async fn node_get_capabilities(
        &self,
        request: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        Ok(Response::new(capabilities::answer(request.into_inner())))
    }

    async fn node_get_info(
        &self,
        request: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        self.0.requests.answer(RequestKind::NodeGetInfo, "", info::answer(self, request)).await
    }

    async fn node_get_volume_health(
        &self,
        _: Request<NodeGetVolumeHealthRequest>,
    ) -> Result<Response<NodeGetVolumeHealthResponse>, Status> {
        Err(not_built("NodeGetVolumeHealth"))
    }

    async fn node_get_storage_health(
        &self,
        _: Request<NodeGetStorageHealthRequest>,
    ) -> Result<Response<NodeGetStorageHealthResponse>, Status> {
        Err(not_built("NodeGetStorageHealth"))
    }
}
