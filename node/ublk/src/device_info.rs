//! The kernel's description of a device.

use crate::{ForeignFeatures, Transport};

/// States of a device, as the kernel reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceState {
    /// Added but not started, or stopped: there is no `/dev/ublkbN`.
    Dead,
    /// Serving.
    Live,
    /// Its server has gone; requests wait for a successor.
    Quiesced,
    /// Its server has gone and requests fail. Devices added here never get there.
    FailIo,
}

impl std::fmt::Display for DeviceState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Dead => "DEAD",
            Self::Live => "LIVE",
            Self::Quiesced => "QUIESCED",
            Self::FailIo => "FAIL_IO",
        })
    }
}

/// The kernel's description of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The number in `/dev/ublkbN`.
    pub id: u32,
    /// The state of the device.
    pub state: DeviceState,
    /// Number of queues.
    pub queues: u16,
    /// Number of requests that a queue holds.
    pub depth: u16,
    /// The most bytes a read or write request covers.
    pub max_io_bytes: u32,
    /// Transport of its data; `None` if the device was made by a program that moves data in another way.
    pub transport: Option<Transport>,
    /// The process that serves it, or served it last. -1 if none.
    pub server_pid: i32,
    /// Tag that its server wrote into it when it was added.
    pub tag: u64,
    /// True if its queues have batches (`UBLK_F_BATCH_IO`): few commands about many tags.
    pub has_batches: bool,
    /// Features its server asked for that change the conversation with the kernel and are not known here.
    pub foreign: ForeignFeatures,
}
