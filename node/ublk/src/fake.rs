//! A device without the driver, for counting the cost of requests on machines without it.
//!
//! *Owns*: the descriptors of its requests and their memory. Commands go to `/dev/null`, which completes each
//! of them at once, as the driver does if a request is waiting; copies go to `/dev/zero`.
//! *Runs on*: the thread of its ring.
//! *Invariants*: the memory stays registered with the ring until the process exits.
#![allow(unsafe_code)] // mappings, and io_uring_register(2)

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use holdfast_ring::Ring;
use libublk::sys;

use crate::char_device::FakeFiles;
use crate::fake_tags::{FakeTags, FakeTagsIn};
use crate::{CharDevice, KERNEL_SECTORS_PER_SECTOR, Operation};

/// A request for the device to hand out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FakeRequest {
    /// Its kind.
    pub operation: Operation,
    /// First sector (of 4096 bytes).
    pub start_sector: u64,
    /// Number of sectors (of 4096 bytes).
    pub sectors: u32,
}

/// Address of the memory of the next device, below 4 GiB because positions in a buffer have 32 bits.
static MEMORY_AT: AtomicU32 = AtomicU32::new(0x7000_0000);

/// A device without the driver, with one queue.
#[derive(Debug)]
pub struct FakeDevice {
    depth: u16,
    descriptors: File,
    first: *mut sys::ublksrv_io_desc,
    buffers_at: u32,
    buffer_bytes: usize,
    /// The pipe of tags, with batches.
    tags: Option<(FakeTags, FakeTagsIn)>,
}

impl FakeDevice {
    /// An operation that does not exist.
    const UNKNOWN: u32 = 0xff;
    /// `struct io_uring_rsrc_update2` in `linux/io_uring.h`.
    const REGISTER_BUFFERS_UPDATE: libc::c_uint = 16;

    /// Creates a device of `depth` requests of at most `max_io_bytes`, with batches or one command per tag.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(depth: u16, max_io_bytes: u32, has_batches: bool) -> io::Result<Self> {
        // SAFETY: the name is a C string; the result is checked below.
        let raw = unsafe { libc::memfd_create(c"descriptors".as_ptr(), libc::MFD_CLOEXEC) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a file descriptor that was just made and has no other owner.
        let descriptors = unsafe { File::from_raw_fd(raw) };
        let bytes = (usize::from(depth) * size_of::<sys::ublksrv_io_desc>()).next_multiple_of(4096);
        descriptors.set_len(bytes as u64)?;
        // SAFETY: a new mapping at an address of the kernel's choice, of a file of this length.
        let first = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, descriptors.as_raw_fd(), 0)
        };
        if first == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let buffers_at = MEMORY_AT.fetch_add(max_io_bytes, Ordering::Relaxed);
        let buffer_bytes = max_io_bytes as usize;
        let tags = has_batches.then(FakeTags::new).transpose()?;
        Ok(Self { depth, descriptors, first: first.cast(), buffers_at, buffer_bytes, tags })
    }

    /// Returns the character device, for the queue.
    ///
    /// # Errors
    /// The kernel's.
    pub fn char_device(&self) -> io::Result<CharDevice> {
        let open = |path| OpenOptions::new().read(true).write(true).open(path);
        let commands = open("/dev/null")?;
        let descriptors = self.descriptors.try_clone()?;
        let tags = self.tags.as_ref().map(|(tags, _in)| tags.clone());
        let fake = FakeFiles { commands, descriptors, buffers_at: self.buffers_at, tags };
        Ok(CharDevice::fake(open("/dev/zero")?, fake))
    }

    /// Returns the memory of its requests.
    #[must_use]
    pub const fn memory(&self) -> FakeMemory {
        FakeMemory { depth: self.depth, at: self.buffers_at, bytes: self.buffer_bytes }
    }

    /// Hands over tags whose requests were [set](Self::set), with batches. Without, each commit hands over
    /// its tag.
    ///
    /// # Errors
    /// The kernel's.
    pub fn hand_over(&mut self, tags: &[u16]) -> io::Result<()> {
        self.tags.as_mut().map_or(Ok(()), |(_, end)| end.write(tags))
    }

    /// Sets the request that each fetch or commit of a tag returns from now on. With `None`, it returns a
    /// request of an unknown kind, which the queue refuses each time; with batches, it returns none.
    ///
    /// # Panics
    /// If the tag is not below the queue's depth.
    pub fn set(&mut self, tag: u16, request: Option<FakeRequest>) {
        assert!(tag < self.depth, "tag {tag} is below the queue's depth");
        // SAFETY: the mapping has `depth` descriptors.
        let place = unsafe { self.first.add(usize::from(tag)) };
        // SAFETY: as above, and each bit pattern is a valid descriptor.
        let mut descriptor = unsafe { place.read_volatile() };
        descriptor.op_flags = Self::UNKNOWN;
        if let Some(FakeRequest { operation, start_sector, sectors }) = request {
            descriptor.op_flags = match operation {
                Operation::Read => sys::UBLK_IO_OP_READ,
                Operation::Write => sys::UBLK_IO_OP_WRITE,
                Operation::Flush => sys::UBLK_IO_OP_FLUSH,
                Operation::Discard => sys::UBLK_IO_OP_DISCARD,
                Operation::WriteZeroes => sys::UBLK_IO_OP_WRITE_ZEROES,
            };
            descriptor.nr_sectors = sectors * KERNEL_SECTORS_PER_SECTOR as u32;
            descriptor.start_sector = start_sector * KERNEL_SECTORS_PER_SECTOR;
        }
        // SAFETY: as above; the queue reads it on this thread.
        unsafe { place.write_volatile(descriptor) };
    }
}

/// The memory that all requests of a fake device share.
#[derive(Clone, Copy, Debug)]
pub struct FakeMemory {
    depth: u16,
    at: u32,
    bytes: usize,
}

impl FakeMemory {
    /// Registers the memory of requests with a ring, as the driver does for each request. This device's queue
    /// must have the first buffers of the ring.
    ///
    /// # Errors
    /// The kernel's.
    pub fn register<T>(&self, ring: &Ring<T>) -> io::Result<()> {
        let memory = self.map(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, None)?;
        self.register_buffers(ring, 0, &vec![memory; usize::from(self.depth)])
    }

    /// Registers memory that no two requests share: that of a tag is the part of `memory`, a file in memory,
    /// that begins at the tag times the longest request. This device's queue must have the first buffers of
    /// the ring.
    ///
    /// # Errors
    /// The kernel's.
    pub fn register_apart<T>(&self, ring: &Ring<T>, memory: &File) -> io::Result<()> {
        for tag in 0..self.depth {
            let mapped = self.map(libc::MAP_SHARED, Some((memory, u64::from(tag) * self.bytes as u64)))?;
            self.register_buffers(ring, tag.into(), &[mapped])?;
            // SAFETY: it was just mapped, and no reference to it was made. The ring holds its pages, to which
            // transfers refer by the address that they had.
            if unsafe { libc::munmap(mapped.iov_base, mapped.iov_len) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }

    /// Returns the position at which the memory of a request begins in its buffer.
    #[must_use]
    pub const fn begins_at(&self) -> u32 {
        self.at
    }

    /// Maps the memory of a request: new memory, or a part of a file.
    fn map(&self, flags: libc::c_int, from: Option<(&File, u64)>) -> io::Result<libc::iovec> {
        let (file, offset) = from.map_or((-1, 0), |(file, offset)| (file.as_raw_fd(), offset as libc::off_t));
        // SAFETY: no other mapping has the address, or the call fails.
        let memory = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let flags = flags | libc::MAP_FIXED_NOREPLACE;
            let at = std::ptr::without_provenance_mut(self.at as usize);
            libc::mmap(at, self.bytes, access, flags, file, offset)
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(libc::iovec { iov_base: memory, iov_len: self.bytes })
    }

    /// Registers these buffers at this index and those after it.
    fn register_buffers<T>(&self, ring: &Ring<T>, first: u32, buffers: &[libc::iovec]) -> io::Result<()> {
        // offset, reserved, address of the buffers, no tags, number of buffers, reserved.
        let update = [u64::from(first), buffers.as_ptr().addr() as u64, 0, buffers.len() as u64];
        // SAFETY: the kernel reads the update and the buffers during the call; it holds the memory itself.
        let updated = unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                ring.as_raw_fd(),
                FakeDevice::REGISTER_BUFFERS_UPDATE,
                update.as_ptr(),
                size_of_val(&update),
            )
        };
        if updated < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
