//! The parts of a segment, created while earlier ones are sent.

use std::collections::VecDeque;

use async_trait::async_trait;
use bytes::Bytes;

use crate::StoreError;

/// Maximum parts of an object: <https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html>.
pub const MAX_PARTS: u64 = 10_000;

/// Returns the part length for an object of at most `max_bytes`: `usual`, or longer if there would be too
/// many parts.
///
/// # Panics
/// If a part does not fit into the memory of the machine.
pub fn part_length(max_bytes: u64, usual: usize) -> usize {
    usual.max(usize::try_from(max_bytes.div_ceil(MAX_PARTS)).expect("a part fits into memory"))
}

/// A part of a segment. All parts except the last have the same length, at least 5 MiB (S3's minimum). At
/// most [`MAX_PARTS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Bytes of the part.
    pub bytes: Bytes,
    /// True for the last part.
    pub is_last: bool,
}

/// The producer could not create a part; it keeps the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a part of the segment could not be created")]
pub struct PartFailed;

/// Reason why a segment was not stored.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// The store did not accept it. The object may still exist; nothing refers to it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The producer failed.
    #[error(transparent)]
    Part(#[from] PartFailed),
}

/// Creates the parts of a segment in order.
#[async_trait]
pub trait Parts: Send {
    /// Creates the next part; not called after the last one.
    ///
    /// # Errors
    /// [`PartFailed`]: the segment cannot be stored.
    async fn next(&mut self) -> Result<Part, PartFailed>;

    /// Returns the maximum number of parts in memory, including the one being created; at least 1. The store
    /// requests a further part only after it has stored one, and calls this before each part.
    fn max_at_once(&self) -> usize;
}

/// Parts that are already in memory.
#[derive(Debug, Clone)]
pub struct ReadyParts(VecDeque<Bytes>);

impl ReadyParts {
    /// Creates the list from these parts, or from one empty part.
    pub fn new(parts: impl IntoIterator<Item = Bytes>) -> Self {
        Self(parts.into_iter().collect())
    }
}

impl From<Bytes> for ReadyParts {
    fn from(whole: Bytes) -> Self {
        Self::new([whole])
    }
}

#[async_trait]
impl Parts for ReadyParts {
    async fn next(&mut self) -> Result<Part, PartFailed> {
        let bytes = self.0.pop_front().unwrap_or_default();
        Ok(Part { bytes, is_last: self.0.is_empty() })
    }

    fn max_at_once(&self) -> usize {
        self.0.len().max(1)
    }
}

/// Concatenates all parts, for a store that keeps objects in memory.
///
/// # Errors
/// [`PartFailed`].
///
/// # Panics
/// If there are more than [`MAX_PARTS`], which a real store rejects.
pub async fn collect(parts: &mut dyn Parts) -> Result<Bytes, PartFailed> {
    let mut whole = Vec::new();
    let mut count = 0;
    loop {
        count += 1;
        assert!(count <= MAX_PARTS, "a store takes at most {MAX_PARTS} parts of an object");
        let Part { bytes, is_last } = parts.next().await?;
        if is_last && whole.is_empty() {
            return Ok(bytes);
        }
        whole.extend_from_slice(&bytes);
        if is_last {
            return Ok(whole.into());
        }
    }
}
