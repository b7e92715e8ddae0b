//! A simulated object store: objects that never change, creates that win once, an older view for LIST.
//!
//! It knows what the keys mean and checks each request against the log as it truly is.

mod forks;
mod frames;
mod indexes;
mod snapshots;
mod sweeps;

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::SystemTime;

use bytes::Bytes;
use holdfast_engine::compose::Composition;
use holdfast_engine::index::RunHead;
use holdfast_engine::manifest::{Manifest, Writer};
use holdfast_engine::record::{Body, Record};
use holdfast_engine::segment::FrameIndex;
use holdfast_objects::{Created, Entry, Page, StoreError};
use holdfast_types::key::{ObjectKey, checkpoint_prefix, log_prefix};
use holdfast_types::{
    BLOCK_SECTORS, Block, Epoch, Lineage, Nonce, Place, RunId, SECTOR_BYTES, Sector, SectorRange, Seq,
    VolumeId,
};

use crate::calls::{Answer, StoreAsk};
use crate::disk::{Stamp, sectors};
use crate::expect::Cut;
use crate::invariant::Invariant;

use frames::{BlockStamps, UnpackedFrames};
use indexes::{MergesDue, StoredIndexes, merges_of, segments_of};

#[derive(Clone)]
struct Object {
    body: Bytes,
    /// Requests that had changed something before it was there.
    born: u64,
    /// The same of its end.
    gone: Option<u64>,
}

/// A writer's record that came into the log.
#[derive(Clone)]
pub(crate) enum Landed {
    /// An attach: its nonce, the name of its node, and the writer that was attached before.
    Attach(Nonce, String, Option<Writer>),
    /// A commit, and what it captured.
    Commit(Nonce, Rc<Cut>),
}

/// The bucket.
#[derive(Clone)]
pub(crate) struct Store {
    volume: VolumeId,
    objects: BTreeMap<String, Object>,
    indexes: StoredIndexes,
    frames: UnpackedFrames,
    merges: MergesDue,
    /// The log as it is.
    truth: Manifest,
    /// Its records, those that were truncated too.
    history: BTreeMap<Seq, Bytes>,
    /// Number of them that were truncated.
    pub(crate) truncated: u64,
    /// Records that came where another had been truncated.
    pub(crate) strays: u64,
    last_cut: Rc<Cut>,
    /// Contents of the snapshots that were registered, dropped ones too.
    snapshots: BTreeMap<Seq, Rc<Cut>>,
    /// Requests in flight whose sender no longer waits for the answer.
    pub(crate) late: Vec<(StoreAsk, Option<Rc<Cut>>)>,
    /// Records that the model has not seen yet.
    pub(crate) landed: Vec<Landed>,
    pub(crate) requests: u64,
    changes: u64,
}

impl Store {
    /// A bucket with a volume that was just created.
    pub(crate) fn new(volume: VolumeId, sectors: u64, identity: Nonce) -> Self {
        let mut store = Self {
            truth: Manifest::empty(volume.clone()),
            volume: volume.clone(),
            objects: BTreeMap::new(),
            history: BTreeMap::new(),
            truncated: 0,
            strays: 0,
            indexes: StoredIndexes::default(),
            frames: UnpackedFrames::default(),
            merges: MergesDue::default(),
            last_cut: Rc::default(),
            snapshots: BTreeMap::new(),
            late: Vec::new(),
            landed: Vec::new(),
            requests: 0,
            changes: 0,
        };
        store.append(&Record {
            volume,
            seq: Seq::FIRST,
            epoch: Epoch(0),
            nonce: identity,
            unix_ms: 0,
            body: Body::create(sectors),
        });
        store
    }

    /// The bucket becomes another one, or what it was at some time. Requests in flight are lost.
    pub(crate) fn become_like(&mut self, other: Self) {
        let Self { truncated, strays, requests, .. } = *self;
        *self = Self { truncated, strays, requests, late: Vec::new(), landed: Vec::new(), ..other };
    }

    /// Takes a record that no process sent.
    pub(crate) fn append(&mut self, record: &Record) {
        let key = ObjectKey::Log(self.volume.clone(), record.seq).to_string();
        assert!(self.create(&key, record.encode().into()), "no other writer");
    }

    pub(crate) fn volume(&self) -> &VolumeId {
        &self.volume
    }

    /// Does what is asked for. `cut` is what the sender's seal captured; LIST shows what was there `behind`
    /// changes ago.
    pub(crate) fn apply(&mut self, ask: &StoreAsk, cut: Option<&Rc<Cut>>, behind: u64) -> Answer {
        self.requests += 1;
        match ask {
            StoreAsk::Get { key } => Answer::Bytes(self.get(key).cloned()),
            StoreAsk::GetRange { key, range } => {
                let Range { start, end } = range;
                Answer::Bytes(self.get(key).and_then(|body| {
                    let range = *start as usize..*end as usize;
                    let short = || StoreError::OutOfRange { key: key.clone(), end: *end };
                    (range.end <= body.len()).then(|| body.slice(range)).ok_or_else(short)
                }))
            }
            StoreAsk::Create { key, body } => Answer::Created(if self.create(key, body.clone()) {
                Ok(Created)
            } else {
                Err(holdfast_objects::CreateError::Exists { key: key.clone() })
            }),
            StoreAsk::PutSegment { key, body } => {
                match ObjectKey::parse(key) {
                    Some(ObjectKey::Run(_, id)) => self.put_run(key, id, body),
                    _ => self.put_segment(key, body, cut),
                }
                Answer::Stored(Ok(()))
            }
            StoreAsk::List { prefix, start_after, limit } => {
                let as_of = self.changes.saturating_sub(behind);
                Answer::Listed(Ok(self.list(prefix, start_after.as_deref(), *limit, as_of)))
            }
            StoreAsk::Delete { key } => {
                if self.get(key).is_ok() && !is_of_log(key) {
                    self.check_delete(key);
                }
                self.changes += 1;
                if let Some(object) = self.objects.get_mut(key).filter(|object| object.gone.is_none()) {
                    object.gone = Some(self.changes);
                    let is_record = matches!(ObjectKey::parse(key), Some(ObjectKey::Log(..)));
                    self.truncated += u64::from(is_record && !self.truth.is_deleted());
                }
                Answer::Stored(Ok(()))
            }
        }
    }

    fn get(&self, key: &str) -> Result<&Bytes, StoreError> {
        let there = self.objects.get(key).filter(|object| object.gone.is_none());
        there.map(|object| &object.body).ok_or_else(|| StoreError::NotFound { key: key.to_owned() })
    }

    fn list(&self, prefix: &str, start_after: Option<&str>, limit: usize, as_of: u64) -> Page {
        let from = start_after.filter(|after| *after > prefix).unwrap_or(prefix).to_owned();
        let mut entries: Vec<Entry> = Vec::new();
        for (key, object) in self.objects.range(from..).take_while(|(key, _)| key.starts_with(prefix)) {
            let there = object.born <= as_of && object.gone.is_none_or(|gone| gone > as_of);
            if !there || start_after == Some(key) {
                continue;
            }
            if entries.len() == limit {
                return Page { entries, more: true };
            }
            let size_bytes = object.body.len() as u64;
            entries.push(Entry { key: key.clone(), size_bytes, last_modified: SystemTime::UNIX_EPOCH });
        }
        Page { entries, more: false }
    }

    /// Creates an object unless it is there; says whether this PUT made it.
    fn create(&mut self, key: &str, body: Bytes) -> bool {
        let there = self.objects.get(key).is_some_and(|object| object.gone.is_none());
        match ObjectKey::parse(key) {
            Some(ObjectKey::Log(..)) if there => {}
            Some(ObjectKey::Log(volume, _)) if volume != self.volume => {}
            Some(ObjectKey::Log(_, seq)) => match self.history.get(&seq) {
                Some(first) => {
                    check_stray(seq, first, &body);
                    self.strays += 1;
                }
                None => self.check_record(seq, &body),
            },
            Some(ObjectKey::Checkpoint(_, seq)) => self.check_checkpoint(seq, &body),
            Some(ObjectKey::Snapshot(_, seq)) => self.check_root(seq, key, &body),
            // Its own snapshots are forgotten, or those of a volume behind it.
            Some(ObjectKey::Forgotten(volume, seq)) if volume == self.volume => self.check_mark(seq),
            Some(ObjectKey::Forgotten(..)) => {}
            Some(ObjectKey::TruncationMarker(..)) => {}
            Some(ObjectKey::Segment(..) | ObjectKey::Run(..)) | None => panic!("{key} is created"),
        }
        if !there {
            self.insert(key, body);
        }
        !there
    }

    fn insert(&mut self, key: &str, body: Bytes) {
        self.changes += 1;
        self.objects.insert(key.to_owned(), Object { body, born: self.changes, gone: None });
    }

    /// Every record must follow from those before it: a fenced writer's would not.
    fn check_record(&mut self, seq: Seq, body: &Bytes) {
        let record = Record::decode(body).expect("writers send whole records");
        Invariant::LogIsAChain
            .check(record.seq == seq, || format!("record {} is to stand at {}", record.seq.0, seq.0));
        for segment in segments_of(&record.body) {
            let Some(cut) = self.indexes.cut_of(segment.id) else {
                Invariant::NothingReferencedIsMissing.broken("a commit names a segment that was never stored")
            };
            self.last_cut = Rc::clone(cut);
            // A later one would keep it in the bucket for longer than it is needed.
            Invariant::PlaceIsKept.check(segment.id.place() == Place::until(seq), || {
                format!("log/{} adds {}, which has another place", seq.0, segment.id)
            });
        }
        for merge in merges_of(&record.body) {
            let run = merge.output.id;
            Invariant::NothingReferencedIsMissing.check(self.indexes.holds_run(run), || {
                format!("a commit carries {run}, which was never stored")
            });
            Invariant::PlaceIsKept
                .check(!self.truth.is_passed(run.place()), || format!("log/{} adds {run}", seq.0));
        }
        if let Body::Detach { root: Some(root) } = &record.body {
            let same = root.encode_checkpoint() == self.truth.encode_checkpoint();
            Invariant::LogIsAChain.check(same, || {
                format!("the root in log/{} says something else than the log before it", seq.0)
            });
        }
        let replaced = self.truth.attached();
        let before = self.truth.runs().clone();
        if let Err(error) = self.truth.apply(&record) {
            Invariant::LogIsAChain.broken(&format!("log/{} cannot stand where it does: {error}", seq.0));
        }
        let lineage = self.truth.lineage();
        let stamps = |block, plan: &Composition| self.stamps(lineage, block, plan);
        self.indexes.check_merges(&before, self.truth.runs(), &record.body, stamps);
        self.merges.note(&before, &record.body);
        self.note_snapshot(&record);
        self.history.insert(seq, body.clone());
        match record.body {
            Body::Change { segments, .. } if !segments.is_empty() => {
                self.landed.push(Landed::Commit(record.nonce, Rc::clone(&self.last_cut)));
            }
            Body::Attach { node, .. } => self.landed.push(Landed::Attach(record.nonce, node, replaced)),
            Body::Create { .. } | Body::Change { .. } | Body::Detach { .. } | Body::Delete => {}
        }
    }

    /// A checkpoint and the records after it say what the log says.
    fn check_checkpoint(&self, seq: Seq, body: &[u8]) {
        let mut manifest = Manifest::decode_checkpoint(body).expect("writers send whole checkpoints");
        Invariant::LogIsAChain
            .check(manifest.seq() == seq, || format!("checkpoint {} is of another seq", seq.0));
        self.apply_records(&mut manifest);
        let same = manifest.encode_checkpoint() == self.truth.encode_checkpoint();
        Invariant::LogIsAChain
            .check(same, || format!("checkpoint {} says something else than the log", seq.0));
    }

    fn apply_records(&self, manifest: &mut Manifest) {
        for (seq, body) in self.history.range(manifest.seq().next()..) {
            let record = Record::decode(body).expect("records are not damaged");
            if let Err(error) = manifest.apply(&record) {
                Invariant::LogIsAChain.broken(&format!("log/{} cannot stand where it does: {error}", seq.0));
            }
        }
    }

    /// The segment of an upload, whose seal captured `cut`, or of a merge that relocates frames.
    fn put_segment(&mut self, key: &str, body: &Bytes, cut: Option<&Rc<Cut>>) {
        let Some(ObjectKey::Segment(_, id)) = ObjectKey::parse(key) else { panic!("{key} is no segment") };
        if let Some(there) = self.objects.get(key) {
            Invariant::NeverForeignBytes.check(there.body == *body, || format!("{key} changes"));
            return;
        }
        let trailer = &body[body.len() - 16..];
        let length = u32::from_le_bytes(trailer[4..8].try_into().expect("4 bytes")) as usize;
        let at = u64::from_le_bytes(trailer[8..].try_into().expect("8 bytes")) as usize;
        let index = FrameIndex::decode(&body[at..at + length]).expect("writers send whole segments");
        self.indexes.add_segment(id, index, cut.map(Rc::clone));
        self.insert(key, body.clone());
    }

    fn put_run(&mut self, key: &str, id: RunId, body: &Bytes) {
        if let Some(there) = self.objects.get(key) {
            Invariant::NeverForeignBytes.check(there.body == *body, || format!("{key} changes"));
            return;
        }
        let trailer = &body[body.len() - 16..];
        let length = u32::from_le_bytes(trailer[4..8].try_into().expect("4 bytes")) as usize;
        let at = u64::from_le_bytes(trailer[8..].try_into().expect("8 bytes")) as usize;
        let head = RunHead::decode_alone(&body[at..at + length]).expect("writers send whole runs");
        self.indexes.add_run(id, head, body);
        self.insert(key, body.clone());
    }

    /// The process of the writer died: a merge that it had in progress is lost.
    pub(crate) fn writer_died(&mut self) {
        self.merges = MergesDue::default();
    }

    /// Puts `body` in the place of what is there under `key`, or nothing. Returns what was.
    pub(crate) fn replace(&mut self, key: &str, body: Option<Bytes>) -> Option<Bytes> {
        let was = self.get(key).ok().cloned();
        match body {
            Some(body) => self.insert(key, body),
            None => drop(self.objects.remove(key)),
        }
        was
    }

    /// The keys of all that is there.
    pub(crate) fn keys(&self) -> Vec<&str> {
        let there = self.objects.iter().filter(|(_, object)| object.gone.is_none());
        there.map(|(key, _)| key.as_str()).collect()
    }

    /// Objects under `prefix`.
    fn under(&self, prefix: String) -> impl Iterator<Item = &[u8]> {
        let from = self.objects.range(prefix.clone()..);
        let those = from.take_while(move |(key, _)| key.starts_with(&prefix));
        those.filter(|(_, object)| object.gone.is_none()).map(|(_, object)| &object.body[..])
    }

    /// The records of the log, oldest first.
    pub(crate) fn log(&self) -> impl Iterator<Item = &[u8]> {
        self.under(log_prefix(&self.volume))
    }

    /// The checkpoints, oldest first.
    pub(crate) fn checkpoints(&self) -> impl Iterator<Item = &[u8]> {
        self.under(checkpoint_prefix(&self.volume))
    }

    /// The segments, each a whole object.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &[u8]> {
        self.under(format!("volumes/{}/segments/", self.volume))
    }

    /// True if the attach of `writer` stands at `seq` of the log.
    pub(crate) fn holds_attach(&self, seq: Seq, writer: Option<Nonce>) -> bool {
        let record = self.history.get(&seq).and_then(|body| Record::decode(body).ok());
        record
            .is_some_and(|record| Some(record.nonce) == writer && matches!(record.body, Body::Attach { .. }))
    }

    /// The newest checkpoint and the records after it.
    pub(crate) fn manifest(&self) -> Manifest {
        let mut manifest = match self.checkpoints().last() {
            Some(bytes) => Manifest::decode_checkpoint(bytes).expect("checkpoints are not damaged"),
            None => Manifest::empty(self.volume.clone()),
        };
        self.apply_records(&mut manifest);
        manifest
    }

    /// Contents of the volume after an attach without local data.
    pub(crate) fn last_cut(&self) -> Rc<Cut> {
        Rc::clone(&self.last_cut)
    }

    /// One block as the log's end says.
    pub(crate) fn read_remote(&self, manifest: &Manifest, block: Block) -> Vec<Stamp> {
        let plan = self.indexes.composition(manifest.runs(), block);
        self.stamps(manifest.lineage(), block, &plan).to_vec()
    }

    /// The stamps of one block, as composed.
    fn stamps(&self, lineage: &Lineage, block: Block, plan: &Composition) -> BlockStamps {
        let mut read = BlockStamps::default();
        for piece in &plan.pieces {
            let key = lineage.segment_key(piece.segment);
            let Ok(body) = self.get(&key) else {
                Invariant::NothingReferencedIsMissing.broken(&format!("{key} is not there"))
            };
            let stamps = self.frames.stamps(block, piece, body);
            for (bit, stamp) in (0..).zip(stamps).filter(|(bit, _)| piece.visible.contains(*bit)) {
                read[bit as usize] = stamp;
            }
        }
        read
    }

    /// Reads the sectors of `range` from the store alone, as of the log's last commit.
    pub(crate) fn read_sectors(&self, range: SectorRange) -> Vec<(u64, Stamp)> {
        let manifest = self.manifest();
        let mut read = Vec::new();
        for piece in range.split_at_multiples(BLOCK_SECTORS) {
            let block = self.read_remote(&manifest, piece.start.block());
            read.extend(sectors(piece).map(|at| (at, block[Sector(at).in_block() as usize])));
        }
        read
    }
}

/// Returns true for what truncation deletes.
fn is_of_log(key: &str) -> bool {
    matches!(ObjectKey::parse(key), Some(ObjectKey::Log(..) | ObjectKey::Checkpoint(..)))
}

/// Checks a record that came in the place of a truncated one, and is not in the log. It must be an attach or
/// a record of the control plane, which its maker must detect, or a repetition of the first one by the same
/// writer.
fn check_stray(seq: Seq, first: &Bytes, body: &Bytes) {
    let [first, stray] = [first, body].map(|body| Record::decode(body).expect("writers send whole records"));
    let says_the_same = first.nonce == stray.nonce && first.body == stray.body;
    let is_control = stray.epoch == Epoch(0) && matches!(stray.body, Body::Change { .. });
    let is_detected = is_control || matches!(stray.body, Body::Attach { .. });
    Invariant::LogIsAChain.check(says_the_same || is_detected, || {
        format!("log/{} was truncated and is created again as another record", seq.0)
    });
}

/// Fills a sector whose stamp is `stamp`: its bytes say which sector and which write.
pub(crate) fn fill(sector: u64, stamp: Stamp, bytes: &mut [u8]) {
    if stamp == 0 {
        return bytes.fill(0);
    }
    for pair in bytes.as_chunks_mut::<16>().0 {
        pair[..8].copy_from_slice(&stamp.to_le_bytes());
        pair[8..].copy_from_slice(&(!sector).to_le_bytes());
    }
}

/// The stamps of a block's bytes.
pub(crate) fn stamps(block: Block, bytes: &[u8]) -> impl Iterator<Item = Stamp> {
    let first = block.first_sector().0;
    (first..).zip(bytes.chunks(SECTOR_BYTES as usize)).map(|(sector, bytes)| stamp(sector, bytes))
}

fn stamp(sector: u64, bytes: &[u8]) -> Stamp {
    let stamp = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
    let other = if stamp == 0 { 0 } else { !sector };
    let is_pair = bytes[8..16] == other.to_le_bytes();
    Invariant::NeverForeignBytes.check(is_pair && bytes[16..] == bytes[..bytes.len() - 16], || {
        format!("sector {sector} holds bytes of another sector or of two writes")
    });
    stamp
}
