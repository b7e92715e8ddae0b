//! Failures of a sweep.

use holdfast_cluster::api::ApiError;
use holdfast_crds::FieldError;
use holdfast_log::LogFailure;

use crate::object_store::connect::ConnectError;

/// A sweep that did not complete. The objects that it deleted were not needed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SweepFailed {
    /// No connection could be made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The Volumes could not be listed.
    #[error("the Volumes cannot be listed")]
    Api(#[from] ApiError),
    /// A field has an invalid value.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] LogFailure),
}
