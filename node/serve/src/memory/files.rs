//! The two mapped files of a memory volume: its table and its slabs.
#![allow(unsafe_code)] // mmap of files of the process, and atomic words in one of them

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use holdfast_memory::pool::SLAB_BYTES;
use holdfast_memory::{HEAD_BYTES, NoRoom, PageMemory};
use memmap2::{MmapMut, MmapOptions};
use rustix::fs::{FallocateFlags, fallocate};

/// The memory of a volume: files in a tmpfs.
#[derive(Debug)]
pub struct MemoryFiles {
    table: MmapMut,
    slabs: MmapMut,
    slab_file: File,
}

impl MemoryFiles {
    /// Maps the files.
    ///
    /// # Errors
    /// Error of the kernel, if it cannot map them.
    ///
    /// # Safety
    /// No other process uses the files, and this one uses one mapping at a time. The files are never
    /// truncated. The table is allocated, and so are the slabs whose memory was taken: otherwise an access to
    /// them makes the kernel kill the process.
    pub unsafe fn map(table: &File, slab_file: File, slabs: u32) -> io::Result<Self> {
        let len = slabs as usize * SLAB_BYTES;
        // SAFETY: the caller's promise.
        let table = unsafe { MmapMut::map_mut(table) }?;
        // SAFETY: the caller's promise.
        let slabs = unsafe { MmapOptions::new().len(len).map_mut(&slab_file) }?;
        Ok(Self { table, slabs, slab_file })
    }

    fn at(page: u64) -> usize {
        HEAD_BYTES + usize::try_from(page).expect("the table is mapped") * size_of::<u64>()
    }

    fn range(offset: u64, len: usize) -> Range<usize> {
        let from = usize::try_from(offset).expect("the slabs are mapped");
        from..from + len
    }
}

impl PageMemory for MemoryFiles {
    fn word(&self, page: u64) -> u64 {
        let at = Self::at(page);
        let bytes = &self.table[at..at + size_of::<u64>()];
        u64::from_le_bytes(std::array::from_fn(|byte| bytes[byte]))
    }

    fn set_word(&mut self, page: u64, word: u64) {
        let at = Self::at(page);
        let bytes = &mut self.table[at..at + size_of::<u64>()];
        // SAFETY: the pointer is to eight bytes that are borrowed here. A mapping begins at a page boundary,
        // and the offset is a multiple of eight.
        let place = unsafe { AtomicU64::from_ptr(bytes.as_mut_ptr().cast()) };
        // The compiler moves no store across these fences. The processor needs no fence, because a killed
        // process has executed all stores before its last one.
        compiler_fence(Ordering::SeqCst);
        place.store(word.to_le(), Ordering::Release);
        compiler_fence(Ordering::SeqCst);
    }

    fn bytes(&self, offset: u64, len: usize) -> &[u8] {
        &self.slabs[Self::range(offset, len)]
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.slabs[Self::range(offset, bytes.len())].copy_from_slice(bytes);
    }

    fn take_slab(&mut self, slab: u32) -> Result<(), NoRoom> {
        let offset = u64::from(slab) * SLAB_BYTES as u64;
        fallocate(&self.slab_file, FallocateFlags::KEEP_SIZE, offset, SLAB_BYTES as u64)
            .map_err(|_full| NoRoom)
    }

    fn give_back(&mut self, slabs: Range<u32>) {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let [from, to] = [slabs.start, slabs.end].map(|slab| u64::from(slab) * SLAB_BYTES as u64);
        // On failure the memory stays allocated, and is used again.
        let _kept = fallocate(&self.slab_file, hole, from, to - from);
    }
}
