//! The CSI Identity service: the driver's name, capabilities and health.

mod get_plugin_capabilities;
mod get_plugin_info;
pub(crate) mod probe;

use holdfast_proto::csi::v1::identity_server;
use holdfast_proto::csi::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    ProbeRequest, ProbeResponse,
};
use tonic::{Request, Response, Status};

use crate::readiness::Readiness;

/// The driver's name, as used in StorageClasses and CSINodes.
pub(crate) const NAME: &str = "csi.holdfast.dev";

/// The Identity service.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    readiness: Readiness,
    tells_changed_blocks: bool,
}

impl Identity {
    /// Creates the service of a driver whose readiness is `readiness`.
    pub(crate) const fn new(readiness: Readiness) -> Self {
        Self { readiness, tells_changed_blocks: false }
    }

    /// Creates the service of the one process that serves SnapshotMetadata.
    pub(crate) const fn with_snapshot_metadata(readiness: Readiness) -> Self {
        Self { readiness, tells_changed_blocks: true }
    }
}

#[tonic::async_trait]
impl identity_server::Identity for Identity {
    async fn get_plugin_info(
        &self,
        request: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(get_plugin_info::answer(request.into_inner())))
    }

    async fn get_plugin_capabilities(
        &self,
        request: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        Ok(Response::new(get_plugin_capabilities::answer(request.into_inner(), self.tells_changed_blocks)))
    }

    async fn probe(&self, request: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(probe::answer(request.into_inner(), self.readiness.reason()))
    }
}
