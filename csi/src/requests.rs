//! Requests of the sidecars and the kubelet: their log lines and metrics, and the response to unsupported
//! ones.

use std::time::Instant;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use tonic::{Code, Response, Status};
use tracing::Instrument;

/// A request that the driver answers and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum RequestKind {
    CreateVolume,
    DeleteVolume,
    ControllerPublishVolume,
    ControllerUnpublishVolume,
    ValidateVolumeCapabilities,
    ListVolumes,
    GetCapacity,
    ControllerExpandVolume,
    ControllerModifyVolume,
    CreateSnapshot,
    DeleteSnapshot,
    ListSnapshots,
    GetSnapshot,
    CreateVolumeGroupSnapshot,
    DeleteVolumeGroupSnapshot,
    GetVolumeGroupSnapshot,
    GetMetadataAllocated,
    GetMetadataDelta,
    NodeStageVolume,
    NodeUnstageVolume,
    NodePublishVolume,
    NodeUnpublishVolume,
    NodeExpandVolume,
    NodeGetInfo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
enum RequestOutcome {
    Answered,
    Waiting,
    Refused,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct OutcomeLabels {
    request: RequestKind,
    outcome: RequestOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabels {
    request: RequestKind,
}

/// The metrics of all requests; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Requests {
    counts: Family<OutcomeLabels, Counter>,
    durations: Family<RequestLabels, Histogram>,
}

impl Default for Requests {
    fn default() -> Self {
        let durations = Family::new_with_constructor(histogram as fn() -> Histogram);
        Self { counts: Family::default(), durations }
    }
}

/// Creates a histogram from 5 ms to 80 s: a sidecar waits for 60 s.
fn histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.005, 2.0, 15))
}

impl Requests {
    /// Returns the number of requests by kind and outcome.
    pub(crate) fn counts(&self) -> Family<OutcomeLabels, Counter> {
        self.counts.clone()
    }

    /// Returns the duration of requests.
    pub(crate) fn durations(&self) -> Family<RequestLabels, Histogram> {
        self.durations.clone()
    }

    /// Logs, counts and times the response to a request about a volume.
    ///
    /// # Errors
    /// Those of the request.
    pub(crate) async fn answer<T>(
        &self,
        request: RequestKind,
        volume: &str,
        answer: impl Future<Output = Result<T, Status>>,
    ) -> Result<Response<T>, Status> {
        let begun = Instant::now();
        let span = tracing::info_span!("request", otel.name = ?request, volume);
        let answered = answer.instrument(span).await;
        let took = begun.elapsed();
        let outcome = match &answered {
            Ok(_) => {
                tracing::info!(?request, volume, ?took, "request answered");
                RequestOutcome::Answered
            }
            Err(status) if status.code() == Code::Aborted => {
                tracing::info!(?request, volume, ?took, message = status.message(), "request still waits");
                RequestOutcome::Waiting
            }
            Err(status) => {
                let (code, message) = (status.code(), status.message());
                tracing::warn!(?request, volume, ?took, ?code, message, "request refused");
                RequestOutcome::Refused
            }
        };
        self.counts.get_or_create(&OutcomeLabels { request, outcome }).inc();
        self.durations.get_or_create(&RequestLabels { request }).observe(took.as_secs_f64());
        answered.map(Response::new)
    }
}

/// Returns the error for a request whose capability the driver does not announce.
pub(crate) fn not_built(request: &str) -> Status {
    Status::unimplemented(format!("{request} is not supported by this version of the driver"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_outcome_of_a_request_is_counted() {
        let requests = Requests::default();
        let request = RequestKind::NodeStageVolume;
        for (status, outcome) in [
            (None, RequestOutcome::Answered),
            (Some(Status::aborted("wait")), RequestOutcome::Waiting),
            (Some(Status::unavailable("no")), RequestOutcome::Refused),
        ] {
            let code = status.as_ref().map(Status::code);
            let answered = requests.answer(request, "v", async { status.map_or(Ok(()), Err) }).await;
            assert_eq!(answered.err().map(|status| status.code()), code);
            assert_eq!(
                requests.counts.get_or_create(&OutcomeLabels { request, outcome }).get(),
                1,
                "{outcome:?}"
            );
        }
    }
}
