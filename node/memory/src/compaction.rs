//! The pace of compaction: pages of sparse slabs move to other slabs, so that slabs become free.
//!
//! A slot does not record its page. Compaction therefore scans the table in a circle and moves each page
//! whose slab is sparse. Writes do this work in steps: a write that needs a new slab while few are left first
//! scans a part of the table, a larger part the fewer slabs are left, and moves up to two slabs of content.
//! Freeing a slab costs less than copying one. A write that finds no slot at all repeats steps until a slab
//! is free or no page can move.
//!
//! Owns: the position of the scan, the decision whether a further step is worth its cost.
//! Does not own: the moves (`stored_pages.rs`), the choice of slots ([`Pool`]).

use crate::pool::{Pool, SLAB_BYTES};

/// Part of the slabs that compaction keeps free.
const RESERVE_PART: u32 = 32;
/// Minimum slabs that it keeps free.
const RESERVE_SLABS: u32 = 4;
/// Minimum words that a step reads, which takes about 10 us. Also the maximum if the page may go to the disk
/// instead.
const STEP_WORDS: u64 = 1 << 10;
/// Maximum words that a step reads, which takes about 0.5 ms.
const MOST_STEP_WORDS: u64 = 1 << 16;
/// Bytes of slots that a step moves, so that it frees more slabs than the caller takes.
const STEP_BYTES: usize = 2 * SLAB_BYTES;

/// Work of one step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CompactionStep {
    pub(crate) words: u64,
    pub(crate) bytes: usize,
}

/// The progress of compaction.
#[derive(Debug, Default)]
pub(crate) struct Compaction {
    next_page: u64,
    /// Words read since a page moved or a slot became free.
    idle_words: u64,
    /// Slabs that stay in use although their pages could be merged, because the word of a page is damaged.
    unmovable_slabs: u32,
    moved_pages: u64,
    /// True if the system had no memory for the most recently requested slab.
    pub(crate) is_short: bool,
}

impl Compaction {
    /// Returns the number of pages that moved.
    pub(crate) const fn moved_pages(&self) -> u64 {
        self.moved_pages
    }

    /// Returns true if few slabs are left and steps can free others.
    pub(crate) fn is_due(&mut self, pool: &Pool) -> bool {
        let reserve = (pool.slabs() / RESERVE_PART).max(RESERVE_SLABS);
        (self.is_short || unused(pool) <= reserve) && self.gain(pool) > 0
    }

    /// Returns the number of slabs that steps can free.
    pub(crate) fn gain(&mut self, pool: &Pool) -> u32 {
        let mergeable = pool.mergeable_slabs();
        self.unmovable_slabs = self.unmovable_slabs.min(mergeable);
        mergeable - self.unmovable_slabs
    }

    /// Returns the work of a step for a volume of `pages` pages: a scan that moves no page completes its
    /// circle before the unused slabs are taken, unless the circle has more than [`MOST_STEP_WORDS`] for each
    /// of them.
    pub(crate) fn step(pool: &Pool, pages: u64, can_spill: bool) -> CompactionStep {
        let words = pages.div_ceil(u64::from(unused(pool).max(1))).clamp(STEP_WORDS, MOST_STEP_WORDS);
        let words = if can_spill { STEP_WORDS } else { words };
        CompactionStep { words: words.min(pages), bytes: STEP_BYTES }
    }

    /// Returns the page whose word is read next, of `pages` pages.
    pub(crate) fn next_page(&mut self, pages: u64) -> u64 {
        let page = self.next_page;
        self.next_page = (page + 1) % pages;
        page
    }

    /// Records that a page moved.
    pub(crate) const fn moved(&mut self) {
        self.moved_pages += 1;
        self.unmovable_slabs = 0;
    }

    /// Records that a slot became free: another page may be movable now.
    pub(crate) const fn freed(&mut self) {
        self.idle_words = 0;
    }

    /// Records that words were read and no page moved. Returns true if they complete a circle.
    pub(crate) const fn idle(&mut self, words: u64, pages: u64) -> bool {
        self.idle_words += words;
        let is_complete = self.idle_words >= pages;
        if is_complete {
            self.idle_words = 0;
        }
        is_complete
    }

    /// Records that no page can move.
    pub(crate) fn found_none(&mut self, pool: &Pool) {
        self.unmovable_slabs = pool.mergeable_slabs();
    }
}

/// Returns the number of slabs without a class.
const fn unused(pool: &Pool) -> u32 {
    pool.slabs() - pool.slabs_in_use()
}
