//! The end of one operation.

use io_uring::cqueue;

use crate::HeapBuffer;

/// An error number of the kernel, positive, as in `errno.h`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KernelErrno(i32);

impl KernelErrno {
    /// The device or the file failed the I/O.
    pub const EIO: Self = Self(libc::EIO);
    /// The file system is full.
    pub const ENOSPC: Self = Self(libc::ENOSPC);
    /// The kernel is out of memory.
    pub const ENOMEM: Self = Self(libc::ENOMEM);
    /// No buffer is available.
    pub const ENOBUFS: Self = Self(libc::ENOBUFS);
    /// The operation is not supported.
    pub const EOPNOTSUPP: Self = Self(libc::EOPNOTSUPP);
    /// An argument was invalid.
    pub const EINVAL: Self = Self(libc::EINVAL);
    /// The device is gone.
    pub const ENODEV: Self = Self(libc::ENODEV);
    /// The object already exists.
    pub const EEXIST: Self = Self(libc::EEXIST);
    /// A signal interrupted the wait; repeat the call.
    pub const EINTR: Self = Self(libc::EINTR);
    /// Another owner uses the object; retry.
    pub const EBUSY: Self = Self(libc::EBUSY);

    /// Wraps a positive error number. Any other value becomes `EIO`.
    #[must_use]
    #[inline]
    pub const fn new(number: i32) -> Self {
        if number > 0 && number < 4096 { Self(number) } else { Self::EIO }
    }

    /// Returns the positive number.
    #[must_use]
    pub const fn number(self) -> i32 {
        self.0
    }
}

impl std::fmt::Debug for KernelErrno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KernelErrno({self})")
    }
}

impl std::fmt::Display for KernelErrno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for KernelErrno {}

/// Result of an operation, as the kernel returned it. Zero or more: the operation's result (for transfers:
/// bytes). Negative: minus an error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoResult(pub i32);

impl IoResult {
    /// Returns the result as a number of bytes.
    ///
    /// # Errors
    /// The error number the operation ended with.
    #[inline]
    pub const fn result(self) -> Result<u32, KernelErrno> {
        if self.0 < 0 { Err(KernelErrno::new(self.0.wrapping_neg())) } else { Ok(self.0 as u32) }
    }

    /// Checks that the operation moved exactly `expected_bytes`.
    ///
    /// # Errors
    /// The error number the operation ended with; `EIO` if it moved another number of bytes: a transfer
    /// between a request and a file that covers the whole device is short only because of a fault.
    #[inline]
    pub const fn exactly(self, expected_bytes: u32) -> Result<(), KernelErrno> {
        match self.result() {
            Ok(bytes) if bytes == expected_bytes => Ok(()),
            Ok(_) => Err(KernelErrno::EIO),
            Err(errno) => Err(errno),
        }
    }
}

/// A completion of the kernel. [`Ring::end`](crate::Ring::end) returns its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The user data of its entry.
    pub(crate) user_data: u64,
    pub(crate) outcome: IoResult,
    pub(crate) flags: u32,
}

impl Completion {
    /// Returns true if more completions of the operation follow. It is then a multishot operation, which must
    /// be a word ([`RingOperation::to_word`](crate::RingOperation::to_word)).
    #[inline]
    #[must_use]
    pub fn continues(self) -> bool {
        cqueue::more(self.flags)
    }
}

/// An operation that ended.
#[derive(Debug)]
pub struct Ended<T> {
    /// Value that the owner passed when it started the operation.
    pub operation: T,
    /// Its result.
    pub outcome: IoResult,
    /// Buffer of a [`Ring::read`](crate::Ring::read) or [`Ring::write`](crate::Ring::write).
    pub buffer: Option<HeapBuffer>,
}

#[cfg(test)]
mod tests {
    use super::{IoResult, KernelErrno};

    #[test]
    fn neither_a_negative_nor_a_short_result_is_success() {
        assert_eq!(IoResult(-libc::ENOSPC).result(), Err(KernelErrno::ENOSPC));
        assert_eq!(IoResult(4096).exactly(4096), Ok(()));
        assert_eq!(IoResult(512).exactly(4096), Err(KernelErrno::EIO));
        assert_eq!(IoResult(i32::MIN).result(), Err(KernelErrno::EIO));
    }
}
