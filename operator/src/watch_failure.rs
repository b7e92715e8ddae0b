//! Failed lists and watches of the controllers.

use holdfast_service::chain;
use kube::runtime::{controller, watcher};

/// Logs a failed list or watch of a controller of `kind`. A list fails as a whole, and without one nothing of
/// the kind is reconciled. The controller's backoff bounds the rate. Failed reconciliations are logged where
/// they are retried.
pub(crate) fn log<E: std::error::Error + 'static>(
    kind: &'static str,
    error: &controller::Error<E, watcher::Error>,
) {
    match error {
        controller::Error::QueueError(cause) => {
            tracing::warn!(controller = kind, error = %chain(cause), "a list or watch failed and is retried");
        }
        controller::Error::ObjectNotFound(_)
        | controller::Error::ReconcilerFailed(..)
        | controller::Error::RunnerError(_) => tracing::debug!(controller = kind, %error, "not reconciled"),
    }
}
