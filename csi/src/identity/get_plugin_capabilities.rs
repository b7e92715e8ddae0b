//! `GetPluginCapabilities`.

use holdfast_proto::csi::v1::{GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse};

/// None: the driver has no Controller service, and so no sidecar has anything to ask of it.
pub(super) fn answer(
    GetPluginCapabilitiesRequest {}: GetPluginCapabilitiesRequest,
) -> GetPluginCapabilitiesResponse {
    GetPluginCapabilitiesResponse { capabilities: Vec::new() }
}
