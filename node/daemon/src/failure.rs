//! An error as the daemon's edges need it: a kind, from which each edge derives its own word, and a text for
//! people.
//!
//! Edges and their tables: gRPC status (`api/status.rs`), condition reason and retry (`kubernetes/retry.rs`),
//! exit code (`cli/exit.rs`).

use std::error::Error;

use holdfast_service::chain;

use crate::node::FailureKind;

/// An operation's error as its edges need it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    /// Kind of the failure, which determines the possible action.
    pub(crate) kind: FailureKind,
    /// The error and what caused it.
    pub(crate) message: String,
}

impl Failure {
    /// A failure whose message has `error` and its sources.
    pub(crate) fn new(kind: FailureKind, error: &dyn Error) -> Self {
        Self { kind, message: chain(error) }
    }
}
