//! A buffer that multishot operations fill piece by piece.
//!
//! ```text
//!   provided            piece 1   piece 2               used up: the operation ends with ENOBUFS
//!   |..................|#######|.........|####...|    |##############################|
//!                      ^ taken            ^ taken                                     refill
//! ```
//!
//! The kernel keeps its position in the entry of the buffer (`IOU_PBUF_RING_INC`, Linux 6.12): it advances
//! the address by each piece, and sets the length to zero with the last.
//!
//! *Owns*: the memory of the pieces, and the page through which it is provided, the only one of its group.
//! *Invariants*: a piece is read between its completion and the next refill; until then the kernel writes
//! only after it.
#![allow(unsafe_code)] // fields that the kernel writes too, and the entry of an operation

use std::ops::Range;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::squeue::{Entry, Flags};
use io_uring::types::BufRingEntry;

use crate::HeapBuffer;

/// Bytes of the page with the entry, which the kernel pins.
const PAGE_BYTES: usize = 4096;

/// A buffer of a ring, in a group of its own. Return it with
/// [`Ring::withdraw_buffer`](crate::Ring::withdraw_buffer), or leave it in the ring until the ring ends.
pub struct ProvidedBuffer {
    group: u16,
    /// Page with the entry and the number of times that it was provided.
    page: HeapBuffer,
    memory: HeapBuffer,
    taken_bytes: usize,
}

impl ProvidedBuffer {
    /// Allocates a buffer that is not provided to the kernel yet.
    pub(crate) fn new(group: u16, len_bytes: usize) -> Self {
        Self {
            group,
            page: HeapBuffer::zeroed(PAGE_BYTES),
            memory: HeapBuffer::zeroed(len_bytes),
            taken_bytes: 0,
        }
    }

    pub(crate) fn page_address(&self) -> u64 {
        self.page.as_raw().expose_provenance() as u64
    }

    /// Returns the number of its group.
    #[must_use]
    pub const fn group(&self) -> u16 {
        self.group
    }

    fn entry(&self) -> *mut BufRingEntry {
        self.page.as_raw().cast()
    }

    /// Provides the whole buffer to the kernel.
    pub(crate) fn provide(&mut self) {
        let address = self.memory.as_raw().expose_provenance() as u64;
        let len_bytes = u32::try_from(self.memory.len()).expect("a buffer is smaller than 4 GiB");
        // SAFETY: the page begins with the entry. No operation uses the buffer, so neither does the kernel.
        let entry = unsafe { &mut *self.entry() };
        entry.set_addr(address);
        entry.set_len(len_bytes);
        // SAFETY: the entry is initialised, and the first of its page.
        let number = unsafe { BufRingEntry::tail(self.entry()) };
        // SAFETY: the field is aligned, lives as long as the page, and is written only here.
        let number = unsafe { AtomicU16::from_ptr(number.cast_mut()) };
        number.store(number.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        self.taken_bytes = 0;
    }

    /// Takes the piece of a completion. Returns its range in the buffer.
    ///
    /// # Panics
    /// If the piece ends after the buffer.
    #[inline]
    pub fn take(&mut self, len_bytes: u32) -> Range<usize> {
        let begin = self.taken_bytes;
        self.taken_bytes += len_bytes as usize;
        assert!(self.taken_bytes <= self.memory.len(), "the kernel fills only the provided buffer");
        begin..self.taken_bytes
    }

    /// Reads a 16-bit number at an offset in the buffer.
    ///
    /// # Panics
    /// If the number is not within taken pieces.
    #[inline]
    #[must_use]
    pub fn number_at(&self, at: usize) -> u16 {
        assert!(at + 2 <= self.taken_bytes, "the number is in a taken piece");
        let place = self.memory.as_raw().wrapping_add(at).cast::<u16>();
        // SAFETY: both bytes are in a piece, so in the memory. The kernel wrote them before it posted the
        // completion of the piece, and not since.
        unsafe { place.read_unaligned() }
    }

    /// Prepares the buffer for the next operation after one found no room: provides the whole buffer again if
    /// it is used up. Otherwise the kernel had no room for a completion, and its piece is skipped.
    ///
    /// Must not be called while an operation uses the buffer.
    pub fn refill(&mut self) {
        // SAFETY: as for `provide`.
        let entry = unsafe { &*self.entry() };
        if entry.len() == 0 {
            self.provide();
        } else {
            let at = entry.addr() - self.memory.as_raw().expose_provenance() as u64;
            self.taken_bytes = usize::try_from(at).expect("an address in the buffer");
        }
    }

    /// Turns the entry of a command into a multishot one that fills this buffer.
    #[must_use]
    pub fn filled_by(&self, command: Entry) -> Entry {
        /// `uring_cmd_flags` and `buf_group` of `struct io_uring_sqe`.
        const COMMAND_FLAGS_AT: usize = 28;
        const GROUP_AT: usize = 40;
        /// `IORING_URING_CMD_MULTISHOT` in `linux/io_uring.h`.
        const MULTISHOT: u32 = 1 << 1;
        let mut command = command.flags(Flags::BUFFER_SELECT);
        let bytes = (&raw mut command).cast::<u8>();
        let (flags, group) = (bytes.wrapping_add(COMMAND_FLAGS_AT), bytes.wrapping_add(GROUP_AT));
        // SAFETY: an entry is 64 bytes of plain numbers.
        unsafe { flags.cast::<u32>().write_unaligned(MULTISHOT) };
        // SAFETY: as above.
        unsafe { group.cast::<u16>().write_unaligned(self.group) };
        command
    }
}

impl std::fmt::Debug for ProvidedBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProvidedBuffer")
            .field("group", &self.group)
            .field("taken_bytes", &self.taken_bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Changes the entry for a piece as the kernel does (`io_kbuf_inc_commit` in `io_uring/kbuf.c`).
    fn fill(buffer: &ProvidedBuffer, bytes: u32) {
        // SAFETY: no ring has the buffer of the entry.
        let entry = unsafe { &mut *buffer.entry() };
        let left = entry.len() - bytes;
        entry.set_len(left);
        if left > 0 {
            entry.set_addr(entry.addr() + u64::from(bytes));
        }
    }

    fn number(buffer: &ProvidedBuffer) -> u16 {
        // SAFETY: as above.
        let number = unsafe { BufRingEntry::tail(buffer.entry()) };
        // SAFETY: the field is aligned, and no kernel has the page.
        unsafe { *number }
    }

    /// The kernel may find no room for a completion after it filled a piece: `ublk_drv` then hands over its
    /// tags again.
    #[test]
    fn a_piece_without_completion_is_left_out() {
        let mut buffer = ProvidedBuffer::new(7, 16);
        buffer.provide();
        fill(&buffer, 4);
        assert_eq!(buffer.take(4), 0..4);
        fill(&buffer, 6);
        buffer.refill();
        assert_eq!(number(&buffer), 1, "the rest of it is still the kernel's");
        fill(&buffer, 2);
        assert_eq!(buffer.take(2), 10..12);
        fill(&buffer, 4);
        assert_eq!(buffer.take(4), 12..16);
        buffer.refill();
        assert_eq!((number(&buffer), buffer.take(16)), (2, 0..16));
    }

    #[test]
    #[should_panic(expected = "the kernel fills only the provided buffer")]
    fn a_piece_behind_the_end_is_a_bug_that_shows() {
        let mut buffer = ProvidedBuffer::new(7, 16);
        buffer.provide();
        buffer.take(18);
    }
}
