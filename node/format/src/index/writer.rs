//! Writes a run: accepts entries, and produces the bytes of the object incrementally.
//!
//! Entries that name frames of an unstored segment wait until it is stored, and so do all later pages.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use holdfast_types::{Block, CHUNK_BLOCKS, Mask, RunId};

use super::RunRef;
use super::entry::IndexEntry;
use super::head::{RunHead, SegmentObject, TRAILER_BYTES, trailer};
use super::page::{PAGE_ENTRIES, RunPage};
use crate::chunk_ranges::ChunkRanges;
use crate::safeguard::{Safeguard::NameMovedFrame, safeguard};
use crate::segment::{Frame, FrameIndex};

/// Number of waiting entries in pages at which no more should be added, at 56 bytes of memory each.
const MAX_WAITING: usize = 1 << 19;

/// Collects the entries of a run, lowest block first. Memory: the entries of one page and of the waiting
/// pages, the bytes that were not taken, and 8 bytes for each earlier page.
#[derive(Debug, Default)]
pub(super) struct RunWriter {
    /// Bytes of the object that were not taken yet.
    body: Vec<u8>,
    /// Number of bytes that were taken.
    taken: u64,
    /// Entries of the page that is not full yet.
    page: Vec<IndexEntry>,
    /// Full pages that wait for a segment, or follow one that does.
    full: VecDeque<Vec<IndexEntry>>,
    /// Number of entries in these pages.
    waiting: usize,
    /// First block and bytes of each earlier page.
    pages: Vec<(u32, u32)>,
    /// Sectors visible through the entries.
    sectors: u64,
    /// `None` if the segment is not stored yet.
    segments: Vec<Option<SegmentObject>>,
    /// The frames of segments that were stored since, while entries wait for them.
    made: HashMap<u32, Arc<FrameIndex>>,
    /// The exact chunks, as runs.
    chunks: Vec<(u32, u32)>,
}

impl RunWriter {
    /// Adds a segment that entries can name, or one that is still being built. Returns its ordinal.
    pub(super) fn add_segment(&mut self, segment: Option<SegmentObject>) -> u32 {
        self.segments.push(segment);
        u32::try_from(self.segments.len() - 1).expect("a log has fewer than 2^32 segments in use")
    }

    /// Sets a segment that was being built, and its frames.
    pub(super) fn set_segment(&mut self, ordinal: u32, segment: SegmentObject, index: Arc<FrameIndex>) {
        self.segments[ordinal as usize] = Some(segment);
        self.made.insert(ordinal, index);
        self.write_pages();
    }

    /// Returns true if too many entries wait to add more.
    pub(super) fn is_full(&self) -> bool {
        self.waiting >= MAX_WAITING
    }

    /// Returns the segment that the oldest page waits for.
    pub(super) fn awaited(&self) -> Option<u32> {
        let awaited = self.full.front()?.iter().filter(|entry| entry.is_awaited());
        let mut ordinals = awaited.map(|entry| entry.segment);
        ordinals.find(|ordinal| self.segments[*ordinal as usize].is_none())
    }

    /// Adds all entries of a block, newest first, its zero entry last, or a zero entry of many blocks. Blocks
    /// ascend.
    pub(super) fn push(&mut self, group: &[IndexEntry]) {
        let Some(first) = group.first() else { return };
        let (block, run) = (first.frame.block, first.frame.run);
        self.include_chunks(block, run);
        let of_entry = |entry: &IndexEntry| u64::from(entry.frame.run) * u64::from(entry.visible.count());
        self.sectors += group.iter().map(of_entry).sum::<u64>();
        if let ([zero], Some(last)) = (group, self.page.last_mut())
            && [&*last, zero].iter().all(|entry| entry.is_zero() && entry.visible == Mask::FULL)
            && last.end() == u64::from(block)
            && let Some(joined) = last.frame.run.checked_add(run)
        {
            last.frame.run = joined;
            return;
        }
        if self.page.len() + group.len() > PAGE_ENTRIES {
            self.end_page();
        }
        self.page.extend_from_slice(group);
    }

    fn include_chunks(&mut self, block: u32, run: u32) {
        let first = block / CHUNK_BLOCKS as u32;
        let count = (block + (run - 1)) / CHUNK_BLOCKS as u32 + 1 - first;
        match self.chunks.last_mut() {
            Some((start, length)) if first <= *start + *length => {
                *length = (*length).max(first + count - *start);
            }
            Some(_) | None => self.chunks.push((first, count)),
        }
    }

    fn end_page(&mut self) {
        if self.page.is_empty() {
            return;
        }
        self.waiting += self.page.len();
        self.full.push_back(std::mem::take(&mut self.page));
        self.write_pages();
    }

    /// Writes the pages that do not wait.
    fn write_pages(&mut self) {
        while self.awaited().is_none()
            && let Some(mut page) = self.full.pop_front()
        {
            self.waiting -= page.len();
            for entry in page.iter_mut().filter(|entry| entry.is_awaited()) {
                let block = Block(u64::from(entry.frame.block));
                let stored = self.made[&entry.segment].find(block).expect("a new segment has all its blocks");
                let offset = if safeguard(NameMovedFrame) { stored.offset } else { entry.frame.offset };
                entry.frame = Frame { offset, ..*stored };
            }
            let end = page.last().map_or(0, IndexEntry::end);
            let ends_later = |frame: &Frame| u64::from(frame.block) >= end;
            self.made.retain(|_, index| index.frames().last().is_some_and(ends_later));
            self.write_page(&page);
        }
    }

    fn write_page(&mut self, page: &[IndexEntry]) {
        let start = self.body.len();
        RunPage::encode_at_end(page, &mut self.body);
        let bytes = u32::try_from(self.body.len() - start).expect("a page has some 64 KiB");
        self.pages.push((page[0].frame.block, bytes));
    }

    /// Returns the number of bytes that can be taken.
    pub(super) fn ready(&self) -> usize {
        self.body.len()
    }

    /// Takes the next `length` bytes of the object, or all that are ready.
    pub(super) fn take(&mut self, length: usize) -> Vec<u8> {
        let length = length.min(self.body.len());
        let rest = self.body.split_off(length);
        self.taken += length as u64;
        std::mem::replace(&mut self.body, rest)
    }

    /// Adds the head and the trailer, the last bytes to take. Nothing may be pushed afterwards.
    pub(super) fn close(&mut self, id: RunId, level: u8) -> (RunRef, RunHead) {
        self.end_page();
        assert!(self.full.is_empty(), "moved frames are stored first");
        let segments = std::mem::take(&mut self.segments);
        let segments = segments.into_iter().map(|segment| segment.expect("moved frames are stored first"));
        let head = RunHead::new(std::mem::take(&mut self.pages), segments.collect());
        let head_offset = self.taken + self.body.len() as u64;
        let head_bytes = head.encode_at_end(&mut self.body);
        let bytes = head_offset + u64::from(head_bytes) + TRAILER_BYTES;
        let chunks = ChunkRanges::around(self.chunks.iter().copied());
        let sectors = self.sectors;
        let run = RunRef { id, level, bytes, head_offset, head_bytes, sectors, chunks };
        self.body.extend_from_slice(&trailer(&run));
        (run, head)
    }
}
