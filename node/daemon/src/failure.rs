//! An error as the daemon's edges need it: a kind, from which each edge derives its own word, and a text for people.
//!
//! Edges and their tables: gRPC status (`api/status.rs`), condition reason and retry (`kubernetes/retry.rs`), exit code
//! (`cli/exit.rs`).

use std::error::Error;

use crate::node::ErrorKind;

/// An operation's error as its edges need it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Failure {
    /// What may be done about it.
    pub(crate) kind: ErrorKind,
    /// The error and what caused it.
    pub(crate) message: String,
}

impl Failure {
    /// A failure that tells of `error` and of its sources.
    pub(crate) fn new(kind: ErrorKind, error: &dyn Error) -> Self {
        Self { kind, message: chain(error) }
    }
}

/// An error and its sources in one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_message = cause.to_string();
        if !message.ends_with(&cause_message) {
            message.push_str(": ");
            message.push_str(&cause_message);
        }
        source = cause.source();
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the file was not read")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn sources_are_told_once() {
        let error = Outer(std::io::Error::other("disk on fire"));
        let failure = Failure::new(ErrorKind::Local, &error);
        assert_eq!(failure.message, "the file was not read: disk on fire");
    }
}
