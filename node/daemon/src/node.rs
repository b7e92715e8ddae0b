//! The node's data plane: serves volumes as block devices.
//!
//! Owns: the node lock, the ring threads, the slab, and the set of attached volumes. Knows nothing of
//! Kubernetes or gRPC.
//! Invariants: only the holder of the lock drives devices or touches local state; a quiesced device is
//! recovered before anything else happens; a device is driven only if its tag is the one its volume gave it;
//! only a detach deletes a device that served.

mod clock;
mod device;
mod draining;
mod error;
mod exit_on_panic;
pub(crate) mod fenced;
mod handoff_check;
mod limit;
mod local;
mod memory;
mod ring;
mod run_blocking;
mod settings;
mod store;
mod volume;

use std::fs::File;
use std::io;
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
use rustix::fs::{MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_setfl, memfd_create};
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;

use device::fuse;
pub(crate) use device::fuse::{LOOP_DEVICE, check as check_fuse};
pub(crate) use device::kept_connections::{KEEPER, KEEPER_FOR_DAEMON, KeeperStart};
pub(crate) use device::kernel::FLUSH_DEVICE;
pub(crate) use error::{FailureKind, NodeError};
pub(crate) use handoff_check::check_attached;

pub(crate) use holdfast_serve::{RingStatus, ServedCounts};
pub(crate) use local::file::open_mode;
pub(crate) use local::instances::{InstanceError, InstanceName, Instances};
pub(crate) use local::owner::{Owner, check_dirs, is_held};
pub(crate) use local::quota::CacheRoom;
pub(crate) use local::state_disk::StateDisk;
pub(crate) use memory::shape::{MemoryAttach, MemoryIdentity};
pub(crate) use run_blocking::run_blocking;
pub(crate) use settings::{LimitChange, SettingsChange, VolumeSettings};
pub(crate) use store::cold_reads::ReadAheadFigures;
pub(crate) use store::sweep::SweepRequest;
pub(crate) use store::watched::{StoreHealth, StoreOutage};
pub(crate) use volume::attach_steps::AttachTimes;
#[cfg(test)]
pub(crate) use volume::attach_steps::TimedStep;
pub(crate) use volume::cut::CutStep;
pub(crate) use volume::grow::GrowTo;
pub(crate) use volume::scrub::{ScrubEffect, ScrubFinding, ScrubRepair, ScrubRequest, Scrubbed};
pub(crate) use volume::snapshot::VolumeInStore;
#[cfg(test)]
pub(crate) use volume::status::DiskStatus;
pub(crate) use volume::status::{CommitStatus, DelayStatus, NodeVolumeStatus, StoreStatus, VolumeState};

use clock::unix_ms;
use device::kernel::{Devices, Kernel};
use device::tag::Installation;
use error::file;
pub(crate) use local::file::random;
use local::outdated::OutdatedFiles;
use local::owner::HeldOwner;
use local::quota::{CacheQuota, empty_trash};
use local::volume_files::LocalDirs;
use ring::lock::EarlierRings;
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

/// Requests per queue.
const QUEUE_DEPTH: u16 = 128;
/// Queues per device: one ring thread owns a volume. Kernels before 6.15 crash in START_DEV if one of several
/// queues is armed partially.
const QUEUES: u16 = 1;
/// Maximum segment indexes kept in memory, in bytes and in number.
pub(crate) const INDEX_CACHE_BYTES: u64 = 256 << 20;
const INDEXES: usize = 4096;
/// Segments are uploaded in parts of this size, in bytes.
pub(crate) const PART_BYTES: usize = 8 << 20;
/// Batches of blocks that are read and compressed concurrently per processor: while one waits for the disk,
/// another one computes.
const COMPRESSORS_OF_PROCESSOR: usize = 2;
/// Maximum wait for the first recovery of all volumes; afterwards the others are served, and the daemon's
/// interfaces start.
const START_WITHIN: Duration = Duration::from_secs(5);
/// Maximum wait at the end for calls that block on a disk or a device, while the devices are served.
const CALLS_END_WITHIN: Duration = Duration::from_secs(5);
/// Name of the file of zeros, in messages and in `/proc`.
const ZEROS: &str = "holdfast-zeros";
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
    /// The best one that the kernel offers.
    #[default]
    Auto,
    /// This one, or none.
    Only(Transport),
}

impl TransportChoice {
    /// Returns true if a device may be a FUSE device. Otherwise FUSE is not probed, because that makes the
    /// kernel load its modules.
    pub(crate) fn may_be_fuse(self) -> bool {
        self.may_be(Transport::Fuse)
    }

    /// Returns true if a device of an object store may have this transport.
    pub(crate) fn may_be(self, transport: Transport) -> bool {
        self == Self::Auto || self == Self::Only(transport)
    }

    /// Returns the transport that devices get from a driver with these features; without the driver FUSE, if
    /// the kernel meets its requirements.
    ///
    /// # Errors
    /// Those of the driver, [`Unsupported::MissingFeature`]; [`Unsupported::NoFuse`] if FUSE is requested;
    /// [`Unsupported::NoKeeper`] if only the keeper is missing.
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
    /// The node's name, for users and for attach records.
    pub(crate) node_name: String,
    /// Directory on the local NVMe.
    pub(crate) state_dir: PathBuf,
    /// Directory in a tmpfs that outlives the process but not the host.
    pub(crate) run_dir: PathBuf,
    /// Threads that serve devices, at least 1.
    pub(crate) ring_threads: usize,
    /// Transport of new devices.
    pub(crate) transport: TransportChoice,
    /// Processes that run the keeper of FUSE connections.
    pub(crate) keeper: KeeperStart,
    /// Size of the cache of fetched blocks, in bytes.
    pub(crate) slab_bytes: u64,
    /// Limit of the sides of all volumes, in bytes; `None`: nine tenths of the filesystem without the slab.
    pub(crate) cache_bytes: Option<u64>,
    /// Dirty bytes of a volume at which their upload starts.
    pub(crate) seal_bytes: u64,
    /// Dirty bytes of a volume at which writes wait.
    pub(crate) max_dirty_bytes: u64,
    /// Memory for the uploads of all volumes, in bytes.
    pub(crate) upload_memory_bytes: u64,
    /// Age of the oldest dirty byte at which its upload starts.
    pub(crate) max_dirty_age: Duration,
    /// Maximum memory of all memory volumes together, in bytes; 0: none can be attached.
    pub(crate) memory_volumes_bytes: u64,
    /// Maximum disk space of the spill files of all memory volumes together, in bytes; 0: no spill files.
    pub(crate) memory_spill_bytes: u64,
}

impl NodeConfig {
    /// Returns the bytes of the state disk reserved for other uses than the cache: the slab, and spill files
    /// of memory volumes.
    const fn bytes_apart_from_cache(&self) -> u64 {
        self.slab_bytes.saturating_add(self.memory_spill_bytes)
    }
}

/// Request to attach a volume.
#[derive(Debug, Clone)]
pub(crate) struct AttachRequest {
    /// The volume.
    pub(crate) volume: VolumeId,
    /// The store's name, for users.
    pub(crate) store_name: String,
    /// The store.
    pub(crate) store: S3Config,
    /// Grow the volume to this size, in bytes.
    pub(crate) bytes: Option<u64>,
    /// The writer of this epoch may be replaced.
    pub(crate) replaces: Option<u64>,
    /// Overrides the node's own.
    pub(crate) max_dirty_age: Option<Duration>,
    /// Point at which a FLUSH is complete.
    pub(crate) durability: Durability,
    /// Limits of its I/O.
    pub(crate) limits: IoLimits,
    /// Probe the bucket before its first use in this process, because no operator did.
    pub(crate) probe: bool,
    /// Reject it if new devices are not ublk devices.
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
    /// The writer that this node replaced at the attach.
    pub(crate) displaced: Option<Displaced>,
}

/// Capabilities of the node.
#[derive(Debug, Clone)]
pub(crate) struct Capabilities {
    /// The kernel's release.
    pub(crate) kernel_release: String,
    /// Each transport, with the reason if it is unavailable.
    pub(crate) transports: Vec<(Transport, Result<(), String>)>,
    /// The transport of new devices.
    pub(crate) transport: Result<Transport, NoTransport>,
    /// The disk under the state directory, if the file system exposes it.
    pub(crate) state_disk: Option<StateDisk>,
    /// Volumes that the ring threads can serve concurrently, within the limit of open files.
    pub(crate) max_volumes: u32,
}

/// Reason why a node cannot create devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoTransport {
    /// Only the keeper is missing; contains the fix.
    Keeper(String),
    /// None of the node's transports is available or permitted; each has its reason.
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
pub(crate) struct Node(Arc<DataPlane>);

struct DataPlane {
    config: NodeConfig,
    host: HostFacts,
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
    /// The right to use the directories, held until [`Node::shutdown`].
    owner: Mutex<Option<Owner>>,
}

/// Facts of the host, as found at the start.
struct HostFacts {
    /// Features of the kernel's ublk driver.
    features: Result<Features, Unsupported>,
    /// The disk under the state directory, if the file system exposes it.
    state_disk: Option<StateDisk>,
}

impl Node {
    /// Starts the ring threads and recovers every device of the previous process before it returns. A slow
    /// device does not delay the others: it is retried in the background.
    ///
    /// # Errors
    /// The local state cannot be used.
    pub(crate) async fn serve(owner: Owner) -> Result<Self, NodeError> {
        let NodeConfig { run_dir, keeper, .. } = owner.config();
        let kernel = Arc::new(Kernel::of_this_host(run_dir, *keeper, owner.ring_locks().clone()));
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

    /// Logs the reason if new devices are not served over ublk.
    fn log_transport(&self) {
        let choice = self.0.config.transport;
        if choice == TransportChoice::Only(Transport::Fuse) {
            return tracing::info!(transport = %Transport::Fuse, "new devices do not use ublk, as data.transport requests");
        }
        let Err(error) = &self.0.host.features else { return };
        if choice.may_be_fuse() && error.is_without_ublk() && fuse::probe().is_ok() {
            tracing::warn!(
                transport = %Transport::Fuse,
                error = chain(error),
                "the kernel has no usable ublk; new devices are slower; run holdfast-node preflight for the fix"
            );
        }
    }

    /// Like [`Self::serve`], with this implementation of the devices and this maximum wait for the recovery.
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
        let zeros = zeros_file().map_err(file(Path::new(ZEROS), "created in memory"))?;
        let (mut rings, mut threads) = (Vec::new(), Vec::new());
        let lock = owner.ring_locks().lock()?;
        for number in 0..config.ring_threads {
            let share = |handle: &File| handle.try_clone().map_err(file(Path::new(ZEROS), "shared"));
            let lock = share(&lock)?;
            let (ring, thread) = thread::spawn(
                number,
                SharedFiles {
                    slab: share(slab.file())?,
                    memory: share(slab.memory_file())?,
                    zeros: share(&zeros)?,
                },
                lock,
            )?;
            rings.push(ring);
            threads.push(thread);
        }
        drop(lock);
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
        let node = Self(Arc::new(DataPlane {
            config,
            host: HostFacts { features: Features::probe(), state_disk },
            installation,
            devices,
            rings: Rings::new(rings, open_files, EarlierRings::new(owner.ring_locks().clone())),
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

    /// Makes the volumes check their limits and publish their figures at intervals.
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
        let DataPlane { config, volumes, dirs, tasks, rings, .. } = &*self.0;
        let cache_bytes = config.cache_bytes;
        let apart_bytes = config.bytes_apart_from_cache();
        let (volumes, dirs, trash) = (volumes.clone(), dirs.clone(), Arc::<Notify>::default());
        let rings = rings.iter().cloned().collect();
        tasks.spawn(empty_trash(dirs.state.clone(), Arc::clone(&trash)));
        tasks.spawn(CacheQuota { rings, volumes, dirs, cache_bytes, apart_bytes, trash }.keep());
    }

    /// Creates a volume in a store: one PUT, the requests for its content, and the probe of a bucket that
    /// this process has not used yet. Repeating it with the same size is a no-op. Returns its size in bytes.
    ///
    /// # Errors
    /// [`NodeError::Size`], [`NodeError::StoreUnfit`], or the store's error.
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

    /// Returns the volumes on this node.
    pub(crate) fn list(&self) -> Vec<NodeVolumeStatus> {
        let shown = self.0.volumes.all().into_iter().filter_map(NodeVolumeStatus::of);
        shown.chain(self.list_memory()).collect()
    }

    /// Returns the number of fetched blocks served from memory because the local disk failed to store or read
    /// them.
    pub(crate) fn unkept_blocks(&self) -> u64 {
        self.0.cold.unkept()
    }

    /// Returns the counts of fetched blocks left in the slab by earlier processes.
    pub(crate) fn old_blocks(&self) -> OldCounts {
        self.0.cold.old()
    }

    /// Returns the figures of read-ahead.
    pub(crate) fn read_ahead(&self) -> ReadAheadFigures {
        self.0.cold.read_ahead()
    }

    /// Returns the number of devices without ublk that this daemon serves and whose connection no keeper
    /// currently has. While it is not 0, a planned exit of the daemon waits, because those devices' requests
    /// would fail. It does not block.
    pub(crate) fn unkept_devices(&self) -> usize {
        self.0.devices.kernel().unkept_devices()
    }

    /// Returns the memory that uploads hold, in bytes: at most `data.upload_memory`.
    pub(crate) fn upload_memory_bytes(&self) -> u64 {
        self.0.pools.upload_memory.held_bytes()
    }

    /// Returns the memory of cached index parts, in bytes: at most [`INDEX_CACHE_BYTES`].
    pub(crate) fn index_cache_bytes(&self) -> u64 {
        self.0.pools.indexes.bytes()
    }

    /// Returns the figures of each ring thread.
    pub(crate) fn rings(&self) -> Vec<RingStatus> {
        self.0.rings.status()
    }

    /// Returns the times of the steps of attaches.
    pub(crate) fn attach_times(&self) -> &AttachTimes {
        &self.0.attach_times
    }

    /// Returns the capabilities of the node.
    pub(crate) fn capabilities(&self) -> Capabilities {
        let choice = self.0.config.transport;
        let kernel = self.0.devices.kernel();
        let check = |transport: Transport| match (transport, &self.0.host.features) {
            _ if !choice.may_be(transport) => Err(format!(
                "data.transport requests another; set it to \"auto\" or \"{}\"",
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
        // Kernel copy is not selectable: memory volumes use it if the kernel has ublk.
        let transports = Transport::ALL.into_iter().filter(|transport| *transport != Transport::KernelCopy);
        let release = holdfast_ublk::KernelRelease::running();
        Capabilities {
            kernel_release: release.map_or_else(|error| error.to_string(), |release| release.to_string()),
            transports: transports.map(|transport| (transport, check(transport))).collect(),
            transport: kernel.transport(choice).map_err(NoTransport::from),
            state_disk: self.0.host.state_disk.clone(),
            max_volumes: self.0.rings.max_volumes(QUEUES),
        }
    }

    /// Stops serving and leaves every device quiesced for a successor. All tasks end, and their calls end
    /// while the devices are still served. Returns the right to use the directories once nothing in this
    /// process uses them any more. `None`: some call may still use them, and the lock stays held until the
    /// process has exited.
    pub(crate) async fn shutdown(self) -> Option<Owner> {
        let (owner, all_ended) = self.leave(CALLS_END_WITHIN).await;
        owner.filter(|_| all_ended).map(HeldOwner::into_owner)
    }

    /// Like [`Self::shutdown`], for a shutdown of the host: does not wait for calls, because the next daemon
    /// only starts after the boot.
    pub(crate) async fn shutdown_with_host(self) {
        let _held = self.leave(Duration::ZERO).await;
    }

    /// Leaves the devices, with this maximum wait for blocking calls. Also returns true if all calls have
    /// ended.
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
        // A ring thread with a full inbox does not delay the others.
        join_all(self.0.rings.iter().map(|ring| ring.send(Message::Leave))).await;
        let threads = std::mem::take(&mut *self.0.threads.lock());
        // Each ring is closed once its thread, which hands its devices over, has ended (`ring::thread`).
        let end = |thread: JoinHandle<_>| tokio::task::spawn_blocking(move || thread.join().map(drop));
        for joined in join_all(threads.into_iter().map(end)).await {
            if !matches!(joined, Ok(Ok(()))) {
                tracing::error!("a ring thread died; its devices are quiesced all the same");
            }
        }
        (owner, all_ended)
    }

    /// Switches the volumes of the store called `name` to `config`.
    ///
    /// # Errors
    /// Those of [`NodeStores::renew`].
    pub(crate) async fn renew_store(&self, name: &str, config: &S3Config) -> Result<(), NodeError> {
        self.0.stores.renew(name, config).await
    }

    /// Returns the local files of volumes that are not attached on this node.
    pub(crate) fn outdated(&self) -> OutdatedFiles<'_> {
        OutdatedFiles { volumes: &self.0.volumes, stores: &self.0.stores, dirs: &self.0.dirs }
    }

    /// Returns the scrubs of volumes.
    pub(crate) fn scrubs(&self) -> Scrubs<'_> {
        Scrubs { volumes: &self.0.volumes, stores: &self.0.stores, dirs: &self.0.dirs }
    }

    /// Returns the sweeps of stores.
    pub(crate) fn sweeps(&self) -> Sweeps<'_> {
        Sweeps { stores: &self.0.stores }
    }

    /// Returns the snapshots of volumes.
    pub(crate) fn snapshots(&self) -> Snapshots<'_> {
        Snapshots { volumes: &self.0.volumes, stores: &self.0.stores }
    }

    fn limits(&self, max_age_ms: u64) -> DirtyLimits {
        let config = &self.0.config;
        DirtyLimits { seal_bytes: config.seal_bytes, max_bytes: config.max_dirty_bytes, max_age_ms }
    }
}

/// Returns the times at which volumes check their limits. Missed ticks are skipped.
fn ticks() -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Creates a file of zeros in memory, as long as the largest request of any device. It takes no memory,
/// because nothing can be written to it, and does not fail with a disk.
fn zeros_file() -> io::Result<File> {
    let zeros = File::from(memfd_create(ZEROS, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    zeros.set_len(DeviceSpec::MAX_IO_BYTES.into())?;
    fcntl_add_seals(&zeros, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    // io_uring reads a file in memory with worker threads unless it has this.
    fcntl_setfl(&zeros, OFlags::NONBLOCK)?;
    Ok(zeros)
}

/// Returns a duration in milliseconds, saturated at the maximum.
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
