//! The probes of a pod, which query the driver on its own socket.
//!
//! On failure: standard error has the reason; the kubelet shows it in the events of the pod.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use holdfast_proto::csi::v1::ProbeRequest;
use holdfast_proto::csi::v1::identity_client::IdentityClient;
use tonic::transport::Endpoint;

use crate::identity::probe::reason;

/// Timeout for the response.
const LIMIT: Duration = Duration::from_secs(5);

/// Checks that the driver that listens on `socket` is alive, and with `ready` that it is ready.
///
/// # Errors
/// It does not answer, or is not ready although it must be.
pub(crate) async fn ask(socket: &Path, ready: bool) -> anyhow::Result<()> {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
    let asked = async {
        let channel = endpoint.connect().await?;
        anyhow::Ok(IdentityClient::new(channel).probe(ProbeRequest {}).await?)
    };
    let answer = tokio::time::timeout(LIMIT, asked).await;
    let silent =
        || format!("the driver does not answer on {}; see the log of its container", socket.display());
    let answer = answer.with_context(silent)?.with_context(silent)?;
    match reason(&answer).filter(|_| ready) {
        Some(reason) => bail!("the driver is not ready: {reason}"),
        None => Ok(()),
    }
}
