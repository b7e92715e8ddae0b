//! The kernel's description of a device.

use crate::{ForeignFeatures, Transport};

/// States of a device, as the kernel reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceState {
    /// Added but not started, or stopped: `/dev/ublkbN` does not exist.
    Dead,
    /// Serving.
    Live,
    /// Its server has exited; requests wait for a successor.
    Quiesced,
    /// Its server has exited and requests fail. Devices that this crate adds never enter this state.
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
    /// State of the device.
    pub state: DeviceState,
    /// Number of queues.
    pub queues: u16,
    /// Maximum number of requests in a queue.
    pub depth: u16,
    /// Maximum length of a read or write request in bytes.
    pub max_io_bytes: u32,
    /// Transport of its data; `None` if another program added the device and moves data in another way.
    pub transport: Option<Transport>,
    /// The process that serves it or served it last; -1 if none.
    pub server_pid: i32,
    /// Tag that its server gave it when adding it.
    pub tag: u64,
    /// True if its queues use batches (`UBLK_F_BATCH_IO`): few commands for many tags.
    pub has_batches: bool,
    /// Features requested by its server that change the protocol and that this version does not support.
    pub foreign: ForeignFeatures,
}
