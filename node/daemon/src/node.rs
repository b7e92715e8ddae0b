//! The node's data plane: volumes in, block devices out.
//!
//! Owns: the node lock, the ring threads, the slab, and which volumes are attached. Knows nothing of
//! Kubernetes or gRPC.
//! Invariants: only the holder of the lock drives devices or touches local state; a device that is quiesced
//! is recovered again before anything else happens; a device is driven only if its tag is the one its volume
//! gave it; only a detach deletes a device that served.

mod clock;
mod device;
mod draining;
mod error;
mod exit_on_panic;
pub(crate) mod fenced;
mod limit;
mod local;
mod memory;
mod ring;
mod run_blocking;
mod settings;
mod store;
mod volume;

use std::fs::File;
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use futures::future::join_all;
use holdfast_background::{Compressors, OldCounts, Pools, UploadMemory};
use holdfast_engine::settings::{DirtyLimits, Durability};
use holdfast_format::displaced::Displaced;
use holdfast_log::Creation;
use holdfast_log::Indexes;
use holdfast_s3::S3Config;
use holdfast_serve::{IoLimits, Message, SharedFiles};
use holdfast_service::chain;
use holdfast_service::tasks::Tasks;
use holdfast_types::{SECTOR_BYTES, SnapshotName, VolumeId};
use holdfast_ublk::{DeviceSpec, Features, Transport, Unsupported};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;

use device::fuse;
pub(crate) use device::fuse::{LOOP_DEVICE, check as check_fuse};
pub(crate) use device::kept_connections::{KEEPER, KEEPER_FOR_DAEMON, KeeperStart};
pub(crate) use device::kernel::FLUSH_DEVICE;
pub(crate) use error::{FailureKind, NodeError};

pub(crate) use holdfast_serve::{RingStatus, ServedCounts};
pub(crate) use local::file::open_mode;
pub(crate) use local::instances::{Instance, InstanceError, Instances};
pub(crate) use local::owner::{Owner, check_dirs, is_held};
pub(crate) use local::quota::CacheRoom;
pub(crate) use local::state_disk::StateDisk;
pub(crate) use local::volume_files::check_attached;
pub(crate) use memory::shape::{MemoryAttach, MemoryIdentity};
pub(crate) use run_blocking::run_blocking;
pub(crate) use settings::{LimitChange, SettingsChange, VolumeSettings};
pub(crate) use store::cold_reads::ReadAheadFigures;
pub(crate) use store::sweep::SweepRequest;
pub(crate) use store::watched::{StoreHealth, StoreUnreachable};
pub(crate) use volume::attach_steps::AttachTimes;
#[cfg(test)]
pub(crate) use volume::attach_steps::TimedStep;
pub(crate) use volume::cut::CutStep;
pub(crate) use volume::grow::GrowTo;
pub(crate) use volume::scrub::{ScrubEffect, ScrubFinding, ScrubRepair, ScrubRequest, Scrubbed};
pub(crate) use volume::snapshot::VolumeInStore;
pub(crate) use volume::status::{CommitStatus, NodeVolumeStatus, VolumeState};
#[cfg(test)]
pub(crate) use volume::status::{DiskStatus, StoreStatus};

use clock::unix_ms;
use device::kernel::{Devices, Kernel};
use device::tag::Installation;
use error::file;
use local::file::open_direct;
pub(crate) use local::file::random;
use local::outdated::OutdatedFiles;
use local::owner::HeldOwner;
use local::quota::{CacheQuota, empty_trash};
use local::volume_files::LocalDirs;
use ring::placement::Rings;
use ring::thread;
use run_blocking::calls_end;
use store::block_cache::{BlockSlab, slab_path};
use store::change::NodeStores;
use store::cold_reads::ColdReads;
use store::sweep::Sweeps;
use volume::device::VolumeDevices;
use volume::scrub::Scrubs;
use volume::snapshot::Snapshots;
use volume::table::NodeVolumes;

/// Requests a queue holds.
const QUEUE_DEPTH: u16 = 128;
/// Queues a device has: one ring thread owns a volume. Kernels before 6.15 crash in START_DEV where one of
/// several queues is armed in part.
const QUEUES: u16 = 1;
/// Segment indexes kept in memory, in bytes, and how many those may be.
pub(crate) const INDEX_CACHE_BYTES: u64 = 256 << 20;
const INDEXES: usize = 4096;
/// Segments are uploaded in parts of this size, in bytes.
pub(crate) const PART_BYTES: usize = 8 << 20;
/// Batches of blocks that are read and compressed at once for each processor: while one waits for the disk,
/// another one computes.
const COMPRESSORS_OF_PROCESSOR: usize = 2;
/// The longest wait for the first try of all volumes: then the others are served, and the daemon speaks to
/// the world.
const START_WITHIN: Duration = Duration::from_secs(5);
/// The longest wait at the end for calls that block on a disk or a device, while the devices are served.
const CALLS_END_WITHIN: Duration = Duration::from_secs(5);
/// Interval at which volumes check their limits and publish their figures.
const TICK: Duration = Duration::from_millis(250);

/// Content of a new volume, and its size in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Content {
    /// Zeros.
    Empty {
        /// Its size.
        bytes: u64,
    },
    /// The content of a snapshot in the same store.
    Snapshot {
        /// The snapshot.
        snapshot: SnapshotName,
        /// Its size; `None`: that of the snapshot.
        bytes: Option<u64>,
    },
}

impl From<u64> for Content {
    fn from(bytes: u64) -> Self {
        Self::Empty { bytes }
    }
}

/// Transport of new devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum TransportChoice {
    /// The best one the kernel has.
    #[default]
    Auto,
    /// This one or none.
    Only(Transport),
}

impl TransportChoice {
    /// True where a device may be one of FUSE. Else nothing of FUSE is looked for: that has the kernel load
    /// its modules.
    pub(crate) fn may_be_fuse(self) -> bool {
        self.may_be(Transport::Fuse)
    }

    /// True where a device of an object store may have this transport.
    pub(crate) fn may_be(self, transport: Transport) -> bool {
        self == Self::Auto || self == Self::Only(transport)
    }

    /// The transport that devices get from a driver with these features, and without it from FUSE where the
    /// kernel has what that needs.
    ///
    /// # Errors
    /// Those of the driver, [`Unsupported::MissingFeature`]; [`Unsupported::NoFuse`] where FUSE is asked for;
    /// [`Unsupported::NoKeeper`] where only that is missing.
    pub(crate) fn among(
        self,
        features: Result<Features, Unsupported>,
        fuse: impl FnOnce() -> Result<(), Unsupported>,
    ) -> Result<Transport, Unsupported> {
        match self {
            Self::Auto => match features.and_then(|features| features.best_transport()) {
                Err(error) if error.is_without_ublk() => match fuse() {
                    Ok(()) => Ok(Transport::Fuse),
                    Err(refused @ Unsupported::NoKeeper { .. }) => Err(refused),
                    Err(_) => Err(error),
                },
                best => best,
            },
            Self::Only(Transport::Fuse) => fuse().map(|()| Transport::Fuse),
            Self::Only(transport) => features?.check(transport).map(|()| transport),
        }
    }
}

/// Configuration of the node. Its reader validated all fields.
#[derive(Debug, Clone)]
pub(crate) struct NodeConfig {
    /// The node's name, for people and for attach records.
    pub(crate) node_name: String,
    /// Directory on the local NVMe.
    pub(crate) state_dir: PathBuf,
    /// Directory in a tmpfs that outlives the process and not the host.
    pub(crate) run_dir: PathBuf,
    /// Threads that carry devices, at least 1.
    pub(crate) ring_threads: usize,
    /// Transport of new devices.
    pub(crate) transport: TransportChoice,
    /// Processes that run the keeper of FUSE connections.
    pub(crate) keeper: KeeperStart,
    /// Size of the cache of fetched blocks, in bytes.
    pub(crate) slab_bytes: u64,
    /// Limit of the sides of all volumes, in bytes; nine tenths of the filesystem without the slab unless
    /// set.
    pub(crate) cache_bytes: Option<u64>,
    /// Dirty bytes of a volume at which they are uploaded.
    pub(crate) seal_bytes: u64,
    /// Dirty bytes of a volume at which writes wait.
    pub(crate) max_dirty_bytes: u64,
    /// Memory for the uploads of all volumes, in bytes.
    pub(crate) upload_memory_bytes: u64,
    /// Age of the oldest dirty byte at which it is uploaded.
    pub(crate) max_dirty_age: Duration,
    /// The most memory that all memory volumes may take together, in bytes; 0: none is attached.
    pub(crate) memory_volumes_bytes: u64,
    /// The most of the state disk that the spill files of all memory volumes may take together, in bytes; 0:
    /// none has one.
    pub(crate) memory_spill_bytes: u64,
}

impl NodeConfig {
    /// Bytes of the state disk that are set apart from the cache: the slab, and spill files of memory
    /// volumes.
    const fn bytes_apart_from_cache(&self) -> u64 {
        self.slab_bytes.saturating_add(self.memory_spill_bytes)
    }
}

/// Request to attach a volume.
#[derive(Debug, Clone)]
pub(crate) struct AttachRequest {
    /// The volume.
    pub(crate) volume: VolumeId,
    /// The store's name, for people.
    pub(crate) store_name: String,
    /// The store.
    pub(crate) store: S3Config,
    /// Grow the volume to this size, in bytes.
    pub(crate) bytes: Option<u64>,
    /// The writer of this epoch may be replaced.
    pub(crate) replaces: Option<u64>,
    /// In place of the node's own.
    pub(crate) max_dirty_age: Option<Duration>,
    /// Point at which a FLUSH is complete.
    pub(crate) durability: Durability,
    /// Limits of its requests.
    pub(crate) limits: IoLimits,
    /// Probe the bucket before its first use in this process: no operator did.
    pub(crate) probe: bool,
    /// Refuse it where new devices are not of ublk.
    pub(crate) ublk_only: bool,
}

/// An attached volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attached {
    /// Its block device.
    pub(crate) device_path: PathBuf,
    /// Transport of its data.
    pub(crate) transport: Transport,
    /// The writer's epoch.
    pub(crate) epoch: u64,
    /// Size in bytes.
    pub(crate) bytes: u64,
    /// The writer that this node replaced when it took the volume.
    pub(crate) displaced: Option<Displaced>,
}

/// Capabilities of the node.
#[derive(Debug, Clone)]
pub(crate) struct Capabilities {
    /// The kernel's release.
    pub(crate) kernel_release: String,
    /// Each transport, with the reason where it cannot be used.
    pub(crate) transports: Vec<(Transport, Result<(), String>)>,
    /// That of new devices.
    pub(crate) transport: Result<Transport, NoTransport>,
    /// The disk under the state directory, where the file system shows it.
    pub(crate) state_disk: Option<StateDisk>,
    /// Volumes that the ring threads can serve at a time, within the limit of open files.
    pub(crate) max_volumes: u32,
}

/// Reason for which a node makes no device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoTransport {
    /// Only the keeper is missing; with the fix.
    Keeper(String),
    /// None of the node's transports can be used, or is asked for: each says why.
    Refused,
}

impl From<Unsupported> for NoTransport {
    fn from(error: Unsupported) -> Self {
        if matches!(error, Unsupported::NoKeeper { .. }) {
            Self::Keeper(chain(&error))
        } else {
            Self::Refused
        }
    }
}

/// The running data plane. Clones share it.
#[derive(Clone)]
pub(crate) struct Node(Arc<Inner>);

struct Inner {
    config: NodeConfig,
    features: Result<Features, Unsupported>,
    state_disk: Option<StateDisk>,
    installation: Installation,
    devices: VolumeDevices,
    rings: Rings,
    threads: Mutex<Vec<JoinHandle<Option<OwnedFd>>>>,
    cold: Arc<ColdReads>,
    pools: Pools,
    attach_times: AttachTimes,
    stores: NodeStores,
    volumes: NodeVolumes,
    memory: memory::MemoryTable,
    dirs: LocalDirs,
    tasks: Tasks,
    /// The right to use the directories, until [`Node::shutdown`].
    owner: Mutex<Option<Owner>>,
}

impl Node {
    /// Starts the ring threads and recovers every device of the previous process, before it returns. A device
    /// that takes longer than others holds up no other: it is tried again in the background.
    ///
    /// # Errors
    /// Local state that cannot be used.
    pub(crate) async fn serve(owner: Owner) -> Result<Self, NodeError> {
        let NodeConfig { run_dir, keeper, .. } = owner.config();
        let kernel = Arc::new(Kernel::of_this_host(run_dir, *keeper));
        let prepared = Arc::clone(&kernel);
        run_blocking(move || {
            prepared.prepare_udev();
            prepared.sweep_connections();
        })
        .await;
        let node = Self::serve_with(owner, kernel, START_WITHIN).await?;
        node.log_transport();
        Ok(node)
    }

    /// Says where ublk is not what new devices are served by, and why.
    fn log_transport(&self) {
        let choice = self.0.config.transport;
        if choice == TransportChoice::Only(Transport::Fuse) {
            return tracing::info!(transport = %Transport::Fuse, "new devices are without ublk, as data.transport asks for");
        }
        let Err(error) = &self.0.features else { return };
        if choice.may_be_fuse() && error.is_without_ublk() && fuse::probe().is_ok() {
            tracing::warn!(
                transport = %Transport::Fuse,
                error = chain(error),
                "the kernel has no ublk that can serve; new devices are slower; run holdfast-node preflight for the fix"
            );
        }
    }

    /// The same with the devices of this kernel, and with this wait for those that a predecessor left.
    async fn serve_with(
        owner: Owner,
        devices: Arc<dyn Devices>,
        within: Duration,
    ) -> Result<Self, NodeError> {
        let config = owner.config().clone();
        let installation = Installation::of(&config.state_dir)?;
        let state_disk = StateDisk::look(&config.state_dir);
        let open_files = holdfast_ring::raise_open_file_limit().unwrap_or_else(|error| {
            tracing::warn!(%error, "the limit of open files was not raised; rings may refuse devices");
            u64::MAX
        });
        let (path, bytes) = (slab_path(&config.state_dir), config.slab_bytes);
        let slab = run_blocking(move || BlockSlab::open(&path, bytes)).await?;
        let zeros_path = config.state_dir.join("zeros.data");
        let zeros = zeros_file(&zeros_path)?;
        let (mut rings, mut threads) = (Vec::new(), Vec::new());
        for number in 0..config.ring_threads {
            let share = |handle: &File| handle.try_clone().map_err(file(&zeros_path, "shared"));
            let (ring, thread) = thread::spawn(
                number,
                SharedFiles {
                    slab: share(slab.file())?,
                    memory: share(slab.memory_file())?,
                    zeros: share(&zeros)?,
                },
            )?;
            rings.push(ring);
            threads.push(thread);
        }
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        let pools = Pools {
            indexes: Arc::new(Indexes::new(INDEXES, INDEX_CACHE_BYTES)),
            upload_memory: UploadMemory::new(config.upload_memory_bytes, PART_BYTES),
            compressors: Arc::new(Compressors::new(COMPRESSORS_OF_PROCESSOR * processors)),
            merging: Arc::default(),
        };
        let volumes = NodeVolumes::default();
        let dirs = LocalDirs { state: config.state_dir.clone(), run: config.run_dir.clone() };
        let tasks = Tasks::new();
        let devices = VolumeDevices::new(devices, config.transport, tasks.clone());
        let node = Self(Arc::new(Inner {
            config,
            features: Features::probe(),
            state_disk,
            installation,
            devices,
            rings: Rings::new(rings, open_files),
            threads: Mutex::new(threads),
            cold: Arc::new(ColdReads::new(slab, Arc::clone(&pools.indexes))),
            pools,
            attach_times: AttachTimes::default(),
            stores: NodeStores::new(volumes.clone(), dirs.clone()),
            volumes,
            memory: memory::MemoryTable::default(),
            dirs,
            tasks,
            owner: Some(owner).into(),
        }));
        draining::resume(&node.0.dirs.run, &node.0.rings).await;
        node.recover_all(within).await?;
        node.0.tasks.spawn(node.clone().keep_ticking());
        node.keep_quota();
        Ok(node)
    }

    /// Has the volumes look at their limits and publish their figures.
    async fn keep_ticking(self) {
        let mut ticks = ticks();
        loop {
            ticks.tick().await;
            for ring in self.0.rings.iter() {
                ring.offer(Message::Tick);
            }
        }
    }

    fn keep_quota(&self) {
        let Inner { config, volumes, dirs, tasks, rings, .. } = &*self.0;
        let cache_bytes = config.cache_bytes;
        let apart_bytes = config.bytes_apart_from_cache();
        let (volumes, dirs, trash) = (volumes.clone(), dirs.clone(), Arc::<Notify>::default());
        let rings = rings.iter().cloned().collect();
        tasks.spawn(empty_trash(dirs.state.clone(), Arc::clone(&trash)));
        tasks.spawn(CacheQuota { rings, volumes, dirs, cache_bytes, apart_bytes, trash }.keep());
    }

    /// Creates a volume in a store: one PUT, what its content needs, and the probe of a bucket that this
    /// process has not used yet. Again with the same size it changes nothing. Returns its size in bytes.
    ///
    /// # Errors
    /// [`NodeError::Size`], [`NodeError::StoreUnfit`], or what the store says.
    pub(crate) async fn create(
        &self,
        volume: &VolumeId,
        content: Content,
        name: &str,
        store: &S3Config,
    ) -> Result<u64, NodeError> {
        let (sectors, source) = match content {
            Content::Empty { bytes } => (sectors_of(bytes)?, None),
            Content::Snapshot { snapshot, bytes } => {
                (bytes.map(sectors_of).transpose()?.unwrap_or_default(), Some(snapshot))
            }
        };
        let objects = self.0.stores.probed(name, store).await?;
        let plain = Creation::plain(sectors, holdfast_types::Nonce(random()), unix_ms());
        let creation = Creation { source, ..plain };
        Ok(holdfast_log::provision(&*objects, volume, creation).await? * SECTOR_BYTES)
    }

    /// The volumes on this node.
    pub(crate) fn list(&self) -> Vec<NodeVolumeStatus> {
        let shown = self.0.volumes.all().into_iter().filter_map(NodeVolumeStatus::of);
        shown.chain(self.list_memory()).collect()
    }

    /// Fetched blocks that were served from memory because the local disk did not take them, or could not
    /// read them.
    pub(crate) fn unkept_blocks(&self) -> u64 {
        self.0.cold.unkept()
    }

    /// Fetched blocks that earlier processes left in the slab.
    pub(crate) fn old_blocks(&self) -> OldCounts {
        self.0.cold.old()
    }

    /// Figures of what was fetched ahead of readers.
    pub(crate) fn read_ahead(&self) -> ReadAheadFigures {
        self.0.cold.read_ahead()
    }

    /// Number of devices without ublk that this daemon serves and whose connection no keeper has now. While
    /// it is not 0, a planned end of the daemon waits: the requests to those devices would fail. It does not
    /// block.
    pub(crate) fn unkept_devices(&self) -> usize {
        self.0.devices.kernel().unkept_devices()
    }

    /// Figures of each ring thread.
    pub(crate) fn rings(&self) -> Vec<RingStatus> {
        self.0.rings.status()
    }

    /// Times of the steps of attaches.
    pub(crate) fn attach_times(&self) -> &AttachTimes {
        &self.0.attach_times
    }

    /// Capabilities of the node.
    pub(crate) fn capabilities(&self) -> Capabilities {
        let choice = self.0.config.transport;
        let kernel = self.0.devices.kernel();
        let check = |transport: Transport| match (transport, &self.0.features) {
            _ if !choice.may_be(transport) => Err(format!(
                "data.transport asks for another; set it to \"auto\" or \"{}\"",
                transport.name()
            )),
            (Transport::Fuse, _) => kernel.check_fuse().map_err(|error| error.to_string()),
            (Transport::ZeroCopy | Transport::UserCopy | Transport::KernelCopy, Ok(features)) => {
                features.check(transport).map_err(|error| error.to_string())
            }
            (Transport::ZeroCopy | Transport::UserCopy | Transport::KernelCopy, Err(error)) => {
                Err(error.to_string())
            }
        };
        // Kernel copy is no choice: memory volumes have it wherever the kernel has ublk.
        let transports = Transport::ALL.into_iter().filter(|transport| *transport != Transport::KernelCopy);
        let release = holdfast_ublk::KernelRelease::running();
        Capabilities {
            kernel_release: release.map_or_else(|error| error.to_string(), |release| release.to_string()),
            transports: transports.map(|transport| (transport, check(transport))).collect(),
            transport: kernel.transport(choice).map_err(NoTransport::from),
            state_disk: self.0.state_disk.clone(),
            max_volumes: self.0.rings.max_volumes(QUEUES),
        }
    }

    /// Stops serving and leaves every device quiesced, for a successor. None of its tasks is left, and calls
    /// that they began end while the devices are still served. Returns the right to use the directories,
    /// which nothing of this process uses any more. `None`: something may, and the lock stays held until the
    /// process has ended.
    pub(crate) async fn shutdown(self) -> Option<Owner> {
        let (owner, all_ended) = self.leave(CALLS_END_WITHIN).await;
        owner.filter(|_| all_ended).map(HeldOwner::into_owner)
    }

    /// The same where the host ends, and has no time to wait: the next daemon begins after its start.
    pub(crate) async fn shutdown_with_host(self) {
        let _held = self.leave(Duration::ZERO).await;
    }

    /// The same with this wait for calls that block. Returns whether all have ended.
    async fn leave(self, within: Duration) -> (Option<HeldOwner>, bool) {
        let owner = self.0.owner.lock().take().map(HeldOwner::new);
        self.0.tasks.stop().await;
        let all_ended = calls_end(within).await;
        if !all_ended {
            tracing::warn!(
                ?within,
                "work on local files did not end in time; the next daemon waits for the end of this process"
            );
        }
        // A ring thread whose inbox is full holds up no other.
        join_all(self.0.rings.iter().map(|ring| ring.send(Message::Leave))).await;
        let threads = std::mem::take(&mut *self.0.threads.lock());
        // Each ring is closed once its thread has ended, which hands its devices over (`ring::thread`).
        let end = |thread: JoinHandle<_>| tokio::task::spawn_blocking(move || thread.join().map(drop));
        for joined in join_all(threads.into_iter().map(end)).await {
            if !matches!(joined, Ok(Ok(()))) {
                tracing::error!("a ring thread died; its devices are quiesced all the same");
            }
        }
        (owner, all_ended)
    }

    /// Lets the volumes of the store called `name` use `config` from now on.
    ///
    /// # Errors
    /// Those of [`NodeStores::renew`].
    pub(crate) async fn renew_store(&self, name: &str, config: &S3Config) -> Result<(), NodeError> {
        self.0.stores.renew(name, config).await
    }

    /// Local files of volumes that are not on this node.
    pub(crate) fn outdated(&self) -> OutdatedFiles<'_> {
        OutdatedFiles { volumes: &self.0.volumes, stores: &self.0.stores, dirs: &self.0.dirs }
    }

    /// Scrubs of volumes.
    pub(crate) fn scrubs(&self) -> Scrubs<'_> {
        Scrubs { volumes: &self.0.volumes, stores: &self.0.stores, dirs: &self.0.dirs }
    }

    /// Sweeps of stores.
    pub(crate) fn sweeps(&self) -> Sweeps<'_> {
        Sweeps { stores: &self.0.stores }
    }

    /// Snapshots of volumes.
    pub(crate) fn snapshots(&self) -> Snapshots<'_> {
        Snapshots { volumes: &self.0.volumes, stores: &self.0.stores }
    }

    fn limits(&self, max_age_ms: u64) -> DirtyLimits {
        let config = &self.0.config;
        DirtyLimits { seal_bytes: config.seal_bytes, max_bytes: config.max_dirty_bytes, max_age_ms }
    }
}

/// The times at which volumes look at their limits. One that was missed is not made up for.
fn ticks() -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// A file of zeros, whatever was in it before.
fn zeros_file(path: &Path) -> Result<File, NodeError> {
    let zeros = open_direct(path, 0)?;
    zeros.set_len(0).map_err(file(path, "emptied"))?;
    // As long as the largest request of any device: another version may have made it.
    zeros.set_len(DeviceSpec::MAX_IO_BYTES.into()).map_err(file(path, "resized"))?;
    Ok(zeros)
}

/// Milliseconds of a duration; what is longer than they can tell is the longest.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn sectors_of(bytes: u64) -> Result<u64, NodeError> {
    if bytes == 0 || !bytes.is_multiple_of(SECTOR_BYTES) {
        return Err(NodeError::Size(bytes));
    }
    Ok(bytes / SECTOR_BYTES)
}

#[cfg(test)]
mod tests;
