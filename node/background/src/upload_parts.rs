//! The parts of a segment: batches of blocks that are read and compressed in parallel, joined in order.
//!
//! Owns: the order of the batches, and the memory of output that is not stored yet.
//! Does not own: reading (`upload.rs`), the threads (the [`Sides`] of a node), sending.
//! Invariants: the object's bytes do not depend on the sizes and the number of the batches; a batch's maximum
//! output is reserved before it starts, so an upload never holds more than its [`UploadReservation`] took.
//! On failure: after an unreadable sector, the rest is only searched for more of them.

use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use futures::stream::{FuturesOrdered, StreamExt};
use holdfast_engine::action::DirtyBlock;
use holdfast_format::crash_point::{CrashPoint, reach};
use holdfast_format::segment::{FrameIndex, PackedFrames, SegmentBuilder, SegmentRef};
use holdfast_objects::{Part, PartFailed, Parts};
use holdfast_types::{BLOCK_BYTES, SECTOR_BYTES, SegmentId};

use crate::compressors::{Borrowed, Compressors};
use crate::upload::UploadBatch;
use crate::upload_memory::{Held, UploadReservation};
use crate::{Sides, UnreadableSectors};

/// Maximum parts of one upload sent in parallel: no store has more connections for uploads.
const MAX_SENDING: usize = 16;
/// Minimum batches per part, unless each has one block.
const BATCHES_OF_PART: usize = 8;

/// Returns the maximum sector bytes of a batch, for parts of `part_bytes`: some milliseconds of compression.
pub(crate) fn batch_bytes(part_bytes: usize) -> u64 {
    BLOCK_BYTES.max((part_bytes / BATCHES_OF_PART) as u64)
}

/// Returns the bytes of a block's dirty sectors.
pub(crate) fn sector_bytes(dirty: &DirtyBlock) -> u64 {
    u64::from(dirty.a.union(dirty.b).count()) * SECTOR_BYTES
}

/// The outcome of a batch, and its reserved memory.
struct Packed {
    frames: Result<PackedFrames, UnreadableSectors>,
    held: Held,
}

type Packing<'a> = Pin<Box<dyn Future<Output = Packed> + Send + 'a>>;

/// The end of a segment.
struct SegmentEnd {
    segment: SegmentRef,
    index: FrameIndex,
    /// Bytes not taken yet.
    rest: Bytes,
}

/// Bytes of a part, with their memory.
struct GrantedPart {
    bytes: Vec<u8>,
    _held: Option<Held>,
}

impl AsRef<[u8]> for GrantedPart {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Settings for creating a segment.
#[derive(Clone)]
pub(crate) struct Making {
    pub(crate) id: SegmentId,
    pub(crate) part_bytes: usize,
    /// Maximum bytes of frames that are in no part.
    pub(crate) unsent_bytes: usize,
    pub(crate) compressors: Arc<Compressors>,
    /// True if it does not wait for a compressor.
    pub(crate) is_small: bool,
}

/// The parts of a segment, created from the data files. The same sectors always give the same bytes.
pub(crate) struct SegmentParts<'a, S> {
    sides: &'a S,
    room: Arc<UploadReservation>,
    making: Making,
    dirty: Arc<[DirtyBlock]>,
    /// Number of blocks whose batch has started.
    begun: usize,
    packing: FuturesOrdered<Packing<'a>>,
    builder: SegmentBuilder,
    /// Memory of the bytes in `builder`.
    held: Option<Held>,
    /// Set once all batches are packed.
    closed: Option<SegmentEnd>,
    made: usize,
    unreadable: Option<UnreadableSectors>,
}

impl<'a, S: Sides> SegmentParts<'a, S> {
    /// Creates the segment of the sectors of `dirty`, using memory of `room`.
    pub(crate) fn new(
        sides: &'a S,
        room: Arc<UploadReservation>,
        dirty: Arc<[DirtyBlock]>,
        making: Making,
    ) -> Self {
        let mut builder = SegmentBuilder::default();
        builder.reserve(making.unsent_bytes);
        Self {
            sides,
            room,
            making,
            dirty,
            begun: 0,
            packing: FuturesOrdered::new(),
            builder,
            held: None,
            closed: None,
            made: 0,
            unreadable: None,
        }
    }

    /// Returns the reference and the index, once the last part is created.
    ///
    /// # Errors
    /// The sectors that the local disk cannot read.
    pub(crate) fn into_segment(self) -> Result<Option<(SegmentRef, FrameIndex)>, UnreadableSectors> {
        match self.unreadable {
            Some(unreadable) => Err(unreadable),
            None => Ok(self.closed.map(|closed| (closed.segment, closed.index))),
        }
    }

    /// Returns the next batch's number of blocks and sector bytes; `None` if all have started.
    fn next_batch(&self) -> Option<(usize, u64)> {
        let most = batch_bytes(self.making.part_bytes);
        let left = &self.dirty[self.begun..];
        let mut bytes = sector_bytes(left.first()?);
        let mut blocks = 1;
        for dirty in &left[1..] {
            let more = sector_bytes(dirty);
            if bytes + more > most {
                break;
            }
            (blocks, bytes) = (blocks + 1, bytes + more);
        }
        Some((blocks, bytes))
    }

    /// Starts a batch. It is packed even while the store does not request the next part, so that an
    /// unresponsive store holds no compressor.
    fn begin(&mut self, blocks: usize, mut held: Held, compressor: Borrowed) {
        let range = self.begun..self.begun + blocks;
        self.begun = range.end;
        let is_search = self.unreadable.is_some();
        let room = Arc::clone(&self.room);
        let batch = UploadBatch::new(Arc::clone(&self.dirty), range, compressor, is_search, room);
        let packing = self.sides.pack(batch);
        let mut packing: Packing<'a> = Box::pin(async move {
            let frames = packing.await.finish();
            held.shrink_to(frames.as_ref().map_or(0, |frames| frames.stored_bytes() as u64));
            Packed { frames, held }
        });
        // Polling once starts the work.
        let packed = (&mut packing).now_or_never();
        self.packing.push_back(packed.map_or(packing, |packed| Box::pin(std::future::ready(packed))));
    }

    /// Starts as many batches as compressors and memory permit; at least one if none is in progress. The
    /// search for unreadable sectors runs one batch at a time without a compressor's permit.
    async fn begin_batches(&mut self) {
        let Making { compressors, is_small, .. } = self.making.clone();
        let is_search = self.unreadable.is_some();
        let most = if is_search { 1 } else { compressors.count() };
        while self.packing.len() < most
            && let Some((blocks, bytes)) = self.next_batch()
        {
            let is_idle = self.packing.is_empty();
            let held = match self.room.try_take(bytes) {
                Some(held) => held,
                None if is_idle => self.room.take(bytes).await,
                None => return,
            };
            let free = if is_search { None } else { compressors.try_borrow() };
            let compressor = match free {
                Some(compressor) => compressor,
                None if is_search || is_small => compressors.borrow_at_once(),
                None if is_idle => compressors.borrow().await,
                None => return,
            };
            self.begin(blocks, held, compressor);
        }
    }

    /// Adds the frames of the next batch in order. Returns false if all were added.
    ///
    /// # Errors
    /// [`PartFailed`]: enough unreadable sectors were found.
    async fn add_batch(&mut self) -> Result<bool, PartFailed> {
        self.begin_batches().await;
        let Some(Packed { frames, held }) = self.packing.next().await else { return Ok(false) };
        match (frames, &mut self.unreadable) {
            (Ok(frames), None) => {
                self.builder.append(frames);
                match &mut self.held {
                    Some(all) => all.add(held),
                    None => self.held = Some(held),
                }
            }
            (Ok(_found_nothing), Some(_)) => {}
            (Err(found), Some(before)) => {
                if before.add(found) {
                    return Err(PartFailed);
                }
            }
            (Err(found), none) => {
                (self.held, self.builder) = (None, SegmentBuilder::default());
                if none.insert(found).is_enough() {
                    return Err(PartFailed);
                }
            }
        }
        Ok(true)
    }

    fn close(&mut self) {
        let (segment, index) = self.builder.close(self.making.id);
        let held = self.held.take().map(Held::into_sent);
        let rest = GrantedPart { bytes: self.builder.take(usize::MAX), _held: held };
        self.closed = Some(SegmentEnd { segment, index, rest: Bytes::from_owner(rest) });
    }
}

#[async_trait]
impl<S: Sides> Parts for SegmentParts<'_, S> {
    async fn next(&mut self) -> Result<Part, PartFailed> {
        self.made += 1;
        if self.made > self.max_at_once() {
            // A store requests that many parts only after it has accepted one.
            self.room.set_failing(false);
        }
        let length = self.making.part_bytes;
        while self.closed.is_none() && (self.builder.ready() < length || self.unreadable.is_some()) {
            if self.add_batch().await? {
                continue;
            }
            if self.unreadable.is_some() {
                return Err(PartFailed);
            }
            self.close();
        }
        let Some(SegmentEnd { rest, .. }) = &mut self.closed else {
            let bytes = self.builder.take(length);
            let held = self.held.as_mut().map(|held| held.split(bytes.len() as u64).into_sent());
            return Ok(Part { bytes: Bytes::from_owner(GrantedPart { bytes, _held: held }), is_last: false });
        };
        let bytes = rest.split_to(rest.len().min(length));
        let is_last = rest.is_empty();
        if is_last {
            reach(CrashPoint::SegmentBuilt);
        }
        Ok(Part { bytes, is_last })
    }

    fn max_at_once(&self) -> usize {
        if self.room.is_trial() { 1 } else { MAX_SENDING }
    }
}

#[cfg(test)]
mod tests;
