//! Memory and disk space that a node reserves for a memory volume.
//!
//! A test in the daemon compares its sums with these (`node/daemon/src/node/memory/shape.rs`).

/// Page size in bytes.
const PAGE_BYTES: u64 = 4096;
/// Bytes of the table's header.
const HEAD_BYTES: u64 = 4096;
/// Bytes of the table per page.
const WORD_BYTES: u64 = 8;
/// Memory slab size in bytes.
const SLAB_BYTES: u64 = 64 << 10;
/// Maximum number of partly used slabs: one per slot length.
const PARTIAL_SLABS: u64 = 64;
/// Bytes of a device's request buffers.
const BUFFER_BYTES: u64 = 8 << 20;

/// Returns the maximum memory of a memory volume in bytes: its request buffers, its table, and slabs up to its limit or,
/// without a limit, for incompressible content.
#[must_use]
pub fn max_memory_bytes(size_bytes: u64, limit_bytes: Option<u64>) -> u64 {
    let pages = size_bytes / PAGE_BYTES;
    let any = (pages * PAGE_BYTES).div_ceil(SLAB_BYTES) + PARTIAL_SLABS;
    let slabs = limit_bytes.map_or(any, |limit| any.min(limit.div_ceil(SLAB_BYTES).max(1)));
    BUFFER_BYTES + HEAD_BYTES + pages * WORD_BYTES + slabs * SLAB_BYTES
}

/// Returns the maximum disk space for a volume's spilled pages in bytes: `spill_bytes`, but at most all of its pages; 0
/// without `spill_bytes`.
#[must_use]
pub fn max_spill_bytes(size_bytes: u64, spill_bytes: Option<u64>) -> u64 {
    spill_bytes.map_or(0, |spill| spill.next_multiple_of(PAGE_BYTES).min(size_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spill_file_has_pages_of_the_device_alone() {
        let mib = 1 << 20;
        assert_eq!(max_spill_bytes(8 * mib, None), 0);
        assert_eq!(max_spill_bytes(8 * mib, Some(mib + 1)), mib + 4096);
        assert_eq!(max_spill_bytes(8 * mib, Some(9 * mib)), 8 * mib);
    }

    #[test]
    fn a_limit_bounds_the_memory_and_table_and_buffers_come_on_top() {
        let (gib, table) = (1 << 30, (8 << 20) + (2 << 20) + 4096);
        assert_eq!(max_memory_bytes(gib, None), gib + (4 << 20) + table);
        assert_eq!(max_memory_bytes(gib, Some(256 << 20)), (256 << 20) + table);
        assert_eq!(max_memory_bytes(gib, Some(8 * gib)), gib + (4 << 20) + table, "no content needs more");
    }
}
