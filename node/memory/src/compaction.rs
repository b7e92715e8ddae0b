//! The pace of compaction: pages of sparse slabs move to other slabs, so that slabs become free.
//!
//! No slot names its page. So the table is read in a circle, and each page is moved whose slab is sparse. The
//! work is part of writes: each page that needs a new slab while few are left moves up to two slabs of
//! content first, and each move costs less than a copy of the slab that it frees. If no slab is left and the
//! page has no other place, the circle is completed before the write fails.
//!
//! Owns: the place in the table, the decision whether a further step is worth its cost.
//! Does not own: the moves (`stored_pages.rs`), the choice of slots ([`Pool`]).

use crate::pool::{Pool, SLAB_BYTES};

/// Part of the slabs that compaction keeps free.
const RESERVE_PART: u32 = 32;
/// Minimum slabs that it keeps free.
const RESERVE_SLABS: u32 = 4;
/// Minimum words that a step reads.
const STEP_WORDS: u64 = 1024;
/// Bytes of slots that a step moves, so that it frees more slabs than the caller takes.
pub(crate) const STEP_BYTES: usize = 2 * SLAB_BYTES;

/// The progress of compaction.
#[derive(Debug, Default)]
pub(crate) struct Compaction {
    next_page: u64,
    /// Words that were read since the last move.
    idle_words: u64,
    /// Slabs that stay in use although their pages could be merged: the word of a page is damaged.
    unmovable_slabs: u32,
    moved_pages: u64,
}

impl Compaction {
    /// Returns the number of pages that moved.
    pub(crate) const fn moved_pages(&self) -> u64 {
        self.moved_pages
    }

    /// Returns true if few slabs are left, and compaction frees a good part of its reserve.
    pub(crate) fn is_due(&mut self, pool: &Pool) -> bool {
        let reserve = reserve(pool);
        pool.slabs() - pool.slabs_in_use() <= reserve && self.gain(pool) >= reserve.div_ceil(4)
    }

    /// Returns the number of slabs that further steps free.
    pub(crate) fn gain(&mut self, pool: &Pool) -> u32 {
        let mergeable = pool.mergeable_slabs();
        self.unmovable_slabs = self.unmovable_slabs.min(mergeable);
        mergeable - self.unmovable_slabs
    }

    /// Returns the number of words that a step reads for a volume of `pages` pages: a circle ends before the
    /// reserve is used up.
    pub(crate) fn step_words(pool: &Pool, pages: u64) -> u64 {
        pages.div_ceil(u64::from(reserve(pool))).max(STEP_WORDS).min(pages)
    }

    /// Returns the page whose word is read next, of `pages` pages.
    pub(crate) fn next_page(&mut self, pages: u64) -> u64 {
        let page = self.next_page;
        self.next_page = (page + 1) % pages;
        page
    }

    /// Records that a word was read, of a volume of `pages` pages, and whether its page moved.
    pub(crate) fn read_word(&mut self, pool: &Pool, pages: u64, has_moved: bool) {
        self.moved_pages += u64::from(has_moved);
        self.idle_words = if has_moved { 0 } else { self.idle_words + 1 };
        if self.idle_words > pages {
            self.idle_words = 0;
            self.unmovable_slabs = pool.mergeable_slabs();
        }
    }
}

/// Returns the number of slabs that compaction keeps free.
fn reserve(pool: &Pool) -> u32 {
    (pool.slabs() / RESERVE_PART).max(RESERVE_SLABS)
}
