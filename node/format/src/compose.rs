//! Selects the frames that make up a remote block, and builds the block from them.
//!
//! A read takes each sector from the newest frame that covers it; sectors without a frame, and unwanted
//! ones, are zero.

use holdfast_types::{Block, Mask, SECTOR_BYTES, SegmentId};

use crate::index::{RunHead, RunPage};
use crate::segment::{Codec, Frame, FrameIndex};
use crate::wire;

/// Identifies a block's content: equal for equal contents of forks, different after any commit that
/// changes the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ContentKey(pub(crate) [u8; 16]);

impl ContentKey {
    /// Returns the key of a part of an index that is cached like a block: the bytes of the object `key`
    /// from `offset_bytes` on. An object is never written twice, so the key has only one content.
    #[must_use]
    pub fn of_index(key: &str, offset_bytes: u64) -> Self {
        Self(wire::checksum(&[b"index ", key.as_bytes(), &offset_bytes.to_le_bytes()].concat()))
    }
}

/// One frame of a composition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The segment that holds the frame.
    pub segment: SegmentId,
    /// The frame.
    pub frame: Frame,
    /// The sectors to take from it.
    pub visible: Mask,
}

/// The entries of one run for a block.
#[derive(Debug, Clone, Copy)]
pub enum Layer<'a> {
    /// A segment's own index.
    Segment(SegmentId, &'a FrameIndex),
    /// The page of a merged run with the block's entries.
    Merged(&'a RunHead, &'a RunPage),
}

/// A frame of one block in a run.
struct Found {
    /// `None` for zeros.
    segment: Option<SegmentId>,
    frame: Frame,
    visible: Mask,
}

impl Layer<'_> {
    /// Returns the frames of `block`, newest first, each with its sectors visible in the run.
    fn find(self, block: Block) -> impl Iterator<Item = Found> {
        let (own, entries) = match self {
            Self::Segment(segment, index) => (index.find(block).map(|frame| (segment, frame)), None),
            Self::Merged(head, page) => (None, Some((head, page.find(block)))),
        };
        let own = own.into_iter().map(|(segment, frame)| {
            let segment = (frame.codec != Codec::Zero).then_some(segment);
            Found { segment, frame: *frame, visible: frame.mask }
        });
        let merged = entries.into_iter().flat_map(|(head, entries)| {
            entries.iter().map(|entry| Found {
                segment: head.segment_of(entry),
                frame: entry.frame,
                visible: entry.visible,
            })
        });
        own.chain(merged)
    }
}

/// The frames that make up one block.
#[derive(Debug, Clone)]
pub struct Composition {
    /// Frames with bytes, newest first; the other sectors are zero.
    pub pieces: Vec<Piece>,
    /// The content's key, known before any frame is fetched.
    pub key: ContentKey,
}

impl Composition {
    fn of(pieces: Vec<Piece>) -> Self {
        let mut name = Vec::with_capacity(24 * pieces.len());
        for Piece { frame, visible, .. } in &pieces {
            // The frame's mask is part of the key, because the hash covers the frame's bytes, not their
            // positions.
            name.extend_from_slice(&frame.mask.0.to_le_bytes());
            name.extend_from_slice(&visible.0.to_le_bytes());
            name.extend_from_slice(&frame.hash);
        }
        Self { pieces, key: ContentKey(wire::checksum(&name)) }
    }

    /// Returns the frames that a read of `range` fetches: none if the whole range is zero, otherwise all
    /// frames, for the benefit of later reads. A read of unwritten sectors thus costs no request, regardless
    /// of their neighbours.
    #[must_use]
    pub fn for_range(self, range: Mask) -> Self {
        if self.is_zero(range) { Self::of(Vec::new()) } else { self }
    }

    /// Returns those sectors of this composition of `wanted` that are correct in a block built from the
    /// result of [`Self::for_range`].
    pub fn sectors_for(&self, wanted: Mask, range: Mask) -> Mask {
        if self.is_zero(range) { wanted.minus(self.held()) } else { wanted }
    }

    fn is_zero(&self, range: Mask) -> bool {
        self.held().intersect(range).is_empty()
    }

    /// Returns the sectors that have bytes; all others are zeros.
    pub fn held(&self) -> Mask {
        self.pieces.iter().fold(Mask::EMPTY, |held, piece| held.union(piece.visible))
    }

    /// Returns the sectors that may differ from `base`, a composition of the same block. Frames with the same
    /// bytes in the same sectors count as equal. Sectors that a merge moved into a frame with other sectors
    /// count as changed.
    pub fn changed_since(&self, base: &Self) -> Mask {
        let mut changed = self.held().union(base.held());
        for piece in &self.pieces {
            let is_same =
                |old: &&Piece| old.frame.mask == piece.frame.mask && old.frame.hash == piece.frame.hash;
            for old in base.pieces.iter().filter(is_same) {
                changed = changed.minus(piece.visible.intersect(old.visible));
            }
        }
        changed
    }
}

/// Composes the sectors `wanted` of `block` from its entries in `layers`, newest first.
pub fn compose<'a>(block: Block, wanted: Mask, layers: impl IntoIterator<Item = Layer<'a>>) -> Composition {
    let mut missing = wanted;
    let mut pieces = Vec::new();
    for found in layers.into_iter().flat_map(|layer| layer.find(block)) {
        if missing.is_empty() {
            break;
        }
        let Found { segment, frame, visible } = found;
        let visible = visible.intersect(missing);
        if visible.is_empty() {
            continue;
        }
        missing = missing.minus(visible);
        if let Some(segment) = segment {
            pieces.push(Piece { segment, frame, visible });
        }
    }
    Composition::of(pieces)
}

/// Copies the visible sectors of an unpacked frame to `block`.
///
/// # Panics
/// If `plain` does not have the frame's sectors, or `block` is not 128 KiB: callers pass the result of
/// `unpack`.
pub fn place(piece: &Piece, plain: &[u8], block: &mut [u8]) {
    copy_sectors(piece.visible, piece.frame.mask, plain, Mask::FULL, block);
}

/// Copies the sectors `copied` from `plain`, which has those of `from`, to `out`, which has those of `to`,
/// each lowest first.
///
/// # Panics
/// If either does not have the sectors of its mask, or lacks one of `copied`.
pub fn copy_sectors(copied: Mask, from: Mask, plain: &[u8], to: Mask, out: &mut [u8]) {
    let sector = SECTOR_BYTES as usize;
    assert!(plain.len() == from.count() as usize * sector && out.len() == to.count() as usize * sector);
    assert!(copied.minus(from).is_empty() && copied.minus(to).is_empty());
    for (first, length) in copied.runs() {
        for bit in first..first + length {
            let at = |mask: Mask| (mask.0 & ((1u32 << bit) - 1)).count_ones() as usize * sector;
            out[at(to)..][..sector].copy_from_slice(&plain[at(from)..][..sector]);
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_types::{BLOCK_BYTES, Place, SegmentId, Seq};

    use super::*;
    use crate::segment::{SegmentBuilder, unpack};

    type Stored = (SegmentId, FrameIndex, Vec<u8>);

    fn layer(name: u8, frames: &[(u64, u32, u8)]) -> Stored {
        let mut builder = SegmentBuilder::default();
        for (block, mask, fill) in frames {
            let mask = Mask(*mask);
            builder.push(Block(*block), mask, &vec![*fill; mask.count() as usize * 4096]);
        }
        let (segment, object) = builder.finish(SegmentId::new(Place::until(Seq(1)), 1, [name; 10]));
        let at = segment.index_offset as usize;
        let index = FrameIndex::decode(&object[at..at + segment.index_bytes as usize]).unwrap();
        (segment.id, index, object)
    }

    fn read(block: u64, layers: &[Stored]) -> (Vec<u8>, ContentKey) {
        let plan =
            compose(Block(block), Mask::FULL, layers.iter().map(|(id, index, _)| Layer::Segment(*id, index)));
        let mut out = vec![0; BLOCK_BYTES as usize];
        for piece in &plan.pieces {
            let object = &layers.iter().find(|(id, ..)| *id == piece.segment).unwrap().2;
            let stored = &object[piece.frame.offset as usize..][..piece.frame.stored as usize];
            place(piece, &unpack(&piece.frame, stored).unwrap(), &mut out);
        }
        (out, plan.key)
    }

    #[test]
    fn each_sector_comes_from_the_newest_frame_that_covers_it() {
        let layers = [
            layer(3, &[(0, 0b0110, 3)]),
            layer(2, &[(0, 0b0010, 0), (1, u32::MAX, 2)]),
            layer(1, &[(0, 0b1111, 1)]),
        ];
        let (block, _) = read(0, &layers);
        assert_eq!([0, 1, 2, 3, 4].map(|sector| block[sector * 4096]), [1, 3, 3, 1, 0]);
        let (zeroed, _) = read(0, &layers[1..]);
        assert_eq!([0, 1, 2, 3, 4].map(|sector| zeroed[sector * 4096]), [1, 0, 1, 1, 0]);
    }

    #[test]
    fn the_key_follows_the_content_not_the_segment() {
        let one = [layer(1, &[(0, 0b11, 7)])];
        let copied = [layer(9, &[(0, 0b11, 7)])];
        let elsewhere = [layer(1, &[(0, 0b110, 7)])];
        let zeroed = [layer(2, &[(0, 0b1, 0)]), layer(1, &[(0, 0b11, 7)])];
        assert_eq!(read(0, &one).1, read(0, &copied).1);
        assert_ne!(read(0, &one).1, read(0, &elsewhere).1);
        assert_ne!(read(0, &one).1, read(0, &zeroed).1);
        assert_eq!(read(0, &zeroed).0[0], 0);
    }

    #[test]
    fn sectors_change_with_their_bytes_not_with_the_segment() {
        let compose = |layers: &[Stored]| {
            let layers = layers.iter().map(|(id, index, _)| Layer::Segment(*id, index));
            compose(Block(0), Mask::FULL, layers)
        };
        let base = compose(&[layer(1, &[(0, 0b1111, 1)])]);
        assert_eq!((base.held(), base.changed_since(&base)), (Mask(0b1111), Mask::EMPTY));
        assert_eq!(base.changed_since(&compose(&[])), Mask(0b1111));
        assert_eq!(compose(&[]).changed_since(&base), Mask(0b1111), "they became zeros");
        let copied = compose(&[layer(9, &[(0, 0b1111, 1)])]);
        assert_eq!(copied.changed_since(&base), Mask::EMPTY);
        let written =
            compose(&[layer(3, &[(0, 0b10010, 3)]), layer(2, &[(0, 0b1, 0)]), layer(1, &[(0, 0b1111, 1)])]);
        assert_eq!((written.held(), written.changed_since(&base)), (Mask(0b11110), Mask(0b10011)));
        assert_eq!(base.changed_since(&written), Mask(0b10011));
        // The same bytes at another position of the block.
        assert_eq!(compose(&[layer(1, &[(0, 0b11110, 1)])]).changed_since(&base), Mask(0b11111));
    }

    #[test]
    fn sectors_that_were_never_written_need_no_frame_of_their_block() {
        let layers = [layer(2, &[(0, 0b1000, 0)]), layer(1, &[(0, 0b1100, 1)])];
        let known = layers.iter().map(|(id, index, _)| Layer::Segment(*id, index));
        let plan = compose(Block(0), Mask::FULL, known);
        let pieces = |range| plan.clone().for_range(Mask(range)).pieces.len();
        assert_eq!([0b0011, 0b1011, 0b0100, 0b0110].map(pieces), [0, 0, 1, 1]);
        let sectors = |range| plan.sectors_for(Mask::FULL, Mask(range)).0;
        assert_eq!(
            [0b0011, 0b0110].map(sectors),
            [!0b0100, u32::MAX],
            "the zeros have no other sector's bytes"
        );
        assert_eq!(plan.sectors_for(Mask(0b0111), Mask(0b0001)), Mask(0b0011));
        assert_eq!(plan.for_range(Mask(1)).key, compose(Block(7), Mask::FULL, []).key);
    }
}
