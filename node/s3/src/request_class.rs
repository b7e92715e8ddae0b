//! Classes of requests: those that wait in one queue, and those whose limits are learned together.

use holdfast_objects::Verb;

/// The queue that a request waits in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Lane {
    /// Other requests only: reads, log records, all that is small.
    First,
    /// Other small segments: a FLUSH may wait for one, and does not wait for the bulk.
    Small,
    /// Other uploads of segments, which never have more than their share of the permits.
    Bulk,
}

/// Longest body of a small segment, in bytes.
pub(crate) const SMALL_BYTES: usize = 1 << 20;

/// Requests that take about the same time: their limits are learned together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RequestClass {
    pub(crate) verb: Verb,
    pub(crate) lane: Lane,
}

impl RequestClass {
    /// A create-once PUT.
    pub(crate) const CREATE: Self = Self { verb: Verb::Put, lane: Lane::First };

    /// A segment in one request.
    pub(crate) const fn segment(body_bytes: usize) -> Self {
        let lane = if body_bytes <= SMALL_BYTES { Lane::Small } else { Lane::Bulk };
        Self { verb: Verb::Put, lane }
    }

    /// Another request, which may be repeated after any failure.
    pub(crate) const fn repeated(verb: Verb) -> Self {
        let is_upload = matches!(verb, Verb::UploadPart);
        Self { verb, lane: if is_upload { Lane::Bulk } else { Lane::First } }
    }
}
