//! `NodeGetCapabilities`.

use holdfast_proto::csi::v1::node_service_capability::rpc::Type;
use holdfast_proto::csi::v1::node_service_capability::{self, Rpc};
use holdfast_proto::csi::v1::{
    NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse, NodeServiceCapability,
};

/// Requests that the Node service answers.
const CAPABILITIES: [Type; 4] =
    [Type::StageUnstageVolume, Type::GetVolumeStats, Type::ExpandVolume, Type::SingleNodeMultiWriter];

pub(super) fn answer(
    NodeGetCapabilitiesRequest {}: NodeGetCapabilitiesRequest,
) -> NodeGetCapabilitiesResponse {
    let capabilities = CAPABILITIES.map(|one| NodeServiceCapability {
        r#type: Some(node_service_capability::Type::Rpc(Rpc { r#type: one.into() })),
    });
    NodeGetCapabilitiesResponse { capabilities: capabilities.to_vec() }
}
