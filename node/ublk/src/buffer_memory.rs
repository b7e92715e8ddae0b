//! A queue's memory for the data of requests: one buffer per tag.
//!
//! With kernel copy each tag uses the buffer of the same number: the kernel fills it before it hands out a
//! write, and copies it out when a read is committed.
#![allow(unsafe_code)] // one anonymous mapping, and the slices over it

use std::io;
use std::ptr::NonNull;

/// One anonymous mapping, divided into buffers of `stride` bytes.
#[derive(Debug)]
pub(crate) struct BufferMemory {
    memory: NonNull<u8>,
    stride: usize,
    mapped_bytes: usize,
}

impl BufferMemory {
    /// Maps memory whose pages are allocated on first use.
    pub(crate) fn map(buffers: u16, stride_bytes: u32) -> io::Result<Self> {
        let stride = stride_bytes as usize;
        let mapped_bytes = stride * usize::from(buffers);
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
        // SAFETY: the mapping made above. A huge page per tag would multiply the memory used by small
        // requests; a kernel that ignores the advice does no harm.
        unsafe { libc::madvise(address, mapped_bytes, libc::MADV_NOHUGEPAGE) };
        let memory = NonNull::new(address.cast()).expect("mmap does not return null");
        Ok(Self { memory, stride, mapped_bytes })
    }

    /// Allocates all of the memory now and locks it, so that no copy by the kernel waits for a page.
    pub(crate) fn lock(self) -> Self {
        let address = self.memory.as_ptr().cast();
        // SAFETY: exactly the mapping; only its pages are touched, not their contents.
        let locked = unsafe { libc::mlock(address, self.mapped_bytes) };
        if locked != 0 {
            // Without the right to lock memory, at least allocate the pages. If that fails too, the copies
            // allocate them. SAFETY: as above.
            unsafe { libc::madvise(address, self.mapped_bytes, libc::MADV_POPULATE_WRITE) };
        }
        self
    }

    /// Returns the address of a part of a buffer.
    ///
    /// # Panics
    /// If the part is not inside the buffer.
    #[inline(always)]
    pub(crate) fn address(&self, buffer: u16, offset: usize, len: usize) -> *mut u8 {
        let begin = usize::from(buffer) * self.stride + offset;
        assert!(
            offset + len <= self.stride && begin + len <= self.mapped_bytes,
            "the part lies in the buffer"
        );
        self.memory.as_ptr().wrapping_add(begin)
    }

    /// Returns the first bytes of a buffer that no operation uses.
    #[inline]
    pub(crate) fn bytes(&self, buffer: u16, len: usize) -> &[u8] {
        // SAFETY: the range is in the mapping, which is initialised (zeros at first). With kernel copy the
        // kernel writes to a tag's buffer only while it has the tag.
        unsafe { std::slice::from_raw_parts(self.address(buffer, 0, len), len) }
    }

    /// Like [`bytes`](Self::bytes), for writing.
    #[inline]
    pub(crate) fn bytes_mut(&mut self, buffer: u16, len: usize) -> &mut [u8] {
        // SAFETY: as for `bytes`, and the slice borrows the memory.
        unsafe { std::slice::from_raw_parts_mut(self.address(buffer, 0, len), len) }
    }

    /// Returns a whole buffer.
    #[cfg(feature = "fake")]
    pub(crate) fn whole_mut(&mut self, buffer: u16) -> &mut [u8] {
        self.bytes_mut(buffer, self.stride)
    }
}

impl Drop for BufferMemory {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `map`. The queue drops it only when no operation names this
        // memory, and with kernel copy no tag.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.mapped_bytes) };
    }
}
