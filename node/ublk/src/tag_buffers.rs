//! The memory through which user copy moves data: one buffer for each tag.
#![allow(unsafe_code)] // one anonymous mapping

use std::io;
use std::ptr::NonNull;

/// One anonymous mapping, cut into a buffer of `stride` bytes for each tag. Pages come into being when
/// they are first used.
#[derive(Debug)]
pub(crate) struct TagBuffers {
    memory: NonNull<u8>,
    stride: usize,
    mapped_bytes: usize,
}

impl TagBuffers {
    pub(crate) fn map(depth: u16, stride_bytes: u32) -> io::Result<Self> {
        let stride = stride_bytes as usize;
        let mapped_bytes = stride * usize::from(depth);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped_bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let memory = NonNull::new(address.cast()).expect("mmap does not return null");
        Ok(Self { memory, stride, mapped_bytes })
    }

    /// The address of a part of a tag's buffer.
    ///
    /// # Panics
    /// If the part does not lie inside the buffer of that tag.
    pub(crate) fn address(&self, tag: u16, offset_bytes: u32, len_bytes: u32) -> *mut u8 {
        let (offset, len) = (offset_bytes as usize, len_bytes as usize);
        let begin = usize::from(tag) * self.stride + offset;
        assert!(
            offset + len <= self.stride && begin + len <= self.mapped_bytes,
            "the part lies in the buffer"
        );
        self.memory.as_ptr().wrapping_add(begin)
    }
}

impl Drop for TagBuffers {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `map`. The queue drops it only when no request is with its
        // owner, so no operation that names this memory is in flight.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.mapped_bytes) };
    }
}
