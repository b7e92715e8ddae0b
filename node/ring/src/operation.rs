//! The file operations of the data path, on fixed files only.
#![allow(unsafe_code)] // pushes entries; each SAFETY note names their memory and its owner

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

/// Duration of a [`Ring::pause`].
#[derive(Debug)]
pub struct Pause(Timespec);

impl Pause {
    /// Creates a pause of `millis` milliseconds, less than a second.
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
        // SAFETY: the address is an offset in a buffer of the kernel; the entry names no user memory.
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

    /// Reads a whole buffer from a file. The ring owns the buffer until the operation has [ended](Self::end).
    pub fn read(&mut self, file: FileSlot, offset_bytes: u64, buffer: HeapBuffer, operation: T) {
        let (address, len) = (buffer.as_raw(), buffer_len(&buffer));
        let entry = opcode::Read::new(file.fixed(), address, len).offset(offset_bytes).build();
        // SAFETY: the operation table owns the buffer until the completion was handed out, and leaks it if
        // the ring is dropped first. Moving a `HeapBuffer` does not move its memory.
        unsafe { self.push_with(entry, operation, buffer) };
    }

    /// Writes a whole buffer to a file; otherwise as [`read`](Self::read).
    pub fn write(&mut self, file: FileSlot, offset_bytes: u64, buffer: HeapBuffer, operation: T) {
        let (address, len) = (buffer.as_raw(), buffer_len(&buffer));
        let entry = opcode::Write::new(file.fixed(), address, len).offset(offset_bytes).build();
        // SAFETY: as for `read`.
        unsafe { self.push_with(entry, operation, buffer) };
    }

    /// Starts an operation without effect, whose completion comes in a later turn of the thread.
    pub fn no_operation(&mut self, operation: T) {
        let entry = opcode::Nop::new().build();
        // SAFETY: the entry names no memory.
        unsafe { self.push(entry, operation) };
    }

    /// Starts a timer: its completion, which carries an error, comes after the pause.
    pub fn pause(&mut self, pause: &'static Pause, operation: T) {
        let entry = opcode::Timeout::new(&raw const pause.0).build();
        // SAFETY: the entry names a `'static` value, which is never written.
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

    /// Reserves space for a range of a file: data in it stays, holes in it read as zeros.
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
