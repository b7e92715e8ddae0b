//! `ControllerGetCapabilities`.

use holdfast_proto::csi::v1::controller_service_capability::rpc::Type;
use holdfast_proto::csi::v1::controller_service_capability::{self, Rpc};
use holdfast_proto::csi::v1::{
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse, ControllerServiceCapability,
};

/// Requests that the Controller service answers.
const CAPABILITIES: [Type; 12] = [
    Type::CreateDeleteVolume,
    Type::GetCapacity,
    Type::PublishUnpublishVolume,
    Type::ListVolumes,
    Type::ListVolumesPublishedNodes,
    Type::ExpandVolume,
    Type::ModifyVolume,
    Type::SingleNodeMultiWriter,
    Type::CreateDeleteSnapshot,
    Type::ListSnapshots,
    Type::GetSnapshot,
    Type::CloneVolume,
];

pub(super) fn answer(
    ControllerGetCapabilitiesRequest {}: ControllerGetCapabilitiesRequest,
) -> ControllerGetCapabilitiesResponse {
    let capabilities = CAPABILITIES.map(|one| ControllerServiceCapability {
        r#type: Some(controller_service_capability::Type::Rpc(Rpc { r#type: one.into() })),
    });
    ControllerGetCapabilitiesResponse { capabilities: capabilities.to_vec() }
}
