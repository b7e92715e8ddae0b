//! Outcome of a request: its log line, and the answer of a request that the driver does not offer.

use std::time::Instant;

use tonic::{Code, Response, Status};

/// Logs the outcome of a request about a volume.
///
/// # Errors
/// Those of the request.
pub(crate) async fn logged<T>(
    request: &'static str,
    volume: &str,
    answer: impl Future<Output = Result<T, Status>>,
) -> Result<Response<T>, Status> {
    let begun = Instant::now();
    let outcome = answer.await;
    let took = begun.elapsed();
    match &outcome {
        Ok(_) => tracing::info!(request, volume, ?took, "request answered"),
        Err(status) if status.code() == Code::Aborted => {
            tracing::info!(request, volume, ?took, message = status.message(), "request still waits");
        }
        Err(status) => {
            tracing::warn!(request, volume, ?took, code = ?status.code(), message = status.message(), "request refused");
        }
    }
    outcome.map(Response::new)
}

/// The answer to a request whose capability the driver does not announce.
pub(crate) fn not_built(request: &str) -> Status {
    Status::unimplemented(format!("{request} is not supported by this version of the driver"))
}
