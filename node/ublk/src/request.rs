//! A request of the kernel, as a token that must be completed.

use crate::SECTOR_BYTES;

/// Kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Fills the request's memory.
    Read,
    /// Stores the request's memory.
    Write,
    /// Makes all completed writes durable. Covers no sectors.
    Flush,
    /// Declares the contents of the sectors unneeded.
    Discard,
    /// Makes the sectors read as zeros.
    WriteZeroes,
}

/// A request that the kernel has handed out, and whose answer it waits for.
///
/// It cannot be copied, and must be passed to [`Queue::complete`](crate::Queue::complete). Dropping it
/// panics: an uncompleted request hangs its issuer permanently, whereas the devices of a crashed daemon are
/// recovered.
#[derive(Debug)]
#[must_use = "a request that is not completed hangs its issuer"]
pub struct DeviceRequest {
    tag: u16,
    operation: Operation,
    start_sector: u64,
    sectors: u32,
    is_fua: bool,
}

impl DeviceRequest {
    /// Creates a request of a queue. `start_sector` and `sectors` count sectors of 4096 bytes.
    #[inline]
    pub const fn new(tag: u16, operation: Operation, start_sector: u64, sectors: u32) -> Self {
        Self { tag, operation, start_sector, sectors, is_fua: false }
    }

    /// Marks the request as a forced write (`UBLK_IO_F_FUA`).
    #[inline]
    pub(crate) const fn forced(mut self) -> Self {
        self.is_fua = true;
        self
    }

    /// Returns the request's number in its queue, below the queue's depth. The next request may get the
    /// number once this one is completed.
    #[must_use]
    #[inline]
    pub const fn tag(&self) -> u16 {
        self.tag
    }

    /// Returns the kind of request.
    #[must_use]
    #[inline]
    pub const fn operation(&self) -> Operation {
        self.operation
    }

    /// Returns the first sector (of 4096 bytes); 0 for a flush.
    #[must_use]
    #[inline]
    pub const fn start_sector(&self) -> u64 {
        self.start_sector
    }

    /// Returns the number of sectors (of 4096 bytes); 0 for a flush.
    #[must_use]
    #[inline]
    pub const fn sectors(&self) -> u32 {
        self.sectors
    }

    /// Returns the length in bytes.
    #[must_use]
    #[inline]
    pub const fn len_bytes(&self) -> u64 {
        self.sectors as u64 * SECTOR_BYTES
    }

    /// Returns true for a write that must be durable when completed, as if a flush had followed it
    /// (`UBLK_IO_F_FUA` in `linux/ublk_cmd.h`). The kernel sets it only on devices that announce FUA.
    #[must_use]
    #[inline]
    pub const fn is_fua(&self) -> bool {
        self.is_fua
    }

    /// Abandons the request without completing it. Call it only just before the ring is closed: the kernel
    /// then hands the request to the process that recovers the device.
    pub fn leave_to_successor(self) {
        std::mem::forget(self);
    }

    /// Consumes the token, for the queue that completes the request. Returns tag, kind and sectors.
    #[inline]
    pub const fn disarm(self) -> (u16, Operation, u32) {
        let parts = (self.tag, self.operation, self.sectors);
        std::mem::forget(self);
        parts
    }
}

impl Drop for DeviceRequest {
    #[inline]
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "request {} was dropped without completion", self.tag);
    }
}

#[cfg(test)]
mod tests {
    use super::{DeviceRequest, Operation};

    #[test]
    #[should_panic(expected = "request 7 was dropped without completion")]
    fn a_lost_request_is_a_bug_that_shows() {
        drop(DeviceRequest::new(7, Operation::Read, 0, 1));
    }

    #[test]
    fn only_a_forced_request_says_so() {
        let plain = DeviceRequest::new(7, Operation::Write, 0, 1);
        assert!(!plain.is_fua());
        let forced = plain.forced();
        assert!(forced.is_fua());
        assert_eq!((forced.tag(), forced.operation(), forced.sectors()), (7, Operation::Write, 1));
        forced.leave_to_successor();
    }

    #[test]
    fn a_request_left_to_the_successor_does_not_panic() {
        DeviceRequest::new(7, Operation::Write, 0, 1).leave_to_successor();
    }
}
