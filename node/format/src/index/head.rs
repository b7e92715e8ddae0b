//! Head of a run's object: the table of its pages, and the table of the segments that its entries name.
//!
//! Payload inside the envelope (`wire`):
//! ```text
//! u32 n, n x (u32 first block, u32 bytes)      pages, contiguous from byte 0 of the object
//! u32 m, m x (u8 owner, u64 place, u128 ulid, u64 bytes, u64 index offset, u32 index bytes)      segments
//! ```

use std::ops::Range;

use holdfast_types::{Block, SegmentId};

use super::RunRef;
use super::entry::IndexEntry;
use super::page::RunPage;
use crate::safeguard::{Safeguard::CountFromOwner, safeguard};
use crate::segment::SegmentRef;
use crate::wire::{self, DecodeError, Kind, Reader};

const WHAT: &str = "head of an index run";
/// Bytes after the head.
pub const TRAILER_BYTES: u64 = 16;
const PAGE_BYTES: usize = 8;
const SEGMENT_BYTES: usize = wire::ID_BYTES + 20;

/// A run's reference to a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentObject {
    /// Its name.
    pub id: SegmentId,
    /// Size of the object in bytes.
    pub bytes: u64,
    /// Byte offset of the index envelope in the object.
    pub index_offset: u64,
    /// Length of the index envelope in bytes.
    pub index_bytes: u32,
}

impl From<&SegmentRef> for SegmentObject {
    fn from(segment: &SegmentRef) -> Self {
        let SegmentRef { id, bytes, index_offset, index_bytes, sectors: _, chunks: _ } = segment;
        Self { id: *id, bytes: *bytes, index_offset: *index_offset, index_bytes: *index_bytes }
    }
}

impl SegmentObject {
    /// Returns the bytes of the index envelope in the object.
    pub fn index_range(&self) -> Range<u64> {
        self.index_offset..self.index_offset + u64::from(self.index_bytes)
    }

    fn put(&self, out: &mut Vec<u8>) {
        wire::put_id(self.id.0, out);
        out.extend_from_slice(&self.bytes.to_le_bytes());
        out.extend_from_slice(&self.index_offset.to_le_bytes());
        out.extend_from_slice(&self.index_bytes.to_le_bytes());
    }

    fn take(fields: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let id = SegmentId(fields.id()?);
        let (bytes, index_offset, index_bytes) = (fields.u64()?, fields.u64()?, fields.u32()?);
        if index_offset.checked_add(u64::from(index_bytes)).is_none_or(|end| end > bytes) {
            return Err(fields.bad("segment index offset", index_offset));
        }
        Ok(Self { id, bytes, index_offset, index_bytes })
    }
}

/// A page in the page table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PageAt {
    first_block: u32,
    offset: u64,
}

/// The head of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunHead {
    pages: Vec<PageAt>,
    /// Byte offset of the end of the last page.
    pages_end: u64,
    segments: Vec<SegmentObject>,
}

impl RunHead {
    pub(super) fn new(pages: impl IntoIterator<Item = (u32, u32)>, segments: Vec<SegmentObject>) -> Self {
        let mut pages_end = 0;
        let pages = pages.into_iter().map(|(first_block, bytes)| {
            let offset = pages_end;
            pages_end += u64::from(bytes);
            PageAt { first_block, offset }
        });
        Self { pages: pages.collect(), pages_end, segments }
    }

    /// Appends the envelope. Returns its length.
    pub(super) fn encode_at_end(&self, out: &mut Vec<u8>) -> u32 {
        let start = out.len();
        let length = 8 + self.pages.len() * PAGE_BYTES + self.segments.len() * SEGMENT_BYTES;
        let count = |length: usize| u32::try_from(length).expect("wire bounds a structure to 4 GiB");
        wire::enclose_at_end(out, Kind::RunHead, length, |out| {
            out.extend_from_slice(&count(self.pages.len()).to_le_bytes());
            for page in 0..self.pages.len() {
                let range = self.page_range(page);
                let bytes = u32::try_from(range.end - range.start).expect("a page has some 64 KiB");
                out.extend_from_slice(&self.pages[page].first_block.to_le_bytes());
                out.extend_from_slice(&bytes.to_le_bytes());
            }
            out.extend_from_slice(&count(self.segments.len()).to_le_bytes());
            self.segments.iter().for_each(|segment| segment.put(out));
        });
        count(out.len() - start)
    }

    /// Reads the head of `run` from its envelope. The stored segment names are those of the run's owner;
    /// the result has those of the volume that names the run.
    ///
    /// # Errors
    /// [`DecodeError`] names the defect.
    pub fn decode(run: &RunRef, bytes: &[u8]) -> Result<Self, DecodeError> {
        let head = Self::decode_alone(bytes)?;
        if head.pages_end != run.head_offset {
            return Err(DecodeError::Field { what: WHAT, field: "bytes of pages", value: head.pages_end });
        }
        head.inherited(if safeguard(CountFromOwner) { run.id.0.owner } else { 0 })
    }

    /// Reads an envelope, of any run's head.
    ///
    /// # Errors
    /// [`DecodeError`] names the defect.
    pub fn decode_alone(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut fields = Reader::new(WHAT, wire::open(Kind::RunHead, WHAT, bytes)?);
        let count = fields.count(PAGE_BYTES)?;
        let mut pages = Vec::with_capacity(count);
        let mut last = None;
        for _ in 0..count {
            let (first_block, bytes) = (fields.u32()?, fields.u32()?);
            if last.is_some_and(|last| first_block <= last) || bytes == 0 {
                return Err(fields.bad("first block of a page", u64::from(first_block)));
            }
            last = Some(first_block);
            pages.push((first_block, bytes));
        }
        let count = fields.count(SEGMENT_BYTES)?;
        let segments = (0..count).map(|_| SegmentObject::take(&mut fields)).collect::<Result<_, _>>()?;
        fields.end()?;
        Ok(Self::new(pages, segments))
    }

    /// Renames the segments for a volume that is `forks` forks away from the run's owner.
    ///
    /// # Errors
    /// [`DecodeError`] if no volume has so many ancestors.
    pub fn inherited(mut self, forks: u8) -> Result<Self, DecodeError> {
        for segment in &mut self.segments {
            let value = u64::from(segment.id.0.owner);
            let beyond = DecodeError::Field { what: WHAT, field: "owner of a segment", value };
            segment.id = segment.id.inherited(forks).ok_or(beyond)?;
        }
        Ok(self)
    }

    /// Returns the number of pages.
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Returns the page with the entries of `block`, if the run has any.
    pub fn page_of(&self, block: Block) -> Option<usize> {
        self.pages.partition_point(|page| u64::from(page.first_block) <= block.0).checked_sub(1)
    }

    /// Returns the bytes of a page in the object.
    ///
    /// # Panics
    /// If there is no such page.
    pub fn page_range(&self, page: usize) -> Range<u64> {
        self.pages[page].offset..self.pages.get(page + 1).map_or(self.pages_end, |next| next.offset)
    }

    /// Returns the range of blocks, without its end, whose entries are in a page, if there are any.
    ///
    /// # Panics
    /// If there is no such page.
    pub fn blocks_of(&self, page: usize) -> Range<u64> {
        let end = self.pages.get(page + 1).map_or(1 << 32, |next| u64::from(next.first_block));
        u64::from(self.pages[page].first_block)..end
    }

    /// Reads a page from its bytes.
    ///
    /// # Errors
    /// [`DecodeError`] names the defect: the bytes are damaged, or belong to another page.
    pub fn page(&self, page: usize, bytes: &[u8]) -> Result<RunPage, DecodeError> {
        let found = RunPage::decode(bytes, self.segments.len())?;
        let end = self.pages.get(page + 1).map_or(1 << 32, |next| u64::from(next.first_block));
        let first = found.first_block();
        if self.pages.get(page).is_none_or(|at| at.first_block != first) || found.end_block() > end {
            let field = "first block of a page";
            return Err(DecodeError::Field { what: WHAT, field, value: u64::from(first) });
        }
        Ok(found)
    }

    /// Returns the segment that an entry of one of the run's pages names; `None` for zeros.
    pub fn segment_of(&self, entry: &IndexEntry) -> Option<SegmentId> {
        let segment = self.segments.get(entry.segment as usize).filter(|_| !entry.is_zero())?;
        Some(segment.id)
    }

    /// Returns the segments that entries name, by ordinal.
    pub fn segments(&self) -> &[SegmentObject] {
        &self.segments
    }

    /// Returns its size in memory, for a cache bounded by bytes.
    pub fn weight(&self) -> usize {
        self.pages.len() * size_of::<PageAt>() + self.segments.len() * size_of::<SegmentObject>()
    }
}

/// Returns the last bytes of the run's object: "HFRN", u32 head bytes, u64 head offset.
pub fn trailer(run: &RunRef) -> [u8; TRAILER_BYTES as usize] {
    let mut out = [0; TRAILER_BYTES as usize];
    out[..4].copy_from_slice(b"HFRN");
    out[4..8].copy_from_slice(&run.head_bytes.to_le_bytes());
    out[8..].copy_from_slice(&run.head_offset.to_le_bytes());
    out
}
