//! The memory through which user copy moves data: one buffer for each request that the owner has.
//!
//! A request gets the buffer that was returned last, so a queue keeps reusing as much memory as it has
//! concurrent requests; with one buffer per tag it would eventually touch all of it.
//!
//! The copies are system calls of the ring thread: the character device does not support non-blocking I/O, so
//! the ring would hand each copy to a worker thread (`docs/adr/0002-user-copy.md`).
#![allow(unsafe_code)] // slices over the buffers

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::buffer_memory::BufferMemory;

/// One buffer per tag of the queue, and the tags that use them.
#[derive(Debug)]
pub(crate) struct CopyBuffers {
    memory: BufferMemory,
    /// The buffer of each tag that has one.
    of_tag: Vec<Option<u16>>,
    /// The unused buffers; the last is the next to be used.
    free: Vec<u16>,
}

/// A part of the buffer of a tag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferPart {
    pub(crate) tag: u16,
    pub(crate) offset_bytes: u32,
    pub(crate) len_bytes: u32,
}

impl CopyBuffers {
    pub(crate) fn map(depth: u16, stride_bytes: u32) -> io::Result<Self> {
        let memory = BufferMemory::map(depth, stride_bytes)?;
        let of_tag = vec![None; usize::from(depth)];
        let free = (0..depth).rev().collect();
        Ok(Self { memory, of_tag, free })
    }

    /// Assigns an unused buffer to a tag.
    ///
    /// # Panics
    /// If the tag has a buffer.
    #[inline]
    pub(crate) fn lend(&mut self, tag: u16) {
        let buffer = self.free.pop().expect("there are as many buffers as tags");
        let before = self.of_tag[usize::from(tag)].replace(buffer);
        assert!(before.is_none(), "a tag has one request at a time");
    }

    /// Returns true if a tag has a buffer.
    #[inline]
    pub(crate) fn has(&self, tag: u16) -> bool {
        self.of_tag[usize::from(tag)].is_some()
    }

    /// Takes a tag's buffer back, if it has one.
    #[inline]
    pub(crate) fn take_back(&mut self, tag: u16) {
        self.free.extend(self.of_tag[usize::from(tag)].take());
    }

    /// Returns the address of a part of a tag's buffer.
    ///
    /// # Panics
    /// If the tag has no buffer, or the part is not inside it.
    #[inline]
    pub(crate) fn address(&self, part: BufferPart) -> *mut u8 {
        let BufferPart { tag, offset_bytes, len_bytes } = part;
        let buffer = self.of_tag[usize::from(tag)].expect("a request with data has a buffer");
        self.memory.address(buffer, offset_bytes as usize, len_bytes as usize)
    }

    /// Returns a part of a tag's buffer.
    pub(crate) fn part(&self, part: BufferPart) -> &[u8] {
        let address = self.address(part);
        // SAFETY: the range is in the mapping, which is initialised (zeros at first). The tag is with the
        // owner, which has no operation on it in flight.
        unsafe { std::slice::from_raw_parts(address, part.len_bytes as usize) }
    }

    /// Like [`part`](Self::part), for writing.
    pub(crate) fn part_mut(&mut self, part: BufferPart) -> &mut [u8] {
        let address = self.address(part);
        // SAFETY: as for `part`, and the slice borrows the buffers.
        unsafe { std::slice::from_raw_parts_mut(address, part.len_bytes as usize) }
    }

    /// Copies a part of a write request's memory into the tag's buffer. Returns false if it copied less.
    pub(crate) fn copy_in(&self, char_file: &File, part: BufferPart, position: u64) -> bool {
        let len_bytes = part.len_bytes as usize;
        let address = self.address(part);
        // SAFETY: the range is in the mapping, which is initialised (zeros at first). The tag is with the
        // owner and this part of it is not yet in flight, so nothing else touches the range.
        let buffer = unsafe { std::slice::from_raw_parts_mut(address, len_bytes) };
        matches!(char_file.read_at(buffer, position), Ok(copied) if copied == len_bytes)
    }

    /// Copies the tag's buffer into a read request's memory. Returns false if it copied less.
    pub(crate) fn copy_out(&self, char_file: &File, tag: u16, len_bytes: u32, position: u64) -> bool {
        let address = self.address(BufferPart { tag, offset_bytes: 0, len_bytes });
        // SAFETY: as for `copy_in`; all parts have completed.
        let buffer = unsafe { std::slice::from_raw_parts(address, len_bytes as usize) };
        matches!(char_file.write_at(buffer, position), Ok(copied) if copied == len_bytes as usize)
    }
}
