//! Memory that keepers and servers map at the same address: heads and payloads of the ring's entries, the
//! last step of a server. The kernel gets addresses in it, and uses them in the submitting task.
#![allow(unsafe_code)] // memory shared by processes and the kernel

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::ring::Params;

/// Entries of each queue.
pub(crate) const DEPTH: usize = 32;
/// The kernel's `max_payload_sz` for requests of at most 256 pages.
pub(crate) const PAYLOAD_BYTES: usize = 1 << 20;
const BASE: usize = 0x1000_0000_0000;
const PAGE: usize = 4096;
/// Offset of the ring's parameters in the first page.
const PARAMS: usize = 1024;
/// Offsets in the page of an entry: `struct fuse_uring_req_header`, then ours.
pub(crate) const OPERATION: usize = 128;
pub(crate) const RING_FLAGS: usize = 256;
pub(crate) const COMMIT_ID: usize = 264;
pub(crate) const PAYLOAD_LEN: usize = 272;
pub(crate) const PAYLOAD_OFFSET: usize = 276;
pub(crate) const HEADER_BYTES: usize = 288;
/// Offsets of the `unique` of the answered request, the length of the answer, and the answer.
pub(crate) const ANSWERED: usize = 1024;
pub(crate) const ANSWER_LEN: usize = 1032;
pub(crate) const ANSWER: usize = 1040;
/// Offset of two `struct iovec`.
pub(crate) const VECTORS: usize = 3072;

/// The memory of this number of entries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedMemory {
    entries: usize,
}

/// The first page.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SharedHead {
    /// A server's last step turned the completions from here
    step_head: AtomicU32,
    /// to here
    step_next_head: AtomicU32,
    /// into the submissions before this number.
    step_tail: AtomicU32,
    /// Not 0: the kernel has the entries.
    pub(crate) ready: AtomicU32,
}

impl SharedMemory {
    /// Creates the memory. Started processes inherit the file.
    pub(crate) fn create(queues: usize) -> io::Result<(Self, File)> {
        // SAFETY: the name is a C string.
        let raw = unsafe { libc::memfd_create(c"ring".as_ptr(), 0) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a file descriptor that was just made and has no other owner.
        let file = unsafe { File::from_raw_fd(raw) };
        let memory = Self { entries: queues * DEPTH };
        file.set_len(memory.len_bytes() as u64)?;
        memory.map(&file)?;
        Ok((memory, file))
    }

    pub(crate) fn open(file: &File) -> io::Result<Self> {
        let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let memory = Self { entries: (len - PAGE) / (PAGE + PAYLOAD_BYTES) };
        memory.map(file)?;
        Ok(memory)
    }

    fn len_bytes(self) -> usize {
        PAGE + self.entries * (PAGE + PAYLOAD_BYTES)
    }

    fn map(self, file: &File) -> io::Result<()> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE | libc::MAP_POPULATE;
        // SAFETY: a new mapping at a free address, or the call fails.
        let at = unsafe { libc::mmap(BASE as *mut _, self.len_bytes(), access, kind, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    pub(crate) fn entries(self) -> usize {
        self.entries
    }

    pub(crate) fn head(self) -> &'static SharedHead {
        let at = ptr::with_exposed_provenance::<SharedHead>(BASE);
        // SAFETY: the first page begins with the head, and is never unmapped.
        unsafe { &*at }
    }

    /// Reads the ring's parameters, which the ring's creator has written.
    pub(crate) fn params(self) -> Params {
        let at = ptr::with_exposed_provenance::<Params>(BASE + PARAMS);
        // SAFETY: an aligned place in the first page; any bytes are parameters.
        unsafe { at.read_volatile() }
    }

    pub(crate) fn set_params(self, params: Params) {
        let at = ptr::with_exposed_provenance_mut::<Params>(BASE + PARAMS);
        // SAFETY: as in `params`.
        unsafe { at.write_volatile(params) };
    }

    pub(crate) fn header(self, entry: usize) -> usize {
        assert!(entry < self.entries, "entry {entry}");
        BASE + PAGE + entry * PAGE
    }

    pub(crate) fn payload(self, entry: usize) -> usize {
        assert!(entry < self.entries, "entry {entry}");
        BASE + PAGE + self.entries * PAGE + entry * PAYLOAD_BYTES
    }

    pub(crate) fn get<T: Copy>(self, entry: usize, offset: usize) -> T {
        let at = ptr::with_exposed_provenance::<T>(self.header(entry) + offset);
        // SAFETY: an aligned place in the page of the entry; `T` is an integer or an array of such.
        unsafe { at.read_volatile() }
    }

    pub(crate) fn set<T: Copy>(self, entry: usize, offset: usize, value: T) {
        let at = ptr::with_exposed_provenance_mut::<T>(self.header(entry) + offset);
        // SAFETY: as in `get`.
        unsafe { at.write_volatile(value) };
    }

    /// Copies bytes from an address.
    pub(crate) fn bytes(self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let from = ptr::with_exposed_provenance::<u8>(at);
        // SAFETY: callers stay within the page of an entry, or a payload.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), len) };
        bytes
    }

    pub(crate) fn put(self, at: usize, bytes: &[u8]) {
        let to = ptr::with_exposed_provenance_mut::<u8>(at);
        // SAFETY: as in `bytes`; the slice is not in this memory.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }
}

impl SharedHead {
    /// Records a step before it is taken.
    pub(crate) fn note(&self, head: u32, next_head: u32, tail: u32) {
        // Until all words are written, this is an empty step.
        self.step_next_head.store(head, Ordering::SeqCst);
        self.step_head.store(head, Ordering::SeqCst);
        self.step_tail.store(tail, Ordering::SeqCst);
        self.step_next_head.store(next_head, Ordering::SeqCst);
    }

    /// Returns the head that a dead server would have written next, if it had published its submissions.
    pub(crate) fn unfinished(&self, head: u32, tail: u32) -> Option<u32> {
        let is_it =
            self.step_head.load(Ordering::SeqCst) == head && self.step_tail.load(Ordering::SeqCst) == tail;
        is_it.then(|| self.step_next_head.load(Ordering::SeqCst))
    }
}
