//! `Probe`.

use holdfast_proto::csi::v1::{ProbeRequest, ProbeResponse};

/// Ready as soon as it answers: the Identity service depends on nothing.
pub(super) fn answer(ProbeRequest {}: ProbeRequest) -> ProbeResponse {
    ProbeResponse { ready: Some(true) }
}
