//! An io_uring mapped by several processes: submissions of 128 bytes, no array of indices.
#![allow(unsafe_code)] // system calls, and memory shared with the kernel

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

/// The task that submits entries which a process has written to the ring. The kernel's commands run in it,
/// and are cancelled when it exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Submitter {
    /// The writing process itself.
    Writer,
    /// A kernel thread of the process that created the ring (`IORING_SETUP_SQPOLL`).
    Kernel,
    /// A keeper, woken by an eventfd.
    Keeper,
}

const SETUP_SQPOLL: u32 = 1 << 1;
const SETUP_CQSIZE: u32 = 1 << 3;
const SETUP_COOP_TASKRUN: u32 = 1 << 8;
const SETUP_SQE128: u32 = 1 << 10;
const SETUP_SINGLE_ISSUER: u32 = 1 << 12;
const SETUP_DEFER_TASKRUN: u32 = 1 << 13;
const SETUP_NO_SQARRAY: u32 = 1 << 16;
const ENTER_GETEVENTS: u32 = 1;
const ENTER_SQ_WAKEUP: u32 = 2;
const SQ_NEED_WAKEUP: u32 = 1;
const REGISTER_FILES_UPDATE: u32 = 6;
const REGISTER_FILES2: u32 = 13;
const REGISTER_BUFFERS2: u32 = 15;
const RSRC_SPARSE: u32 = 1;
const OFF_SQES: i64 = 0x1000_0000;
const SQE_BYTES: usize = 128;
const CQE_BYTES: usize = 16;
/// Idle time in milliseconds before the kernel's thread sleeps.
const IDLE_MS: u32 = 1;

/// `struct io_sqring_offsets` and `struct io_cqring_offsets`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Offsets {
    head: u32,
    tail: u32,
    mask: u32,
    entries: u32,
    /// Flags of the submission ring; overflows of the completion ring.
    flags: u32,
    /// Dropped entries of the submission ring; entries of the completion ring.
    cqes: u32,
    array: u32,
    reserved: u32,
    address: u64,
}

/// `struct io_uring_params`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Params {
    sq_entries: u32,
    cq_entries: u32,
    flags: u32,
    thread_cpu: u32,
    thread_idle_ms: u32,
    features: u32,
    wq_fd: u32,
    reserved: [u32; 3],
    sq: Offsets,
    cq: Offsets,
}

/// A submission of 128 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Submission {
    pub(crate) opcode: u8,
    pub(crate) flags: u8,
    pub(crate) priority: u16,
    pub(crate) file: i32,
    /// Offset in the file, or number of the command.
    pub(crate) offset: u64,
    pub(crate) address: u64,
    pub(crate) len: u32,
    pub(crate) operation_flags: u32,
    pub(crate) user_data: u64,
    pub(crate) buffer: u16,
    pub(crate) personality: u16,
    pub(crate) file_index: u32,
    pub(crate) command: [u64; 10],
}

impl Submission {
    pub(crate) const FIXED_FILE: u8 = 1;
    pub(crate) const FSYNC: u8 = 3;
    pub(crate) const READ_FIXED: u8 = 4;
    pub(crate) const WRITE_FIXED: u8 = 5;
    pub(crate) const POLL_ADD: u8 = 6;
    pub(crate) const READ: u8 = 22;
    pub(crate) const WRITE: u8 = 23;
    pub(crate) const URING_CMD: u8 = 46;

    /// Makes an operation on a registered file.
    pub(crate) fn on(file: i32, opcode: u8, user_data: u64) -> Self {
        Self {
            opcode,
            flags: Self::FIXED_FILE,
            priority: 0,
            file,
            offset: 0,
            address: 0,
            len: 0,
            operation_flags: 0,
            user_data,
            buffer: 0,
            personality: 0,
            file_index: 0,
            command: [0; 10],
        }
    }
}

/// A completion.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Completion {
    pub(crate) user_data: u64,
    pub(crate) result: i32,
    flags: u32,
}

/// A mapped ring.
pub(crate) struct Ring {
    file: OwnedFd,
    params: Params,
    rings: *mut u8,
    submissions: *mut Submission,
    submitter: Submitter,
    wake: File,
}

impl Ring {
    /// Creates a ring with room for four submissions per entry.
    pub(crate) fn new(entries: usize, submitter: Submitter, wake: File) -> io::Result<Self> {
        let way = match submitter {
            Submitter::Writer => SETUP_SINGLE_ISSUER | SETUP_DEFER_TASKRUN,
            Submitter::Kernel => SETUP_SQPOLL,
            Submitter::Keeper => SETUP_COOP_TASKRUN,
        };
        let entries = u32::try_from(4 * entries).map_err(io::Error::other)?;
        let mut params = Params {
            cq_entries: 2 * entries,
            flags: way | SETUP_CQSIZE | SETUP_SQE128 | SETUP_NO_SQARRAY,
            thread_idle_ms: IDLE_MS,
            ..Params::default()
        };
        // SAFETY: the kernel writes one structure.
        let raw = unsafe { libc::syscall(libc::SYS_io_uring_setup, entries, &raw mut params) };
        let raw = i32::try_from(checked(raw)?).map_err(io::Error::other)?;
        // SAFETY: a file descriptor that was just made.
        let file = unsafe { OwnedFd::from_raw_fd(raw) };
        Self::map(file, params, submitter, wake)
    }

    /// Maps another process's ring.
    pub(crate) fn map(file: OwnedFd, params: Params, submitter: Submitter, wake: File) -> io::Result<Self> {
        let rings_bytes = params.cq.cqes as usize + params.cq_entries as usize * CQE_BYTES;
        let rings = map(&file, rings_bytes, 0)?;
        let submissions = map(&file, params.sq_entries as usize * SQE_BYTES, OFF_SQES)?.cast();
        Ok(Self { file, params, rings, submissions, submitter, wake })
    }

    pub(crate) fn params(&self) -> Params {
        self.params
    }

    /// Duplicates the ring's file descriptor.
    pub(crate) fn file(&self) -> io::Result<OwnedFd> {
        self.file.try_clone()
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        let at = self.rings.wrapping_add(offset as usize).cast::<AtomicU32>();
        // SAFETY: the kernel's offset of an aligned word within the mapping, which is never unmapped.
        unsafe { &*at }
    }

    /// Returns the number of the next submission.
    pub(crate) fn tail(&self) -> u32 {
        self.word(self.params.sq.tail).load(Ordering::Relaxed)
    }

    /// The kernel has taken all submissions that were shown.
    pub(crate) fn all_taken(&self) -> bool {
        self.word(self.params.sq.head).load(Ordering::Acquire) == self.tail()
    }

    /// Number of the next completion.
    pub(crate) fn head(&self) -> u32 {
        self.word(self.params.cq.head).load(Ordering::Relaxed)
    }

    /// Returns the number after the last completion.
    pub(crate) fn end(&self) -> u32 {
        self.word(self.params.cq.tail).load(Ordering::Acquire)
    }

    pub(crate) fn completion(&self, number: u32) -> Completion {
        let at = number & (self.params.cq_entries - 1);
        let offset = self.params.cq.cqes as usize + at as usize * CQE_BYTES;
        let place = self.rings.wrapping_add(offset).cast::<Completion>();
        // SAFETY: within the mapping; the kernel has written it, because it is before `end`.
        unsafe { place.read_volatile() }
    }

    /// Writes a submission, which is visible to the kernel after [`Self::submit`].
    pub(crate) fn write(&self, number: u32, submission: Submission) {
        let at = number & (self.params.sq_entries - 1);
        let place = self.submissions.wrapping_add(at as usize);
        // SAFETY: within the mapping; a ring has room for the maximum number of submissions.
        unsafe { place.write_volatile(submission) };
    }

    /// Publishes the submissions before this number to the kernel.
    pub(crate) fn submit(&self, tail: u32) {
        self.word(self.params.sq.tail).store(tail, Ordering::SeqCst);
    }

    /// Releases the completions before this number.
    pub(crate) fn consume(&self, head: u32) {
        self.word(self.params.cq.head).store(head, Ordering::Release);
    }

    /// Gets `shown` published entries submitted, and waits for `wanted` completions.
    pub(crate) fn enter(&self, shown: u32, wanted: u32) -> io::Result<()> {
        let (submit, mut flags) = match self.submitter {
            Submitter::Writer => (shown, 0),
            Submitter::Kernel => {
                let flags = self.word(self.params.sq.flags).load(Ordering::SeqCst);
                (0, if flags & SQ_NEED_WAKEUP == 0 { 0 } else { ENTER_SQ_WAKEUP })
            }
            Submitter::Keeper => {
                if shown > 0 {
                    io::Write::write_all(&mut &self.wake, &1_u64.to_ne_bytes())?;
                }
                (0, 0)
            }
        };
        if wanted > 0 {
            flags |= ENTER_GETEVENTS;
        }
        if flags == 0 && submit == 0 {
            return Ok(());
        }
        self.call_enter(submit, wanted, flags)
    }

    fn call_enter(&self, submit: u32, wanted: u32, flags: u32) -> io::Result<()> {
        let none = ptr::null::<u8>();
        // SAFETY: the call takes integers and no signal mask.
        let done = unsafe {
            libc::syscall(libc::SYS_io_uring_enter, self.file.as_raw_fd(), submit, wanted, flags, none, 0)
        };
        match checked(done) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            done => done.map(drop),
        }
    }

    /// Submits whenever a server wakes this keeper, until the eventfd fails. First submits entries that a
    /// killed keeper was woken for but did not submit.
    pub(crate) fn submit_for_servers(&self) -> io::Result<()> {
        loop {
            self.call_enter(self.params.sq_entries, 0, 0)?;
            io::Read::read_exact(&mut &self.wake, &mut [0; 8])?;
        }
    }

    /// Registers empty tables for this number of files and buffers.
    pub(crate) fn make_tables(&self, files: u32, buffers: usize) -> io::Result<()> {
        let buffers = u32::try_from(buffers).map_err(io::Error::other)?;
        for (operation, number) in [(REGISTER_FILES2, files), (REGISTER_BUFFERS2, buffers)] {
            // `struct io_uring_rsrc_register`
            let argument: [u64; 4] = [u64::from(number) | u64::from(RSRC_SPARSE) << 32, 0, 0, 0];
            self.register(operation, argument.as_ptr().cast(), 32)?;
        }
        Ok(())
    }

    /// Registers a file in the table.
    pub(crate) fn set_file(&self, index: i32, file: BorrowedFd<'_>) -> io::Result<()> {
        let raw = file.as_raw_fd();
        // `struct io_uring_files_update`
        let argument: [u64; 2] = [u64::from(index.unsigned_abs()), ptr::from_ref(&raw) as u64];
        self.register(REGISTER_FILES_UPDATE, argument.as_ptr().cast(), 1)
    }

    fn register(&self, operation: u32, argument: *const u8, number: u32) -> io::Result<()> {
        // SAFETY: the argument is the structure that the operation reads.
        let done = unsafe {
            libc::syscall(libc::SYS_io_uring_register, self.file.as_raw_fd(), operation, argument, number)
        };
        checked(done).map(drop)
    }
}

fn map(file: &OwnedFd, len: usize, offset: i64) -> io::Result<*mut u8> {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(ptr::null_mut(), len, access, kind, file.as_raw_fd(), offset) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at.cast()) }
}

fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
