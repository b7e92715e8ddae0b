//! Registration of the driver with the kubelet (`pluginregistration`, version 1).
//!
//! Owns: the responses on the registration socket. The kubelet finds the socket by its path, asks it for the
//! path of the driver's own socket, and reports whether it accepted the driver.
//! On failure: a rejected driver exits, and registers again after its restart.

use std::sync::Arc;

use holdfast_proto::pluginregistration::v1::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse, registration_server,
};
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use crate::identity;
use crate::readiness::Readiness;

/// Kind of plugin. Source: kubelet, `pkg/apis/pluginregistration/v1/constants.go`.
const KIND: &str = "CSIPlugin";
/// Versions of CSI, in the kubelet's notation.
const VERSIONS: [&str; 1] = ["1.0.0"];

/// The registration of one driver. Clones share the state.
#[derive(Clone, Debug)]
pub(crate) struct Registration {
    endpoint: String,
    readiness: Readiness,
    refused: Arc<watch::Sender<Option<String>>>,
}

impl Registration {
    /// Creates the registration of the driver at `endpoint`; `readiness` gets the kubelet's verdict.
    pub(crate) fn new(endpoint: String, readiness: Readiness) -> Self {
        Self { endpoint, readiness, refused: Arc::new(watch::Sender::new(None)) }
    }

    /// Waits until the kubelet has rejected the driver, and returns its reason.
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
            self.readiness.set(None);
            tracing::info!("driver registered with the kubelet");
        } else {
            self.readiness.set(Some(format!(
                "the kubelet refused the driver: {error}. No pod of this node gets a volume. The driver exits, \
                 and registers again after its restart"
            )));
            self.refused.send_replace(Some(error));
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tonic::codegen::http::uri::Authority;

    use crate::settings::NodeSettings;

    /// Arguments of the node service.
    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        node: NodeSettings,
    }

    /// The kubelet's gRPC library sends the path of the socket as the authority, with percent-encoded
    /// slashes; h2 ends a request with an invalid authority with PROTOCOL_ERROR.
    #[test]
    fn the_authority_that_the_kubelet_sends_is_valid() {
        let sent = |name: &str| format!("/var/lib/kubelet/plugins_registry/{name}").replace('/', "%2F");
        let settings = Arguments::parse_from(["node", "--node-name=a"]).node;
        let path = settings.registration.path;
        let name = path.file_name().and_then(|name| name.to_str()).unwrap();
        assert!(Authority::try_from(sent(name)).is_ok(), "{name}");
        assert!(Authority::try_from(sent("csi.holdfast.dev-reg.sock")).is_err());
        let chart = include_str!("../../charts/holdfast/templates/csi-node.yaml");
        assert!(chart.contains(&format!("/registration/{name}\n")), "the chart names another socket");
    }
}
