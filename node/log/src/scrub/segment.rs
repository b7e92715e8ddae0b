//! One segment: its length, its trailer, its index and every frame in it.

use std::ops::Range;
use std::sync::Arc;

use holdfast_engine::segment::{
    Codec, Frame, FrameError, FrameIndex, SegmentRef, TRAILER_BYTES, trailer, unpack,
};
use holdfast_objects::{ObjectStore, StoreError};
use holdfast_types::key::ObjectKey;
use holdfast_types::{SegmentId, VolumeId};

use super::Fault;
use crate::{LogFailure, store};

/// Bytes of frames read at once.
const READ_BYTES: u64 = 4 << 20;

/// Findings in one segment.
pub(super) struct Scan {
    pub(super) id: SegmentId,
    pub(super) key: String,
    /// Frames read.
    pub(super) frames: u64,
    pub(super) verdict: Verdict,
    /// Faults without effect.
    pub(super) blemishes: Vec<Fault>,
}

pub(super) enum Verdict {
    Whole,
    /// No frame of it can be found.
    Lost(Fault),
    /// These frames are damaged, ascending by block.
    Frames(Vec<(Frame, FrameError)>),
}

pub(super) async fn scan(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    segment: Arc<SegmentRef>,
    meter: &(dyn Fn(u64) + Send + Sync),
) -> Result<Scan, LogFailure> {
    let key = ObjectKey::Segment(volume.clone(), segment.id).to_string();
    let mut scan = Scan { id: segment.id, key, frames: 0, verdict: Verdict::Whole, blemishes: Vec::new() };
    let failed = |error| store("read a segment", volume)(error);
    let end = match objects.get_suffix(&scan.key, TRAILER_BYTES).await {
        Ok(end) => end,
        Err(StoreError::NotFound { .. }) => return scan.lost(Fault::Missing),
        Err(error) => return Err(failed(error)),
    };
    let have = end.size_bytes;
    let index_end = segment.index_offset + u64::from(segment.index_bytes);
    if have < index_end {
        return scan.lost(Fault::Length { have, need: segment.bytes });
    }
    if have != segment.bytes {
        scan.blemishes.push(Fault::Length { have, need: segment.bytes });
    } else if end.bytes != trailer(&segment)[..] {
        scan.blemishes.push(Fault::Trailer);
    }
    let index = match objects.get_range(&scan.key, segment.index_offset..index_end).await {
        Ok(bytes) => bytes,
        Err(StoreError::NotFound { .. }) => return scan.lost(Fault::Missing),
        Err(error) => return Err(failed(error)),
    };
    meter(index.len() as u64);
    let index = match FrameIndex::decode(&index) {
        Ok(index) => index,
        Err(error) => return scan.lost(Fault::Bytes(error)),
    };
    // Frames come in the order of their bytes, before the index.
    let inside = |frame: &&Frame| {
        frame.offset.checked_add(u64::from(frame.stored)).is_some_and(|end| end <= segment.index_offset)
    };
    let inside = index.frames().iter().take_while(inside).count();
    let (inside, outside) = index.frames().split_at(inside);
    let mut damaged = Vec::new();
    for (range, frames) in batches(inside) {
        let bytes = match objects.get_range(&scan.key, range.clone()).await {
            Ok(bytes) => bytes,
            Err(StoreError::NotFound { .. }) => return scan.lost(Fault::Missing),
            Err(error) => return Err(failed(error)),
        };
        for frame in frames {
            let at = usize::try_from(frame.offset - range.start).expect("a read is at most a few MiB");
            if let Err(error) = unpack(frame, &bytes[at..at + frame.stored as usize]) {
                damaged.push((*frame, error));
            }
        }
        scan.frames += frames.len() as u64;
        meter(bytes.len() as u64);
    }
    for frame in outside.iter().filter(|frame| frame.codec != Codec::Zero) {
        let error = FrameError::Length { block: frame.block, have: 0, need: frame.stored as usize };
        damaged.push((*frame, error));
    }
    if !damaged.is_empty() {
        scan.verdict = Verdict::Frames(damaged);
    }
    Ok(scan)
}

impl Scan {
    fn lost(self, fault: Fault) -> Result<Self, LogFailure> {
        Ok(Self { verdict: Verdict::Lost(fault), ..self })
    }
}

/// Frames with bytes, so many that lie next to each other as one read takes.
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
