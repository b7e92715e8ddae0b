//! Figures of a memory volume.

/// Figures of a memory volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryFigures {
    /// Pages that repeat a pattern other than zeros.
    pub same_filled_pages: u64,
    /// Pages stored compressed.
    pub compressed_pages: u64,
    /// Pages stored as they are.
    pub plain_pages: u64,
    /// Bytes of the slots of these pages.
    pub slot_bytes: u64,
    /// Bytes of the slabs that have used slots.
    pub slab_bytes: u64,
    /// Maximum of `slab_bytes`.
    pub limit_bytes: u64,
    /// Pages not written for lack of memory or disk space: the first such page of a write and those after it.
    pub refused_pages: u64,
    /// Pages that compaction moved.
    pub moved_pages: u64,
    /// Pages in the spill file.
    pub spilled_pages: u64,
    /// Maximum of `spilled_pages`; 0 without a spill file.
    pub spill_limit_pages: u64,
}

impl MemoryFigures {
    /// Returns the number of pages that are not zeros.
    #[must_use]
    pub const fn content_pages(&self) -> u64 {
        self.same_filled_pages + self.compressed_pages + self.plain_pages + self.spilled_pages
    }
}
