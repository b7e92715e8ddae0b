//! Settings of the heap.
#![allow(unsafe_code)] // mallopt(3), malloc_trim(3)

/// Makes the heap return freed memory to the system. By default, glibc raises the size from which a block has
/// its own mapping to that of the largest freed block, up to 32 MiB. Bodies of uploads then come from the
/// common areas, where a small block that stays, such as a cached index, keeps the memory around it.
#[cfg(target_env = "gnu")]
pub(crate) fn return_freed_memory() {
    /// Larger than the buffer of a block.
    const OWN_MAPPING_BYTES: libc::c_int = 512 << 10;
    const FREE_BYTES: libc::c_int = 1 << 20;
    for (parameter, bytes) in
        [(libc::M_MMAP_THRESHOLD, OWN_MAPPING_BYTES), (libc::M_TRIM_THRESHOLD, FREE_BYTES)]
    {
        // SAFETY: the call takes integers. Both parameters exist, so it succeeds.
        unsafe { libc::mallopt(parameter, bytes) };
    }
}

/// Returns the free pages between blocks in use, too: the buffers of uploads and the cached indexes come from
/// the same areas. Takes milliseconds, for which it locks one area after the other.
#[cfg(target_env = "gnu")]
pub(crate) fn trim() {
    // SAFETY: the call has no preconditions.
    unsafe { libc::malloc_trim(0) };
}

/// Does nothing: only glibc keeps freed memory in this way.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn return_freed_memory() {}

/// Does nothing, likewise.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn trim() {}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    /// Found in a long run: after each upload, indexes that stayed kept more of its freed memory.
    #[test]
    fn pages_between_blocks_in_use_are_returned() {
        let resident = || {
            let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
            pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
        };
        // Smaller than a block with its own mapping; each small one keeps the place before it.
        let (blocks, kept): (Vec<_>, Vec<_>) =
            (0..3072).map(|_| (vec![1_u8; 64 << 10], vec![1_u8; 1 << 10])).unzip();
        drop(blocks);
        let before = resident();
        trim();
        assert!(resident() + (64 << 20) < before, "{before} and {}", resident());
        drop(kept);
    }

    /// Found in a long run: memory of uploads that had ended stayed with the daemon, about 100 MiB.
    #[test]
    fn blocks_have_their_own_mappings_after_a_larger_one_was_freed() {
        return_freed_memory();
        drop(vec![1_u8; 16 << 20]);
        // SAFETY: the call only reads statistics.
        let mappings = || unsafe { libc::mallinfo2() }.hblks;
        let before = mappings();
        let blocks: Vec<_> = (0..64).map(|_| vec![1_u8; 1 << 20]).collect();
        // Other tests free a few meanwhile.
        assert!(mappings() >= before + blocks.len() / 2, "{before} and {}", mappings());
    }
}
