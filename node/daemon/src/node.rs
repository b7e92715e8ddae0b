//! The data plane of this node: its ring threads, devices and volumes.

use std::path::PathBuf;
use std::time::Duration;

use holdfast_s3::S3Config;
use holdfast_types::VolumeId;
use holdfast_ublk::Transport;

use crate::error_kind::ErrorKind;

/// Which transport new devices use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransportChoice {
    /// The fastest one the kernel offers.
    Auto,
    /// Zero copy, or no device.
    ZeroCopy,
    /// User copy, or no device.
    UserCopy,
}

/// How the data plane runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeConfig {
    /// Directory of sides, durable maps and the slab.
    pub(crate) state_dir: PathBuf,
    /// Directory of live maps, on tmpfs.
    pub(crate) run_dir: PathBuf,
    /// Name of the node in records and status.
    pub(crate) node_name: String,
    /// Number of ring threads.
    pub(crate) ring_threads: usize,
    /// Transport of new devices.
    pub(crate) transport: TransportChoice,
    /// Size of the slab, in bytes.
    pub(crate) slab_bytes: u64,
    /// Dirty bytes of a volume at which it seals.
    pub(crate) seal_bytes: u64,
    /// Dirty bytes of a volume at which its writes wait.
    pub(crate) most_dirty_bytes: u64,
    /// Age of dirty data at which a volume seals.
    pub(crate) max_dirty_age: Duration,
}

/// The data plane; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Node;

/// The data plane is not part of this build.
#[derive(Debug, thiserror::Error)]
#[error("the data plane is not part of this build")]
pub(crate) struct Absent;

impl Absent {
    /// What may be done about it.
    pub(crate) fn kind(&self) -> ErrorKind {
        ErrorKind::Unavailable
    }
}

/// What to attach and how.
#[derive(Clone, Debug)]
pub(crate) struct AttachRequest {
    /// Which volume.
    pub(crate) volume: VolumeId,
    /// Name of its store, for reports.
    pub(crate) store_name: String,
    /// Its store.
    pub(crate) store: S3Config,
    /// Grow to this size, in bytes.
    pub(crate) bytes: Option<u64>,
    /// Fence another writer.
    pub(crate) take_over: bool,
    /// Age of dirty data at which the volume seals, where it differs from the node's.
    pub(crate) max_dirty_age: Option<Duration>,
}

/// An attached volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attached {
    /// Its block device.
    pub(crate) device_path: PathBuf,
    /// The device's transport.
    pub(crate) transport: Transport,
    /// The writer's fencing number.
    pub(crate) epoch: u64,
    /// Size of the device, in bytes.
    pub(crate) bytes: u64,
}

/// Where a volume stands on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VolumeState {
    /// Its device is being made.
    Attaching,
    /// Its device serves requests.
    Attached,
    /// Its final commit is on its way.
    Detaching,
    /// Another writer took it over.
    Fenced,
}

/// What a volume has done since this process attached it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) read_requests: u64,
    pub(crate) read_bytes: u64,
    pub(crate) write_requests: u64,
    pub(crate) write_bytes: u64,
    pub(crate) flush_requests: u64,
    pub(crate) discard_requests: u64,
    pub(crate) failed_requests: u64,
    pub(crate) s3_gets: u64,
    pub(crate) s3_puts: u64,
    pub(crate) s3_lists: u64,
    pub(crate) s3_read_bytes: u64,
    pub(crate) s3_written_bytes: u64,
}

/// One volume of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumeStatus {
    /// Which volume.
    pub(crate) volume: VolumeId,
    /// Name of its store.
    pub(crate) store_name: String,
    /// Its block device, once there is one.
    pub(crate) device_path: Option<PathBuf>,
    /// The device's transport.
    pub(crate) transport: Transport,
    /// The writer's fencing number.
    pub(crate) epoch: u64,
    /// Size of the device, in bytes.
    pub(crate) bytes: u64,
    /// Last commit in the store.
    pub(crate) committed_seq: Option<u64>,
    /// Bytes written but not committed.
    pub(crate) dirty_bytes: u64,
    /// Age of the oldest of them.
    pub(crate) oldest_dirty: Option<Duration>,
    /// Where it stands.
    pub(crate) state: VolumeState,
    /// What it waits for, or why it cannot go on.
    pub(crate) message: Option<String>,
    /// What it has done.
    pub(crate) counters: Counters,
}

/// Whether one transport can be used here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TransportCapability {
    /// Which.
    pub(crate) transport: Transport,
    /// Why not.
    pub(crate) refusal: Option<String>,
}

/// What this node can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Capabilities {
    /// As `uname -r` prints it.
    pub(crate) kernel_release: String,
    /// Every transport the daemon knows.
    pub(crate) transports: Vec<TransportCapability>,
}

impl Node {
    /// Takes the node's lock and recovers its devices.
    pub(crate) async fn start(config: NodeConfig) -> Result<Self, Absent> {
        tracing::debug!(?config, "data plane");
        Err(Absent)
    }

    /// Creates a volume.
    pub(crate) async fn create(&self, volume: &VolumeId, bytes: u64, store: &S3Config) -> Result<(), Absent> {
        tracing::debug!(%volume, bytes, ?store, "create");
        Err(Absent)
    }

    /// Attaches a volume.
    pub(crate) async fn attach(&self, request: AttachRequest) -> Result<Attached, Absent> {
        tracing::debug!(?request, "attach");
        Err(Absent)
    }

    /// Detaches a volume after its final commit.
    pub(crate) async fn detach(&self, volume: &VolumeId) -> Result<(), Absent> {
        tracing::debug!(%volume, "detach");
        Err(Absent)
    }

    /// The volumes of this node.
    pub(crate) fn list(&self) -> Vec<VolumeStatus> {
        Vec::new()
    }

    /// What this node can do.
    pub(crate) fn capabilities(&self) -> Capabilities {
        Capabilities { kernel_release: String::new(), transports: Vec::new() }
    }

    /// Stops and leaves the devices quiesced.
    pub(crate) async fn shutdown(self) {}
}
