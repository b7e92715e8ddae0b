//! A seal's dirty sectors, read from the sides and made into a segment, part by part.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use holdfast_engine::action::DirtyBlock;
use holdfast_format::safeguard::{
    Safeguard::{CommitOnlyAllRead, PackByMask},
    safeguard,
};
use holdfast_format::segment::{FrameIndex, SegmentBuilder, SegmentRef};
use holdfast_format::side::Side;
use holdfast_objects::Part;
use holdfast_types::{BLOCK_BYTES, SECTOR_BYTES, SectorRange, SegmentId};

use crate::upload_memory::Room;

/// Alignment in memory of what a [`SideReader`] reads into, in bytes: enough for direct I/O on every disk.
pub const BLOCK_ALIGNMENT: usize = 4096;

/// Reads sectors of a side.
pub trait SideReader {
    /// Fills `buffer`, which is aligned to [`BLOCK_ALIGNMENT`] and as long as `range`, with the range's bytes
    /// in `side`.
    ///
    /// # Errors
    /// The local disk's.
    fn read(&self, side: Side, range: SectorRange, buffer: &mut [u8]) -> io::Result<()>;
}

#[repr(C, align(4096))]
struct BlockBuffer([u8; BLOCK_BYTES as usize]);

/// Sectors of a seal that cannot be read.
#[derive(Debug)]
pub struct UnreadableSectors {
    /// The sectors: at least one run. There may be more.
    pub ranges: Vec<SectorRange>,
    /// The local disk's error for the last of them.
    pub error: io::Error,
}

/// Number of unreadable sectors after which the search ends: each may take a disk seconds.
const MAX_UNREADABLE: u64 = 64;
const SECTOR: usize = SECTOR_BYTES as usize;

/// A segment in the making. The same sectors give the same bytes, however often it is made: the sealed side
/// is still.
pub struct SegmentBuild {
    id: SegmentId,
    part_bytes: usize,
    dirty: Arc<[DirtyBlock]>,
    /// Number of them that were read.
    read: usize,
    builder: SegmentBuilder,
    unreadable: Option<UnreadableSectors>,
    /// Once all were read.
    closed: Option<Closed>,
    /// Memory that it uses.
    _room: Option<Arc<Room>>,
}

/// The end of a segment.
struct Closed {
    segment: SegmentRef,
    index: FrameIndex,
    /// Bytes that were not taken yet.
    rest: Bytes,
}

impl SegmentBuild {
    /// The segment `id` of the sectors of `dirty`, in parts of `part_bytes`.
    pub fn new(dirty: Arc<[DirtyBlock]>, id: SegmentId, part_bytes: usize) -> Self {
        let builder = SegmentBuilder::default();
        Self { id, part_bytes, dirty, read: 0, builder, unreadable: None, closed: None, _room: None }
    }

    /// The same, in memory that was reserved.
    pub(crate) fn within(
        room: Arc<Room>,
        dirty: Arc<[DirtyBlock]>,
        id: SegmentId,
        part_bytes: usize,
    ) -> Self {
        Self { _room: Some(room), ..Self::new(dirty, id, part_bytes) }
    }

    /// Dirty sectors that were not read yet.
    pub fn unread(&self) -> &[DirtyBlock] {
        &self.dirty[self.read..]
    }

    /// Reads sectors and makes the next part of them. Reads files and compresses: not for a thread that must
    /// not block.
    ///
    /// # Errors
    /// [`UnreadableSectors`] names what the local disk cannot read, of all sectors that were not read yet.
    pub fn next_part(&mut self, sides: &impl SideReader) -> Result<Part, UnreadableSectors> {
        let mut buffer = Box::new(BlockBuffer([0; BLOCK_BYTES as usize]));
        while self.closed.is_none() && (self.builder.ready() < self.part_bytes || self.unreadable.is_some()) {
            let Some(dirty) = self.dirty.get(self.read) else {
                self.close()?;
                break;
            };
            self.read += 1;
            let dirty = *dirty;
            self.read_block(sides, &dirty, &mut buffer.0)?;
        }
        let Some(Closed { rest, .. }) = &mut self.closed else {
            return Ok(Part { bytes: self.builder.take(self.part_bytes).into(), is_last: false });
        };
        let bytes = rest.split_to(rest.len().min(self.part_bytes));
        Ok(Part { bytes, is_last: rest.is_empty() })
    }

    fn read_block(
        &mut self,
        sides: &impl SideReader,
        dirty: &DirtyBlock,
        buffer: &mut [u8],
    ) -> Result<(), UnreadableSectors> {
        let DirtyBlock { block, a, b } = dirty;
        for (side, mask) in [(Side::A, a), (Side::B, b)] {
            for (first, length) in mask.runs() {
                let range = SectorRange::new(block.first_sector().0 + u64::from(first), u64::from(length));
                let place = first as usize * SECTOR..(first + length) as usize * SECTOR;
                if sides.read(side, range, &mut buffer[place.clone()]).is_err() {
                    read_each(sides, side, range, &mut buffer[place], &mut self.unreadable);
                }
            }
        }
        if !safeguard(CommitOnlyAllRead) {
            self.unreadable = None;
        }
        if let Some(unreadable) = self.unreadable.take_if(|found| count(&found.ranges) >= MAX_UNREADABLE) {
            return Err(unreadable);
        }
        if self.unreadable.is_some() {
            return Ok(());
        }
        let all = a.union(*b);
        let mut packed = Vec::with_capacity(all.count() as usize * SECTOR);
        for (first, length) in all.runs() {
            let first = if safeguard(PackByMask) { first } else { 0 };
            packed.extend_from_slice(&buffer[first as usize * SECTOR..(first + length) as usize * SECTOR]);
        }
        self.builder.push(*block, all, &packed);
        Ok(())
    }

    fn close(&mut self) -> Result<(), UnreadableSectors> {
        if let Some(unreadable) = self.unreadable.take() {
            return Err(unreadable);
        }
        let (segment, index) = self.builder.close(self.id);
        let rest = self.builder.take(usize::MAX).into();
        self.closed = Some(Closed { segment, index, rest });
        Ok(())
    }

    /// The reference and the index, once the last part was made.
    pub fn into_segment(self) -> Option<(SegmentRef, FrameIndex)> {
        self.closed.map(|closed| (closed.segment, closed.index))
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
    unreadable: &mut Option<UnreadableSectors>,
) {
    for (index, bytes) in buffer.chunks_mut(SECTOR).enumerate() {
        let sector = SectorRange::new(range.start.0 + index as u64, 1);
        if let Err(error) = sides.read(side, sector, bytes) {
            let found = unreadable.get_or_insert_with(|| UnreadableSectors { ranges: Vec::new(), error });
            match found.ranges.last_mut() {
                Some(last) if last.end() == sector.start.0 => last.sectors += 1,
                Some(_) | None => found.ranges.push(sector),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_types::{Block, Mask, Place, Seq};

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
    fn parts_are_of_one_length_and_the_same_each_time() {
        let dirty: Arc<[DirtyBlock]> =
            (0..200).map(|block| DirtyBlock { block: Block(block), a: Mask::FULL, b: Mask::EMPTY }).collect();
        let make = |part_bytes| {
            let mut build = SegmentBuild::new(
                Arc::clone(&dirty),
                SegmentId::new(Place::until(Seq(1)), 1, [0; 10]),
                part_bytes,
            );
            let mut parts = Vec::new();
            loop {
                let Part { bytes, is_last } = build.next_part(&Holed(vec![])).expect("there are no holes");
                parts.push(bytes);
                if is_last {
                    break;
                }
            }
            let (last, whole) = parts.split_last().unwrap();
            assert!(whole.iter().all(|part| part.len() == part_bytes) && last.len() <= part_bytes);
            (parts.concat(), build.into_segment())
        };
        let one = make(1 << 20);
        assert_eq!(one.1.as_ref().unwrap().0.bytes, one.0.len() as u64);
        assert!(one == make(4096) && one == make(5000));
    }

    #[test]
    fn exactly_what_cannot_be_read_is_named() {
        let dirty = [
            DirtyBlock { block: Block(0), a: Mask(0b1111_0000), b: Mask(0b1) },
            DirtyBlock { block: Block(3), a: Mask(0b111), b: Mask::EMPTY },
        ];
        let id = SegmentId::new(Place::until(Seq(1)), 1, [0; 10]);
        let build = |holes| SegmentBuild::new(dirty.into(), id, 1 << 20).next_part(&Holed(holes));
        let found = build(vec![0, 5, 6, 98]).expect_err("three are dirty there");
        assert_eq!(found.ranges, [SectorRange::new(5, 2), SectorRange::new(98, 1)]);
        assert!(build(vec![0, 3, 99]).is_ok(), "nothing of that is asked for");
    }
}
