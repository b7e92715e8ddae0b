//! The two files of a memory volume, mapped: its table and its slabs.
#![allow(unsafe_code)] // mmap of files of our own, and atomic words in one of them

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
    /// The kernel's, if it cannot map them.
    ///
    /// # Safety
    /// No other process uses the files, and of the mappings of this one only one at a time. They are never
    /// cut shorter than they are now, the table is allocated, and of the slabs those whose memory was taken:
    /// else the process is killed where it touches them.
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
        // SAFETY: the pointer is to eight bytes that are borrowed here. A mapping begins on a page, and the
        // offset is a multiple of eight.
        let place = unsafe { AtomicU64::from_ptr(bytes.as_mut_ptr().cast()) };
        // The compiler moves no store across, and a process that is killed has made the stores before the one
        // it was at: the processor needs no more.
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
        // Where it fails the memory stays, and is used again.
        let _kept = fallocate(&self.slab_file, hole, from, to - from);
    }
}
