//! Copies the readable sectors of sparse segments to a new one.
//!
//! Only copies frames that pass their checksums: bytes changed by a network must not be stored.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::try_join_all;
use holdfast_format::compose::copy_sectors;
use holdfast_format::index::MergePlan;
use holdfast_format::index::relocate::{Fingerprint, MovedFrames, MovedPart, is_as_stored, mask_of};
use holdfast_format::safeguard::{Safeguard::MoveVisible, safeguard};
use holdfast_format::segment::{FrameError, FrameIndex, SegmentBuilder, SegmentRef, unpack};
use holdfast_objects::{ObjectStore, ReadyParts, SegmentError};
use holdfast_types::{Block, SECTOR_BYTES, SegmentId};

use crate::{Environment, Sides};
use holdfast_log::{Indexes, ObjectError};

/// Largest read, in bytes.
const READ_BYTES: u64 = 1 << 20;
/// Maximum gap between two frames in one read, in bytes.
const MAX_GAP: u64 = 32 << 10;
/// Number of parallel reads.
const PARALLEL: usize = 8;

/// Reason why frames were not moved, and the affected segment.
pub(super) type NotMoved = (Option<SegmentId>, ObjectError);

/// Stores relocated frames.
pub(super) struct Mover<'a, S, T> {
    pub(super) sides: &'a S,
    pub(super) time: &'a T,
    pub(super) objects: &'a dyn ObjectStore,
    pub(super) indexes: &'a Indexes,
    pub(super) plan: &'a MergePlan,
    /// Segments stored by this and earlier attempts.
    pub(super) stored: &'a mut HashMap<Fingerprint, SegmentRef>,
}

/// A part to read, with the index of the new frame that contains it.
#[derive(Debug, Clone, Copy)]
struct WantedPart {
    part: MovedPart,
    frame: usize,
    /// True to read it in stored form.
    is_as_stored: bool,
}

/// Parts read in one request.
struct Batch {
    from: SegmentId,
    range: Range<u64>,
    wanted: Vec<WantedPart>,
}

/// A frame composed of parts.
struct NewFrame {
    parts: Vec<MovedPart>,
    /// Its stored bytes if it is unchanged, otherwise its sectors.
    bytes: Vec<u8>,
}

impl<S: Sides, T: Environment> Mover<'_, S, T> {
    /// Stores `moved` as a segment of the volume, unless an earlier attempt did.
    ///
    /// # Errors
    /// The segment with a missing or damaged frame; `None` if the new one was not stored.
    pub(super) async fn store(
        &mut self,
        moved: &MovedFrames,
    ) -> Result<(SegmentRef, Arc<FrameIndex>), NotMoved> {
        let fingerprint = moved.fingerprint();
        if let Some(segment) = self.stored.get(&fingerprint) {
            let index = self.indexes.index(self.objects, self.plan.inputs.lineage(), segment).await;
            return Ok((segment.clone(), index.map_err(|error| (None, error))?));
        }
        let (segment, index) = self.make(&moved.parts).await?;
        self.stored.insert(fingerprint, segment.clone());
        Ok((segment, Arc::new(index)))
    }

    async fn make(&self, parts: &[MovedPart]) -> Result<(SegmentRef, FrameIndex), NotMoved> {
        let by_block = parts.chunk_by(|one, other| one.frame.block == other.frame.block);
        let new = by_block.map(|parts| {
            let length = mask_of(parts).count() as usize * SECTOR_BYTES as usize;
            let bytes = if is_as_stored(parts) { Vec::new() } else { vec![0; length] };
            NewFrame { parts: parts.to_vec(), bytes }
        });
        let mut frames: Vec<NewFrame> = new.collect();
        for batches in batches(&frames).chunks(PARALLEL) {
            let read = try_join_all(batches.iter().map(|batch| self.read(batch))).await?;
            for (WantedPart { part, frame, is_as_stored }, bytes) in read.into_iter().flatten() {
                let NewFrame { parts, bytes: all } = &mut frames[frame];
                if is_as_stored {
                    *all = bytes;
                } else {
                    copy_sectors(part.visible, part.visible, &bytes, mask_of(parts), all);
                }
            }
        }
        let id = SegmentId::new(self.plan.place, self.time.unix_ms(), self.time.random());
        let make = move || {
            let mut builder = SegmentBuilder::default();
            for NewFrame { parts, bytes } in &frames {
                if is_as_stored(parts) {
                    builder.push_stored(&parts[0].frame, bytes);
                } else {
                    builder.push_data(Block(u64::from(parts[0].frame.block)), mask_of(parts), bytes);
                }
            }
            let (segment, index) = builder.close(id);
            (segment, index, builder.take(usize::MAX))
        };
        let (segment, index, object) = self.sides.compute(make).await;
        let key = self.plan.inputs.lineage().segment_key(id);
        // One part is one request.
        match self.objects.put_segment(&key, &mut ReadyParts::from(Bytes::from(object))).await {
            Ok(()) => Ok((segment, index)),
            Err(SegmentError::Store(source)) => Err((None, ObjectError::Store { key, source })),
            Err(SegmentError::Part(_)) => unreachable!("all parts are made"),
        }
    }

    /// Reads the parts of a batch, whose frames must pass their checksums.
    async fn read(&self, batch: &Batch) -> Result<Vec<(WantedPart, Vec<u8>)>, NotMoved> {
        let key = self.plan.inputs.lineage().segment_key(batch.from);
        let read = match self.objects.get_range(&key, batch.range.clone()).await {
            Ok(read) => read,
            Err(source) => return Err((Some(batch.from), ObjectError::Store { key, source })),
        };
        let (wanted, start) = (batch.wanted.clone(), batch.range.start);
        let check = move || {
            let check = |wanted: WantedPart| {
                let MovedPart { frame, visible, .. } = wanted.part;
                let at = usize::try_from(frame.offset - start).expect("a read is about 1 MiB");
                let stored = &read[at..at + frame.stored as usize];
                let plain = unpack(&frame, stored)?;
                if wanted.is_as_stored {
                    return Ok((wanted, stored.to_vec()));
                }
                let mut sectors = plain[..visible.count() as usize * SECTOR_BYTES as usize].to_vec();
                if safeguard(MoveVisible) {
                    copy_sectors(visible, frame.mask, &plain, visible, &mut sectors);
                }
                Ok((wanted, sectors))
            };
            wanted.into_iter().map(check).collect::<Result<Vec<_>, FrameError>>()
        };
        let checked = self.sides.compute(check).await;
        checked.map_err(|source| (Some(batch.from), ObjectError::Frame { key, source }))
    }
}

/// Returns the reads for the parts of `frames`, by segment and offset.
fn batches(frames: &[NewFrame]) -> Vec<Batch> {
    let mut by_place: BTreeMap<(SegmentId, u64), WantedPart> = BTreeMap::new();
    for (frame, NewFrame { parts, .. }) in frames.iter().enumerate() {
        let is_as_stored = is_as_stored(parts);
        by_place.extend(
            parts.iter().map(|part| {
                ((part.from, part.frame.offset), WantedPart { part: *part, frame, is_as_stored })
            }),
        );
    }
    let mut batches: Vec<Batch> = Vec::new();
    for ((from, offset), wanted) in by_place {
        let end = offset + u64::from(wanted.part.frame.stored);
        match batches.last_mut() {
            Some(last)
                if last.from == from
                    && offset - last.range.end <= MAX_GAP
                    && end - last.range.start <= READ_BYTES =>
            {
                last.range.end = end;
                last.wanted.push(wanted);
            }
            Some(_) | None => batches.push(Batch { from, range: offset..end, wanted: vec![wanted] }),
        }
    }
    batches
}
