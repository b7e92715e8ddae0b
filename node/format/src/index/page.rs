//! Pages of a run: some thousand entries, the unit in which a run is read, checked and cached.
//!
//! Payload inside the envelope (`wire`): `u32 n, n x entry` (see `entry`), ascending by block, the entries
//! of one block newest first and its zero entry last. All entries of a block are in one page.

use holdfast_types::{Block, Mask};

use super::entry::{ENTRY_BYTES, IndexEntry};
use crate::wire::{self, DecodeError, Kind, Reader};

const WHAT: &str = "index page";
/// Entries after which a page is full: 64 KiB.
pub(super) const PAGE_ENTRIES: usize = (64 << 10) / ENTRY_BYTES;

/// A page that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunPage {
    /// At least one.
    entries: Vec<IndexEntry>,
}

impl RunPage {
    /// Reads a page whose entries name the first `segments` of their run's table.
    pub(super) fn decode(bytes: &[u8], segments: usize) -> Result<Self, DecodeError> {
        let mut fields = Reader::new(WHAT, wire::open(Kind::RunPage, WHAT, bytes)?);
        let count = fields.count(ENTRY_BYTES)?;
        if !(1..=PAGE_ENTRIES).contains(&count) {
            return Err(fields.bad("number of entries", count as u64));
        }
        let mut entries: Vec<IndexEntry> = Vec::with_capacity(count);
        let mut seen = Mask::EMPTY;
        for _ in 0..count {
            let entry = IndexEntry::take(&mut fields)?;
            if !entry.is_zero() && entry.segment as usize >= segments {
                return Err(fields.bad("segment ordinal", u64::from(entry.segment)));
            }
            match entries.last() {
                Some(last) if last.frame.block == entry.frame.block => {
                    let follows = !last.is_zero() && entry.frame.run == 1;
                    if !follows || !seen.intersect(entry.visible).is_empty() {
                        return Err(fields.bad("order of entries", u64::from(entry.frame.block)));
                    }
                    seen = seen.union(entry.visible);
                }
                Some(last) if last.end() > u64::from(entry.frame.block) => {
                    return Err(fields.bad("block", u64::from(entry.frame.block)));
                }
                Some(_) | None => seen = entry.visible,
            }
            entries.push(entry);
        }
        fields.end()?;
        Ok(Self { entries })
    }

    /// Appends the envelope around `entries`.
    pub(super) fn encode_at_end(entries: &[IndexEntry], out: &mut Vec<u8>) {
        let length = 4 + entries.len() * ENTRY_BYTES;
        wire::enclose_at_end(out, Kind::RunPage, length, |out| {
            let count = u32::try_from(entries.len()).expect("a page has some thousand entries");
            out.extend_from_slice(&count.to_le_bytes());
            entries.iter().for_each(|entry| entry.put(out));
        });
    }

    /// Returns the entries of `block`, newest first.
    pub fn find(&self, block: Block) -> &[IndexEntry] {
        let Ok(block) = u32::try_from(block.0) else { return &[] };
        let end = self.entries.partition_point(|entry| entry.frame.block <= block);
        let Some(last) = self.entries[..end].last() else { return &[] };
        let first = last.frame.block;
        if block - first >= last.frame.run {
            return &[];
        }
        let start = self.entries[..end].partition_point(|entry| entry.frame.block < first);
        &self.entries[start..end]
    }

    /// Returns all entries, ascending by block.
    pub fn entries(&self) -> &[IndexEntry] {
        &self.entries
    }

    /// Returns the first block that an entry covers.
    pub(super) fn first_block(&self) -> u32 {
        self.entries.first().map_or(0, |entry| entry.frame.block)
    }

    /// Returns the block after the last that an entry covers.
    pub(super) fn end_block(&self) -> u64 {
        self.entries.last().map_or(0, IndexEntry::end)
    }

    /// Returns its size in memory, for a cache bounded by bytes.
    pub fn weight(&self) -> usize {
        self.entries.len() * size_of::<IndexEntry>()
    }
}
