//! `GetPluginCapabilities`.

use holdfast_proto::csi::v1::plugin_capability::{self, Service, VolumeExpansion, service, volume_expansion};
use holdfast_proto::csi::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, PluginCapability,
};

/// Of the driver as a whole, from either of its processes. A volume grows while no node serves it.
pub(super) fn answer(
    GetPluginCapabilitiesRequest {}: GetPluginCapabilitiesRequest,
) -> GetPluginCapabilitiesResponse {
    let service = |one: service::Type| plugin_capability::Type::Service(Service { r#type: one.into() });
    let offline = VolumeExpansion { r#type: volume_expansion::Type::Offline.into() };
    let capabilities = [
        service(service::Type::ControllerService),
        service(service::Type::VolumeAccessibilityConstraints),
        plugin_capability::Type::VolumeExpansion(offline),
    ];
    let capabilities = capabilities.map(|one| PluginCapability { r#type: Some(one) });
    GetPluginCapabilitiesResponse { capabilities: capabilities.to_vec() }
}
