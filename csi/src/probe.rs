//! The probes of a pod: they ask the driver on its own socket.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use holdfast_proto::csi::v1::ProbeRequest;
use holdfast_proto::csi::v1::identity_client::IdentityClient;
use tonic::transport::Endpoint;

/// Longest wait for the answer.
const LIMIT: Duration = Duration::from_secs(5);

/// Asks the driver that listens on `socket` if it is alive, and `ready` too.
///
/// # Errors
/// It does not answer, or is not ready although it must be.
pub(crate) async fn ask(socket: &Path, ready: bool) -> anyhow::Result<()> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
    let asked = async {
        let channel = endpoint.connect().await?;
        anyhow::Ok(IdentityClient::new(channel).probe(ProbeRequest {}).await?.into_inner())
    };
    let answer = tokio::time::timeout(LIMIT, asked).await;
    let answer = answer.context("the driver does not answer")?.context("the driver refused")?;
    ensure!(!ready || answer.ready == Some(true), "the driver is not registered with the kubelet yet");
    Ok(())
}
