//! Settings of the heap.
#![allow(unsafe_code)] // mallopt(3)

/// Makes the heap return freed memory to the system. By default, glibc raises the size from which a block has
/// its own mapping to that of the largest freed block, up to 32 MiB. Bodies of uploads then come from the
/// common areas, where a small block that stays, such as a cached index, keeps the memory around it. And
/// glibc has eight of these areas for each processor, which threads that come and go fill one after another.
#[cfg(target_env = "gnu")]
pub(crate) fn return_freed_memory() {
    /// Larger than the buffer of a block.
    const OWN_MAPPING_BYTES: libc::c_int = 512 << 10;
    const FREE_BYTES: libc::c_int = 1 << 20;
    /// Areas, the first one included. No request of a device allocates, so few threads meet in one.
    const AREAS: libc::c_int = 2;
    for (parameter, value) in [
        (libc::M_MMAP_THRESHOLD, OWN_MAPPING_BYTES),
        (libc::M_TRIM_THRESHOLD, FREE_BYTES),
        (libc::M_ARENA_MAX, AREAS),
    ] {
        // SAFETY: the call takes integers. The parameters exist, so it succeeds.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Does nothing: only glibc keeps freed memory in this way.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn return_freed_memory() {}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

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
