//! Messages between the keeper and its clients, and the files that accompany them.
#![allow(unsafe_code)] // SCM_RIGHTS

use std::io::{self, Write};
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Newest version of the protocol.
pub(super) const VERSION: u8 = 1;
/// Length of a request, the same in all versions.
pub(super) const REQUEST_BYTES: usize = 10;

/// The versions that a process supports, starting at 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpokenVersions {
    pub(super) newest: u8,
}

impl Default for SpokenVersions {
    fn default() -> Self {
        Self { newest: VERSION }
    }
}

impl SpokenVersions {
    /// Returns true for a supported version.
    pub(super) fn include(self, version: u8) -> bool {
        (1..=self.newest).contains(&version)
    }

    /// Returns the version for a keeper that refused `version` and supports versions up to `keepers`; `None`
    /// if `keepers` is not lower.
    pub(super) fn fall_back(version: u8, keepers: u8) -> Option<u8> {
        (1..version).contains(&keepers).then_some(keepers)
    }
}

pub(super) const KEEP: u8 = b'K';
pub(super) const TAKE: u8 = b'T';
pub(super) const DROP: u8 = b'D';
pub(super) const LIST: u8 = b'L';
pub(super) const WATCH: u8 = b'W';
pub(super) const HAND_OVER: u8 = b'H';

pub(super) const DONE: u8 = b'y';
/// The keeper got a signal to exit.
pub(super) const ENDING: u8 = b'e';
/// The keeper has no such file.
pub(super) const ABSENT: u8 = b'n';
/// The operation failed.
pub(super) const FAILED: u8 = b'f';
/// The keeper does not know the operation.
pub(super) const UNKNOWN: u8 = b'u';
/// The keeper does not know the version of the request. The newest that it supports follows.
pub(super) const OTHER_VERSION: u8 = b'v';

/// Encodes a request.
pub(super) fn request(version: u8, operation: u8, tag: u64) -> [u8; REQUEST_BYTES] {
    let mut request = [version; REQUEST_BYTES];
    request[1] = operation;
    request[2..].copy_from_slice(&tag.to_ne_bytes());
    request
}

/// Aligned room for the head of a control message and one file.
#[repr(C, align(8))]
struct Ancillary([u8; 64]);

/// Sends bytes, with the file attached to the first.
pub(super) fn send(stream: &UnixStream, bytes: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut room = Ancillary([0; 64]);
    // SAFETY: zeros are a valid message: no name, no parts, no control message.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    if let Some(file) = file {
        let len = size_of::<libc::c_int>() as libc::c_uint;
        message.msg_control = (&raw mut room).cast();
        // SAFETY: the call only computes.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(len) } as _;
        // SAFETY: the message has room for a head.
        let head = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        // SAFETY: the call only computes.
        let head_len = unsafe { libc::CMSG_LEN(len) } as _;
        let filled =
            libc::cmsghdr { cmsg_len: head_len, cmsg_level: libc::SOL_SOCKET, cmsg_type: libc::SCM_RIGHTS };
        // SAFETY: the head is in `room`, aligned.
        unsafe { head.write(filled) };
        // SAFETY: the head is in `room`, followed by its data.
        let data = unsafe { libc::CMSG_DATA(head) };
        // SAFETY: the data has room for one number; it need not be aligned.
        unsafe { data.cast::<libc::c_int>().write_unaligned(file.as_raw_fd()) };
    }
    // SAFETY: all memory that the message names outlives the call.
    let sent = unsafe { libc::sendmsg(stream.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    match usize::try_from(sent) {
        Ok(sent) => (&*stream).write_all(&bytes[sent..]),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Receives bytes (at least one unless the peer has closed the stream) and the file attached to them.
pub(super) fn receive(stream: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut room = Ancillary([0; 64]);
    // SAFETY: as in `send`.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    (message.msg_control, message.msg_controllen) = ((&raw mut room).cast(), size_of::<Ancillary>() as _);
    // SAFETY: all memory that the message names outlives the call.
    let received = unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let received = usize::try_from(received).map_err(|_negative| io::Error::last_os_error())?;
    // SAFETY: the kernel filled in the message.
    let head = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    if head.is_null() {
        return Ok((received, None));
    }
    // SAFETY: it is not null, so it points to a head in `room`.
    let filled = unsafe { head.read() };
    if (filled.cmsg_level, filled.cmsg_type) != (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
        return Ok((received, None));
    }
    // SAFETY: at least one number follows a head with SCM_RIGHTS.
    let data = unsafe { libc::CMSG_DATA(head) };
    // SAFETY: as above; it need not be aligned.
    let raw = unsafe { data.cast::<libc::c_int>().read_unaligned() };
    // SAFETY: the kernel has just made this file descriptor for this process.
    Ok((received, Some(unsafe { OwnedFd::from_raw_fd(raw) })))
}
