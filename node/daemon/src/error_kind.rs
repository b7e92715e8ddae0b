//! What the daemon's errors have in common: a kind, from which each edge derives its own word.
//!
//! Edges and their tables: gRPC status (`api/status.rs`), condition reason and retry (`kubernetes/failure.rs`), exit code
//! (`cli/exit.rs`).

use std::error::Error;

/// What the one who asked may do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// The request can never work as it is; change what the message names.
    Invalid,
    /// What the request names does not exist.
    NotFound,
    /// It exists already.
    Exists,
    /// Something else must end first.
    Busy,
    /// Another writer owns the volume.
    Fenced,
    /// Stored bytes are not what was written.
    Corrupt,
    /// No space on the local disk.
    NoSpace,
    /// Something outside is away; the same request may work later.
    Unavailable,
    /// Whether it took effect is unknown; look before asking again.
    Ambiguous,
    /// The daemon is wrong.
    Bug,
}

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
        let failure = Failure::new(ErrorKind::Bug, &error);
        assert_eq!(failure.message, "the file was not read: disk on fire");
    }
}
