//! `Probe`.

use holdfast_proto::csi::v1::{ProbeRequest, ProbeResponse};

/// An answer alone says that the process is alive; `ready` says whether the cluster can use the driver.
pub(super) fn answer(ProbeRequest {}: ProbeRequest, ready: bool) -> ProbeResponse {
    ProbeResponse { ready: Some(ready) }
}
