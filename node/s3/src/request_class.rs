//! Classes of requests: those that share a queue, and those that share learned limits.

use holdfast_objects::Verb;

/// The queue in which a request waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Lane {
    /// All requests other than segment uploads: reads, log records and other small requests.
    First,
    /// Small segments: a FLUSH may wait for one, and must not wait for bulk uploads.
    Small,
    /// Other segment uploads, which never use more than their share of the permits.
    Bulk,
}

/// Maximum body of a small segment, in bytes.
pub(crate) const SMALL_BYTES: usize = 1 << 20;

/// Requests with similar durations, which share learned limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RequestClass {
    pub(crate) verb: Verb,
    pub(crate) lane: Lane,
}

impl RequestClass {
    /// A create-once PUT.
    pub(crate) const CREATE: Self = Self { verb: Verb::Put, lane: Lane::First };

    /// Returns the class of a segment in one request.
    pub(crate) const fn segment(body_bytes: usize) -> Self {
        let lane = if body_bytes <= SMALL_BYTES { Lane::Small } else { Lane::Bulk };
        Self { verb: Verb::Put, lane }
    }

    /// Returns the class of another request, which may be retried after any failure.
    pub(crate) const fn repeated(verb: Verb) -> Self {
        let is_upload = matches!(verb, Verb::UploadPart);
        Self { verb, lane: if is_upload { Lane::Bulk } else { Lane::First } }
    }
}
