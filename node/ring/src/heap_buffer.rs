//! Page-aligned memory of the process that operations may read or write.
#![allow(unsafe_code)] // an aligned allocation, and the slices over it

use std::alloc::{self, Layout};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

const ALIGNMENT: usize = 4096;

/// Zeroed memory, aligned to 4096 bytes, so that it suits direct I/O.
///
/// [`Ring::read`](crate::Ring::read) and [`Ring::write`](crate::Ring::write) take it and
/// [`Ring::end`](crate::Ring::end) returns it, so the process cannot access it while the kernel may.
pub struct HeapBuffer {
    memory: NonNull<u8>,
    len: usize,
}

// SAFETY: this value alone owns the memory, which is not bound to a thread.
unsafe impl Send for HeapBuffer {}
// SAFETY: a shared reference gives only shared slices. Only an operation writes through `as_raw`, and it owns
// the buffer until it ends.
unsafe impl Sync for HeapBuffer {}

impl HeapBuffer {
    /// Allocates `len_bytes` zeroed bytes.
    ///
    /// # Panics
    /// If `len_bytes` is zero or larger than `u32::MAX`, the most that one operation can move.
    #[must_use]
    pub fn zeroed(len_bytes: usize) -> Self {
        assert!(len_bytes > 0 && u32::try_from(len_bytes).is_ok(), "one operation moves 1..=u32::MAX bytes");
        let layout = Self::layout(len_bytes);
        // SAFETY: the layout's size is not zero, see the assertion above.
        let memory = unsafe { alloc::alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory) else { alloc::handle_alloc_error(layout) };
        Self { memory, len: len_bytes }
    }

    /// Allocates a buffer with these contents.
    #[must_use]
    pub fn from_slice(bytes: &[u8]) -> Self {
        let mut buffer = Self::zeroed(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, ALIGNMENT).expect("at most 4 GiB, aligned to a page")
    }

    #[inline]
    pub(crate) fn as_raw(&self) -> *mut u8 {
        self.memory.as_ptr()
    }
}

impl Drop for HeapBuffer {
    fn drop(&mut self) {
        // SAFETY: `memory` came from `alloc_zeroed` with this same layout and is freed once, here.
        unsafe { alloc::dealloc(self.memory.as_ptr(), Self::layout(self.len)) }
    }
}

impl Deref for HeapBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: this value owns `len` initialised bytes. The kernel cannot access them while the value can
        // be borrowed, because the ring owns the value during an operation.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.len) }
    }
}

impl DerefMut for HeapBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `self` is borrowed uniquely.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.len) }
    }
}

impl std::fmt::Debug for HeapBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeapBuffer").field("len", &self.len).finish_non_exhaustive()
    }
}
