//! One request for the frames that lie next to each other in an object.
//!
//! Owns: the choice of frames that share a request. Does not own: their checksums and their places in blocks
//! (`fetches.rs`), which are those of frames that came alone. So a damaged frame fails its own block.
//! On failure: each block of the request fails, with an error that says nothing about its frame. A reader
//! then requests the frame alone.
//!
//! Blocks that were written together are neighbours in a segment, in the order of their numbers.

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

/// Bytes of one request at most.
const MAX_GET_BYTES: u64 = 4 << 20;
/// Bytes between two frames that are requested as well, and dropped: they cost less time than a request.
const MAX_HOLE_BYTES: u64 = BLOCK_BYTES;

/// A request, sent once the first of its frames is asked for.
struct JoinedGet<'a> {
    segment: SegmentId,
    range: Range<u64>,
    body: Mutex<JoinedBody<'a>>,
}

/// The answer to a request, until the last of its frames was taken from it.
struct JoinedBody<'a> {
    answer: Option<JoinedAnswer<'a>>,
    frames: usize,
}

type JoinedAnswer<'a> = Shared<BoxFuture<'a, Result<Bytes, Arc<StoreError>>>>;

impl JoinedGet<'_> {
    fn holds(&self, segment: SegmentId, range: &Range<u64>) -> bool {
        self.segment == segment && self.range.start <= range.start && range.end <= self.range.end
    }

    /// The bytes `range` of the segment, once.
    async fn take(&self, range: Range<u64>) -> Result<Bytes, Arc<StoreError>> {
        // A damaged index may have frames that overlap: then more of them than were counted may be here.
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

/// The requests that bring the frames of several blocks.
pub struct JoinedGets<'a>(Vec<JoinedGet<'a>>);

impl<'a> JoinedGets<'a> {
    /// The requests to `objects` of `lineage` for all frames of `plans`. Where there is a limit, each takes
    /// one of its permits for as long as it lasts, and adds its bytes to the counter when it is sent.
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

    /// Their number.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if nothing is requested.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes that are requested.
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

/// The ranges that hold the frames of `plans`, and the number of these in each.
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
