//! Scans one segment: its length, trailer, index and frames.

use std::ops::Range;
use std::sync::Arc;

use holdfast_format::index::SegmentObject;
use holdfast_format::segment::{
    Codec, Frame, FrameError, FrameIndex, SegmentRef, TRAILER_BYTES, trailer, unpack,
};
use holdfast_objects::{ObjectStore, StoreError};
use holdfast_types::{Lineage, SegmentId, VolumeId};

use super::Damage;
use crate::error::{LogFailure, store};

/// Maximum bytes of frames per read.
const READ_BYTES: u64 = 4 << 20;

/// A segment of the volume, by the kind of reference to it.
#[derive(Debug, Clone)]
pub(super) enum ReferencedSegment {
    /// Listed as a run of level 0: reads need its own index.
    Listed(Arc<SegmentRef>),
    /// Named by a merged run with this index in the list: reads need the frames that the run names.
    Merged { run: usize, ordinal: u32, object: SegmentObject },
}

impl ReferencedSegment {
    /// Returns the size of the object in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.object().bytes
    }

    fn object(&self) -> SegmentObject {
        match self {
            Self::Listed(segment) => SegmentObject::from(&**segment),
            Self::Merged { object, .. } => *object,
        }
    }
}

/// Findings in one segment.
pub(super) struct Scan {
    pub(super) named: ReferencedSegment,
    pub(super) id: SegmentId,
    pub(super) key: String,
    /// Frames read.
    pub(super) frames: u64,
    pub(super) verdict: ScanVerdict,
    /// Faults without effect.
    pub(super) blemishes: Vec<Damage>,
}

pub(super) enum ScanVerdict {
    Whole,
    /// The segment's own index finds none of its frames; entries of merged runs may still find intact ones.
    Lost(Damage),
    /// These frames are damaged, ascending by block.
    Frames(Vec<(Frame, FrameError)>),
}

pub(super) async fn scan(
    objects: &dyn ObjectStore,
    lineage: &Lineage,
    named: ReferencedSegment,
    meter: &(dyn Fn(u64) + Send + Sync),
) -> Result<Scan, LogFailure> {
    let segment = named.object();
    let id = segment.id;
    let volume = lineage.volume();
    let key = lineage.segment_key(id);
    let mut scan = Scan { named, id, key, frames: 0, verdict: ScanVerdict::Whole, blemishes: Vec::new() };
    let failed = |error| store("read a segment", volume)(error);
    let end = match objects.get_suffix(&scan.key, TRAILER_BYTES).await {
        Ok(end) => end,
        Err(StoreError::NotFound { .. }) => return scan.lost(Damage::Missing),
        Err(error) => return Err(failed(error)),
    };
    let have = end.size_bytes;
    let index_range = segment.index_range();
    if have < index_range.end {
        return scan.lost(Damage::Length { have, need: segment.bytes });
    }
    if have != segment.bytes {
        scan.blemishes.push(Damage::Length { have, need: segment.bytes });
    } else if end.bytes != trailer(segment.index_offset, segment.index_bytes)[..] {
        scan.blemishes.push(Damage::Trailer);
    }
    let index = match objects.get_range(&scan.key, index_range).await {
        Ok(bytes) => bytes,
        Err(StoreError::NotFound { .. }) => return scan.lost(Damage::Missing),
        Err(error) => return Err(failed(error)),
    };
    meter(index.len() as u64);
    let index = match FrameIndex::decode(&index) {
        Ok(index) => index,
        Err(error) => return scan.lost(Damage::Bytes(error)),
    };
    // Frames are ordered by offset, before the index.
    let inside = index.frames().iter().take_while(|frame| end_of(frame) <= segment.index_offset).count();
    let (inside, outside) = index.frames().split_at(inside);
    let Some(mut damaged) = check(objects, volume, &scan.key, inside, meter).await? else {
        return scan.lost(Damage::Missing);
    };
    scan.frames = inside.iter().filter(|frame| frame.codec != Codec::Zero).count() as u64;
    damaged.extend(outside.iter().filter(|frame| frame.codec != Codec::Zero).map(cut_off));
    if !damaged.is_empty() {
        scan.verdict = ScanVerdict::Frames(damaged);
    }
    Ok(scan)
}

/// Returns the damaged ones of `frames`, which are ordered by offset; `None` if the object is missing.
pub(super) async fn check(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    key: &str,
    frames: &[Frame],
    meter: &(dyn Fn(u64) + Send + Sync),
) -> Result<Option<Vec<(Frame, FrameError)>>, LogFailure> {
    let mut damaged = Vec::new();
    for (range, frames) in batches(frames) {
        let bytes = match objects.get_range(key, range.clone()).await {
            Ok(bytes) => bytes,
            Err(StoreError::NotFound { .. }) => return Ok(None),
            Err(StoreError::OutOfRange { .. }) => {
                damaged.extend(frames.iter().map(cut_off));
                continue;
            }
            Err(error) => return Err(store("read a segment", volume)(error)),
        };
        for frame in frames {
            let at = usize::try_from(frame.offset - range.start).expect("a read is at most a few MiB");
            if let Err(error) = unpack(frame, &bytes[at..at + frame.stored as usize]) {
                damaged.push((*frame, error));
            }
        }
        meter(bytes.len() as u64);
    }
    Ok(Some(damaged))
}

/// Returns the finding for a frame beyond the end of the object.
pub(super) fn cut_off(frame: &Frame) -> (Frame, FrameError) {
    (*frame, FrameError::Length { block: frame.block, have: 0, need: frame.stored as usize })
}

fn end_of(frame: &Frame) -> u64 {
    frame.offset.saturating_add(u64::from(frame.stored))
}

impl Scan {
    fn lost(self, fault: Damage) -> Result<Self, LogFailure> {
        Ok(Self { verdict: ScanVerdict::Lost(fault), ..self })
    }
}

/// Groups adjacent frames with bytes into reads.
fn batches(frames: &[Frame]) -> impl Iterator<Item = (Range<u64>, &[Frame])> {
    let mut rest = frames;
    std::iter::from_fn(move || {
        while let Some((first, behind)) = rest.split_first()
            && first.codec == Codec::Zero
        {
            rest = behind;
        }
        let first = rest.first()?;
        let mut range = first.offset..first.offset + u64::from(first.stored);
        let mut count = 1;
        for frame in &rest[1..] {
            let end = frame.offset + u64::from(frame.stored);
            if frame.codec == Codec::Zero || frame.offset != range.end || end - range.start > READ_BYTES {
                break;
            }
            range.end = end;
            count += 1;
        }
        let (batch, behind) = rest.split_at(count);
        rest = behind;
        Some((range, batch))
    })
}
