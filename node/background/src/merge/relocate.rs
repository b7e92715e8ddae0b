//! Copies frames out of segments of which little is left into a new one.
//!
//! A frame is copied as it is stored, and only if it passes its checksum: what a network changed must not
//! become what is stored.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use bytes::Bytes;
use futures::future::try_join_all;
use holdfast_engine::index::relocate::{Fingerprint, MovedFrame, MovedFrames};
use holdfast_engine::index::{MergePlan, SegmentObject};
use holdfast_engine::segment::{Frame, SegmentBuilder, unpack};
use holdfast_objects::{ObjectStore, ReadyParts, SegmentError};
use holdfast_types::SegmentId;

use crate::cold::ColdError;
use crate::{Environment, Sides};

/// Largest read, in bytes.
const READ_BYTES: u64 = 1 << 20;
/// Bytes between two frames that are read along.
const MAX_GAP: u64 = 32 << 10;
/// Reads at once.
const PARALLEL: usize = 8;

/// The reason why frames were not moved, and the segment that it is about.
pub(super) type NotMoved = (Option<SegmentId>, ColdError);

/// Stores relocated frames.
pub(super) struct Mover<'a, S, T> {
    pub(super) sides: &'a S,
    pub(super) time: &'a T,
    pub(super) objects: &'a dyn ObjectStore,
    pub(super) plan: &'a MergePlan,
    /// Segments that this attempt and those before it stored.
    pub(super) stored: &'a mut HashMap<Fingerprint, SegmentObject>,
}

/// Frames that one request reads.
struct Batch {
    from: SegmentId,
    range: Range<u64>,
    frames: Vec<MovedFrame>,
}

impl<S: Sides, T: Environment> Mover<'_, S, T> {
    /// Stores `moved` as a segment of the volume, if no attempt did so before.
    ///
    /// # Errors
    /// The segment of which a frame is not there or damaged; none where the new one was not stored.
    pub(super) async fn store(&mut self, moved: &MovedFrames) -> Result<SegmentObject, NotMoved> {
        let fingerprint = moved.fingerprint();
        if let Some(segment) = self.stored.get(&fingerprint) {
            return Ok(*segment);
        }
        let segment = self.make(moved).await?;
        self.stored.insert(fingerprint, segment);
        Ok(segment)
    }

    async fn make(&self, moved: &MovedFrames) -> Result<SegmentObject, NotMoved> {
        let bytes = usize::try_from(moved.bytes).expect("a segment of some MiB");
        let mut body = vec![0; bytes];
        for batches in batches(&moved.frames).chunks(PARALLEL) {
            for frames in try_join_all(batches.iter().map(|batch| self.read(batch))).await? {
                for (frame, stored) in frames {
                    let at = usize::try_from(frame.offset).expect("within the body");
                    body[at..at + stored.len()].copy_from_slice(&stored);
                }
            }
        }
        let id = SegmentId::new(self.plan.place, self.time.unix_ms(), self.time.random());
        let frames = moved.frames.iter().map(|moved| Frame { offset: moved.offset, ..moved.frame }).collect();
        let make = move || SegmentBuilder::of_stored(frames, body).finish(id);
        let (segment, object) = self.sides.compute(make).await;
        let key = self.plan.inputs.lineage().segment_key(id);
        // One part is one request.
        match self.objects.put_segment(&key, &mut ReadyParts::from(Bytes::from(object))).await {
            Ok(()) => Ok(SegmentObject::from(&segment)),
            Err(SegmentError::Store(source)) => Err((None, ColdError::Store { key, source })),
            Err(SegmentError::Part(_)) => unreachable!("all parts are made"),
        }
    }

    /// The stored bytes of a batch's frames, which pass their checksums.
    async fn read(&self, batch: &Batch) -> Result<Vec<(MovedFrame, Bytes)>, NotMoved> {
        let key = self.plan.inputs.lineage().segment_key(batch.from);
        let read = match self.objects.get_range(&key, batch.range.clone()).await {
            Ok(read) => read,
            Err(source) => return Err((Some(batch.from), ColdError::Store { key, source })),
        };
        let (frames, start) = (batch.frames.clone(), batch.range.start);
        let check = move || {
            let check = |moved: MovedFrame| {
                let at = usize::try_from(moved.frame.offset - start).expect("a read is about 1 MiB");
                let stored = read.slice(at..at + moved.frame.stored as usize);
                unpack(&moved.frame, &stored).map(drop)?;
                Ok((moved, stored))
            };
            frames.into_iter().map(check).collect::<Result<Vec<_>, _>>()
        };
        let checked = self.sides.compute(check).await;
        checked.map_err(|source| (Some(batch.from), ColdError::Frame { key, source }))
    }
}

/// The reads of `frames`, by segment and offset.
fn batches(frames: &[MovedFrame]) -> Vec<Batch> {
    let mut by_place: BTreeMap<(SegmentId, u64), MovedFrame> = BTreeMap::new();
    by_place.extend(frames.iter().map(|moved| ((moved.from, moved.frame.offset), *moved)));
    let mut batches: Vec<Batch> = Vec::new();
    for ((from, offset), moved) in by_place {
        let end = offset + u64::from(moved.frame.stored);
        match batches.last_mut() {
            Some(last)
                if last.from == from
                    && offset - last.range.end <= MAX_GAP
                    && end - last.range.start <= READ_BYTES =>
            {
                last.range.end = end;
                last.frames.push(moved);
            }
            Some(_) | None => batches.push(Batch { from, range: offset..end, frames: vec![moved] }),
        }
    }
    batches
}
