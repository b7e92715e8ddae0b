//! The file operations a data path needs, on fixed files only.
#![allow(unsafe_code)] // pushes entries; each says which memory it names and who keeps it

use io_uring::opcode;
use io_uring::types::{FsyncFlags, Timespec};

use crate::{FileSlot, HeapBuffer, Ring, RingOperation};

/// A range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRange {
    /// Start of the range, in bytes from the start of the file.
    pub offset_bytes: u64,
    /// Length of the range, in bytes.
    pub len_bytes: u64,
}

/// A transfer between a file and a part of a fixed buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedTransfer {
    /// The file.
    pub file: FileSlot,
    /// Offset in the file, in bytes.
    pub file_offset_bytes: u64,
    /// Index of the fixed buffer.
    pub buffer_index: u16,
    /// Offset in the buffer, in bytes. For buffers that the kernel registered itself (ublk requests) this is
    /// the offset within the request.
    pub buffer_offset_bytes: u32,
    /// Length of the transfer, in bytes.
    pub len_bytes: u32,
}

/// A length of time that a ring can wait for.
#[derive(Debug)]
pub struct Pause(Timespec);

impl Pause {
    /// Of so many milliseconds, less than a second.
    #[must_use]
    pub const fn millis(millis: u64) -> Self {
        assert!(millis < 1000);
        Self(Timespec::new().nsec(millis as u32 * 1_000_000))
    }
}

impl<T: RingOperation> Ring<T> {
    /// Reads from a file into a fixed buffer that the kernel registered.
    #[inline(always)] // as for `push`
    pub fn read_fixed(&mut self, transfer: &FixedTransfer, operation: T) {
        let &FixedTransfer { file, file_offset_bytes, buffer_index, buffer_offset_bytes, len_bytes } =
            transfer;
        let address = std::ptr::without_provenance_mut(buffer_offset_bytes as usize);
        let entry = opcode::ReadFixed::new(file.fixed(), address, len_bytes, buffer_index)
            .offset(file_offset_bytes)
            .build();
        // SAFETY: the address is an offset in a buffer of the kernel's own; no memory of ours is named.
        unsafe { self.push(entry, operation) };
    }

    /// Writes from a fixed buffer that the kernel registered into a file.
    #[inline(always)] // as for `push`
    pub fn write_fixed(&mut self, transfer: &FixedTransfer, operation: T) {
        let &FixedTransfer { file, file_offset_bytes, buffer_index, buffer_offset_bytes, len_bytes } =
            transfer;
        let address = std::ptr::without_provenance(buffer_offset_bytes as usize);
        let entry = opcode::WriteFixed::new(file.fixed(), address, len_bytes, buffer_index)
            .offset(file_offset_bytes)
            .build();
        // SAFETY: as for `read_fixed`.
        unsafe { self.push(entry, operation) };
    }

    /// Reads a whole buffer from a file. The buffer stays with the ring until the operation has
    /// [ended](Self::end).
    pub fn read(&mut self, file: FileSlot, offset_bytes: u64, buffer: HeapBuffer, operation: T) {
        let (address, len) = (buffer.as_raw(), buffer_len(&buffer));
        let entry = opcode::Read::new(file.fixed(), address, len).offset(offset_bytes).build();
        // SAFETY: the buffer lies beside the operation until its completion was handed out, and is leaked if
        // the ring goes first. Moving a `HeapBuffer` does not move its memory.
        unsafe { self.push_with(entry, operation, buffer) };
    }

    /// Writes a whole buffer to a file; otherwise as [`read`](Self::read).
    pub fn write(&mut self, file: FileSlot, offset_bytes: u64, buffer: HeapBuffer, operation: T) {
        let (address, len) = (buffer.as_raw(), buffer_len(&buffer));
        let entry = opcode::Write::new(file.fixed(), address, len).offset(offset_bytes).build();
        // SAFETY: as for `read`.
        unsafe { self.push_with(entry, operation, buffer) };
    }

    /// Does nothing: its completion comes in a later turn of the thread.
    pub fn no_operation(&mut self, operation: T) {
        let entry = opcode::Nop::new().build();
        // SAFETY: the entry names no memory.
        unsafe { self.push(entry, operation) };
    }

    /// Does nothing: its completion, an error, comes after the pause.
    pub fn pause(&mut self, pause: &'static Pause, operation: T) {
        let entry = opcode::Timeout::new(&raw const pause.0).build();
        // SAFETY: what the entry names is never freed, and never written.
        unsafe { self.push(entry, operation) };
    }

    /// Makes the data of a file durable (`fdatasync`).
    pub fn sync_data(&mut self, file: FileSlot, operation: T) {
        let entry = opcode::Fsync::new(file.fixed()).flags(FsyncFlags::DATASYNC).build();
        // SAFETY: the entry names no memory.
        unsafe { self.push(entry, operation) };
    }

    /// Frees a range of a file, which then reads as zeros; the file keeps its size.
    pub fn punch_hole(&mut self, file: FileSlot, range: FileRange, operation: T) {
        self.fallocate(file, range, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, operation);
    }

    /// Reserves space for a range of a file; what was there stays, what was a hole reads as zeros.
    pub fn allocate(&mut self, file: FileSlot, range: FileRange, operation: T) {
        self.fallocate(file, range, libc::FALLOC_FL_KEEP_SIZE, operation);
    }

    fn fallocate(&mut self, file: FileSlot, range: FileRange, mode: i32, operation: T) {
        let entry = opcode::Fallocate::new(file.fixed(), range.len_bytes)
            .offset(range.offset_bytes)
            .mode(mode)
            .build();
        // SAFETY: the entry names no memory.
        unsafe { self.push(entry, operation) };
    }
}

fn buffer_len(buffer: &HeapBuffer) -> u32 {
    u32::try_from(buffer.len()).expect("a HeapBuffer fits one operation")
}
