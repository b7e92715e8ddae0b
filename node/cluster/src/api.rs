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
    /// The cluster's definition of the kind lacks an applied field: it is older than the program.
    #[error(
        "the custom resource definitions of the cluster are older than this program. Apply those of its release \
         (helm show crds CHART | kubectl apply --server-side --force-conflicts --filename -)"
    )]
    OldDefinitions(#[source] Box<kube::Error>),
    /// The API server did not answer.
    #[error("the API server did not answer within {REQUEST_TIMEOUT:?}")]
    TimedOut,
}

impl ApiError {
    fn of(error: kube::Error) -> Self {
        // The status code is 500 or 400, depending on the Kubernetes release.
        let lacks_field =
            matches!(&error, kube::Error::Api(status) if status.message.contains(UNKNOWN_FIELD));
        let error = Box::new(error);
        if lacks_field { Self::OldDefinitions(error) } else { Self::Refused(error) }
    }

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
        matches!(self, Self::OldDefinitions(_))
    }

    fn code(&self) -> Option<u16> {
        self.status().map(|status| status.code)
    }

    fn status(&self) -> Option<&Status> {
        match self {
            Self::Refused(error) | Self::OldDefinitions(error) => {
                if let kube::Error::Api(status) = error.as_ref() { Some(status) } else { None }
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
        Ok(answer) => answer.map_err(ApiError::of),
        Err(_elapsed) => Err(ApiError::TimedOut),
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    /// Found in review: the log of a program that was newer than the definitions had only the API server's
    /// error 500, which names neither the cause nor the remedy.
    #[tokio::test]
    async fn a_field_that_the_definitions_lack_is_explained() {
        let refused = |message: &str| {
            let status = Status { message: message.to_owned(), code: 500, ..Status::default() };
            std::future::ready(Err::<(), _>(kube::Error::Api(Box::new(status))))
        };
        let message = "failed to create typed patch object: .status.later: field not declared in schema";
        let error = call(refused(message)).await.expect_err("refused");
        assert!(error.is_unknown_field() && error.to_string().contains("helm show crds CHART"), "{error}");
        let source = error.source().expect("the API server's error").to_string();
        assert!(source.contains(".status.later"), "{source}");
        let error = call(refused("etcdserver: request timed out")).await.expect_err("refused");
        assert!(!error.is_unknown_field() && !error.to_string().contains("helm"), "{error}");
    }
}
