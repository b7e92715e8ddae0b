//! A FUSE connection: the file through which the kernel sends requests, and the file system of that
//! connection.
//!
//! The file system has no mount point: the loop device keeps it alive by having its only file open. It ends
//! when that file is closed, or when the last process closes the connection; then requests fail.
//!
//! *Runs on*: control threads; reads and writes of a queue on its ring thread. This module neither opens the
//! device's file nor reads its attributes: both wait for the server, which is this process
//! ([`crate::loop_device`]).
#![allow(unsafe_code)] // system calls that libc has no function for

use std::ffi::{CStr, CString};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::limit::MAX_BACKGROUND;
use crate::protocol::{FuseFile, FuseRequest, MAX_IO_BYTES, WRITE_HEAD_BYTES, grown, parse, reply_head};

/// The device through which a server communicates with the kernel.
pub const FUSE_PATH: &str = "/dev/fuse";

const FSCONFIG_SET_STRING: libc::c_uint = 1;
const FSCONFIG_CMD_CREATE: libc::c_uint = 6;
const FSOPEN_CLOEXEC: libc::c_uint = 1;
const FSMOUNT_CLOEXEC: libc::c_uint = 1;
/// `MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC | MOUNT_ATTR_NOATIME`.
const ATTRIBUTES: libc::c_uint = 0x02 | 0x04 | 0x08 | 0x10;

/// A server's handle of a connection. Clones share the connection.
#[derive(Clone, Debug)]
pub struct FuseConnection {
    file: Arc<File>,
    name: String,
    len_bytes: Arc<AtomicU64>,
}

impl FuseConnection {
    /// Creates a handle of a connection whose file system has one file of this name and size.
    #[must_use]
    pub fn new(file: File, name: String, len_bytes: u64) -> Self {
        Self { file: Arc::new(file), name, len_bytes: Arc::new(AtomicU64::new(len_bytes)) }
    }

    /// Opens a new connection, without a file system.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open_device() -> io::Result<File> {
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(FUSE_PATH)
    }

    /// Creates the file system of a new connection. The returned descriptor keeps it until its file is open.
    ///
    /// # Errors
    /// The kernel's.
    pub fn mount(&self) -> io::Result<OwnedFd> {
        let context = fsopen(c"fuse")?;
        let strings = [
            (c"source", "holdfast".to_owned()),
            (c"fd", self.file.as_raw_fd().to_string()),
            (c"rootmode", "40000".to_owned()),
            (c"user_id", "0".to_owned()),
            (c"group_id", "0".to_owned()),
            (c"max_read", MAX_IO_BYTES.to_string()),
        ];
        for (key, value) in strings {
            let value = CString::new(value).expect("numbers and names have no zero byte");
            fsconfig(&context, FSCONFIG_SET_STRING, Some(key), Some(&value))?;
        }
        fsconfig(&context, FSCONFIG_CMD_CREATE, None, None)?;
        fsmount(&context)
    }

    /// Returns the file through which the kernel sends requests.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the name of the file.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the size of the file in bytes.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.len_bytes.load(Ordering::Relaxed)
    }

    /// Extends the file and notifies the kernel. Next: [`LoopDevice::grow`](crate::LoopDevice).
    ///
    /// # Errors
    /// The kernel's. The call may then be repeated.
    pub fn grow(&self, len_bytes: u64) -> io::Result<()> {
        // Stored first, because the kernel may read the attributes after the notification.
        self.len_bytes.store(len_bytes, Ordering::Relaxed);
        self.write(&[&grown(len_bytes)])
    }

    pub(crate) fn description(&self) -> FuseFile {
        FuseFile { name: self.name.clone(), len_bytes: self.len_bytes(), max_background: MAX_BACKGROUND }
    }

    /// Answers the requests of a new connection until `is_done` or for at most `within`. Leaves requests with
    /// data unanswered: the kernel resends them to the queue ([`crate::FuseQueue::open`]). Returns the last
    /// value of `is_done`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn introduce(&self, within: Duration, mut is_done: impl FnMut() -> bool) -> io::Result<bool> {
        let begun = Instant::now();
        let file = self.description();
        let mut message = vec![0; WRITE_HEAD_BYTES + MAX_IO_BYTES as usize];
        loop {
            if is_done() {
                return Ok(true);
            }
            if begun.elapsed() > within {
                return Ok(false);
            }
            if !self.wait_readable(Duration::from_millis(5))? {
                continue;
            }
            let len = match self.read(&mut message) {
                Ok(len) => len,
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOENT | libc::EINTR)) =>
                {
                    continue;
                }
                Err(error) => return Err(error),
            };
            let Ok(parsed) = parse(&message[..len]) else { continue };
            if parsed.request == FuseRequest::Sync {
                // Binding the loop device sends a sync, which covers no completed write.
                self.answer(&[&reply_head(parsed.unique, 0, 0)]);
            } else if let Some(answer) = file.answer(&parsed) {
                self.answer(&[&answer]);
            }
        }
    }

    fn wait_readable(&self, within: Duration) -> io::Result<bool> {
        let mut polled = libc::pollfd { fd: self.file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let timeout = i32::try_from(within.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: the pointer names one structure, which outlives the call.
        match unsafe { libc::poll(&raw mut polled, 1, timeout) } {
            number if number >= 0 => Ok(number > 0),
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted { Ok(false) } else { Err(error) }
            }
        }
    }

    /// Reads the next waiting request.
    pub(crate) fn read(&self, message: &mut [u8]) -> io::Result<usize> {
        io::Read::read(&mut &*self.file, message)
    }

    /// Writes a message with one system call.
    pub(crate) fn write(&self, parts: &[&[u8]]) -> io::Result<()> {
        let mut slices = [io::IoSlice::new(&[]); 2];
        for (slice, part) in slices.iter_mut().zip(parts) {
            *slice = io::IoSlice::new(part);
        }
        io::Write::write_vectored(&mut &*self.file, &slices[..parts.len().min(2)]).map(drop)
    }

    /// Answers a request. Ignores errors, which mean that the request no longer exists: its program was
    /// killed, or the connection has ended.
    pub(crate) fn answer(&self, parts: &[&[u8]]) {
        drop(self.write(parts));
    }
}

fn fsopen(kind: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: the name is a C string.
    let raw = unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), FSOPEN_CLOEXEC) };
    owned(raw)
}

fn fsconfig(
    context: &OwnedFd,
    command: libc::c_uint,
    key: Option<&CStr>,
    value: Option<&CStr>,
) -> io::Result<()> {
    let [key, value] = [key, value].map(|text| text.map_or(std::ptr::null(), CStr::as_ptr));
    // SAFETY: both are C strings or null, as the command requires, and outlive the call.
    let done = unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), command, key, value, 0) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn fsmount(context: &OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: the call takes plain integers.
    let raw = unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, ATTRIBUTES) };
    owned(raw)
}

fn owned(raw: libc::c_long) -> io::Result<OwnedFd> {
    match i32::try_from(raw) {
        // SAFETY: a file descriptor that was just made and has no other owner.
        Ok(raw) if raw >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(raw) }),
        Ok(_) | Err(_) => Err(io::Error::last_os_error()),
    }
}
