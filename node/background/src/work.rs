//! The work of a running volume: requests of its planner, processed until done.

use std::collections::VecDeque;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::lock::Mutex;
use holdfast_engine::action::DirtyBlock;
use holdfast_engine::event::{CreateAnswer, Errno, Event};
use holdfast_engine::settings::Pending;
use holdfast_format::begins_as_ours;
use holdfast_format::index::{MergePlan, Runs};
use holdfast_format::record::{Body, Record};
use holdfast_format::safeguard::{
    Safeguard::{CheckpointBeforeDeletes, FreeMemoryInBackoff, QueueByStore, SegmentBeforeCommit},
    safeguard,
};
use holdfast_format::segment::FRAME_MEMORY_BYTES;
use holdfast_log::RootPlace;
use holdfast_objects::{CreateError, ObjectStore, SegmentError, StoreError, part_length};
use holdfast_types::key::ObjectKey;
use holdfast_types::{Place, RunId, SegmentId, Seq, VolumeId};
use tracing::{Instrument, Span};

use crate::backoff::JobBackoff;
use crate::upload_memory::{MemoryNeed, StoreKey, StorePresence};
use crate::upload_parts::{Making, SegmentParts, batch_bytes, sector_bytes};
use crate::{Compressors, Environment, MergeTurns, Sides, UnreadableSectors, UploadMemory};
use holdfast_log::Indexes;

/// Delay of a failed local write's report: the volume retries at once.
const LOCAL_RETRY: Duration = Duration::from_secs(1);
/// The same for a checkpoint.
const CHECKPOINT_RETRY: Duration = Duration::from_secs(10);
/// Delay before a log position with an invalid record is read again.
const CONFIRM_AFTER: Duration = Duration::from_secs(5);
/// Merges of a volume whose inputs are known until a record carries their outputs.
const MERGES: usize = 4;
/// Largest log record read back, in bytes.
const MAX_RECORD_BYTES: u64 = 64 << 20;

/// A piece of work; each is answered with one event.
#[derive(Debug)]
pub enum Work {
    /// Creates a segment of these sectors and stores it.
    Upload {
        /// The log position that the segment is named for.
        place: Place,
        /// The dirty blocks to upload.
        blocks: Vec<DirtyBlock>,
    },
    /// Merges runs into one.
    Merge(Box<MergePlan>),
    /// Makes this record crash-safe.
    StorePending(Pending),
    /// Stores the root of the snapshot that the record at `seq` will register.
    StoreRoot {
        /// Position of the record.
        seq: Seq,
        /// Bytes of the root.
        bytes: Vec<u8>,
    },
    /// Creates `log/<seq>` once.
    CreateRecord {
        /// Position of the record.
        seq: Seq,
        /// Bytes of the record.
        bytes: Vec<u8>,
    },
    /// Reads `log/<seq>`.
    ReadRecord {
        /// Position of the record.
        seq: Seq,
    },
    /// Stores the checkpoint of `seq`; a [`Tidy`] follows.
    WriteCheckpoint {
        /// Seq of the checkpoint.
        seq: Seq,
        /// Bytes of the checkpoint.
        bytes: Vec<u8>,
    },
}

impl Work {
    /// Returns the span for the log lines of the work.
    fn span(&self, volume: &VolumeId) -> Span {
        match self {
            Self::Upload { blocks, .. } => tracing::info_span!("upload", %volume, blocks = blocks.len()),
            Self::Merge(plan) => tracing::info_span!("merge", %volume, runs = plan.inputs.len()),
            Self::StorePending(_) => tracing::info_span!("store_pending", %volume),
            Self::StoreRoot { seq, .. } => tracing::info_span!("snapshot", %volume, seq = seq.0),
            Self::CreateRecord { seq, .. } => tracing::info_span!("commit", %volume, seq = seq.0),
            Self::ReadRecord { seq } => tracing::info_span!("read_record", %volume, seq = seq.0),
            Self::WriteCheckpoint { seq, .. } => tracing::info_span!("checkpoint", %volume, seq = seq.0),
        }
    }
}

/// Deletions that a stored checkpoint allows. The volume waits for none of them, and none has to succeed: the
/// rest is deleted after a later checkpoint.
#[derive(Debug)]
#[must_use]
pub struct Tidy {
    seq: Seq,
    checkpoint: Bytes,
}

/// Resources of one volume's background work.
pub struct Background<S, T> {
    /// The volume.
    pub volume: VolumeId,
    /// Its object store.
    pub objects: Arc<dyn ObjectStore>,
    /// Its local files.
    pub sides: S,
    /// Time and randomness.
    pub time: T,
    /// The store's key among those of the node.
    pub store: StoreKey,
    pub(crate) pools: Pools,
    tidying: Mutex<()>,
    /// Outputs of the last merges, each with its inputs, until a record replaces these.
    merged: parking_lot::Mutex<VecDeque<(RunId, Runs)>>,
    /// Gives its store a share of the upload memory.
    _attached: StorePresence,
}

/// Resources shared by the background work of all volumes of a node.
#[derive(Clone)]
pub struct Pools {
    /// Cache of segment indexes.
    pub indexes: Arc<Indexes>,
    /// Memory for uploads.
    pub upload_memory: UploadMemory,
    /// Compressors of uploads.
    pub compressors: Arc<Compressors>,
    /// Queues of merges.
    pub merging: Arc<MergeTurns>,
}

/// Returns the error of a local write, as the volume reports it.
fn errno(error: &io::Error) -> Errno {
    let kind = error.kind();
    if [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded].contains(&kind) {
        Errno::ENOSPC
    } else if kind == io::ErrorKind::ReadOnlyFilesystem {
        Errno::EROFS
    } else {
        Errno::EIO
    }
}

impl<S: Sides, T: Environment> Background<S, T> {
    /// Creates the work of `volume`, with the local files `sides` and the object store `objects`, which the
    /// node's other volumes know by the same key.
    pub fn new(
        volume: VolumeId,
        (store, objects): (StoreKey, Arc<dyn ObjectStore>),
        sides: S,
        time: T,
        pools: Pools,
    ) -> Self {
        let attached = pools.upload_memory.attach(store);
        let (tidying, merged) = (Mutex::default(), parking_lot::Mutex::default());
        Self { volume, objects, sides, time, store, pools, tidying, merged, _attached: attached }
    }

    /// Does a piece of work. The event must be passed to the volume before the returned work starts.
    pub async fn perform(&self, work: Work) -> (Event, Option<Tidy>) {
        let span = work.span(&self.volume);
        self.answer(work).instrument(span).await
    }

    async fn answer(&self, work: Work) -> (Event, Option<Tidy>) {
        let event = match work {
            Work::Upload { place, blocks } => self.upload(place, blocks).await,
            Work::Merge(plan) => match self.merge(&plan).await {
                Ok(run) => {
                    let mut merged = self.merged.lock();
                    merged.push_back((run.id, plan.inputs.clone()));
                    // No record carries a merge that a later one of its kind follows.
                    while merged.len() > MERGES {
                        merged.pop_front();
                    }
                    Event::Merged { kind: plan.kind, output: Box::new(run) }
                }
                Err(barred) => Event::MergeFailed { kind: plan.kind, barred },
            },
            Work::StorePending(pending) => Event::PendingStored { result: self.store_pending(pending).await },
            Work::StoreRoot { seq, bytes } => match self.store_root(seq, bytes).await {
                RootPlace::Stored => Event::RootStored,
                RootPlace::Foreign => Event::RootBarred,
            },
            Work::CreateRecord { seq, bytes } => Event::CreateAnswered(self.create_record(seq, bytes).await),
            Work::ReadRecord { seq } => Event::RecordRead { seq, bytes: self.read_record(seq).await },
            Work::WriteCheckpoint { seq, bytes } => {
                let checkpoint = Bytes::from(bytes);
                let mut written = self.write_checkpoint(seq, checkpoint.clone()).await;
                if written && !safeguard(CheckpointBeforeDeletes) {
                    written = holdfast_log::drop_checkpoints(&*self.objects, &self.volume, seq).await.is_ok();
                }
                let tidy = written.then_some(Tidy { seq, checkpoint });
                return (Event::CheckpointWritten { seq, written }, tidy);
            }
        };
        (event, None)
    }

    /// Deletes the objects that a checkpoint replaces, unless the deletions after the previous one are still
    /// in progress.
    #[tracing::instrument(skip_all, fields(volume = %self.volume, seq = tidy.seq.0))]
    pub async fn tidy(&self, tidy: Tidy) {
        let Some(_alone) = self.tidying.try_lock() else { return };
        let Tidy { seq, checkpoint } = tidy;
        if let Err(error) = holdfast_log::tidy(&*self.objects, &self.volume, seq, &checkpoint).await {
            self.warn(
                "old log records and checkpoints were not deleted; the deletion is retried after the next checkpoint",
                &error,
            );
        }
    }

    pub(crate) fn warn(&self, what: &'static str, error: &(dyn Error + 'static)) {
        tracing::warn!(volume = %self.volume, error, "{what}");
    }

    /// Uploads a segment. Each attempt creates it again from the data files, so that nothing is held between
    /// attempts.
    async fn upload(&self, place: Place, dirty: Vec<DirtyBlock>) -> Event {
        let (need, part_bytes) = self.need(&dirty);
        let is_small = self.pools.upload_memory.is_small(need);
        let dirty: Arc<[DirtyBlock]> = dirty.into();
        let id = SegmentId::new(place, self.time.unix_ms(), self.time.random());
        let key = ObjectKey::Segment(self.volume.clone(), id).to_string();
        let store = if safeguard(QueueByStore) { self.store } else { StoreKey(0) };
        let mut backoff = JobBackoff::of_commits();
        loop {
            let room = Arc::new(self.pools.upload_memory.room(store, need).await);
            let making = Making {
                id,
                part_bytes,
                unsent_bytes: need.part_bytes as usize,
                compressors: Arc::clone(&self.pools.compressors),
                is_small,
            };
            let mut parts = SegmentParts::new(&self.sides, Arc::clone(&room), Arc::clone(&dirty), making);
            let stored = if safeguard(SegmentBeforeCommit) {
                self.objects.put_segment(&key, &mut parts).await
            } else {
                holdfast_objects::collect(&mut parts).await.map(drop).map_err(SegmentError::from)
            };
            let made = match parts.into_segment() {
                Ok(made) => made,
                Err(UnreadableSectors { ranges, error }) => {
                    self.warn("the local disk cannot read what is to be uploaded", &error);
                    return Event::SidesUnreadable(ranges);
                }
            };
            match stored {
                Ok(()) => {
                    room.set_failing(false);
                    let (segment, index) = made.expect("a store takes all parts of what it stored");
                    self.pools.indexes.keep(id, index);
                    return Event::Uploaded(segment);
                }
                Err(error) => {
                    room.set_failing(true);
                    self.warn("the upload waits", &error);
                }
            }
            let kept = (!safeguard(FreeMemoryInBackoff)).then_some(room);
            backoff.wait(&self.time).await;
            drop(kept);
        }
    }

    /// Returns the memory that the upload of `dirty` needs, and the length of its parts.
    fn need(&self, dirty: &[DirtyBlock]) -> (MemoryNeed, usize) {
        let sectors: u64 = dirty.iter().map(sector_bytes).sum();
        let base_bytes = dirty.len() as u64 * FRAME_MEMORY_BYTES;
        // No segment of these blocks is longer: a frame's index entry is smaller than its memory.
        let length = part_length(base_bytes + sectors, self.pools.upload_memory.part_bytes());
        let part_bytes = sectors.min(length as u64 + batch_bytes(length));
        (MemoryNeed { base_bytes, part_bytes }, length)
    }

    /// Stores a checkpoint. Returns true if it is stored.
    async fn write_checkpoint(&self, seq: Seq, bytes: Bytes) -> bool {
        let Err(error) = holdfast_log::write_checkpoint(&*self.objects, &self.volume, seq, bytes).await
        else {
            return true;
        };
        self.warn("the checkpoint waits", &error);
        self.time.sleep(CHECKPOINT_RETRY).await;
        false
    }

    async fn store_pending(&self, pending: Pending) -> Result<(), Errno> {
        let Err(error) = self.sides.store_pending(pending).await else { return Ok(()) };
        self.warn("the log record could not be kept on the local disk: no commit ends before it is", &error);
        self.time.sleep(LOCAL_RETRY).await;
        Err(errno(&error))
    }

    /// Stores a snapshot's root, whose content is reproducible.
    async fn store_root(&self, seq: Seq, bytes: Vec<u8>) -> RootPlace {
        let root = Bytes::from(bytes);
        let mut backoff = JobBackoff::of_commits();
        loop {
            match holdfast_log::store_root(&*self.objects, &self.volume, seq, root.clone()).await {
                Ok(RootPlace::Stored) => return RootPlace::Stored,
                Ok(RootPlace::Foreign) => {
                    let volume = &self.volume;
                    tracing::warn!(%volume, %seq, "another root is in the snapshot's place; a later one is tried");
                    return RootPlace::Foreign;
                }
                Err(error) => {
                    self.warn("the snapshot waits", &error);
                    backoff.wait(&self.time).await;
                }
            }
        }
    }

    /// Drops the cached indexes of the runs that this record replaces.
    fn forget_merged(&self, record: &[u8]) {
        let mut merged = self.merged.lock();
        if merged.is_empty() {
            return;
        }
        let Ok(Record { body: Body::Change { merges, .. }, .. }) = Record::decode(record) else { return };
        for merge in merges {
            let Some(at) = merged.iter().position(|(output, _)| *output == merge.output.id) else { continue };
            let (_, inputs) = merged.remove(at).expect("it was found");
            inputs.iter().for_each(|run| self.pools.indexes.forget(run));
        }
    }

    async fn create_record(&self, seq: Seq, bytes: Vec<u8>) -> CreateAnswer {
        let key = ObjectKey::Log(self.volume.clone(), seq).to_string();
        let body = Bytes::from(bytes);
        let mut backoff = JobBackoff::of_commits();
        loop {
            match self.objects.create(&key, body.clone()).await {
                Ok(_created) => {
                    self.forget_merged(&body);
                    return CreateAnswer::Created;
                }
                Err(CreateError::Exists { .. }) => return CreateAnswer::Exists,
                Err(CreateError::Ambiguous(error)) => {
                    self.warn("whether the commit is in the log is being looked up", &error);
                    return CreateAnswer::Ambiguous;
                }
                Err(CreateError::Failed(error)) => {
                    self.warn("the commit waits", &error);
                    backoff.wait(&self.time).await;
                }
            }
        }
    }

    /// Reads the record at `seq` of the log; `None` if the position is free.
    ///
    /// A running writer calls this to detect that another writer fenced it. The consequences of a wrong
    /// result:
    /// - *free*: the writer does not detect its fencing until its next create, which the store answers with
    ///   412. No data is lost, so the store's own response (`NoSuchKey`) suffices;
    /// - *another writer's record*: the writer fences itself and fails all I/O. A record must decode and
    ///   match its checksum, which no proxy produces;
    /// - *undecodable bytes*: the position is taken, and the writer is fenced. Only trusted if the same bytes
    ///   are read again some seconds later and start like a Holdfast structure, which a proxy's page never
    ///   does.
    async fn read_record(&self, seq: Seq) -> Option<Vec<u8>> {
        let key = ObjectKey::Log(self.volume.clone(), seq).to_string();
        let mut backoff = JobBackoff::of_commits();
        let mut found: Option<Bytes> = None;
        loop {
            match self.objects.get(&key, MAX_RECORD_BYTES).await {
                Ok(bytes) => {
                    let Err(error) = Record::decode(&bytes) else { return Some(bytes.to_vec()) };
                    if begins_as_ours(&bytes) && found.as_ref() == Some(&bytes) {
                        return Some(bytes.to_vec());
                    }
                    self.warn("what was sent in place of a log record is none, and is read again", &error);
                    found = Some(bytes);
                    self.time.sleep(CONFIRM_AFTER).await;
                }
                Err(StoreError::NotFound { .. }) => return None,
                Err(error) => {
                    self.warn("the log cannot be read yet", &error);
                    backoff.wait(&self.time).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
