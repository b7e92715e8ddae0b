//! Registration of the driver with the kubelet (`pluginregistration`, version 1).
//!
//! Owns: the answers on the registration socket. The kubelet finds the socket by its place, asks it where the
//! driver's own is, and says whether it took the driver.
//! On failure: a driver that the kubelet refused ends, and registers again when it is started again.

use std::sync::Arc;

use holdfast_proto::pluginregistration::v1::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse, registration_server,
};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::identity;

/// Kind of plugin. Source: kubelet, `pkg/apis/pluginregistration/v1/constants.go`.
const KIND: &str = "CSIPlugin";
/// Versions of CSI, as the kubelet writes them.
const VERSIONS: [&str; 1] = ["1.0.0"];

/// The registration of one driver. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    endpoint: String,
    refused: Arc<watch::Sender<Option<String>>>,
}

impl Registration {
    /// Of the driver that the kubelet reaches at `endpoint`.
    pub(crate) fn new(endpoint: String) -> Self {
        Self { endpoint, refused: Arc::new(watch::Sender::new(None)) }
    }

    /// Ends once the kubelet has refused the driver, with its reason.
    pub(crate) async fn refused(&self) -> String {
        let mut refused = self.refused.subscribe();
        let found = refused.wait_for(Option::is_some).await.expect("this value holds the sender");
        found.clone().unwrap_or_default()
    }
}

#[tonic::async_trait]
impl registration_server::Registration for Registration {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: KIND.to_owned(),
            name: identity::NAME.to_owned(),
            endpoint: self.endpoint.clone(),
            supported_versions: VERSIONS.map(str::to_owned).to_vec(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        if plugin_registered {
            tracing::info!("driver registered with the kubelet");
        } else {
            self.refused.send_replace(Some(error));
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
