//! The file operations a data path needs, on fixed files only.
#![allow(unsafe_code)] // pushes entries; each says which memory it names and who keeps it

use io_uring::opcode;
use io_uring::types::FsyncFlags;

use crate::{FileSlot, HeapBuffer, Ring, UserData};

/// A range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRange {
    /// Where the range begins, in bytes from the start of the file.
    pub offset_bytes: u64,
    /// How long it is, in bytes.
    pub len_bytes: u64,
}

/// A transfer between a file and a part of a fixed buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedTransfer {
    /// The file.
    pub file: FileSlot,
    /// Where in the file, in bytes.
    pub file_offset_bytes: u64,
    /// Which fixed buffer.
    pub buffer_index: u16,
    /// Where in the buffer, in bytes. For buffers that the kernel registered itself (ublk requests)
    /// this is the offset within the request.
    pub buffer_offset_bytes: u32,
    /// How many bytes.
    pub len_bytes: u32,
    /// Comes back with the completion.
    pub user_data: UserData,
}

impl Ring {
    /// Reads from a file into a fixed buffer that the kernel registered.
    pub fn read_fixed(&mut self, transfer: &FixedTransfer) {
        let &FixedTransfer {
            file,
            file_offset_bytes,
            buffer_index,
            buffer_offset_bytes,
            len_bytes,
            user_data,
        } = transfer;
        let address = std::ptr::without_provenance_mut(buffer_offset_bytes as usize);
        let entry = opcode::ReadFixed::new(file.fixed(), address, len_bytes, buffer_index)
            .offset(file_offset_bytes)
            .build()
            .user_data(user_data.to_bits());
        // SAFETY: the address is an offset in a buffer of the kernel's own; no memory of ours is named.
        unsafe { self.push(entry) };
    }

    /// Writes from a fixed buffer that the kernel registered into a file.
    pub fn write_fixed(&mut self, transfer: &FixedTransfer) {
        let &FixedTransfer {
            file,
            file_offset_bytes,
            buffer_index,
            buffer_offset_bytes,
            len_bytes,
            user_data,
        } = transfer;
        let address = std::ptr::without_provenance(buffer_offset_bytes as usize);
        let entry = opcode::WriteFixed::new(file.fixed(), address, len_bytes, buffer_index)
            .offset(file_offset_bytes)
            .build()
            .user_data(user_data.to_bits());
        // SAFETY: as for `read_fixed`.
        unsafe { self.push(entry) };
    }

    /// Reads a whole buffer from a file. The buffer stays with the ring until
    /// [`reclaim`](Self::reclaim) is given the completion's user data; the ring uses `aux` for that, so
    /// the `aux` of `user_data` is replaced.
    pub fn read(&mut self, file: FileSlot, offset_bytes: u64, buffer: HeapBuffer, user_data: UserData) {
        let (address, len) = (buffer.as_raw(), buffer_len(&buffer));
        let user_data = user_data.with_aux(self.lent.lend(buffer));
        let entry = opcode::Read::new(file.fixed(), address, len)
            .offset(offset_bytes)
            .build()
            .user_data(user_data.to_bits());
        // SAFETY: the buffer lies in `self.lent` until it is reclaimed with the completion's user data,
        // and is leaked if the ring goes first. Moving a `HeapBuffer` does not move its memory.
        unsafe { self.push(entry) };
    }

    /// Writes a whole buffer to a file; otherwise as [`read`](Self::read).
    pub fn write(&mut self, file: FileSlot, offset_bytes: u64, buffer: HeapBuffer, user_data: UserData) {
        let (address, len) = (buffer.as_raw(), buffer_len(&buffer));
        let user_data = user_data.with_aux(self.lent.lend(buffer));
        let entry = opcode::Write::new(file.fixed(), address, len)
            .offset(offset_bytes)
            .build()
            .user_data(user_data.to_bits());
        // SAFETY: as for `read`.
        unsafe { self.push(entry) };
    }

    /// Does nothing: its completion comes in a later turn of the thread.
    pub fn no_operation(&mut self, user_data: UserData) {
        let entry = opcode::Nop::new().build().user_data(user_data.to_bits());
        // SAFETY: the entry names no memory.
        unsafe { self.push(entry) };
    }

    /// Makes the data of a file durable (`fdatasync`).
    pub fn sync_data(&mut self, file: FileSlot, user_data: UserData) {
        let entry = opcode::Fsync::new(file.fixed())
            .flags(FsyncFlags::DATASYNC)
            .build()
            .user_data(user_data.to_bits());
        // SAFETY: the entry names no memory.
        unsafe { self.push(entry) };
    }

    /// Frees a range of a file, which then reads as zeros; the file keeps its size.
    pub fn punch_hole(&mut self, file: FileSlot, range: FileRange, user_data: UserData) {
        self.fallocate(file, range, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, user_data);
    }

    /// Reserves space for a range of a file; what was there stays, what was a hole reads as zeros.
    pub fn allocate(&mut self, file: FileSlot, range: FileRange, user_data: UserData) {
        self.fallocate(file, range, libc::FALLOC_FL_KEEP_SIZE, user_data);
    }

    fn fallocate(&mut self, file: FileSlot, range: FileRange, mode: i32, user_data: UserData) {
        let entry = opcode::Fallocate::new(file.fixed(), range.len_bytes)
            .offset(range.offset_bytes)
            .mode(mode)
            .build()
            .user_data(user_data.to_bits());
        // SAFETY: the entry names no memory.
        unsafe { self.push(entry) };
    }
}

fn buffer_len(buffer: &HeapBuffer) -> u32 {
    u32::try_from(buffer.len()).expect("a HeapBuffer fits one operation")
}
