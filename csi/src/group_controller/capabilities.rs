//! `GroupControllerGetCapabilities`.

use holdfast_proto::csi::v1::group_controller_service_capability::rpc::Type;
use holdfast_proto::csi::v1::group_controller_service_capability::{self, Rpc};
use holdfast_proto::csi::v1::{
    GroupControllerGetCapabilitiesRequest, GroupControllerGetCapabilitiesResponse,
    GroupControllerServiceCapability,
};

pub(super) fn answer(
    GroupControllerGetCapabilitiesRequest {}: GroupControllerGetCapabilitiesRequest,
) -> GroupControllerGetCapabilitiesResponse {
    let groups = Rpc { r#type: Type::CreateDeleteGetVolumeGroupSnapshot.into() };
    let capability = GroupControllerServiceCapability {
        r#type: Some(group_controller_service_capability::Type::Rpc(groups)),
    };
    GroupControllerGetCapabilitiesResponse { capabilities: vec![capability] }
}
