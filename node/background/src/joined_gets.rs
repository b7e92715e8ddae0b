//! One request for frames that are adjacent in an object.
//!
//! Owns: the choice of frames that share a request.
//! Does not own: their checksums and positions in blocks (`fetches.rs`), as for single frames. A damaged
//! frame thus fails only its own block.
//! On failure: each block of the request fails, with an error that is no finding about its frame. A reader
//! then requests the frame separately.
//!
//! Blocks that were written together are adjacent in a segment, ordered by number.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use holdfast_format::compose::Composition;
use holdfast_format::segment::Frame;
use holdfast_objects::{ObjectStore, StoreError};
use holdfast_types::{BLOCK_BYTES, Lineage, SegmentId};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::fetches::{StoredFrames, frame_range};

/// Maximum bytes per request.
const MAX_GET_BYTES: u64 = 4 << 20;
/// Maximum gap between two frames in one request; reading it is faster than another request.
const MAX_HOLE_BYTES: u64 = BLOCK_BYTES;

/// A request, sent when the first of its frames is read.
struct JoinedGet<'a> {
    segment: SegmentId,
    range: Range<u64>,
    body: Mutex<JoinedBody<'a>>,
}

/// The response to a request, kept until the last of its frames was taken from it.
struct JoinedBody<'a> {
    answer: Option<JoinedAnswer<'a>>,
    frames: usize,
}

type JoinedAnswer<'a> = Shared<BoxFuture<'a, Result<Bytes, Arc<StoreError>>>>;

impl JoinedGet<'_> {
    fn holds(&self, segment: SegmentId, range: &Range<u64>) -> bool {
        self.segment == segment && self.range.start <= range.start && range.end <= self.range.end
    }

    /// Returns the bytes `range` of the segment; once per frame.
    async fn take(&self, range: Range<u64>) -> Result<Bytes, Arc<StoreError>> {
        // Overlapping frames in a damaged index may cause more calls than were counted.
        let answer = self.body.lock().answer.clone().ok_or(StoreError::BadAnswer { field: "range" })?;
        let body = answer.await?;
        let mut held = self.body.lock();
        held.frames = held.frames.saturating_sub(1);
        if held.frames == 0 {
            held.answer = None;
        }
        drop(held);
        if body.len() as u64 != self.range.end - self.range.start {
            return Err(StoreError::BadAnswer { field: "length" }.into());
        }
        Ok(body.slice((range.start - self.range.start) as usize..(range.end - self.range.start) as usize))
    }
}

/// The requests for the frames of several blocks.
pub struct JoinedGets<'a>(Vec<JoinedGet<'a>>);

impl<'a> JoinedGets<'a> {
    /// Creates the requests to `objects` of `lineage` for all frames of `plans`. With a limit, each holds one
    /// of its permits while it runs, and adds its bytes to the counter when it is sent.
    pub fn new<'p>(
        objects: &'a dyn ObjectStore,
        lineage: &Lineage,
        plans: impl IntoIterator<Item = &'p Composition>,
        limit: Option<(&'a Semaphore, &'a AtomicU64)>,
    ) -> Self {
        let answer = |segment: SegmentId, range: Range<u64>| {
            let key = lineage.segment_key(segment);
            let get = async move {
                let _permit = match limit {
                    Some((permits, sent_bytes)) => {
                        let permit = permits.acquire().await.expect("it is never closed");
                        sent_bytes.fetch_add(range.end - range.start, Ordering::Relaxed);
                        Some(permit)
                    }
                    None => None,
                };
                objects.get_range(&key, range).await.map_err(Arc::new)
            };
            get.boxed().shared()
        };
        let gets = joined(plans).into_iter().map(|(segment, range, frames)| {
            let answer = Some(answer(segment, range.clone()));
            JoinedGet { segment, range, body: Mutex::new(JoinedBody { answer, frames }) }
        });
        Self(gets.collect())
    }

    /// Returns the number of requests.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true without requests.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the requested bytes.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|get| get.range.end - get.range.start).sum()
    }
}

impl StoredFrames for JoinedGets<'_> {
    async fn stored(&self, _key: &str, segment: SegmentId, frame: &Frame) -> Result<Bytes, StoreError> {
        let range = frame_range(frame);
        let get = self.0.iter().find(|get| get.holds(segment, &range));
        let get = get.expect("it was made for all frames of the blocks");
        get.take(range).await.map_err(|error| StoreError::Unavailable(error.into()))
    }
}

/// Returns the ranges that contain the frames of `plans`, each with its number of frames.
fn joined<'p>(plans: impl IntoIterator<Item = &'p Composition>) -> Vec<(SegmentId, Range<u64>, usize)> {
    let pieces = plans.into_iter().flat_map(|plan| &plan.pieces);
    let mut frames: Vec<_> = pieces.map(|piece| (piece.segment, frame_range(&piece.frame))).collect();
    frames.sort_unstable_by_key(|(segment, range)| (segment.0, range.start));
    let mut gets: Vec<(SegmentId, Range<u64>, usize)> = Vec::new();
    for (segment, range) in frames {
        match gets.last_mut() {
            Some((last, get, frames))
                if *last == segment
                    && range.start.saturating_sub(get.end) <= MAX_HOLE_BYTES
                    && range.end - get.start <= MAX_GET_BYTES =>
            {
                get.end = get.end.max(range.end);
                *frames += 1;
            }
            Some(_) | None => gets.push((segment, range, 1)),
        }
    }
    gets
}

#[cfg(test)]
mod tests;
