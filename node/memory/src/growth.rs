//! Growth of a memory volume.

use crate::pool::PoolExtension;

/// Larger size and higher limits of a volume that is served.
#[derive(Debug)]
pub struct MemoryGrowth<M> {
    /// The volume's memory with room for these pages and slabs; it has the same content as the present one.
    pub memory: M,
    /// Pages of the volume; the new ones are zeros.
    pub pages: u64,
    /// Slabs that the volume may use in addition.
    pub slabs: PoolExtension,
    /// Maximum number of pages of its spill file.
    pub spill_pages: u64,
}
