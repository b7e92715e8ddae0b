//! Fetches of blocks: what has arrived of each content, for all its readers and over all their tries.
//!
//! Owns: the bytes of blocks while they are fetched, the requests for frames. Does not own: the retries
//! (`cold.rs`), the place where a whole block is kept (`slots.rs`).
//! Invariants: a sector counts as arrived once its frame passed its checksum (3 in `docs/invariants.md`), and
//! a block is handed out once all its frames have arrived.
//! On failure: what has arrived stays until the last reader of the content has ended. The next try, of the
//! same reader or another, requests what is missing. A reader that is dropped drops its requests alone.
//!
//! *Requests.* Each frame of a block is a request of its own: a segment has one frame of a block at most, in
//! its own index and where a merge relocates frames to it, so no two of them are neighbours in an object. The
//! frames of several blocks often are: then another source than the store brings them (`joined_gets.rs`).
//!
//! *Memory.* A block for each content of which a frame has arrived, however many readers it has; frames are
//! unpacked as they arrive, and their stored bytes dropped. An unreachable store, of which nothing arrives,
//! takes none.

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

/// A source of frames as they are stored, whose bytes are not checked yet. A store answers with a request for
/// each.
pub trait StoredFrames: Sync {
    /// The stored bytes of `frame`, which is in `segment`, the object `key`.
    ///
    /// # Errors
    /// The reason for which they did not come.
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

/// Fetches of blocks into buffers `B`, by the contents of the blocks.
pub struct Fetches<B> {
    zeroed: fn() -> B,
    in_progress: InProgress<B>,
}

impl<B: DerefMut<Target = [u8]>> Fetches<B> {
    /// None in progress. `zeroed` makes a buffer of 128 KiB of zeros.
    pub fn new(zeroed: fn() -> B) -> Self {
        Self { zeroed, in_progress: Arc::default() }
    }

    /// Returns true if a reader fetches the content `key` now.
    pub fn is_in_progress(&self, key: &ContentKey) -> bool {
        self.in_progress.lock().get(key).is_some_and(|fetch| fetch.strong_count() > 0)
    }

    /// A reader of one block.
    pub fn reader(&self) -> BlockReader<'_, B> {
        BlockReader { fetches: self, fetch: Mutex::default() }
    }

    /// Joins the fetch of the content `key`, or begins one.
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

/// A reader of one block. While it lasts, what has arrived of the content that it fetched last stays.
pub struct BlockReader<'a, B> {
    fetches: &'a Fetches<B>,
    fetch: Mutex<Option<Arc<Fetch<B>>>>,
}

impl<B: DerefMut<Target = [u8]>> BlockReader<'_, B> {
    /// The 128 KiB that `plan` composes from `frames` of objects of `lineage`. The reader joins the fetch of
    /// this content at once, and requests what is missing of it in its turn, once the future is polled.
    ///
    /// # Errors
    /// [`ColdError`] once all requests have ended, when a frame is unavailable or is not what was written. If
    /// there are several, one that a retry finds again comes first.
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

/// The parts of a block that are there.
enum Arrived<B> {
    /// The sectors `held` of `block`; no buffer while there are none.
    Sectors { block: Option<B>, held: Mask },
    /// All of it.
    Block(Arc<B>),
}

/// The fetch of one content.
struct Fetch<B> {
    key: ContentKey,
    zeroed: fn() -> B,
    /// Held by the reader that requests frames.
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

    /// The pieces of which something is missing.
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

    /// The block, of which all frames have arrived.
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
        // Another reader may have begun the next fetch of this content since the last one left this.
        if in_progress.get(&self.key).is_some_and(|fetch| fetch.strong_count() == 0) {
            in_progress.remove(&self.key);
        }
    }
}

/// The bytes of a frame in its segment.
pub(crate) fn frame_range(frame: &Frame) -> Range<u64> {
    frame.offset..frame.offset + u64::from(frame.stored)
}

#[cfg(test)]
mod tests;
