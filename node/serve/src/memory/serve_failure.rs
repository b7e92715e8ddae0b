//! Failures of requests to memory volumes, and their error numbers.

use holdfast_memory::PageError;
use holdfast_ring::KernelErrno;

/// Reason why a request failed.
#[derive(Debug, Clone, Copy)]
pub(super) enum ServeFailure {
    Page(PageError),
    Copy,
    Disk,
}

impl ServeFailure {
    pub(super) const fn errno(self) -> KernelErrno {
        match self {
            Self::Page(PageError::NoSpace) => KernelErrno::new(libc::ENOSPC),
            Self::Page(PageError::Damaged(_)) | Self::Copy | Self::Disk => KernelErrno::EIO,
        }
    }
}
