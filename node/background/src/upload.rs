//! A seal's dirty sectors, read from the sides and made into a segment.

use std::io;

use holdfast_engine::action::DirtyBlock;
use holdfast_engine::planted::{Bug, is_planted};
use holdfast_engine::record::SegmentRef;
use holdfast_engine::sector_map::Side;
use holdfast_engine::segment::SegmentBuilder;
use holdfast_types::{BLOCK_BYTES, SECTOR_BYTES, SectorRange, SegmentId};

/// Alignment in memory of what a [`SideReader`] reads into, in bytes: enough for direct I/O on every disk.
pub const BLOCK_ALIGNMENT: usize = 4096;

/// Reads sectors of a side.
pub trait SideReader {
    /// Fills `buffer`, which is aligned to [`BLOCK_ALIGNMENT`] and as long as `range`, with the range's bytes in `side`.
    ///
    /// # Errors
    /// The local disk's.
    fn read(&self, side: Side, range: SectorRange, buffer: &mut [u8]) -> io::Result<()>;
}

#[repr(C, align(4096))]
struct BlockBuffer([u8; BLOCK_BYTES as usize]);

/// Reads the sectors of `dirty` and makes the segment `id` of them: its reference and its bytes. Reads files and
/// compresses: not for a thread that must not block.
///
/// # Errors
/// What the sides say.
pub fn build_segment(
    sides: &impl SideReader,
    dirty: &[DirtyBlock],
    id: SegmentId,
) -> io::Result<(SegmentRef, Vec<u8>)> {
    const SECTOR: usize = SECTOR_BYTES as usize;
    let mut builder = SegmentBuilder::default();
    let mut buffer = Box::new(BlockBuffer([0; BLOCK_BYTES as usize]));
    let mut packed = Vec::with_capacity(BLOCK_BYTES as usize);
    for DirtyBlock { block, a, b } in dirty {
        for (side, mask) in [(Side::A, a), (Side::B, b)] {
            for (first, length) in mask.runs() {
                let range = SectorRange::new(block.first_sector().0 + u64::from(first), u64::from(length));
                let place = first as usize * SECTOR..(first + length) as usize * SECTOR;
                sides.read(side, range, &mut buffer.0[place])?;
            }
        }
        let all = a.union(*b);
        packed.clear();
        for (first, length) in all.runs() {
            let first = if is_planted(Bug::SparseIsDense) { 0 } else { first };
            packed.extend_from_slice(&buffer.0[first as usize * SECTOR..(first + length) as usize * SECTOR]);
        }
        builder.push(*block, all, &packed);
    }
    Ok(builder.finish(id))
}
