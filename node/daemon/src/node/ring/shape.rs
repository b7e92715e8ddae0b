//! Shape of a volume's device, and the room on a ring that the volume needs for it.

use holdfast_types::SECTOR_BYTES;
use holdfast_ublk::{Device, Transport};

use crate::node::limit::WORK_OF_COMMITS;
use crate::node::ring::room::{RingNeed, VOLUME_FILES};

/// Limits of a device's requests, as set by this version or by the version that made the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::node) struct DeviceShape {
    pub(in crate::node) transport: Transport,
    pub(in crate::node) queues: u16,
    pub(in crate::node) depth: u16,
    /// Longest read or write.
    pub(in crate::node) max_io_bytes: u32,
}

impl From<Device> for DeviceShape {
    fn from(device: Device) -> Self {
        Self {
            transport: device.transport(),
            queues: device.queues(),
            depth: device.depth(),
            max_io_bytes: device.max_io_bytes(),
        }
    }
}

impl DeviceShape {
    /// Shape for a volume without a device.
    pub(in crate::node) const NONE: Self =
        Self { transport: Transport::UserCopy, queues: 0, depth: 0, max_io_bytes: 0 };

    /// Returns the largest number of requests in flight.
    pub(in crate::node) fn requests(self) -> u32 {
        u32::from(self.queues) * u32::from(self.depth)
    }

    /// Returns the largest number of sectors that all requests read or write at a time.
    fn sectors(self) -> u64 {
        u64::from(self.requests()) * (u64::from(self.max_io_bytes) / SECTOR_BYTES).max(1)
    }

    /// Returns the number of file slots that the volume needs on a ring.
    pub(in crate::node) fn need(self) -> RingNeed {
        RingNeed(VOLUME_FILES + u32::from(self.queues))
    }

    /// Returns the largest number of pieces of background work that wait for the volume at a time. The
    /// planner asks for no more, because each sector of a request is read once at a time. The ring thread
    /// neither waits nor drops a piece: one more would be a bug, and ends the process.
    pub(in crate::node) fn waiting_work(self) -> usize {
        const USED_BLOCKS: usize = 1;
        usize::try_from(self.sectors()).expect("a device has few requests") + WORK_OF_COMMITS + USED_BLOCKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{QUEUE_DEPTH, QUEUES};

    /// Found by reading: the queue of background work was sized for requests of 32 MiB, the most that ublk
    /// knows, and bounded nothing.
    #[test]
    fn the_need_of_a_device_follows_from_its_own_requests() {
        let ours = DeviceShape {
            transport: Transport::ZeroCopy,
            queues: QUEUES,
            depth: QUEUE_DEPTH,
            max_io_bytes: 1 << 20,
        };
        assert_eq!(ours.waiting_work(), 128 * 256 + WORK_OF_COMMITS + 1);
        assert_eq!(ours.need(), RingNeed(VOLUME_FILES + 1));
        let small = DeviceShape { transport: Transport::UserCopy, max_io_bytes: 4096, ..ours };
        assert_eq!((small.need(), small.waiting_work()), (ours.need(), 128 + WORK_OF_COMMITS + 1));
        assert_eq!(DeviceShape::NONE.need(), RingNeed(VOLUME_FILES));
    }
}
