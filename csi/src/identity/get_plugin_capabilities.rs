//! `GetPluginCapabilities`.

use holdfast_proto::csi::v1::plugin_capability::{self, Service, VolumeExpansion, service, volume_expansion};
use holdfast_proto::csi::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, PluginCapability,
};

/// Returns the capabilities of the driver as a whole, the same in all of its processes, except that only the
/// process serving SnapshotMetadata announces that service. A volume can grow while a node serves it.
pub(super) fn answer(
    GetPluginCapabilitiesRequest {}: GetPluginCapabilitiesRequest,
    tells_changed_blocks: bool,
) -> GetPluginCapabilitiesResponse {
    let service = |one: service::Type| plugin_capability::Type::Service(Service { r#type: one.into() });
    let online = VolumeExpansion { r#type: volume_expansion::Type::Online.into() };
    let mut capabilities = vec![
        service(service::Type::ControllerService),
        service(service::Type::GroupControllerService),
        service(service::Type::VolumeAccessibilityConstraints),
        plugin_capability::Type::VolumeExpansion(online),
    ];
    if tells_changed_blocks {
        capabilities.push(service(service::Type::SnapshotMetadataService));
    }
    let capabilities = capabilities.into_iter().map(|one| PluginCapability { r#type: Some(one) });
    GetPluginCapabilitiesResponse { capabilities: capabilities.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: with the offline capability, claims in use could not be expanded.
    #[test]
    fn claims_in_use_may_be_expanded() {
        let answer = answer(GetPluginCapabilitiesRequest {}, false);
        let kinds = answer.capabilities.into_iter().filter_map(|capability| capability.r#type);
        let grows = kinds.filter_map(|kind| match kind {
            plugin_capability::Type::VolumeExpansion(how) => Some(how.r#type()),
            plugin_capability::Type::Service(_) => None,
        });
        assert_eq!(grows.collect::<Vec<_>>(), [volume_expansion::Type::Online]);
    }
}
