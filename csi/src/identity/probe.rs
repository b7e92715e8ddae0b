//! `Probe`.

use holdfast_proto::csi::v1::{ProbeRequest, ProbeResponse};
use tonic::Response;
use tonic::metadata::MetadataValue;

/// Metadata entry of the response with the reason why the driver is not ready; CSI has no field for it.
const NOT_READY: &str = "holdfast-not-ready-bin";

/// A response alone means that the process is alive; `ready` means that the cluster can use the driver.
pub(super) fn answer(ProbeRequest {}: ProbeRequest, not_ready: Option<String>) -> Response<ProbeResponse> {
    let mut response = Response::new(ProbeResponse { ready: Some(not_ready.is_none()) });
    if let Some(reason) = not_ready {
        response.metadata_mut().insert_bin(NOT_READY, MetadataValue::from_bytes(reason.as_bytes()));
    }
    response
}

/// Returns the reason why the driver is not ready; `None` if it is ready.
pub(crate) fn reason(response: &Response<ProbeResponse>) -> Option<String> {
    if response.get_ref().ready == Some(true) {
        return None;
    }
    let found = response.metadata().get_bin(NOT_READY).and_then(|value| value.to_bytes().ok());
    let found = found.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Some(found.unwrap_or_else(|| "the driver gives no reason".to_owned()))
}
