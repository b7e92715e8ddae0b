//! A node without a kernel, for tests of the edges.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use holdfast_background::{AheadCounts, OldCounts};
use holdfast_crds::MemoryUse;
use holdfast_engine::settings::{Durability, RuntimeSettings};
use holdfast_engine::volume::IndexStatus;
use holdfast_format::displaced::Displaced;
use holdfast_format::snapshot::Snapshot;
use holdfast_log::scrub::Progress;
use holdfast_log::sweep::SweepReport;
use holdfast_memory::{MemoryFigures, PageCodec};
use holdfast_objects::RequestCounts;
use holdfast_s3::S3Config;
use holdfast_serve::LimitStatus;
use holdfast_serve::latency::TimedOperation;
use holdfast_types::{Epoch, SECTOR_BYTES, Seq, SnapshotUid, VolumeId};
use holdfast_ublk::Transport;
use parking_lot::Mutex;

use super::Volumes;
use crate::failure::Failure;
use crate::node::{
    AttachRequest, AttachTimes, Attached, Capabilities, CommitStatus, Content, CutStep, DelayStatus,
    DiskStatus, FailureKind, GrowTo, MemoryAttach, MemoryIdentity, NodeVolumeStatus, ReadAheadFigures,
    RingStatus, ScrubRequest, Scrubbed, ServedCounts, SettingsChange, StateDisk, StoreHealth, StoreStatus,
    SweepRequest, TimedStep, VolumeInStore, VolumeSettings, VolumeState, millis,
};

/// Attaches all created volumes at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fake {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    created: BTreeMap<VolumeId, Content>,
    unkept_devices: usize,
    attached: BTreeMap<VolumeId, NodeVolumeStatus>,
    requests: Vec<AttachRequest>,
    scrubs: Vec<(VolumeId, Option<String>, bool)>,
    scrubbed: Scrubbed,
    sweeps: Vec<SweepRequest>,
    swept: SweepReport,
    snapshots: Vec<(VolumeId, Option<String>, Snapshot)>,
    cuts: Vec<(VolumeId, SnapshotUid, CutStep)>,
    /// True if cuts lapse.
    cuts_lapse: bool,
    failure: Option<Failure>,
    renewed: Vec<(String, S3Config)>,
    draining: Vec<bool>,
    /// True if detaches, scrubs and sweeps never end.
    hangs: bool,
}

impl Fake {
    /// Sets the number of devices without a keeper.
    pub(crate) fn set_unkept_devices(&self, devices: usize) {
        self.inner.lock().unkept_devices = devices;
    }

    /// Adds a served volume.
    pub(crate) fn put(&self, status: NodeVolumeStatus) {
        self.inner.lock().attached.insert(status.volume.clone(), status);
    }

    /// Fails the next operation.
    pub(crate) fn fail(&self, kind: FailureKind, message: &str) {
        self.inner.lock().failure = Some(Failure { kind, message: message.to_owned() });
    }

    /// Makes later detaches, scrubs, sweeps and steps of cuts wait indefinitely.
    pub(crate) fn hang(&self) {
        self.inner.lock().hangs = true;
    }

    /// Waits while it hangs.
    async fn may_hang(&self) {
        if self.inner.lock().hangs {
            std::future::pending().await
        }
    }

    /// Sets the result of later scrubs.
    pub(crate) fn set_scrubbed(&self, scrubbed: Scrubbed) {
        self.inner.lock().scrubbed = scrubbed;
    }

    /// Returns the scrubs so far: volume, store, repair.
    pub(crate) fn scrubs(&self) -> Vec<(VolumeId, Option<String>, bool)> {
        self.inner.lock().scrubs.clone()
    }

    /// Makes cuts lapse from now on.
    pub(crate) fn lapse_cuts(&self) {
        self.inner.lock().cuts_lapse = true;
    }

    /// Returns the steps of cuts so far.
    pub(crate) fn cuts(&self) -> Vec<CutStep> {
        self.inner.lock().cuts.iter().map(|(.., step)| *step).collect()
    }

    /// Returns the cuts released so far.
    pub(crate) fn released_cuts(&self) -> Vec<(VolumeId, SnapshotUid)> {
        let inner = self.inner.lock();
        let released = inner.cuts.iter().filter(|(.., step)| *step == CutStep::Release);
        released.map(|(volume, uid, _)| (volume.clone(), *uid)).collect()
    }

    /// Sets the result of the next sweep.
    pub(crate) fn set_swept(&self, swept: SweepReport) {
        self.inner.lock().swept = swept;
    }

    /// Returns the sweeps so far.
    pub(crate) fn sweeps(&self) -> Vec<SweepRequest> {
        self.inner.lock().sweeps.clone()
    }

    /// Returns the drain states set so far.
    pub(crate) fn draining(&self) -> Vec<bool> {
        self.inner.lock().draining.clone()
    }

    /// Returns the number of operations and interfaces that use it.
    pub(crate) fn users(&self) -> usize {
        Arc::strong_count(&self.inner)
    }

    /// Returns the stores renewed so far.
    pub(crate) fn renewed(&self) -> Vec<(String, S3Config)> {
        self.inner.lock().renewed.clone()
    }

    /// Returns a volume's content at its creation.
    pub(crate) fn created(&self, volume: &str) -> Option<Content> {
        self.inner.lock().created.get(&volume.parse().unwrap()).cloned()
    }

    /// Returns the attach requests so far.
    pub(crate) fn requests(&self) -> Vec<AttachRequest> {
        self.inner.lock().requests.clone()
    }
}

/// Returns an attached volume with a value in every field.
pub(crate) fn attached(name: &str) -> NodeVolumeStatus {
    NodeVolumeStatus {
        volume: name.parse().unwrap(),
        state: VolumeState::Attached,
        message: None,
        attached: Some(Attached {
            device_path: "/dev/ublkb0".into(),
            transport: Transport::ZeroCopy,
            epoch: 3,
            bytes: 1 << 30,
            displaced: None,
        }),
        commit: CommitStatus {
            seq: Some(7),
            dirty_bytes: Some(8192),
            oldest_dirty: Some(Duration::from_millis(2500)),
            durable_through: Some(UNIX_EPOCH + Duration::from_millis(1_700_000_000_500)),
        },
        holds_data: Some(true),
        durability: Some(Durability::Object),
        max_dirty_age: Some(Duration::from_secs(30)),
        store: StoreStatus {
            name: "main".to_owned(),
            health: StoreHealth::Answers,
            requests: Some(RequestCounts { put: 2, ..RequestCounts::default() }),
            ..StoreStatus::default()
        },
        delays: DelayStatus::default(),
        disk: DiskStatus { cached_bytes: 12288, evicted_bytes: 4096, ..DiskStatus::default() },
        index: IndexStatus { runs: Some(9), merges: 3, merges_dropped: 1, ancestors: Some(2) },
        served: served(),
        memory: None,
        memory_identity: None,
    }
}

fn served() -> ServedCounts {
    let mut served = ServedCounts { writes: 5, ..ServedCounts::default() };
    for us in [16, 32, 9_000_000] {
        served.latencies.add(TimedOperation::Flush, us);
    }
    served
}

/// Returns a memory volume of 1 GiB of the object with this uid; `None`: attached by a user.
pub(crate) fn in_memory(name: &str, owner: Option<&str>, epoch: u64) -> NodeVolumeStatus {
    let owner = owner.map(str::to_owned);
    let request = MemoryAttach {
        volume: name.parse().unwrap(),
        bytes: 1 << 30,
        limit_bytes: None,
        spill_bytes: None,
        codec: PageCodec::Lz4,
        epoch,
        owner,
    };
    let mut status = attached(name);
    (status.durability, status.max_dirty_age) = (None, None);
    status.attached.as_mut().unwrap().epoch = epoch;
    status.memory = Some(MemoryFigures { limit_bytes: 1 << 20, ..MemoryFigures::default() });
    status.memory_identity = MemoryIdentity::of(&request).ok();
    status
}

impl Volumes for Fake {
    async fn create(
        &self,
        volume: &VolumeId,
        content: Content,
        _store_name: &str,
        _store: &S3Config,
    ) -> Result<u64, Failure> {
        let mut inner = self.inner.lock();
        let bytes = match &content {
            Content::Empty { bytes } => *bytes,
            Content::Snapshot { snapshot, bytes } => {
                let known = inner
                    .snapshots
                    .iter()
                    .find(|(volume, _store, known)| *volume == snapshot.volume && known.seq == snapshot.seq);
                let Some((_volume, _store, known)) = known else {
                    let message = format!("there is no snapshot {snapshot}");
                    return Err(Failure { kind: FailureKind::NotFound, message });
                };
                bytes.unwrap_or(known.sectors * SECTOR_BYTES)
            }
        };
        match inner.created.insert(volume.clone(), content.clone()) {
            Some(other) if other != content => {
                let message = format!("volume {volume} exists with another size; choose another name");
                Err(Failure { kind: FailureKind::Invalid, message })
            }
            Some(_) | None => Ok(bytes),
        }
    }

    async fn attach(&self, request: AttachRequest) -> Result<Attached, Failure> {
        let mut inner = self.inner.lock();
        inner.requests.push(request.clone());
        if let Some(failure) = inner.failure.take() {
            return Err(failure);
        }
        let displaced = request.replaces.map(|epoch| Displaced {
            epoch: Epoch(epoch),
            node: "lost".to_owned(),
            since_unix_ms: 1_700_000_000_000,
        });
        let device = Attached {
            bytes: request.bytes.unwrap_or(1 << 30),
            displaced,
            ..attached("any").attached.unwrap()
        };
        let limits = LimitStatus { limits: request.limits, ..LimitStatus::default() };
        let status = NodeVolumeStatus {
            volume: request.volume.clone(),
            store: StoreStatus { name: request.store_name, ..attached("any").store },
            attached: Some(device.clone()),
            delays: DelayStatus { limits, ..DelayStatus::default() },
            ..attached("any")
        };
        inner.attached.insert(request.volume, status);
        Ok(device)
    }

    async fn attach_memory(&self, request: MemoryAttach) -> Result<Attached, Failure> {
        let device =
            Attached { bytes: request.bytes, epoch: request.epoch, ..attached("any").attached.unwrap() };
        let memory = MemoryFigures {
            limit_bytes: request.limit_bytes.unwrap_or(request.bytes),
            ..MemoryFigures::default()
        };
        let status = NodeVolumeStatus {
            volume: request.volume.clone(),
            store: StoreStatus::default(),
            attached: Some(device.clone()),
            memory: Some(memory),
            memory_identity: MemoryIdentity::of(&request).ok(),
            ..attached("any")
        };
        self.inner.lock().attached.insert(request.volume, status);
        Ok(device)
    }

    async fn grow(&self, volume: &VolumeId, to: GrowTo) -> Result<Attached, Failure> {
        let mut inner = self.inner.lock();
        if let Some(failure) = inner.failure.take() {
            return Err(failure);
        }
        let device = inner.attached.get_mut(volume).and_then(|status| status.attached.as_mut());
        let Some(device) = device else {
            let message = format!("volume {volume} is not attached here");
            return Err(Failure { kind: FailureKind::NotFound, message });
        };
        device.bytes = to.bytes;
        Ok(device.clone())
    }

    async fn configure(&self, volume: &VolumeId, change: SettingsChange) -> Result<VolumeSettings, Failure> {
        let mut inner = self.inner.lock();
        if let Some(failure) = inner.failure.take() {
            return Err(failure);
        }
        let Some(status) = inner.attached.get_mut(volume) else {
            let message = format!("volume {volume} is not attached here");
            return Err(Failure { kind: FailureKind::NotFound, message });
        };
        status.durability = change.durability.or(status.durability);
        status.max_dirty_age = change.max_dirty_age.or(status.max_dirty_age);
        let limits = &mut status.delays.limits.limits;
        limits.iops = change.iops.after(limits.iops);
        limits.bytes_per_second = change.bytes_per_second.after(limits.bytes_per_second);
        let limits = *limits;
        let max_age_ms = millis(status.max_dirty_age.unwrap());
        let planner = RuntimeSettings { max_age_ms, durability: status.durability.unwrap() };
        Ok(VolumeSettings { planner, limits })
    }

    async fn set_draining(&self, draining: bool) {
        self.inner.lock().draining.push(draining);
    }

    async fn detach(&self, volume: &VolumeId) -> Result<(), Failure> {
        self.may_hang().await;
        let mut inner = self.inner.lock();
        if let Some(failure) = inner.failure.take() {
            return Err(failure);
        }
        match inner.attached.remove(volume) {
            Some(_) => Ok(()),
            None => {
                let message = format!("volume {volume} is not attached here");
                Err(Failure { kind: FailureKind::NotFound, message })
            }
        }
    }

    fn has_unserved_files(&self, _volume: &VolumeId) -> bool {
        false
    }

    fn unserved_volumes(&self) -> Vec<VolumeId> {
        Vec::new()
    }

    async fn clear_outdated(
        &self,
        _volume: &VolumeId,
        _store_name: &str,
        _store: &S3Config,
    ) -> Result<(), Failure> {
        Ok(())
    }

    async fn discard_cache(&self, _volume: &VolumeId) -> Result<bool, Failure> {
        Ok(false)
    }

    async fn renew_store(&self, store_name: &str, store: &S3Config) -> Result<(), Failure> {
        self.inner.lock().renewed.push((store_name.to_owned(), store.clone()));
        Ok(())
    }

    async fn scrub(
        &self,
        request: ScrubRequest,
        on_progress: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<Scrubbed, Failure> {
        on_progress(Progress { read_bytes: 1 << 20, total_bytes: 4 << 20 });
        self.may_hang().await;
        let mut inner = self.inner.lock();
        inner.scrubs.push((request.volume.clone(), request.store.map(|(name, _)| name), request.repair));
        if let Some(failure) = inner.failure.take() {
            return Err(failure);
        }
        Ok(inner.scrubbed.clone())
    }

    async fn sweep(&self, request: SweepRequest) -> Result<SweepReport, Failure> {
        self.may_hang().await;
        let mut inner = self.inner.lock();
        inner.sweeps.push(request);
        if let Some(failure) = inner.failure.take() {
            return Err(failure);
        }
        Ok(std::mem::take(&mut inner.swept))
    }

    async fn create_snapshot(&self, at: VolumeInStore, uid: SnapshotUid) -> Result<Snapshot, Failure> {
        let mut inner = self.inner.lock();
        if let Some(failure) = inner.failure.take() {
            return Err(failure);
        }
        if let Some((.., there)) = inner.snapshots.iter().find(|(.., there)| there.uid == uid) {
            return Ok(*there);
        }
        let seq = Seq(3 + inner.snapshots.len() as u64);
        let taken = Snapshot { seq, uid, unix_ms: 1_700_000_000_000, sectors: 1 << 18 };
        inner.snapshots.push((at.volume, at.store.map(|(name, _)| name), taken));
        Ok(taken)
    }

    async fn cut(&self, volume: &VolumeId, uid: SnapshotUid, step: CutStep) -> Result<bool, Failure> {
        self.may_hang().await;
        let mut inner = self.inner.lock();
        inner.cuts.push((volume.clone(), uid, step));
        match inner.failure.take() {
            Some(failure) => Err(failure),
            None => Ok(!inner.cuts_lapse),
        }
    }

    async fn await_cut(&self, volume: &VolumeId, uid: SnapshotUid) -> Result<Option<Snapshot>, Failure> {
        if self.inner.lock().cuts_lapse {
            return Ok(None);
        }
        let at = VolumeInStore { volume: volume.clone(), store: None };
        self.create_snapshot(at, uid).await.map(Some)
    }

    async fn list_snapshots(&self, at: VolumeInStore) -> Result<Vec<Snapshot>, Failure> {
        let inner = self.inner.lock();
        let of_volume = inner.snapshots.iter().filter(|(volume, ..)| *volume == at.volume);
        Ok(of_volume.map(|(.., one)| *one).collect())
    }

    async fn delete_snapshot(&self, at: VolumeInStore, seq: Seq) -> Result<(), Failure> {
        let mut inner = self.inner.lock();
        let before = inner.snapshots.len();
        inner.snapshots.retain(|(volume, _, one)| *volume != at.volume || one.seq != seq);
        if inner.snapshots.len() < before {
            return Ok(());
        }
        let message = format!("volume {} has no snapshot {seq}: list its snapshots", at.volume);
        Err(Failure { kind: FailureKind::NotFound, message })
    }

    fn list(&self) -> Vec<NodeVolumeStatus> {
        self.inner.lock().attached.values().rev().cloned().collect()
    }

    async fn check_served(&self, volume: &VolumeId) -> Result<bool, Failure> {
        let mut inner = self.inner.lock();
        inner.failure.take().map_or_else(|| Ok(inner.attached.contains_key(volume)), Err)
    }

    fn memory_use(&self) -> MemoryUse {
        MemoryUse::default()
    }

    fn unkept_devices(&self) -> usize {
        self.inner.lock().unkept_devices
    }

    fn upload_memory_bytes(&self) -> u64 {
        1_048_576
    }

    fn index_cache_bytes(&self) -> u64 {
        65_536
    }

    fn rings(&self) -> Vec<RingStatus> {
        vec![
            RingStatus::default(),
            RingStatus { max_messages: 4, full_inbox: 2, unregistered: 5, ..RingStatus::default() },
        ]
    }

    fn unkept_blocks(&self) -> u64 {
        5
    }

    fn old_blocks(&self) -> OldCounts {
        OldCounts { found: 8, used: 7, refused: 1 }
    }

    fn attach_times(&self) -> AttachTimes {
        let times = AttachTimes::default();
        times.begin().end(TimedStep::Acquire);
        times
    }

    fn read_ahead(&self) -> ReadAheadFigures {
        let blocks = AheadCounts { fetched: 9, used: 6, unused: 1 };
        ReadAheadFigures { blocks, requested_bytes: 4096, used_lists: 3, stored_lists: 2 }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            kernel_release: "6.14.0".to_owned(),
            transports: vec![
                (Transport::ZeroCopy, Err("the ublk driver of kernel 6.14.0 lacks AUTO_BUF_REG".to_owned())),
                (Transport::UserCopy, Ok(())),
            ],
            transport: Ok(Transport::UserCopy),
            state_disk: Some(StateDisk { device: "sda".to_owned(), physical_block_bytes: 512 }),
            max_volumes: 256,
        }
    }
}
