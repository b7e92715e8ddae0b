//! Failures of requests to memory volumes, and their error numbers.

use holdfast_memory::PageError;
use holdfast_ring::Errno;

/// Reason why a request failed.
#[derive(Debug, Clone, Copy)]
pub(super) enum ServeFailure {
    Page(PageError),
    Copy,
    Disk,
}

impl ServeFailure {
    pub(super) const fn errno(self) -> Errno {
        match self {
            Self::Page(PageError::NoSpace) => Errno::new(libc::ENOSPC),
            Self::Page(PageError::Damaged(_)) | Self::Copy | Self::Disk => Errno::EIO,
        }
    }
}
