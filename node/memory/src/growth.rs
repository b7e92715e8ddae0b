//! Growth of a memory volume.

use crate::pool::PoolExtension;

/// A larger size, and higher limits, of a volume that is served.
#[derive(Debug)]
pub struct MemoryGrowth<M> {
    /// The volume's memory, with room for as many pages and slabs: what it has shows in both from now on.
    pub memory: M,
    /// Pages of the volume; those that are new are zeros.
    pub pages: u64,
    /// Slabs that it may have in addition.
    pub slabs: PoolExtension,
    /// Pages that its spill file may have.
    pub spill_pages: u64,
}
