//! `GetPluginInfo`.

use holdfast_proto::csi::v1::{GetPluginInfoRequest, GetPluginInfoResponse};

use super::NAME;

pub(super) fn answer(GetPluginInfoRequest {}: GetPluginInfoRequest) -> GetPluginInfoResponse {
    GetPluginInfoResponse {
        name: NAME.to_owned(),
        vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
        manifest: Default::default(),
    }
}
