//! ublk devices: control plane and queue protocol.
//!
//! *Owns*: the life cycle of a ublk device ([`Device`]), the features of the running kernel ([`Features`])
//! and the queue protocol ([`Queue`]): fetching requests, moving their data, completing them.
//! *Does not own*: the meaning of a request for a volume, the ring and its thread.
//! *Runs on*: control calls block: call them on a control thread, never on a ring thread, because starting
//! and recovering a device wait until its queues are armed. A [`Queue`] belongs to its ring's thread.
//! *Invariants*: only [`Device::stop`], [`Device::stop_unused`] and [`Device::delete`] stop or delete a
//! device, and only one with the expected tag; each [`DeviceRequest`] handed out is completed exactly once.
//! *On failure*: control errors name the device and the command; a queue error is an event.

mod block_path;
mod buffer_memory;
mod char_device;
mod command;
mod control_thread;
mod copy_buffers;
mod device;
mod device_info;
mod device_limit;
mod device_spec;
mod error;
#[cfg(feature = "fake")]
mod fake;
#[cfg(feature = "fake")]
mod fake_tags;
mod features;
mod holders;
mod io_flusher;
mod kernel_release;
mod lost_device;
mod probe;
mod queue;
mod request;

pub use block_path::{LOOP_IDS, block_path};
pub use char_device::CharDevice;
pub use device::{Device, Expected, is_in_host_pid_namespace};
pub use device_info::{DeviceInfo, DeviceState};
pub use device_limit::DeviceLimit;
pub use device_spec::DeviceSpec;
pub use error::{ControlError, QueueError};
#[cfg(feature = "fake")]
pub use fake::{FakeDevice, FakeMemory, FakeRequest};
pub use features::{CONTROL_PATH, FeatureNames, Features, ForeignFeatures, Transport, Unsupported};
pub use holders::{Holder, Holders, Process};
pub use io_flusher::become_io_flusher;
pub use kernel_release::{DriverCrash, KernelRelease};
pub use lost_device::{flush_device, flush_from_outside};
pub use queue::{BatchEvent, FetchedTags, Queue, QueueCommand, QueueEvent, QueueSpec, RequestPart};
pub use request::{DeviceRequest, Operation};

/// Bytes per sector, the unit of every position and length in this crate's interface.
pub const SECTOR_BYTES: u64 = 4096;
/// Kernel sectors (512 bytes) per sector of this crate.
const KERNEL_SECTORS_PER_SECTOR: u64 = SECTOR_BYTES / 512;
