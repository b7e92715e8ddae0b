//! One entry of a run: a frame, or a part of one, and the segment that holds it.
//!
//! ```text
//! 0   4  block number          4   4  visible mask
//! 8   4  frame mask            12  4  ordinal in the head's segment table; 0 for a zero entry
//! 16  8  bits 0..40: offset, or blocks covered by a zero entry; 40..42: codec; 42..60: stored bytes
//! 24 16  BLAKE3-128 of the frame's uncompressed bytes (zeros for a zero entry)
//! ```

use holdfast_types::{BLOCK_BYTES, Mask};

use crate::segment::{Codec, Frame, MAX_OFFSET};
use crate::wire::{DecodeError, Reader};

/// Bytes of a stored entry.
pub(super) const ENTRY_BYTES: usize = 40;
const OFFSET_BITS: u32 = MAX_OFFSET.trailing_zeros();
const CODEC_BITS: u32 = 2;

/// A frame of a run, and its visible part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexEntry {
    /// The frame as in its segment's index. A zero frame is reduced to the blocks that no newer frame in the
    /// run covers, and its mask to the visible sectors.
    pub frame: Frame,
    /// The sectors that no newer frame of the run covers; never empty.
    pub visible: Mask,
    /// The segment that holds the frame, by its ordinal in the head's table; 0 for a zero frame.
    pub segment: u32,
}

impl IndexEntry {
    /// Returns a zero entry: the sectors `mask` of `run` blocks from `block` on.
    pub(super) fn zero(block: u32, run: u32, mask: Mask) -> Self {
        let frame = Frame { block, run, mask, offset: 0, stored: 0, codec: Codec::Zero, hash: [0; 16] };
        Self { frame, visible: mask, segment: 0 }
    }

    /// Returns the entry for a whole frame of the segment with ordinal 0.
    pub(super) fn of(frame: &Frame) -> Self {
        if frame.codec == Codec::Zero {
            return Self::zero(frame.block, frame.run, frame.mask);
        }
        Self { frame: *frame, visible: frame.mask, segment: 0 }
    }

    /// Returns the entry for the sectors `mask` of `old`'s block, in a frame of a segment that is not
    /// stored yet; that frame will have bytes.
    pub(super) fn awaited(old: &Frame, mask: Mask, segment: u32) -> Self {
        Self { frame: Frame { mask, stored: 0, codec: Codec::Raw, ..*old }, visible: mask, segment }
    }

    pub(super) fn is_awaited(&self) -> bool {
        self.frame.stored == 0 && !self.is_zero()
    }

    pub(super) fn is_zero(&self) -> bool {
        self.frame.codec == Codec::Zero
    }

    /// Returns the block after the entry's last one.
    pub fn end(&self) -> u64 {
        u64::from(self.frame.block) + u64::from(self.frame.run)
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        let Frame { block, run, mask, offset, stored, codec, hash } = self.frame;
        let low = if codec == Codec::Zero { u64::from(run) } else { offset };
        let packed = low | (codec as u64) << OFFSET_BITS | u64::from(stored) << (OFFSET_BITS + CODEC_BITS);
        out.extend_from_slice(&block.to_le_bytes());
        out.extend_from_slice(&self.visible.0.to_le_bytes());
        out.extend_from_slice(&mask.0.to_le_bytes());
        out.extend_from_slice(&self.segment.to_le_bytes());
        out.extend_from_slice(&packed.to_le_bytes());
        out.extend_from_slice(&hash);
    }

    pub(super) fn take(fields: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let block = fields.u32()?;
        let (visible, mask) = (Mask(fields.u32()?), Mask(fields.u32()?));
        let segment = fields.u32()?;
        let packed = fields.u64()?;
        let hash = fields.array()?;
        if visible.is_empty() || !visible.minus(mask).is_empty() {
            return Err(fields.bad("visible mask", u64::from(visible.0)));
        }
        let low = packed & (MAX_OFFSET - 1);
        let stored = packed >> (OFFSET_BITS + CODEC_BITS);
        if let 0 = packed >> OFFSET_BITS {
            let run = u32::try_from(low).ok().filter(|run| *run > 0);
            let run = run.ok_or_else(|| fields.bad("blocks", low))?;
            let entry = Self::zero(block, run, mask);
            let is_whole = visible == mask && segment == 0 && hash == [0; 16];
            if !is_whole || entry.end() > 1 << 32 || (run > 1 && mask != Mask::FULL) {
                return Err(fields.bad("zero entry", u64::from(block)));
            }
            return Ok(entry);
        }
        let codec = match (packed >> OFFSET_BITS) & ((1 << CODEC_BITS) - 1) {
            1 => Codec::Raw,
            2 => Codec::Zstd,
            other => return Err(fields.bad("codec", other)),
        };
        let stored =
            u32::try_from(stored).ok().filter(|stored| (1..=BLOCK_BYTES).contains(&u64::from(*stored)));
        let stored =
            stored.ok_or_else(|| fields.bad("stored bytes", packed >> (OFFSET_BITS + CODEC_BITS)))?;
        let frame = Frame { block, run: 1, mask, offset: low, stored, codec, hash };
        Ok(Self { frame, visible, segment })
    }
}
