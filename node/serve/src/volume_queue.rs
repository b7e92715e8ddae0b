//! A queue of a volume's device, by transport.
//!
//! Functions on the path of each request are always inlined: otherwise the compiler would call a function for
//! each match of transports.
//!
//! Invariants: commands of ublk reach only ublk queues, those of FUSE only FUSE queues; a completion for the
//! other kind is late, as for a closed queue.

use holdfast_fuse::FuseQueue;
use holdfast_ring::KernelErrno;
use holdfast_ublk::{DeviceRequest, QueueError, RequestPart};

use crate::operation::{InFlight, VolumeKey, VolumeRing};

/// A queue of a device on a ring.
#[derive(Debug)]
pub enum VolumeQueue {
    /// A queue of a ublk device.
    Ublk(holdfast_ublk::Queue<VolumeKey>),
    /// The connection of a FUSE file, one per device.
    Fuse(FuseQueue<VolumeKey>),
}

impl VolumeQueue {
    /// Offers its room for requests to the kernel.
    pub(crate) fn arm(&mut self, ring: &mut VolumeRing) {
        match self {
            Self::Ublk(queue) => queue.arm(ring),
            Self::Fuse(queue) => queue.poll(ring),
        }
    }

    #[inline(always)]
    pub(crate) fn read_part(
        &self,
        ring: &mut VolumeRing,
        request: &DeviceRequest,
        part: &RequestPart,
        operation: InFlight,
    ) {
        match self {
            Self::Ublk(queue) => queue.read_part(ring, request, part, operation),
            Self::Fuse(queue) => queue.read_part(ring, request, part, operation),
        }
    }

    #[inline(always)]
    pub(crate) fn write_part(
        &self,
        ring: &mut VolumeRing,
        request: &DeviceRequest,
        part: &RequestPart,
        operation: InFlight,
    ) {
        match self {
            Self::Ublk(queue) => queue.write_part(ring, request, part, operation),
            Self::Fuse(queue) => queue.write_part(ring, request, part, operation),
        }
    }

    #[inline(always)]
    pub(crate) fn complete(
        &mut self,
        ring: &mut VolumeRing,
        request: DeviceRequest,
        outcome: Result<(), KernelErrno>,
    ) {
        match self {
            Self::Ublk(queue) => queue.complete(ring, request, outcome),
            Self::Fuse(queue) => queue.complete(ring, request, outcome),
        }
    }

    /// Leaves further requests to the successor.
    pub(crate) fn drain(&mut self) {
        match self {
            Self::Ublk(queue) => queue.drain(),
            Self::Fuse(queue) => queue.drain(),
        }
    }

    /// Leaves a request without a part in flight to the successor.
    pub(crate) fn leave(&mut self, request: DeviceRequest) {
        match self {
            Self::Ublk(queue) => queue.leave(request),
            Self::Fuse(queue) => queue.leave(request),
        }
    }

    /// Returns the number of requests that were handed out and not completed.
    pub(crate) fn requests_with_owner(&self) -> u16 {
        match self {
            Self::Ublk(queue) => queue.requests_with_owner(),
            Self::Fuse(queue) => queue.requests_with_owner(),
        }
    }

    /// Returns the number of the queue's operations that the kernel has.
    pub(crate) const fn with_kernel(&self) -> u16 {
        match self {
            Self::Ublk(queue) => queue.commands_with_kernel(),
            Self::Fuse(queue) => queue.with_kernel(),
        }
    }

    /// Makes the kernel end its operations of the queue, if a stop of the device does not.
    pub(crate) fn end(&mut self, ring: &mut VolumeRing) {
        match self {
            Self::Ublk(_stopped) => {}
            Self::Fuse(queue) => queue.end(ring),
        }
    }

    /// Releases the queue after the kernel has ended all its operations.
    pub(crate) fn close(self, ring: &mut VolumeRing) -> Result<(), QueueError> {
        match self {
            Self::Ublk(queue) => queue.close(ring),
            Self::Fuse(queue) => {
                queue.close();
                Ok(())
            }
        }
    }
}
