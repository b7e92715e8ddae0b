//! Dirty sectors of a seal, read from the data files and compressed in batches of blocks.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use holdfast_engine::action::DirtyBlock;
use holdfast_format::safeguard::{
    Safeguard::{CommitOnlyAllRead, PackByMask},
    safeguard,
};
use holdfast_format::segment::PackedFrames;
use holdfast_format::side::Side;
use holdfast_types::{SECTOR_BYTES, SectorRange};

use crate::compressors::{Borrowed, Compressor, PackPermit};
use crate::upload_memory::UploadReservation;

/// Memory alignment of a [`SideReader`]'s buffers, in bytes: sufficient for direct I/O on every disk.
pub const BLOCK_ALIGNMENT: usize = 4096;

/// Reads sectors of a data file.
pub trait SideReader {
    /// Fills `buffer`, which is aligned to [`BLOCK_ALIGNMENT`] and as long as `range`, with the range's bytes
    /// from `side`.
    ///
    /// # Errors
    /// The local disk's.
    fn read(&self, side: Side, range: SectorRange, buffer: &mut [u8]) -> io::Result<()>;
}

/// Sectors of a seal that cannot be read.
#[derive(Debug)]
pub struct UnreadableSectors {
    /// At least one run of unreadable sectors. More may exist.
    pub ranges: Vec<SectorRange>,
    /// The local disk's error for the last of them.
    pub error: io::Error,
}

/// Number of unreadable sectors after which the search ends: each may take a disk seconds.
pub(crate) const MAX_UNREADABLE: u64 = 64;
const SECTOR: usize = SECTOR_BYTES as usize;

/// Blocks of a seal to read and compress together. The same sectors always give the same frames: the sealed
/// side does not change.
pub struct UploadBatch {
    dirty: Arc<[DirtyBlock]>,
    range: Range<usize>,
    /// Present until it is packed.
    compressor: Option<Borrowed>,
    /// True to only look for unreadable sectors.
    is_search: bool,
    packed: PackedFrames,
    unreadable: Option<UnreadableSectors>,
    /// Memory of its upload.
    _room: Arc<UploadReservation>,
}

impl UploadBatch {
    /// Creates a batch of the blocks `range` of `dirty`.
    pub(crate) fn new(
        dirty: Arc<[DirtyBlock]>,
        range: Range<usize>,
        compressor: Borrowed,
        is_search: bool,
        room: Arc<UploadReservation>,
    ) -> Self {
        let (packed, unreadable) = (PackedFrames::default(), None);
        Self { dirty, range, compressor: Some(compressor), is_search, packed, unreadable, _room: room }
    }

    /// Returns its blocks, at least one.
    pub fn blocks(&self) -> &[DirtyBlock] {
        &self.dirty[self.range.clone()]
    }

    /// Returns true for the first batch of an upload.
    pub fn is_first(&self) -> bool {
        self.range.start == 0
    }

    /// Records that its sectors cannot be read.
    pub fn fail(&mut self, unreadable: UnreadableSectors) {
        self.unreadable = Some(unreadable);
    }

    /// Reads and compresses the sectors: file I/O and computation, not for a thread that must not block.
    ///
    /// # Panics
    /// If it was already packed.
    pub fn pack(&mut self, sides: &impl SideReader) {
        let mut borrowed = self.compressor.take().expect("it was not packed before");
        let (Compressor { buffer, builder }, permit) = borrowed.with_permit();
        // No frame of another batch may enter the segment of this batch.
        drop(builder.take_frames());
        builder.reserve(
            self.blocks().iter().map(|dirty| dirty.a.union(dirty.b).count() as usize * SECTOR).sum(),
        );
        for dirty in &self.dirty[self.range.clone()] {
            read_block(sides, dirty, &mut buffer.0, permit, &mut self.unreadable);
            if !safeguard(CommitOnlyAllRead) {
                self.unreadable = None;
            }
            if self.unreadable.as_ref().is_some_and(UnreadableSectors::is_enough) {
                break;
            }
            if self.is_search || self.unreadable.is_some() {
                continue;
            }
            let all = dirty.a.union(dirty.b);
            let mut packed = Vec::with_capacity(all.count() as usize * SECTOR);
            for (first, length) in all.runs() {
                let first = if safeguard(PackByMask) { first } else { 0 };
                packed.extend_from_slice(
                    &buffer.0[first as usize * SECTOR..(first + length) as usize * SECTOR],
                );
            }
            builder.push(dirty.block, all, &packed);
        }
        self.packed = builder.take_frames();
    }

    /// Returns the frames, or the unreadable sectors.
    pub(crate) fn finish(self) -> Result<PackedFrames, UnreadableSectors> {
        self.unreadable.map_or(Ok(self.packed), Err)
    }
}

fn read_block(
    sides: &impl SideReader,
    dirty: &DirtyBlock,
    buffer: &mut [u8],
    permit: &mut Option<PackPermit>,
    unreadable: &mut Option<UnreadableSectors>,
) {
    let DirtyBlock { block, a, b } = dirty;
    for (side, mask) in [(Side::A, a), (Side::B, b)] {
        for (first, length) in mask.runs() {
            let range = SectorRange::new(block.first_sector().0 + u64::from(first), u64::from(length));
            let place = first as usize * SECTOR..(first + length) as usize * SECTOR;
            if sides.read(side, range, &mut buffer[place.clone()]).is_err() {
                // Each sector may take the disk seconds, during which other batches are packed.
                *permit = None;
                read_each(sides, side, range, &mut buffer[place], unreadable);
            }
        }
    }
}

impl UnreadableSectors {
    /// Adds later findings. Returns true if the search ends here.
    pub(crate) fn add(&mut self, later: Self) -> bool {
        self.error = later.error;
        self.ranges.extend(later.ranges);
        self.is_enough()
    }

    /// Returns true if the search ends here.
    pub(crate) fn is_enough(&self) -> bool {
        count(&self.ranges) >= MAX_UNREADABLE
    }
}

fn count(ranges: &[SectorRange]) -> u64 {
    ranges.iter().map(|range| range.sectors).sum()
}

/// Reads sectors individually to find the unreadable ones.
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
