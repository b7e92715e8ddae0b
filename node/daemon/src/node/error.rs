//! Errors of requests to the node.

mod foreign_log;
mod local_damage;

use std::io;
use std::path::PathBuf;

use holdfast_background::AttachError;
use holdfast_crds::ByteSize;
use holdfast_engine::attach::AttachRefused;
use holdfast_engine::volume::Unreadable;
use holdfast_log::{LogFailure, SnapshotError};
use holdfast_ring::{KernelErrno, RingError};
use holdfast_s3::{InvalidConfig, ProbeFailure};
use holdfast_types::VolumeId;
use holdfast_ublk::{ControlError, Holders, QueueError, Unsupported};

pub(crate) use foreign_log::ForeignLog;
pub(crate) use local_damage::LocalDamage;

/// Class of an error, by the caller's possible reaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum FailureKind {
    /// The object does not exist; a retry does not help.
    NotFound,
    /// Another operation is in progress: try again later.
    Busy,
    /// The node has no room: for another volume, or for a memory volume's memory, tmpfs or spill file.
    Full,
    /// The request can never succeed in this form.
    Invalid,
    /// This node lost the volume to another writer.
    Fenced,
    /// The log shows another node as attached, and replacing that writer is not permitted.
    HeldElsewhere,
    /// The log shows this node as attached, but the data of that attach is missing here.
    LocalStateMissing,
    /// The volume requires a transport that this node's new devices do not have.
    OtherTransport,
    /// Stored data is damaged.
    Corrupt,
    /// An external component (the object store, the kernel's ublk driver) is unavailable: try again later.
    Unavailable,
    /// The local disk or the kernel failed.
    Local,
}

/// Reason why a request to the node failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum NodeError {
    /// No volume with this id is attached here.
    #[error("volume {0} is not attached on this node")]
    NotAttached(VolumeId),
    /// The volume is already attached, or an operation is in progress.
    #[error("volume {volume} is {doing} on this node")]
    Busy {
        /// The volume.
        volume: VolumeId,
        /// The operation or state that makes it busy.
        doing: &'static str,
    },
    /// A volume of this name is attached from another store.
    #[error(
        "store: volume {volume} is attached here from store {attached}, and the request names {asked}. Nothing was done: on a \
         node, volumes of one name share their local files. Name {attached}, or detach that volume first, or use \
         another node for the one in {asked}"
    )]
    OtherStore {
        /// The volume.
        volume: VolumeId,
        /// The store of the attached volume.
        attached: String,
        /// The requested store.
        asked: String,
    },
    /// The request does not apply to memory volumes.
    #[error(
        "volume_id: {volume} is a memory volume of this node, which has no {what}. Nothing was changed. {fix}"
    )]
    MemoryVolume {
        /// The volume.
        volume: VolumeId,
        /// The requested feature.
        what: &'static str,
        /// The action to take instead.
        fix: &'static str,
    },
    /// A limit of memory volumes was requested for a volume of an object store.
    #[error(
        "memory: {volume} is a volume of an object store, which has no memory limits. Nothing was changed. Give \
         only its size"
    )]
    NotOfMemory {
        /// The volume.
        volume: VolumeId,
    },
    /// A memory volume is attached with another size, limit or codec than requested.
    #[error(
        "memory.{field}: {volume} is attached on this node with {attached}, and the request has {asked}. Nothing was changed. \
         Repeat the request with its current value, or detach it first"
    )]
    MemoryDiffers {
        /// The volume.
        volume: VolumeId,
        /// The field of the request.
        field: &'static str,
        /// Its current value.
        attached: String,
        /// The value of the request.
        asked: String,
    },
    /// A smaller size or limit, or a first spill file, was requested for an attached memory volume.
    #[error(
        "memory.{field}: {volume} is attached on this node with {attached}, and the request has {asked}. Nothing was changed. \
         An attached memory volume can only grow, and cannot gain a spill file. Request at least its current value, or \
         detach it first. The detach discards its content"
    )]
    MemoryShrinks {
        /// The volume.
        volume: VolumeId,
        /// The field of the request.
        field: &'static str,
        /// Its current value.
        attached: String,
        /// The value of the request.
        asked: String,
    },
    /// The kernel lacks `UBLK_F_UPDATE_SIZE`: the size of a memory volume stays.
    #[error(
        "size_bytes: {0} keeps its size, and has the limits that were asked for: this kernel cannot change the size of a device in \
         use (Linux 6.16 and newer can). Run a newer kernel, or copy the files to a larger volume"
    )]
    MemoryDeviceCannotGrow(VolumeId),
    /// The node's limit leaves no room for a memory volume.
    #[error(
        "memory.limit_bytes: {volume} may use {most} of memory with its table, but only {left} of \
         data.memory_volumes ({limit}) is left on this node. Nothing was changed. Give a lower limit, detach \
         other memory volumes, or raise data.memory_volumes (chart: node.memoryVolumes)"
    )]
    MemoryLimit {
        /// The volume.
        volume: VolumeId,
        /// Its maximum memory.
        most: String,
        /// Memory that is not promised to other memory volumes.
        left: String,
        /// The limit.
        limit: ByteSize,
    },
    /// The node's limit of spill files leaves no room for that of a memory volume.
    #[error(
        "memory.spill_bytes: {volume} may use {most} of node.state_dir, but only {left} of data.memory_spill \
         ({limit}) is left on this node. Nothing was changed. Give less, detach other memory volumes, or raise \
         data.memory_spill (chart: node.memorySpill)"
    )]
    MemorySpill {
        /// The volume.
        volume: VolumeId,
        /// Maximum size of its spill file.
        most: String,
        /// Bytes not promised to spill files of other volumes.
        left: String,
        /// The limit.
        limit: ByteSize,
    },
    /// The state disk has no room for the spill file of a memory volume.
    #[error(
        "memory.spill_bytes: {volume} may use {most} more of node.state_dir, but the disk of {} has only {left} \
         free for spill files. Nothing was changed. Give less, detach other memory volumes, free space on that \
         disk, or lower data.cache_size, if it is set: space used by the cache does not count as free",
        state_dir.display()
    )]
    MemorySpillRoom {
        /// The volume.
        volume: VolumeId,
        /// Maximum size of its spill file.
        most: String,
        /// The state directory.
        state_dir: PathBuf,
        /// Free bytes minus the reserve, the unfilled slab, and the promised growth of other spill files.
        left: String,
    },
    /// The run directory has no room for a memory volume.
    #[error(
        "memory.limit_bytes: {volume} may use {most} more with its table, but {} has only {left} free for memory \
         volumes. Nothing was changed. Give a lower limit (--memory-limit), or enlarge that tmpfs",
        run_dir.display()
    )]
    MemoryRoom {
        /// The volume.
        volume: VolumeId,
        /// Its maximum memory.
        most: ByteSize,
        /// The run directory.
        run_dir: PathBuf,
        /// Free memory minus the reserve and the promised growth of other memory volumes.
        left: ByteSize,
    },
    /// A memory volume was not recovered, because a volume of an object store has its name.
    #[error(
        "the memory volume {0} is left with a paused device: a volume of an object store had its name when the daemon started. \
         Detach that one and restart the daemon"
    )]
    MemoryLeft(VolumeId),
    /// The block device is mounted or held by a process.
    #[error("volume {volume} is in use: {device} is held by {holders}. Unmount it or end that program first")]
    InUse {
        /// The volume.
        volume: VolumeId,
        /// Its device.
        device: PathBuf,
        /// Its users.
        holders: Holders,
    },
    /// The local disk cannot read data pending upload: a detach would not end, and the repair needs the
    /// device.
    #[error(
        "volume {volume}: detach blocked: {} bytes at offset {} are unreadable on the local disk and not yet uploaded. \
         Overwrite or discard that range on its device. Or attach the volume on another node, without what was not \
         uploaded (`attach --take-over EPOCH` there, or the annotation holdfast.dev/force-detach)",
        .lost.bytes,
        .lost.first.start.byte_offset()
    )]
    Unreadable {
        /// The volume.
        volume: VolumeId,
        /// The unreadable data.
        lost: Unreadable,
    },
    /// The previous process served the volume, and its recovery is pending.
    #[error(
        "volume {0}: its device is being recovered after a restart of the daemon. Its requests wait, and no data is lost. Try \
         again once it is served"
    )]
    Recovering(VolumeId),
    /// The previous process served the volume, and its recovery has failed so far.
    #[error(
        "volume {volume}: recovery after a daemon restart failed: {why}. Its device is paused and no data is lost; the daemon \
         retries every few seconds. Fix the cause, or reboot the node (flushed data survives)"
    )]
    RecoveryFailed {
        /// The volume.
        volume: VolumeId,
        /// Reason why the last attempt failed.
        why: String,
    },
    /// The volume was fenced, and its un-uploaded data could not be preserved yet.
    #[error(
        "volume {volume} is fenced: another writer holds it, and the data that was not uploaded could not be preserved. Nothing \
         was deleted. Free space or repair the disk, then detach it again, or restart the daemon"
    )]
    PreserveFailed {
        /// The volume.
        volume: VolumeId,
        /// The cause.
        #[source]
        source: Box<NodeError>,
    },
    /// The kernel lacks a required feature.
    #[error("this node cannot serve volumes now")]
    Unsupported(#[from] Unsupported),
    /// The kernel has no ublk driver with kernel copy.
    #[error("memory volumes need ublk, also where other volumes are served without it")]
    MemoryNeedsUblk(#[source] Unsupported),
    /// The volume requires ublk, which this node does not use.
    #[error(
        "spec.transport: volume {0} requires ublk, but this node serves volumes over FUSE. Nothing was attached. \
         Use a node with ublk, load ublk_drv on this one, or remove spec.transport"
    )]
    UblkNeeded(VolumeId),
    /// The volume's state does not permit the attach.
    #[error(transparent)]
    Refused(#[from] AttachRefused),
    /// The store's configuration is invalid.
    #[error("object store {name}")]
    StoreConfig {
        /// The store's name.
        name: String,
        /// The field and the fix.
        #[source]
        source: InvalidConfig,
    },
    /// The bucket does not meet the requirements of volumes.
    #[error("object store {name} cannot hold volumes")]
    StoreUnfit {
        /// The store's name.
        name: String,
        /// The field and the fix.
        #[source]
        source: Box<ProbeFailure>,
    },
    /// A store's bucket or prefix was changed while volumes use it.
    #[error(
        "object store {name}: bucket and prefix changed from {used} to {wanted}, and volume {volume} is attached \
         from the former. It stays there. Detach the store's volumes, or configure the new location as another \
         store"
    )]
    StoreMoved {
        /// The store's name.
        name: String,
        /// A volume at the old location.
        volume: VolumeId,
        /// Bucket and prefix in use.
        used: String,
        /// Those of the new configuration.
        wanted: String,
    },
    /// A store's new configuration leads to a different bucket of the same name.
    #[error(
        "object store {name}: endpoint or credentials: they select a different bucket from that of the \
         attached volume {volume}: {found}. The former configuration stays in use. Correct them, or copy the whole bucket first"
    )]
    StoreForeign {
        /// The store's name.
        name: String,
        /// The volume expected in it.
        volume: VolumeId,
        /// The difference in its log.
        found: ForeignLog,
    },
    /// It is unknown if a store's new configuration leads to the same bucket.
    #[error(
        "object store {name}: the log of volume {volume}, which is attached, could not be read with the new configuration. The \
         former one stays in use, and the node retries the new one"
    )]
    StoreUnchecked {
        /// The store's name.
        name: String,
        /// The volume whose log was checked.
        volume: VolumeId,
        /// The cause.
        #[source]
        source: Box<LogFailure>,
    },
    /// A store's configuration changed while one of its logs was being read or extended.
    #[error(
        "object store {name}: an operation with the former configuration has not ended. The former one stays in use, and the node \
         retries the new one"
    )]
    StoreBusy {
        /// The store's name.
        name: String,
    },
    /// A store's configuration changed while a volume was attaching, possibly with the previous one.
    #[error(
        "object store {name}: volume {volume} is being attached and may bring the former configuration back. The node applies the \
         new one again"
    )]
    StoreAttaching {
        /// The store's name.
        name: String,
        /// The volume.
        volume: VolumeId,
    },
    /// The log could not be read or extended.
    #[error(transparent)]
    Log(#[from] LogFailure),
    /// A snapshot was not taken, or not found.
    #[error(transparent)]
    Snapshot(SnapshotError),
    /// Other writers created the next record at each attempt.
    #[error("other writers extend the log of volume {0} at the same time")]
    Contended(VolumeId),
    /// A local file could not be used.
    #[error("{} could not be {action}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The action that failed.
        action: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The run directory is not on a tmpfs: live maps must disappear with the host.
    #[error(
        "node.run_dir: {} is not on a tmpfs; name a directory below /run, so that a restart of the host empties it",
        .0.display()
    )]
    RunDir(PathBuf),
    /// The state directory and the run directory are the same: their files have the same names.
    #[error("node.run_dir: {} is node.state_dir too; name two different directories", .0.display())]
    SameDir(PathBuf),
    /// The run directory holds volumes of another state directory.
    #[error(
        "node.run_dir: {} holds volumes that are attached with node.state_dir {}. This daemon serves nothing. Name that state \
         directory, or another run directory",
        run_dir.display(),
        state_dir.display()
    )]
    RunDirTaken {
        /// The run directory.
        run_dir: PathBuf,
        /// The state directory that it belongs to.
        state_dir: PathBuf,
    },
    /// The state directory is another one than that with which the volumes of the run directory are attached,
    /// at the same path.
    #[error(
        "node.state_dir: another file system than that with which the volumes in node.run_dir are attached is now mounted \
         at {}. This daemon serves nothing. Mount the former one, or restart the host",
        .0.display()
    )]
    StateDirReplaced(PathBuf),
    /// Volumes of the state directory are attached through another run directory.
    #[error(
        "node.run_dir: {} differs from the run directory of the attached volumes, or was emptied (state directory {}, previous \
         run directory {}). Their ublk devices {left:?} still exist. This daemon serves nothing. Name the previous run directory \
         again, or restart the host. If it was emptied, end the users of the devices and delete them (`ublk del -n NUMBER`) instead",
        run_dir.display(),
        state_dir.display(),
        last_run_dir.display()
    )]
    StateInUse {
        /// The state directory.
        state_dir: PathBuf,
        /// The configured run directory.
        run_dir: PathBuf,
        /// The one used earlier since the host's boot.
        last_run_dir: PathBuf,
        /// The device numbers of its volumes.
        left: Vec<u32>,
    },
    /// The node's filesystem does not support files of the volume's size.
    #[error(
        "spec.size: volume {volume} has {bytes} bytes, and the filesystem of node.state_dir {} holds files of at most \
         {limit_bytes} bytes. The volume is not attached here. Use XFS there, or a smaller volume",
        state_dir.display()
    )]
    TooLarge {
        /// The volume.
        volume: VolumeId,
        /// Its size.
        bytes: u64,
        /// Maximum file size in bytes.
        limit_bytes: u64,
        /// The state directory.
        state_dir: PathBuf,
    },
    /// The kernel lacks `UBLK_F_UPDATE_SIZE`, or the device does not use ublk.
    #[error(
        "the device cannot grow while it is served (a ublk device on Linux 6.16 and newer can). Nothing was changed. Detach \
         volume {0}: it grows at its next attach"
    )]
    DeviceCannotGrow(VolumeId),
    /// A local structure is damaged.
    #[error("{} is damaged", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage.
        #[source]
        source: LocalDamage,
    },
    /// The kernel has not ended the disk operations of the rings of an earlier daemon.
    #[error(
        "disk operations of an earlier holdfast-node process were still in flight after {} ms; the volume is recovered once \
         the kernel has ended them. Check the disk of the state directory (dmesg)",
        within.as_millis()
    )]
    EarlierRing {
        /// Time waited.
        within: std::time::Duration,
    },
    /// The ublk driver rejected a command.
    #[error(transparent)]
    Device(#[from] ControlError),
    /// The ring has no room for the device.
    #[error("the device's queue could not be opened")]
    Queue(#[from] QueueError),
    /// The record of an attached volume was written by another installation, or before the state directory
    /// was replaced.
    #[error(
        "node.run_dir records a device of volume {0} that another installation added: the identity of \
         node.state_dir differs. The device is left alone. Mount or restore the state directory that served the \
         volume"
    )]
    OtherInstallation(VolumeId),
    /// An earlier version, with another layout of the run directory, attached the volume.
    #[error(
        "{} was written by an earlier version, which attached volume {volume}. This version cannot serve its device and leaves \
         both alone. Run the earlier version and detach the volume, or restart the host",
        record.display()
    )]
    OlderLayout {
        /// The volume.
        volume: VolumeId,
        /// The record of the attach.
        record: PathBuf,
    },
    /// The kernel rejected the commands of the device's queues.
    #[error("the kernel refused a queue command of device {id}. Its requests wait. Restart the daemon")]
    QueueRefused {
        /// The device's number.
        id: u32,
        /// The cause.
        #[source]
        source: KernelErrno,
    },
    /// A volume whose queues are armed stays on its ring.
    #[error("volume {0} stays on its ring: the kernel still has its queues")]
    StillArmed(VolumeId),
    /// No ring thread has room for another device.
    #[error(
        "no ring thread has room for another device ({0} ring threads). Nothing was changed. Raise data.ring_threads and restart \
         the daemon, or detach a volume"
    )]
    RingsFull(usize),
    /// The volume was already released from its ring.
    #[error("volume {0} is no longer on its ring; nothing was done; attach it again")]
    NotOnRing(VolumeId),
    /// A ring thread could not be started.
    #[error("a ring thread could not be started; raise the process's limit of threads")]
    RingThread(#[source] io::Error),
    /// A ring could not be created.
    #[error("an I/O ring could not be created")]
    RingSetup(#[source] RingError),
    /// A ring thread has ended.
    #[error("the I/O ring does not answer: the daemon must be restarted")]
    RingLost,
    /// Invalid size of a new volume.
    #[error("size: {0} bytes is not valid: use a positive multiple of 4096")]
    Size(u64),
    /// The store of the volume's objects is unknown.
    #[error("store: volume {0} is not attached on this node: name the store that holds it")]
    StoreNeeded(VolumeId),
    /// The store is being swept.
    #[error("store: this daemon sweeps {name} already. Nothing was done. Wait until that sweep ends")]
    Sweeping {
        /// The store's name.
        name: String,
    },
    /// The volume was fenced.
    #[error(
        "volume {0} is fenced: another writer holds it. `holdfast-node fenced list` shows its unuploaded data"
    )]
    Fenced(VolumeId),
}

impl NodeError {
    /// Returns the class of the error, by the caller's possible reaction.
    pub(crate) fn kind(&self) -> FailureKind {
        match self {
            Self::NotAttached(_) => FailureKind::NotFound,
            Self::Refused(AttachRefused::NotFound(_)) => FailureKind::NotFound,
            Self::Busy { .. }
            | Self::Recovering(_)
            | Self::InUse { .. }
            | Self::OtherStore { .. }
            | Self::MemoryLeft(_)
            | Self::Unreadable { .. }
            | Self::Sweeping { .. }
            | Self::Contended(_) => FailureKind::Busy,
            Self::RingsFull(_)
            | Self::MemoryLimit { .. }
            | Self::MemorySpill { .. }
            | Self::MemorySpillRoom { .. }
            | Self::MemoryRoom { .. } => FailureKind::Full,
            Self::Refused(AttachRefused::AttachedElsewhere { .. } | AttachRefused::ReplacedSince { .. }) => {
                FailureKind::HeldElsewhere
            }
            Self::Refused(AttachRefused::LocalStateMissing { .. }) => FailureKind::LocalStateMissing,
            Self::Fenced(_) => FailureKind::Fenced,
            Self::Refused(_)
            | Self::StoreConfig { .. }
            | Self::StoreMoved { .. }
            | Self::StoreForeign { .. }
            | Self::Size(_)
            | Self::MemoryVolume { .. }
            | Self::MemoryDiffers { .. }
            | Self::MemoryShrinks { .. }
            | Self::MemoryDeviceCannotGrow(_)
            | Self::NotOfMemory { .. }
            | Self::RunDir(_)
            | Self::SameDir(_)
            | Self::TooLarge { .. }
            | Self::DeviceCannotGrow(_)
            | Self::StateDirReplaced(_)
            | Self::RunDirTaken { .. }
            | Self::StateInUse { .. }
            | Self::StoreNeeded(_) => FailureKind::Invalid,
            Self::Damaged { .. } => FailureKind::Corrupt,
            Self::StoreUnfit { source, .. } if source.is_passing() => FailureKind::Unavailable,
            Self::StoreUnfit { .. } => FailureKind::Invalid,
            Self::StoreUnchecked { .. } | Self::StoreBusy { .. } | Self::StoreAttaching { .. } => {
                FailureKind::Unavailable
            }
            Self::Snapshot(SnapshotError::NotFound(_) | SnapshotError::NoSuchSnapshot { .. }) => {
                FailureKind::NotFound
            }
            Self::Snapshot(SnapshotError::Attached { .. }) => FailureKind::HeldElsewhere,
            Self::Snapshot(_) => FailureKind::Invalid,
            Self::Log(failure) => log_kind(failure),
            Self::Unsupported(_) | Self::MemoryNeedsUblk(_) => FailureKind::Unavailable,
            Self::UblkNeeded(_) => FailureKind::OtherTransport,
            Self::File { .. }
            | Self::RecoveryFailed { .. }
            | Self::PreserveFailed { .. }
            | Self::EarlierRing { .. }
            | Self::Device(_)
            | Self::OtherInstallation(_)
            | Self::OlderLayout { .. }
            | Self::QueueRefused { .. }
            | Self::StillArmed(_)
            | Self::Queue(_)
            | Self::NotOnRing(_)
            | Self::RingThread(_)
            | Self::RingSetup(_)
            | Self::RingLost => FailureKind::Local,
        }
    }
}

/// Returns the class of a failure to read or extend a log.
fn log_kind(failure: &LogFailure) -> FailureKind {
    if matches!(
        failure,
        LogFailure::Damaged { .. } | LogFailure::Misplaced { .. } | LogFailure::Broken { .. }
    ) {
        FailureKind::Corrupt
    } else if matches!(failure, LogFailure::NoSuchSource { .. }) {
        FailureKind::NotFound
    } else if failure.is_transient() {
        FailureKind::Unavailable
    } else {
        FailureKind::Invalid
    }
}

impl From<SnapshotError> for NodeError {
    fn from(error: SnapshotError) -> Self {
        if let SnapshotError::Log(failure) = error { failure.into() } else { Self::Snapshot(error) }
    }
}

impl From<AttachError<Self>> for NodeError {
    fn from(error: AttachError<Self>) -> Self {
        match error {
            AttachError::Refused(refused) => refused.into(),
            AttachError::Log(failure) => failure.into(),
            AttachError::Contended(volume) => Self::Contended(volume),
            AttachError::Local(error) => error,
        }
    }
}

/// Keeps the kind of the file's error.
impl From<NodeError> for io::Error {
    fn from(error: NodeError) -> Self {
        let kind =
            if let NodeError::File { source, .. } = &error { source.kind() } else { io::ErrorKind::Other };
        Self::new(kind, error)
    }
}

/// Builds the error of a file operation, for `map_err`.
pub(crate) fn file(path: &std::path::Path, action: &'static str) -> impl FnOnce(io::Error) -> NodeError {
    let path = path.to_owned();
    move |source| NodeError::File { path, action, source }
}
