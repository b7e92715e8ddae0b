//! Memory, and bytes of the disk, that a memory volume may take, as its node promises them.
//!
//! The daemon that allocates them has the same sums (`node/daemon/src/node/memory/shape.rs`), by a test there.

/// Bytes of a page.
const PAGE_BYTES: u64 = 4096;
/// Bytes of the table's head.
const HEAD_BYTES: u64 = 4096;
/// Bytes of the table for each page.
const WORD_BYTES: u64 = 8;
/// Bytes of a slab.
const SLAB_BYTES: u64 = 64 << 10;
/// Slabs that may be partly used: one for each length of slots.
const PARTIAL_SLABS: u64 = 64;
/// Bytes of the buffers of a device's requests.
const BUFFER_BYTES: u64 = 8 << 20;

/// The most memory that a memory volume may take, in bytes: the buffers of its requests, its table, and slabs
/// up to its limit, or for any content where it has none.
#[must_use]
pub fn most_memory_bytes(size_bytes: u64, limit_bytes: Option<u64>) -> u64 {
    let pages = size_bytes / PAGE_BYTES;
    let any = (pages * PAGE_BYTES).div_ceil(SLAB_BYTES) + PARTIAL_SLABS;
    let slabs = limit_bytes.map_or(any, |limit| any.min(limit.div_ceil(SLAB_BYTES).max(1)));
    BUFFER_BYTES + HEAD_BYTES + pages * WORD_BYTES + slabs * SLAB_BYTES
}

/// The most bytes of the state disk that pages without memory may take, for a volume that may have `spill_bytes`
/// of it: at most all of its pages. 0 for a volume that may have none.
#[must_use]
pub fn most_spill_bytes(size_bytes: u64, spill_bytes: Option<u64>) -> u64 {
    spill_bytes.map_or(0, |spill| spill.next_multiple_of(PAGE_BYTES).min(size_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spill_file_has_pages_of_the_device_alone() {
        let mib = 1 << 20;
        assert_eq!(most_spill_bytes(8 * mib, None), 0);
        assert_eq!(most_spill_bytes(8 * mib, Some(mib + 1)), mib + 4096);
        assert_eq!(most_spill_bytes(8 * mib, Some(9 * mib)), 8 * mib);
    }

    #[test]
    fn a_limit_bounds_the_memory_and_table_and_buffers_come_on_top() {
        let (gib, table) = (1 << 30, (8 << 20) + (2 << 20) + 4096);
        assert_eq!(most_memory_bytes(gib, None), gib + (4 << 20) + table);
        assert_eq!(most_memory_bytes(gib, Some(256 << 20)), (256 << 20) + table);
        assert_eq!(most_memory_bytes(gib, Some(8 * gib)), gib + (4 << 20) + table, "no content needs more");
    }
}
