//! The daemon's process on a simulated host: the engine, its requested actions, and the pipeline's
//! futures.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use holdfast_background::{
    Acquired, AttachError, Background, BlockReader, ColdError, ColdLines, KnownBlocks, Pools, SlabBlock,
    Tidy, Work, acquire, load_manifest, retry_while_unavailable,
};
use holdfast_engine::action::{Action, DirtyBlock, Report};
use holdfast_engine::attach::Claim;
use holdfast_engine::event::{Event, Op, RequestId};
use holdfast_engine::limit::PAUSE_MS;
use holdfast_engine::settings::Pending;
use holdfast_engine::volume::Volume;
use holdfast_format::index::Runs;
use holdfast_format::manifest::Manifest;
use holdfast_format::side::Side;
use holdfast_format::snapshot::Snapshot;
use holdfast_log::Indexes;
use holdfast_objects::ObjectStore;
use holdfast_types::{Mask, Millis, SectorRange, SnapshotUid, VolumeId};
use parking_lot::Mutex;

use crate::attempt::AttachStep;
use crate::calls::{Call, CallKind, CallResult, Calls, LocalCall, LocalError, StoreCall};
use crate::device::{ClientRequest, SimulatedDevice};
use crate::disk::{SharedDisk, SyncMark};
use crate::expect::CapturedContent;
use crate::invariant::Invariant;
use crate::memory::LiveMemory;
use crate::rng::Rng;
use crate::shared::ProcessResources;
use crate::surroundings::{Restored, SimFiles, SimObjects, SimTime};
use crate::tasks::PolledTasks;

/// Kinds of jobs of a process.
pub(crate) enum JobKind {
    /// Requested by the engine, on its own thread.
    Action(Action),
    /// Requested by a future of the pipeline.
    Call(Call),
}

/// Result of a completed job.
pub(crate) enum JobResult {
    Event(Event),
    Answer(CallResult),
}

/// Returns true if a sync failed according to `event`.
pub(crate) fn is_failed_sync(event: &Event) -> bool {
    matches!(event, Event::SideSynced { result: Err(_), .. } | Event::MapSynced { result: Err(_) })
}

/// Work in progress.
pub(crate) struct Job {
    pub(crate) kind: JobKind,
    /// The writes that a sync covers.
    pub(crate) mark: Option<SyncMark>,
    /// Time at which it was requested, or done.
    pub(crate) since: Millis,
    /// The end of a timer or a pause.
    pub(crate) until: Option<Millis>,
    /// Its result, once it is done.
    pub(crate) result: Option<JobResult>,
    /// True for one in four, which takes much longer than the others.
    pub(crate) slow: bool,
}

impl Job {
    /// Returns true if it writes or names a slot of the slab.
    pub(crate) fn fills_slot(&self) -> bool {
        let JobKind::Call(Call { kind: CallKind::Local(call), .. }) = &self.kind else { return false };
        matches!(call, LocalCall::WriteSlot { .. } | LocalCall::NameSlot)
    }

    /// Returns true if it reads an object.
    pub(crate) fn is_object_read(&self) -> bool {
        let JobKind::Call(Call { kind: CallKind::Store(call), .. }) = &self.kind else { return false };
        self.result.is_none() && matches!(call, StoreCall::Get { .. } | StoreCall::GetRange { .. })
    }
}

/// Result of a future of the pipeline.
pub(crate) enum TaskResult {
    /// Work of the volume; its answer and follow-up deletions.
    Answered(Event, Option<Tidy>),
    /// The deletions after a checkpoint.
    Tidied,
    /// A cold read: the sectors' block.
    Cold { id: RequestId, range: SectorRange, at: u32, block: Result<ColdBlock, ColdError> },
    /// The manifest of a volume taken over.
    Manifest(Manifest),
    /// An attach.
    Attached(Box<Result<Acquired<Restored>, AttachError<LocalError>>>),
}

/// The bytes of a block as composed by these runs, and its slot on a host with a slab.
pub(crate) struct ColdBlock {
    pub(crate) bytes: Vec<u8>,
    pub(crate) found: Option<(SlabBlock, Runs)>,
}

/// The daemon.
pub(crate) struct DaemonProcess {
    /// `None` while it attaches.
    pub(crate) volume: Option<Volume<LiveMemory>>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) tasks: PolledTasks<TaskResult>,
    calls: Calls,
    background: Arc<Background<SimFiles, SimTime>>,
    shared: ProcessResources,
    /// Blocks of the volume that are known to be in the slab.
    pub(crate) known: KnownBlocks,
    /// Blocks of the upload in progress, and the content captured by its seal.
    pub(crate) upload: Option<(Vec<DirtyBlock>, Rc<CapturedContent>)>,
    /// True if a detach was requested; once is enough.
    pub(crate) detach_requested: bool,
    /// The attach step after which it dies.
    pub(crate) dies_after: Option<AttachStep>,
    pub(crate) sealing: bool,
    /// Number of seals that its engine has begun.
    pub(crate) seals: u64,
    pub(crate) fenced: bool,
    /// Requested snapshots without an answer.
    pub(crate) snapshots: BTreeSet<SnapshotUid>,
    slowness: Rng,
}

impl DaemonProcess {
    /// Creates a process without a volume, with randomness from `seed`.
    pub(crate) fn new(
        volume: &VolumeId,
        disk: &SharedDisk,
        now: &Arc<AtomicU64>,
        shared: ProcessResources,
        seed: u64,
    ) -> Self {
        let calls = Calls::default();
        let time =
            SimTime { calls: calls.clone(), now: Arc::clone(now), rng: Arc::new(Mutex::new(Rng::new(seed))) };
        let sides = SimFiles { calls: calls.clone(), disk: Arc::clone(disk) };
        let objects = Arc::new(SimObjects(calls.clone()));
        Self {
            volume: None,
            jobs: Vec::new(),
            tasks: PolledTasks::default(),
            calls,
            background: Arc::new(Background::new(
                volume.clone(),
                (shared.store, objects),
                sides,
                time,
                shared.pools.clone(),
            )),
            shared,
            known: KnownBlocks::default(),
            upload: None,
            detach_requested: false,
            dies_after: None,
            sealing: false,
            seals: 0,
            fenced: false,
            snapshots: BTreeSet::new(),
            slowness: Rng::new(!seed),
        }
    }

    /// Begins to attach.
    pub(crate) fn attach(&mut self, claim: Claim) {
        let background = Arc::clone(&self.background);
        self.tasks.start(async move {
            let Background { volume, objects, sides, time, .. } = &*background;
            TaskResult::Attached(Box::new(acquire(&**objects, volume, sides, &claim, time).await))
        });
    }

    /// Begins to read the log of a volume taken over.
    pub(crate) fn load_manifest(&mut self) {
        let background = Arc::clone(&self.background);
        self.tasks.start(async move {
            let Background { volume, objects, time, .. } = &*background;
            TaskResult::Manifest(load_manifest(&**objects, volume, time).await)
        });
    }

    fn start_work(&mut self, work: Work) {
        let background = Arc::clone(&self.background);
        self.tasks.start(async move {
            let (event, tidy) = background.perform(work).await;
            TaskResult::Answered(event, tidy)
        });
    }

    /// Begins the deletions that follow a checkpoint.
    pub(crate) fn start_tidy(&mut self, tidy: Tidy) {
        let background = Arc::clone(&self.background);
        self.tasks.start(async move {
            background.tidy(tidy).await;
            TaskResult::Tidied
        });
    }

    fn read_cold(&mut self, id: RequestId, range: SectorRange, at: u32, runs: Runs) {
        let (background, shared) = (Arc::clone(&self.background), self.shared.clone());
        let known = self.known.find(range.start.block(), Mask::of(range), &runs);
        self.tasks.start(async move {
            let Background { objects, time, .. } = &*background;
            let ProcessResources { pools: Pools { indexes, .. }, fetches, slab, .. } = &shared;
            let reader = &fetches.reader();
            if let (Some(slab), Some(slot)) = (slab, known)
                && let Some(bytes) = slab.read_known(&time.calls, &slot).await
            {
                return TaskResult::Cold { id, range, at, block: Ok(ColdBlock { bytes, found: None }) };
            }
            let block = match slab {
                Some(slab) => {
                    let read = slab.read(&**objects, time, indexes, reader, range, &runs).await;
                    read.map(|(bytes, found)| ColdBlock { bytes, found: Some((found, runs)) })
                }
                None => {
                    let read = read_block(&**objects, time, indexes, reader, range, &runs).await;
                    read.map(|bytes| ColdBlock { bytes, found: None })
                }
            };
            TaskResult::Cold { id, range, at, block }
        });
    }

    /// Begins an action of the engine.
    pub(crate) fn begin(
        &mut self,
        action: Action,
        now: Millis,
        device: &mut Option<SimulatedDevice>,
        disk: &SharedDisk,
        sealed: Option<&Rc<CapturedContent>>,
    ) {
        let mut mark = None;
        match action {
            Action::Write { id, range, side } | Action::Punch { id, range, side } => {
                let device = device.as_mut().expect("requests come from a device");
                check_store(device, id, range, matches!(action, Action::Write { .. }));
                Invariant::FencedChangesNothing
                    .check(!self.fenced, || format!("{action:?} after its fencing"));
                let uploading = self.upload.as_ref().is_some_and(|(dirty, _)| has_uploads_from(dirty, side));
                Invariant::StoresItsOwnRange
                    .check(!uploading, || format!("{side:?} changes while it is uploaded"));
            }
            Action::Evict { range, side } => self.check_eviction(range, side),
            Action::Upload { place, blocks } => {
                let cut = Rc::clone(sealed.expect("an upload belongs to a seal"));
                self.check_upload(&blocks);
                self.upload = Some((blocks.clone(), cut));
                return self.start_work(Work::Upload { place, blocks });
            }
            Action::Merge(plan) => {
                self.check_commit();
                return self.start_work(Work::Merge(plan));
            }
            Action::StorePending { seq, bytes } => {
                self.check_commit();
                return self.start_work(Work::StorePending(Pending { seq, bytes }));
            }
            Action::StoreRoot { seq, bytes } => {
                self.check_commit();
                return self.start_work(Work::StoreRoot { seq, bytes });
            }
            Action::CreateRecord { seq, bytes } => {
                self.check_commit();
                return self.start_work(Work::CreateRecord { seq, bytes });
            }
            Action::ReadRecord { seq } => return self.start_work(Work::ReadRecord { seq }),
            Action::WriteCheckpoint { seq, bytes } => {
                return self.start_work(Work::WriteCheckpoint { seq, bytes });
            }
            Action::ReadCold { id, range, at, runs } => return self.read_cold(id, range, at, runs),
            Action::SyncSide { side } => mark = Some(disk.lock().sides[side as usize].mark()),
            Action::SyncMap => mark = Some(disk.lock().map.mark()),
            Action::Report(Report::Fenced) => self.fenced = true,
            Action::Report(
                Report::SnapshotTaken(Snapshot { uid, .. }) | Report::SnapshotRefused { uid, .. },
            ) => drop(self.snapshots.remove(&uid)),
            Action::Complete { id, result: Err(_) } => {
                let device = device.as_mut().expect("requests come from a device");
                self.check_failure(device.request(id));
            }
            Action::Read { .. }
            | Action::Complete { .. }
            | Action::PrepareMap { .. }
            | Action::ReleaseMap { .. }
            | Action::WriteMap(_)
            | Action::NextTurn
            | Action::Report(_) => {}
            Action::Pause => return self.add_job(JobKind::Action(action), None, now, Some(now + PAUSE_MS)),
        }
        self.add_job(JobKind::Action(action), mark, now, None);
    }

    /// Converts the calls of the futures to jobs.
    pub(crate) fn accept_calls(&mut self, now: Millis) {
        while let Some(call) = self.calls.pop() {
            let until = match &call.kind {
                CallKind::Sleep(time) => Some(now + time.as_millis() as Millis),
                CallKind::Store(_) | CallKind::Local(_) => None,
            };
            self.add_job(JobKind::Call(call), None, now, until);
        }
    }

    fn add_job(&mut self, kind: JobKind, mark: Option<SyncMark>, since: Millis, until: Option<Millis>) {
        let slow = self.slowness.once_in(4);
        self.jobs.push(Job { kind, mark, since, until, result: None, slow });
    }

    fn check_upload(&self, dirty: &[DirtyBlock]) {
        Invariant::FencedChangesNothing.check(!self.fenced, || "an upload after its fencing".into());
        for DirtyBlock { block, a, b } in dirty {
            Invariant::StoresItsOwnRange.check(a.intersect(*b).is_empty(), || {
                format!("sectors of {block:?} are uploaded from both sides")
            });
        }
        for job in &self.jobs {
            if let (JobKind::Action(Action::Write { side, .. } | Action::Punch { side, .. }), None) =
                (&job.kind, &job.result)
            {
                Invariant::StoresItsOwnRange.check(!has_uploads_from(dirty, *side), || {
                    format!("{side:?} is uploaded with a write in flight on it")
                });
            }
        }
    }

    fn check_eviction(&self, range: SectorRange, side: Side) {
        Invariant::FencedChangesNothing.check(!self.fenced, || "an eviction after its fencing".into());
        let uploading = self.upload.iter().flat_map(|(dirty, _)| dirty);
        let uploaded = uploading.into_iter().any(|block| overlaps(block, range, side));
        let stored = self.jobs.iter().any(|job| match (&job.kind, &job.result) {
            (JobKind::Action(Action::Write { side: on, .. } | Action::Punch { side: on, .. }), None) => {
                *on == side
            }
            (JobKind::Action(_) | JobKind::Call(_), _) => false,
        });
        Invariant::StoresItsOwnRange.check(!uploaded && !stored, || {
            format!("{range:?} of {side:?} is evicted while it is uploaded or written")
        });
    }

    /// Checks that a read fails only if the disk lost the only copy.
    fn check_failure(&self, request: &ClientRequest) {
        let status = self.volume.as_ref().expect("it completes requests").status();
        let fenced = status.fenced || request.was_replaced;
        let lost = fenced || status.oldest_dirty_ms.is_some();
        Invariant::NothingReferencedIsMissing.check(fenced || !request.store_failed, || {
            "a read failed for an object that no run names any more".into()
        });
        Invariant::CompletedOnce.check(lost || request.op != Op::Read, || {
            "a read failed although the store has everything".into()
        });
    }

    fn check_commit(&self) {
        Invariant::FencedChangesNothing.check(!self.fenced, || "a commit after its fencing".into());
    }
}

fn has_uploads_from(dirty: &[DirtyBlock], side: Side) -> bool {
    dirty.iter().any(|block| match side {
        Side::A => !block.a.is_empty(),
        Side::B => !block.b.is_empty(),
    })
}

/// Returns true if sectors of `range` are uploaded from `side`.
fn overlaps(dirty: &DirtyBlock, range: SectorRange, side: Side) -> bool {
    let mask = match side {
        Side::A => dirty.a,
        Side::B => dirty.b,
    };
    let first = dirty.block.first_sector().0;
    (0..32).any(|bit| mask.contains(bit) && (range.start.0..range.end()).contains(&(first + u64::from(bit))))
}

fn check_store(device: &mut SimulatedDevice, id: RequestId, range: SectorRange, is_write: bool) {
    let request = device.request(id);
    let holds = match request.op {
        Op::Write | Op::WriteFua => is_write && request.range == range,
        Op::Discard | Op::WriteZeroes => !is_write && request.range.intersect(range) == Some(range),
        Op::Read | Op::Flush => false,
    };
    Invariant::StoresItsOwnRange
        .check(holds, || format!("{range:?} is stored for {:?} of {:?}", request.op, request.range));
}

/// Returns the bytes of `range`'s block, of which at least those of `range` match the store.
pub(crate) async fn read_block(
    objects: &dyn ObjectStore,
    time: &SimTime,
    indexes: &Indexes,
    reader: &BlockReader<'_, Vec<u8>>,
    range: SectorRange,
    runs: &Runs,
) -> Result<Vec<u8>, ColdError> {
    retry_while_unavailable(time, &ColdLines::default(), range, |wanted| async move {
        let block = indexes.compose(objects, range.start.block(), wanted, runs).await?;
        let plan = block.for_range(Mask::of(range));
        reader.block(objects, runs.lineage(), &plan).await.map(|block| block.to_vec())
    })
    .await
}
