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

/// Sectors of a seal that cannot be read.
#[derive(Debug)]
pub struct Unreadable {
    /// Which: at least one. There may be more.
    pub ranges: Vec<SectorRange>,
    /// Why the last of them could not.
    pub error: io::Error,
}

/// After so many unreadable sectors no more are looked for: each may take a disk seconds.
const MOST_UNREADABLE: u64 = 64;
const SECTOR: usize = SECTOR_BYTES as usize;

/// Reads the sectors of `dirty` and makes the segment `id` of them: its reference and its bytes. Reads files and
/// compresses: not for a thread that must not block.
///
/// # Errors
/// [`Unreadable`] names what the local disk cannot read.
pub fn build_segment(
    sides: &impl SideReader,
    dirty: &[DirtyBlock],
    id: SegmentId,
) -> Result<(SegmentRef, Vec<u8>), Unreadable> {
    let mut unreadable: Option<Unreadable> = None;
    let mut builder = SegmentBuilder::default();
    let mut buffer = Box::new(BlockBuffer([0; BLOCK_BYTES as usize]));
    let mut packed = Vec::with_capacity(BLOCK_BYTES as usize);
    for DirtyBlock { block, a, b } in dirty {
        for (side, mask) in [(Side::A, a), (Side::B, b)] {
            for (first, length) in mask.runs() {
                let range = SectorRange::new(block.first_sector().0 + u64::from(first), u64::from(length));
                let place = first as usize * SECTOR..(first + length) as usize * SECTOR;
                if sides.read(side, range, &mut buffer.0[place.clone()]).is_err() {
                    read_each(sides, side, range, &mut buffer.0[place], &mut unreadable);
                }
            }
        }
        match &unreadable {
            Some(found) if count(&found.ranges) >= MOST_UNREADABLE => break,
            Some(_) if !is_planted(Bug::SkipUnreadable) => continue,
            Some(_) | None => {}
        }
        let all = a.union(*b);
        packed.clear();
        for (first, length) in all.runs() {
            let first = if is_planted(Bug::SparseIsDense) { 0 } else { first };
            packed.extend_from_slice(&buffer.0[first as usize * SECTOR..(first + length) as usize * SECTOR]);
        }
        builder.push(*block, all, &packed);
    }
    match unreadable {
        Some(unreadable) if !is_planted(Bug::SkipUnreadable) => Err(unreadable),
        Some(_) | None => Ok(builder.finish(id)),
    }
}

fn count(ranges: &[SectorRange]) -> u64 {
    ranges.iter().map(|range| range.sectors).sum()
}

/// Reads one sector after the other, to know which of them cannot be read.
fn read_each(
    sides: &impl SideReader,
    side: Side,
    range: SectorRange,
    buffer: &mut [u8],
    unreadable: &mut Option<Unreadable>,
) {
    for (index, bytes) in buffer.chunks_mut(SECTOR).enumerate() {
        let sector = SectorRange::new(range.start.0 + index as u64, 1);
        if let Err(error) = sides.read(side, sector, bytes) {
            let found = unreadable.get_or_insert_with(|| Unreadable { ranges: Vec::new(), error });
            match found.ranges.last_mut() {
                Some(last) if last.end() == sector.start.0 => last.sectors += 1,
                Some(_) | None => found.ranges.push(sector),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_types::{Block, Mask};

    use super::*;

    /// A disk that cannot read these sectors of side A.
    struct Holed(Vec<u64>);

    impl SideReader for Holed {
        fn read(&self, side: Side, range: SectorRange, buffer: &mut [u8]) -> io::Result<()> {
            if side == Side::A && self.0.iter().any(|sector| (range.start.0..range.end()).contains(sector)) {
                return Err(io::Error::other("a hole"));
            }
            buffer.fill(7);
            Ok(())
        }
    }

    #[test]
    fn exactly_what_cannot_be_read_is_named() {
        let dirty = [
            DirtyBlock { block: Block(0), a: Mask(0b1111_0000), b: Mask(0b1) },
            DirtyBlock { block: Block(3), a: Mask(0b111), b: Mask::EMPTY },
        ];
        let id = SegmentId::new(1, [0; 10]);
        let found = build_segment(&Holed(vec![0, 5, 6, 98]), &dirty, id).expect_err("three are dirty there");
        assert_eq!(found.ranges, [SectorRange::new(5, 2), SectorRange::new(98, 1)]);
        assert!(build_segment(&Holed(vec![0, 3, 99]), &dirty, id).is_ok(), "nothing of that is asked for");
    }
}
