//! One request to the API server, with a limit on its time.

use std::time::Duration;

use kube::core::Status;
use tokio::time::timeout;

/// Longest time for one request; a watch is no such request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// End of the message with which the API server refuses to apply a field that the kind does not have. Source:
/// sigs.k8s.io/structured-merge-diff, `typed/helpers.go` and `typed/validate.go`.
const UNKNOWN_FIELD: &str = "field not declared in schema";

/// The API server did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// It refused, or could not be reached.
    #[error("the API server refused a request")]
    Refused(#[source] Box<kube::Error>),
    /// It did not answer.
    #[error("the API server did not answer within {REQUEST_TIMEOUT:?}")]
    TimedOut,
}

impl ApiError {
    /// True if the object changed or is gone since it was read.
    pub fn is_stale(&self) -> bool {
        matches!(self.code(), Some(404 | 409))
    }

    /// True if the program lacks the permission.
    pub fn is_forbidden(&self) -> bool {
        self.code() == Some(403)
    }

    /// True if the definition of the kind in the cluster lacks a field that was applied: it is older than the
    /// program.
    pub fn is_unknown_field(&self) -> bool {
        // The code of this answer is 500 or 400, with the release of Kubernetes.
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

/// Waits for the answer to one request.
///
/// # Errors
/// [`ApiError`]; a request that changes something may have taken effect.
pub async fn call<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, ApiError> {
    match timeout(REQUEST_TIMEOUT, request).await {
        Ok(answer) => answer.map_err(|error| ApiError::Refused(Box::new(error))),
        Err(_elapsed) => Err(ApiError::TimedOut),
    }
}
