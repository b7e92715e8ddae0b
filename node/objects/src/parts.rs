//! The bytes of a segment, made while earlier ones are sent.

use std::collections::VecDeque;

use async_trait::async_trait;
use bytes::Bytes;

use crate::StoreError;

/// Most parts of an object: <https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html>.
pub const MAX_PARTS: u64 = 10_000;

/// Length of the parts of an object that has at most `most_bytes`: `usual`, or so long that a store takes all
/// of them.
///
/// # Panics
/// If a part does not fit into the memory of the machine.
pub fn part_length(most_bytes: u64, usual: usize) -> usize {
    usual.max(usize::try_from(most_bytes.div_ceil(MAX_PARTS)).expect("a part fits into memory"))
}

/// A piece of a segment. All pieces but the last have one length, which is at least 5 MiB: S3's smallest
/// part. There are at most [`MAX_PARTS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its bytes.
    pub bytes: Bytes,
    /// No part follows.
    pub is_last: bool,
}

/// The maker of the parts could not make one, and knows why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a part of the segment could not be made")]
pub struct PartFailed;

/// Reasons for which a segment was not stored.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// The store did not take it. The object may exist nevertheless; nothing refers to it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its parts ended early.
    #[error(transparent)]
    Part(#[from] PartFailed),
}

/// Makes the parts of a segment, first to last.
#[async_trait]
pub trait Parts: Send {
    /// Makes the next part; not called after the last one.
    ///
    /// # Errors
    /// [`PartFailed`]: the segment cannot be stored.
    async fn next(&mut self) -> Result<Part, PartFailed>;

    /// Largest number of parts in memory at once, including the one that is being made; at least 1. The store
    /// asks for a further part only after it stored one. The store asks for the number before each part.
    fn max_at_once(&self) -> usize;
}

/// Parts that are in memory already.
#[derive(Debug, Clone)]
pub struct ReadyParts(VecDeque<Bytes>);

impl ReadyParts {
    /// These parts, or one without bytes.
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

/// The concatenation of all parts, for a store that keeps objects in memory.
///
/// # Errors
/// [`PartFailed`].
///
/// # Panics
/// If there are more than [`MAX_PARTS`], which a real store refuses.
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
