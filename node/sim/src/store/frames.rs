//! Frames of stored segments, each unpacked once.
//!
//! A run reads the same frames repeatedly: for each snapshot, after each commit. Unpacking and its
//! checksum would take half of the run's time.

use std::cell::RefCell;
use std::collections::BTreeMap;

use bytes::Bytes;
use holdfast_format::compose::{Piece, place};
use holdfast_format::segment::unpack;
use holdfast_types::{BLOCK_BYTES, BLOCK_SECTORS, Block, SegmentId};

use super::stamps;
use crate::disk::Stamp;

/// Stamps of a block's sectors; zero for sectors without a frame.
pub(super) type BlockStamps = [Stamp; BLOCK_SECTORS as usize];

/// Frames unpacked so far. A frame whose segment was replaced is unpacked again.
#[derive(Clone, Default)]
pub(super) struct UnpackedFrames(RefCell<BTreeMap<(SegmentId, u64), Unpacked>>);

#[derive(Clone)]
struct Unpacked {
    /// The object from which it was unpacked.
    object: Bytes,
    stamps: BlockStamps,
}

impl UnpackedFrames {
    /// Returns the stamps of the frame of `piece`, one of `block` in a segment whose object is `object`.
    ///
    /// # Panics
    /// If the frame is damaged.
    pub(super) fn stamps(&self, block: Block, piece: &Piece, object: &Bytes) -> BlockStamps {
        let Piece { segment, frame, .. } = piece;
        let mut known = self.0.borrow_mut();
        let cached = known.get(&(*segment, frame.offset));
        if let Some(unpacked) = cached.filter(|known| known.object.as_ptr() == object.as_ptr()) {
            return unpacked.stamps;
        }
        let stored = &object[frame.offset as usize..][..frame.stored as usize];
        let plain = unpack(frame, stored).expect("segments are not damaged");
        let mut bytes = vec![0; BLOCK_BYTES as usize];
        place(&Piece { visible: frame.mask, ..piece.clone() }, &plain, &mut bytes);
        let mut found = BlockStamps::default();
        found.iter_mut().zip(stamps(block, &bytes)).for_each(|(to, stamp)| *to = stamp);
        known.insert((*segment, frame.offset), Unpacked { object: object.clone(), stamps: found });
        found
    }
}
