//! A request to the API server with a timeout.

use std::time::Duration;

use kube::core::Status;
use tokio::time::timeout;

/// Timeout of one request; not for watches.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Suffix of the API server's error when an applied field does not exist in the kind. Source:
/// sigs.k8s.io/structured-merge-diff, `typed/helpers.go` and `typed/validate.go`.
const UNKNOWN_FIELD: &str = "field not declared in schema";

/// A request to the API server failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The API server rejected the request, or was unreachable.
    #[error("the API server refused a request")]
    Refused(#[source] Box<kube::Error>),
    /// The API server did not answer.
    #[error("the API server did not answer within {REQUEST_TIMEOUT:?}")]
    TimedOut,
}

impl ApiError {
    /// Returns true if the object changed or was deleted since it was read.
    pub fn is_stale(&self) -> bool {
        matches!(self.code(), Some(404 | 409))
    }

    /// Returns true if the program lacks the permission.
    pub fn is_forbidden(&self) -> bool {
        self.code() == Some(403)
    }

    /// Returns true if the cluster's definition of the kind lacks an applied field: it is older than the
    /// program.
    pub fn is_unknown_field(&self) -> bool {
        // The status code is 500 or 400, depending on the Kubernetes release.
        self.status().is_some_and(|status| status.message.contains(UNKNOWN_FIELD))
    }

    fn code(&self) -> Option<u16> {
        self.status().map(|status| status.code)
    }

    fn status(&self) -> Option<&Status> {
        match self {
            Self::Refused(error) => {
                if let kube::Error::Api(status) = error.as_ref() {
                    Some(status)
                } else {
                    None
                }
            }
            Self::TimedOut => None,
        }
    }
}

/// Waits for the response to one request.
///
/// # Errors
/// [`ApiError`]; a request that changes something may have taken effect.
pub async fn call<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, ApiError> {
    match timeout(REQUEST_TIMEOUT, request).await {
        Ok(answer) => answer.map_err(|error| ApiError::Refused(Box::new(error))),
        Err(_elapsed) => Err(ApiError::TimedOut),
    }
}
