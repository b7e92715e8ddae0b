//! Interface of the data plane for the edges (gRPC, Kubernetes, metrics), which lets them be tested without a
//! kernel.

use std::future::Future;

use holdfast_background::OldCounts;
use holdfast_crds::MemoryUse;
use holdfast_format::snapshot::Snapshot;
use holdfast_log::scrub::Progress;
use holdfast_log::sweep::SweepReport;
use holdfast_s3::S3Config;
use holdfast_service::chain;
use holdfast_types::{Seq, SnapshotUid, VolumeId};

use crate::failure::Failure;
use crate::node::{
    AttachRequest, AttachTimes, Attached, Capabilities, Content, CutStep, FailureKind, GrowTo, MemoryAttach,
    Node, NodeError, NodeVolumeStatus, ReadAheadFigures, RingStatus, ScrubRequest, Scrubbed, SettingsChange,
    SweepRequest, VolumeInStore, VolumeSettings,
};

/// The volumes of this node. Clones refer to the same node.
pub(crate) trait Volumes: Clone + Send + Sync + 'static {
    /// Creates a volume, with one request to its store if it is empty. Returns its size in bytes.
    fn create(
        &self,
        volume: &VolumeId,
        content: Content,
        store_name: &str,
        store: &S3Config,
    ) -> impl Future<Output = Result<u64, Failure>> + Send;

    /// Serves a volume as a block device. Returns the existing device of an attached volume, whose settings
    /// stay.
    fn attach(&self, request: AttachRequest) -> impl Future<Output = Result<Attached, Failure>> + Send;

    /// Serves a memory volume as a block device.
    fn attach_memory(&self, request: MemoryAttach) -> impl Future<Output = Result<Attached, Failure>> + Send;

    /// Grows a volume served here; one of an object store waits while the store is unreachable.
    fn grow(&self, volume: &VolumeId, to: GrowTo) -> impl Future<Output = Result<Attached, Failure>> + Send;

    /// Changes settings of a volume served here, which are in effect when this returns. Returns all of them.
    fn configure(
        &self,
        volume: &VolumeId,
        change: SettingsChange,
    ) -> impl Future<Output = Result<VolumeSettings, Failure>> + Send;

    /// Starts or ends the drain of this node, during which all volumes commit early.
    fn set_draining(&self, draining: bool) -> impl Future<Output = ()> + Send;

    /// Detaches a volume after its final commit; waits while the store is unreachable.
    fn detach(&self, volume: &VolumeId) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Returns true if this node has files of a volume that it does not serve.
    fn has_unserved_files(&self, volume: &VolumeId) -> bool;

    /// Returns the volumes for which [`has_unserved_files`](Self::has_unserved_files) is true.
    fn unserved_volumes(&self) -> Vec<VolumeId>;

    /// Clears the files of a volume that another node owns; un-uploaded data is preserved.
    fn clear_outdated(
        &self,
        volume: &VolumeId,
        store_name: &str,
        store: &S3Config,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Removes the files of a deleted volume, if a clean detach left them at least a day ago. Returns false
    /// if they stay.
    fn discard_cache(&self, volume: &VolumeId) -> impl Future<Output = Result<bool, Failure>> + Send;

    /// Switches the volumes of a store to this configuration, if there are any.
    fn renew_store(
        &self,
        store_name: &str,
        store: &S3Config,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Reads all of a volume's state and reports damage; calls `on_progress` in the meantime.
    fn scrub(
        &self,
        request: ScrubRequest,
        on_progress: impl Fn(Progress) + Send + Sync + 'static,
    ) -> impl Future<Output = Result<Scrubbed, Failure>> + Send;

    /// Deletes the objects of a store that no volume needs.
    fn sweep(&self, request: SweepRequest) -> impl Future<Output = Result<SweepReport, Failure>> + Send;

    /// Takes a snapshot of a volume, or returns the one already taken for this uid; waits while the store of
    /// a volume served here is unreachable.
    fn create_snapshot(
        &self,
        at: VolumeInStore,
        uid: SnapshotUid,
    ) -> impl Future<Output = Result<Snapshot, Failure>> + Send;

    /// Performs a step of a cut of a volume served here. Returns false if the cut has lapsed.
    fn cut(
        &self,
        volume: &VolumeId,
        uid: SnapshotUid,
        step: CutStep,
    ) -> impl Future<Output = Result<bool, Failure>> + Send;

    /// Returns the snapshot of a released cut; `None` if no snapshot was taken at the cut's point.
    fn await_cut(
        &self,
        volume: &VolumeId,
        uid: SnapshotUid,
    ) -> impl Future<Output = Result<Option<Snapshot>, Failure>> + Send;

    /// Lists the snapshots of a volume, oldest first.
    fn list_snapshots(
        &self,
        at: VolumeInStore,
    ) -> impl Future<Output = Result<Vec<Snapshot>, Failure>> + Send;

    /// Deletes a snapshot of a volume. Repeating it is a no-op.
    fn delete_snapshot(
        &self,
        at: VolumeInStore,
        seq: Seq,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Returns the volumes served by this node.
    fn list(&self) -> Vec<NodeVolumeStatus>;

    /// Asks the kernel for the device of a volume served here. Returns true if it is still the volume's;
    /// false if no device serves the volume now.
    fn check_served(&self, volume: &VolumeId) -> impl Future<Output = Result<bool, Failure>> + Send;

    /// Returns the memory of this node for memory volumes.
    fn memory_use(&self) -> MemoryUse;

    /// Returns the number of FUSE devices whose connection no keeper holds. A planned exit of the daemon
    /// waits until it is 0.
    fn unkept_devices(&self) -> usize;

    /// Returns the memory that uploads hold, in bytes.
    fn upload_memory_bytes(&self) -> u64;

    /// Returns the memory of cached index parts, in bytes.
    fn index_cache_bytes(&self) -> u64;

    /// Returns the figures of each ring thread.
    fn rings(&self) -> Vec<RingStatus>;

    /// Returns the number of fetched blocks served from memory because the local disk failed to store or read
    /// them.
    fn unkept_blocks(&self) -> u64;

    /// Returns the counts of fetched blocks left in the slab by earlier processes.
    fn old_blocks(&self) -> OldCounts;

    /// Returns the times of the steps of attaches.
    fn attach_times(&self) -> AttachTimes;

    /// Returns the figures of read-ahead.
    fn read_ahead(&self) -> ReadAheadFigures;

    /// Returns the capabilities of this node.
    fn capabilities(&self) -> Capabilities;
}

/// Alternative to a snapshot of a memory volume.
const COPY: &str = "Copy its files to a volume in an object store";

impl Node {
    /// Fails if the volume is a memory volume of this node.
    fn refuse(&self, volume: &VolumeId, what: &'static str, fix: &'static str) -> Result<(), Failure> {
        self.refuse_memory(volume, what, fix).map_err(|error: NodeError| Failure::new(error.kind(), &error))
    }
}

impl Volumes for Node {
    async fn create(
        &self,
        volume: &VolumeId,
        content: Content,
        store_name: &str,
        store: &S3Config,
    ) -> Result<u64, Failure> {
        Self::create(self, volume, content, store_name, store)
            .await
            .map_err(|error| Failure::new(error.kind(), &error))
    }

    async fn attach(&self, request: AttachRequest) -> Result<Attached, Failure> {
        Self::attach(self, request).await.map_err(|error| Failure::new(error.kind(), &error))
    }

    async fn attach_memory(&self, request: MemoryAttach) -> Result<Attached, Failure> {
        Self::attach_memory(self, request).await.map_err(|error| Failure::new(error.kind(), &error))
    }

    async fn grow(&self, volume: &VolumeId, to: GrowTo) -> Result<Attached, Failure> {
        let grown = if self.is_memory(volume) {
            self.grow_memory(volume, to).await
        } else if to == GrowTo::bytes(to.bytes) {
            Self::grow(self, volume, to.bytes).await
        } else {
            Err(NodeError::NotOfMemory { volume: volume.clone() })
        };
        grown.map_err(|error| Failure::new(error.kind(), &error))
    }

    async fn configure(&self, volume: &VolumeId, change: SettingsChange) -> Result<VolumeSettings, Failure> {
        self.refuse(
            volume,
            "durability, age of data or limits",
            "Use a volume in an object store, which has them",
        )?;
        Self::configure(self, volume, change).await.map_err(|error| Failure::new(error.kind(), &error))
    }

    async fn set_draining(&self, draining: bool) {
        Self::set_draining(self, draining).await;
    }

    async fn detach(&self, volume: &VolumeId) -> Result<(), Failure> {
        let detached = if self.is_memory(volume) {
            self.detach_memory(volume).await
        } else {
            Self::detach(self, volume).await
        };
        detached.map_err(|error| Failure::new(error.kind(), &error))
    }

    fn has_unserved_files(&self, volume: &VolumeId) -> bool {
        self.outdated().has_unserved_files(volume)
    }

    fn unserved_volumes(&self) -> Vec<VolumeId> {
        self.outdated().unserved_volumes()
    }

    async fn clear_outdated(
        &self,
        volume: &VolumeId,
        store_name: &str,
        store: &S3Config,
    ) -> Result<(), Failure> {
        self.outdated()
            .clear(volume, store_name, store)
            .await
            .map_err(|error| Failure::new(error.kind(), &error))
    }

    async fn discard_cache(&self, volume: &VolumeId) -> Result<bool, Failure> {
        self.outdated().discard(volume).await.map_err(|error| Failure::new(error.kind(), &error))
    }

    async fn renew_store(&self, store_name: &str, store: &S3Config) -> Result<(), Failure> {
        Self::renew_store(self, store_name, store).await.map_err(|error| Failure::new(error.kind(), &error))
    }

    async fn scrub(
        &self,
        request: ScrubRequest,
        on_progress: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<Scrubbed, Failure> {
        self.refuse(&request.volume, "stored objects to scrub", "Name a volume of an object store")?;
        self.scrubs().scrub(request, on_progress).await.map_err(|error| Failure::new(error.kind(), &error))
    }

    async fn sweep(&self, request: SweepRequest) -> Result<SweepReport, Failure> {
        self.sweeps().sweep(request).await.map_err(|error| Failure::new(error.kind(), &error))
    }

    async fn create_snapshot(&self, at: VolumeInStore, uid: SnapshotUid) -> Result<Snapshot, Failure> {
        self.refuse(&at.volume, "snapshots", COPY)?;
        self.snapshots().create(at, uid).await.map_err(|error| Failure::new(error.kind(), &error))
    }

    async fn cut(&self, volume: &VolumeId, uid: SnapshotUid, step: CutStep) -> Result<bool, Failure> {
        self.snapshots().cut(volume, uid, step).await.map_err(|error| Failure::new(error.kind(), &error))
    }

    async fn await_cut(&self, volume: &VolumeId, uid: SnapshotUid) -> Result<Option<Snapshot>, Failure> {
        self.snapshots().await_cut(volume, uid).await.map_err(|error| Failure::new(error.kind(), &error))
    }

    async fn list_snapshots(&self, at: VolumeInStore) -> Result<Vec<Snapshot>, Failure> {
        self.refuse(&at.volume, "snapshots", COPY)?;
        self.snapshots().list(at).await.map_err(|error| Failure::new(error.kind(), &error))
    }

    async fn delete_snapshot(&self, at: VolumeInStore, seq: Seq) -> Result<(), Failure> {
        self.refuse(&at.volume, "snapshots", COPY)?;
        self.snapshots().delete(at, seq).await.map_err(|error| Failure::new(error.kind(), &error))
    }

    fn list(&self) -> Vec<NodeVolumeStatus> {
        Self::list(self)
    }

    async fn check_served(&self, volume: &VolumeId) -> Result<bool, Failure> {
        Self::check_served(self, volume).await.map_err(|error| Failure {
            // The node attaches it again.
            kind: FailureKind::Unavailable,
            message: format!(
                "volume {volume}: its device could not be confirmed: {}. If another program removed it (`losetup --detach`), detach \
                 and attach the volume; with Kubernetes the node does both",
                chain(&error)
            ),
        })
    }

    fn memory_use(&self) -> MemoryUse {
        Self::memory_use(self)
    }

    fn unkept_devices(&self) -> usize {
        Self::unkept_devices(self)
    }

    fn upload_memory_bytes(&self) -> u64 {
        Self::upload_memory_bytes(self)
    }

    fn index_cache_bytes(&self) -> u64 {
        Self::index_cache_bytes(self)
    }

    fn rings(&self) -> Vec<RingStatus> {
        Self::rings(self)
    }

    fn unkept_blocks(&self) -> u64 {
        Self::unkept_blocks(self)
    }

    fn old_blocks(&self) -> OldCounts {
        Self::old_blocks(self)
    }

    fn attach_times(&self) -> AttachTimes {
        Self::attach_times(self).clone()
    }

    fn read_ahead(&self) -> ReadAheadFigures {
        Self::read_ahead(self)
    }

    fn capabilities(&self) -> Capabilities {
        Self::capabilities(self)
    }
}

#[cfg(test)]
pub(crate) mod tests;
