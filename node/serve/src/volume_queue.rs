//! A queue of a volume's device, by transport.
//!
//! What each request passes is inlined by force: the compiler leaves a match with two transports in a call.
//!
//! Invariants: commands of ublk come to ublk queues only, those of FUSE to FUSE queues only; what comes for
//! the other kind is late, as for a queue that is closed.

use holdfast_fuse::FuseQueue;
use holdfast_ring::Errno;
use holdfast_ublk::{DeviceRequest, QueueError, RequestPart};

use crate::operation::{InFlight, Ring, VolumeKey};

/// A queue of a device on a ring.
#[derive(Debug)]
pub enum VolumeQueue {
    /// Of a ublk device.
    Ublk(holdfast_ublk::Queue<VolumeKey>),
    /// The connection of a FUSE file: a device has one.
    Fuse(FuseQueue<VolumeKey>),
}

impl VolumeQueue {
    /// Offers its room for requests to the kernel.
    pub(crate) fn arm(&mut self, ring: &mut Ring) {
        match self {
            Self::Ublk(queue) => queue.arm(ring),
            Self::Fuse(queue) => queue.poll(ring),
        }
    }

    #[inline(always)]
    pub(crate) fn read_part(
        &self,
        ring: &mut Ring,
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
        ring: &mut Ring,
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
    pub(crate) fn complete(&mut self, ring: &mut Ring, request: DeviceRequest, outcome: Result<(), Errno>) {
        match self {
            Self::Ublk(queue) => queue.complete(ring, request, outcome),
            Self::Fuse(queue) => queue.complete(ring, request, outcome),
        }
    }

    /// From now on requests are left to the successor.
    pub(crate) fn drain(&mut self) {
        match self {
            Self::Ublk(queue) => queue.drain(),
            Self::Fuse(queue) => queue.drain(),
        }
    }

    /// Leaves a request to the successor, while no part of it is in flight.
    pub(crate) fn leave(&mut self, request: DeviceRequest) {
        match self {
            Self::Ublk(queue) => queue.leave(request),
            Self::Fuse(queue) => queue.leave(request),
        }
    }

    /// Number of requests that were handed out and not completed.
    pub(crate) fn requests_with_owner(&self) -> u16 {
        match self {
            Self::Ublk(queue) => queue.requests_with_owner(),
            Self::Fuse(queue) => queue.requests_with_owner(),
        }
    }

    /// Number of its operations that the kernel has.
    pub(crate) const fn with_kernel(&self) -> u16 {
        match self {
            Self::Ublk(queue) => queue.commands_with_kernel(),
            Self::Fuse(queue) => queue.with_kernel(),
        }
    }

    /// Has the kernel give back what it has of the queue, where a stop of the device does not.
    pub(crate) fn end(&mut self, ring: &mut Ring) {
        match self {
            Self::Ublk(_stopped) => {}
            Self::Fuse(queue) => queue.end(ring),
        }
    }

    /// Releases the device after all has come back.
    pub(crate) fn close(self, ring: &mut Ring) -> Result<(), QueueError> {
        match self {
            Self::Ublk(queue) => queue.close(ring),
            Self::Fuse(queue) => Ok(queue.close(ring)?),
        }
    }
}
