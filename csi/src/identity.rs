//! The CSI Identity service: who the driver is, what it can do, whether it is well.

mod get_plugin_capabilities;
mod get_plugin_info;
mod probe;

use holdfast_proto::csi::v1::identity_server;
use holdfast_proto::csi::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    ProbeRequest, ProbeResponse,
};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

/// The driver's name, as StorageClasses and CSINodes write it.
pub(crate) const NAME: &str = "csi.holdfast.dev";

/// The Identity service.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    ready: watch::Receiver<bool>,
}

impl Identity {
    /// Of a driver that is ready while `ready` holds true.
    pub(crate) const fn new(ready: watch::Receiver<bool>) -> Self {
        Self { ready }
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
        Ok(Response::new(get_plugin_capabilities::answer(request.into_inner())))
    }

    async fn probe(&self, request: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(probe::answer(request.into_inner(), *self.ready.borrow())))
    }
}
