//! An error in the form that the daemon's edges need: a kind, which each edge maps to its own vocabulary, and
//! a text for users.
//!
//! Edges and their tables: gRPC status (`api/status.rs`), condition reason and retry (`kubernetes/retry.rs`),
//! exit code (`cli/exit.rs`).

use std::error::Error;

use holdfast_service::chain;

use crate::node::FailureKind;

/// An operation's error in the form that its edges need.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    /// Kind of the failure, which determines the possible action.
    pub(crate) kind: FailureKind,
    /// The error and its causes.
    pub(crate) message: String,
}

impl Failure {
    /// Builds a failure whose message consists of `error` and its sources.
    pub(crate) fn new(kind: FailureKind, error: &dyn Error) -> Self {
        Self { kind, message: chain(error) }
    }
}
