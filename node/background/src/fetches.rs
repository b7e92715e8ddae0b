//! Block fetches: the received frames of each content, shared by all its readers and attempts.
//!
//! Owns: the bytes of blocks while they are fetched, the requests for frames. Does not own: the retries
//! (`cold.rs`), the storage of a whole block (`slots.rs`).
//! Invariants: a sector counts as received once its frame passed its checksum (3 in `docs/invariants.md`),
//! and a block is returned once all its frames are received.
//! On failure: received frames are kept until the last reader of the content has ended. The next attempt, of
//! the same reader or another, requests only the missing ones. Dropping a reader drops only its own requests.
//!
//! *Requests.* Each frame of a block is a separate request: a segment has at most one frame of a block, both
//! in its own index and after a merge has relocated frames to it, so no two of them are adjacent in an
//! object. The frames of several blocks often are: then a source other than the store provides them
//! (`joined_gets.rs`).
//!
//! *Memory.* One block buffer for each content with a received frame, regardless of its number of readers;
//! frames are unpacked on receipt, and their stored bytes dropped. Fetches from an unreachable store use no
//! buffers.

use std::collections::HashMap;
use std::ops::{DerefMut, Range};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use holdfast_format::compose::{Composition, ContentKey, Piece, place};
use holdfast_format::safeguard::{Safeguard::FetchTheRest, safeguard};
use holdfast_format::segment::{Frame, unpack};
use holdfast_objects::{ObjectStore, StoreError};
use holdfast_types::{Lineage, Mask, SegmentId};
use parking_lot::Mutex;

use holdfast_log::{ObjectError, join_reads};

use crate::ColdError;

/// A source of stored, unverified frames. A store sends one request for each.
pub trait StoredFrames: Sync {
    /// Returns the stored bytes of `frame` in `segment`, the object `key`.
    ///
    /// # Errors
    /// Reason why the read failed.
    fn stored(
        &self,
        key: &str,
        segment: SegmentId,
        frame: &Frame,
    ) -> impl Future<Output = Result<Bytes, StoreError>> + Send;
}

impl<S: ObjectStore + ?Sized> StoredFrames for S {
    async fn stored(&self, key: &str, _segment: SegmentId, frame: &Frame) -> Result<Bytes, StoreError> {
        self.get_range(key, frame_range(frame)).await
    }
}

/// The fetches in progress.
type InProgress<B> = Arc<Mutex<HashMap<ContentKey, Weak<Fetch<B>>>>>;

/// Block fetches into buffers `B`, by the contents of the blocks.
pub struct Fetches<B> {
    zeroed: fn() -> B,
    in_progress: InProgress<B>,
}

impl<B: DerefMut<Target = [u8]>> Fetches<B> {
    /// Starts without fetches. `zeroed` creates a buffer of 128 KiB of zeros.
    pub fn new(zeroed: fn() -> B) -> Self {
        Self { zeroed, in_progress: Arc::default() }
    }

    /// Returns true if a reader is fetching the content `key`.
    pub fn is_in_progress(&self, key: &ContentKey) -> bool {
        self.in_progress.lock().get(key).is_some_and(|fetch| fetch.strong_count() > 0)
    }

    /// Returns a reader of one block.
    pub fn reader(&self) -> BlockReader<'_, B> {
        BlockReader { fetches: self, fetch: Mutex::default() }
    }

    /// Joins the fetch of the content `key`, or starts one.
    fn join(&self, key: ContentKey) -> Arc<Fetch<B>> {
        let mut in_progress = self.in_progress.lock();
        if let Some(fetch) = in_progress.get(&key).and_then(Weak::upgrade) {
            return fetch;
        }
        let fetch = Arc::new(Fetch {
            key,
            zeroed: self.zeroed,
            turn: tokio::sync::Mutex::default(),
            arrived: Mutex::new(Arrived::Sectors { block: None, held: Mask::EMPTY }),
            in_progress: Arc::clone(&self.in_progress),
        });
        in_progress.insert(key, Arc::downgrade(&fetch));
        fetch
    }
}

/// A reader of one block. While it exists, the received frames of its last content are kept.
pub struct BlockReader<'a, B> {
    fetches: &'a Fetches<B>,
    fetch: Mutex<Option<Arc<Fetch<B>>>>,
}

impl<B: DerefMut<Target = [u8]>> BlockReader<'_, B> {
    /// Returns the 128 KiB that `plan` composes from `frames` of objects of `lineage`. The reader joins the
    /// fetch of this content at once, and requests missing frames in its turn, once the future is polled.
    ///
    /// # Errors
    /// [`ColdError`], once all requests have ended, if a frame is unavailable or differs from what was
    /// written. Of several errors, a final one takes precedence.
    pub fn block<F: StoredFrames + ?Sized>(
        &self,
        frames: &F,
        lineage: &Lineage,
        plan: &Composition,
    ) -> impl Future<Output = Result<Arc<B>, ColdError>> {
        let fetch = self.fetches.join(plan.key);
        let _before = self.fetch.lock().replace(Arc::clone(&fetch));
        async move { Ok(fetch.block(frames, lineage, plan).await?) }
    }
}

/// The received parts of a block.
enum Arrived<B> {
    /// The sectors `held` of `block`; no buffer while there are none.
    Sectors { block: Option<B>, held: Mask },
    /// The whole block.
    Block(Arc<B>),
}

/// The fetch of one content.
struct Fetch<B> {
    key: ContentKey,
    zeroed: fn() -> B,
    /// Locked by the reader that is requesting frames.
    turn: tokio::sync::Mutex<()>,
    arrived: Mutex<Arrived<B>>,
    in_progress: InProgress<B>,
}

impl<B: DerefMut<Target = [u8]>> Fetch<B> {
    async fn block<F: StoredFrames + ?Sized>(
        &self,
        frames: &F,
        lineage: &Lineage,
        plan: &Composition,
    ) -> Result<Arc<B>, ObjectError> {
        let _turn = self.turn.lock().await;
        let missing = self.missing(plan);
        join_reads(missing.into_iter().map(|piece| self.request(frames, lineage, piece))).await?;
        Ok(self.finish())
    }

    /// Returns the pieces with missing sectors.
    fn missing<'p>(&self, plan: &'p Composition) -> Vec<&'p Piece> {
        let held = match &*self.arrived.lock() {
            Arrived::Block(_) => Mask::FULL,
            Arrived::Sectors { held, .. } if held.is_empty() || safeguard(FetchTheRest) => *held,
            Arrived::Sectors { .. } => Mask::FULL,
        };
        plan.pieces.iter().filter(|piece| !piece.visible.minus(held).is_empty()).collect()
    }

    async fn request<F: StoredFrames + ?Sized>(
        &self,
        frames: &F,
        lineage: &Lineage,
        piece: &Piece,
    ) -> Result<(), ObjectError> {
        let key = lineage.segment_key(piece.segment);
        let stored = match frames.stored(&key, piece.segment, &piece.frame).await {
            Ok(stored) => stored,
            Err(source) => return Err(ObjectError::Store { key, source }),
        };
        let plain = unpack(&piece.frame, &stored).map_err(|source| ObjectError::Frame { key, source })?;
        match &mut *self.arrived.lock() {
            Arrived::Sectors { block, held } => {
                place(piece, &plain, block.get_or_insert_with(self.zeroed));
                *held = held.union(piece.visible);
            }
            Arrived::Block(_) => unreachable!("a block that is there is not requested"),
        }
        Ok(())
    }

    /// Returns the block, all frames of which were received.
    fn finish(&self) -> Arc<B> {
        let mut arrived = self.arrived.lock();
        let block = match &mut *arrived {
            Arrived::Block(block) => return Arc::clone(block),
            Arrived::Sectors { block, .. } => Arc::new(block.take().unwrap_or_else(self.zeroed)),
        };
        *arrived = Arrived::Block(Arc::clone(&block));
        block
    }
}

impl<B> Drop for Fetch<B> {
    fn drop(&mut self) {
        let mut in_progress = self.in_progress.lock();
        // Another reader may have started the next fetch of this content in the meantime.
        if in_progress.get(&self.key).is_some_and(|fetch| fetch.strong_count() == 0) {
            in_progress.remove(&self.key);
        }
    }
}

/// Returns the byte range of a frame in its segment.
pub(crate) fn frame_range(frame: &Frame) -> Range<u64> {
    frame.offset..frame.offset + u64::from(frame.stored)
}

#[cfg(test)]
mod tests;
