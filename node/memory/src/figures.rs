//! Figures of a memory volume.

/// Figures of a memory volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryFigures {
    /// Pages that are a pattern over and over, zeros apart.
    pub same_filled_pages: u64,
    /// Pages stored compressed.
    pub compressed_pages: u64,
    /// Pages stored as they are.
    pub plain_pages: u64,
    /// Bytes of the slots of these pages.
    pub slot_bytes: u64,
    /// Bytes of the slabs that have used slots.
    pub slab_bytes: u64,
    /// The most that `slab_bytes` may become.
    pub limit_bytes: u64,
    /// Pages that were not written for want of memory: of a write, the one that found none and those after
    /// it.
    pub refused_pages: u64,
    /// Pages in the spill file.
    pub spilled_pages: u64,
    /// The most of them; 0 without a spill file.
    pub spill_limit_pages: u64,
}

impl MemoryFigures {
    /// Pages that are not zeros.
    #[must_use]
    pub const fn content_pages(&self) -> u64 {
        self.same_filled_pages + self.compressed_pages + self.plain_pages + self.spilled_pages
    }
}
