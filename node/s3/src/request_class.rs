//! Classes of requests: those that wait in one queue, and those whose limits are learned together.

use holdfast_objects::Verb;

/// The queue that a request waits in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Lane {
    /// Other requests only: reads, log records, all that is small.
    First,
    /// Other uploads of segments too, which never have more than their share of the permits.
    Bulk,
}

/// Requests that take about the same time: their limits are learned together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RequestClass {
    pub(crate) verb: Verb,
    pub(crate) lane: Lane,
}

impl RequestClass {
    /// A create-once PUT.
    pub(crate) const CREATE: Self = Self { verb: Verb::Put, lane: Lane::First };

    /// A request that may be repeated after any failure. A create-once PUT may not, so each other PUT is an
    /// upload.
    pub(crate) const fn repeated(verb: Verb) -> Self {
        let is_upload = matches!(verb, Verb::Put | Verb::UploadPart);
        Self { verb, lane: if is_upload { Lane::Bulk } else { Lane::First } }
    }
}
