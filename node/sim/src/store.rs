//! A simulated object store: immutable objects, create-once requests, and an older view for LIST.
//!
//! Owns: one volume's view of the bucket, and its requests in flight. The bucket interprets the keys, and
//! checks each request against the actual logs.

mod bucket;
mod forks;
mod frames;
mod indexes;
mod ledger;
mod objects;
mod snapshots;
mod stored;
mod sweeps;

use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use holdfast_format::manifest::{Manifest, Writer};
use holdfast_format::record::{Body, Record};
use holdfast_objects::{CreateError, Created, StoreError};
use holdfast_types::key::{ObjectKey, checkpoint_prefix, log_prefix};
use holdfast_types::{BLOCK_SECTORS, Block, Epoch, Nonce, SECTOR_BYTES, Sector, SectorRange, Seq, VolumeId};

use crate::calls::{CallResult, StoreCall};
use crate::disk::{Stamp, sectors};
use crate::expect::CapturedContent;
use crate::invariant::Invariant;

pub(crate) use bucket::Bucket;
use ledger::VolumeLedger;

/// A writer's record that reached the log.
#[derive(Clone)]
pub(crate) enum Landed {
    /// An attach: its nonce, the name of its node, and the previously attached writer.
    Attach(Nonce, String, Option<Writer>),
    /// A commit, and the content that it captured.
    Commit(Nonce, Rc<CapturedContent>),
}

/// The bucket, as accessed by one of its volumes.
#[derive(Clone)]
pub(crate) struct Store {
    volume: VolumeId,
    bucket: Bucket,
    /// Number of log records that were truncated.
    pub(crate) truncated: u64,
    /// Records that arrived at the position of a truncated one.
    pub(crate) strays: u64,
    /// Requests in flight whose sender no longer waits for the response.
    pub(crate) late: Vec<(StoreCall, Option<Rc<CapturedContent>>)>,
    pub(crate) requests: u64,
}

impl Store {
    /// Creates an empty bucket.
    pub(crate) fn empty(volume: VolumeId) -> Self {
        let (bucket, late) = (Bucket::default(), Vec::new());
        Self { volume, bucket, truncated: 0, strays: 0, late, requests: 0 }
    }

    /// Creates a bucket with a new volume.
    pub(crate) fn new(volume: VolumeId, sectors: u64, identity: Nonce) -> Self {
        let mut store = Self::empty(volume.clone());
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

    /// Swaps its bucket with `bucket`.
    pub(crate) fn swap_bucket(&mut self, bucket: &mut Bucket) {
        std::mem::swap(&mut self.bucket, bucket);
    }

    /// Returns true if the volume was created and not deleted.
    pub(crate) fn exists(&self) -> bool {
        self.bucket.ledgers.get(&self.volume).is_some_and(|ledger| ledger.truth.exists())
    }

    /// Returns true if the volume is a fork.
    pub(crate) fn is_fork(&self) -> bool {
        !self.ledger().truth.lineage().ancestors().is_empty()
    }

    /// Replaces the bucket by another one, or by an earlier state. Requests in flight are lost.
    pub(crate) fn replace_bucket(&mut self, other: Self) {
        let Self { truncated, strays, requests, .. } = *self;
        *self = Self { truncated, strays, requests, late: Vec::new(), ..other };
        self.take_landed();
    }

    /// Appends a record that no process sent.
    pub(crate) fn append(&mut self, record: &Record) {
        let key = ObjectKey::Log(self.volume.clone(), record.seq).to_string();
        assert!(self.create(&key, record.encode().into()), "no other writer");
    }

    pub(crate) fn volume(&self) -> &VolumeId {
        &self.volume
    }

    fn ledger(&self) -> &VolumeLedger {
        &self.bucket.ledgers[&self.volume]
    }

    fn ledger_mut(&mut self) -> &mut VolumeLedger {
        self.bucket.ledgers.get_mut(&self.volume).expect("the volume was created")
    }

    /// Executes a request. `cut` is the content captured by the sender's seal; LIST shows the state
    /// `lag` changes ago.
    pub(crate) fn apply(
        &mut self,
        call: &StoreCall,
        cut: Option<&Rc<CapturedContent>>,
        lag: u64,
    ) -> CallResult {
        self.requests += 1;
        match call {
            StoreCall::Get { key } => CallResult::Bytes(self.get(key).cloned()),
            StoreCall::GetRange { key, range } => {
                let Range { start, end } = range;
                CallResult::Bytes(self.get(key).and_then(|body| {
                    let range = *start as usize..*end as usize;
                    let short = || StoreError::OutOfRange { key: key.clone(), end: *end };
                    (range.end <= body.len()).then(|| body.slice(range)).ok_or_else(short)
                }))
            }
            StoreCall::Create { key, body } => CallResult::Created(if self.create(key, body.clone()) {
                Ok(Created)
            } else {
                Err(CreateError::Exists { key: key.clone() })
            }),
            StoreCall::PutSegment { key, body } => {
                self.bucket.stored.put(key, body, cut);
                CallResult::Stored(Ok(()))
            }
            StoreCall::List { prefix, start_after, limit } => {
                let objects = &self.bucket.stored.objects;
                CallResult::Listed(Ok(objects.list(prefix, start_after.as_deref(), *limit, lag)))
            }
            StoreCall::Delete { key } => {
                self.delete(key);
                CallResult::Stored(Ok(()))
            }
        }
    }

    fn get(&self, key: &str) -> Result<&Bytes, StoreError> {
        self.bucket.stored.objects.get(key)
    }

    /// Creates an object unless it exists; returns true if this PUT created it.
    fn create(&mut self, key: &str, body: Bytes) -> bool {
        let created = self.bucket.create(key, body);
        self.strays += u64::from(created.is_stray);
        created.is_new
    }

    fn delete(&mut self, key: &str) {
        let name = ObjectKey::parse(key);
        let is_of_log = matches!(name, Some(ObjectKey::Log(..) | ObjectKey::Checkpoint(..)));
        if self.get(key).is_ok() && !is_of_log {
            self.bucket.check_delete(key);
        }
        let was_there = self.bucket.stored.objects.delete(key);
        if let Some(ObjectKey::Log(volume, _)) = name {
            self.truncated += u64::from(was_there && !self.bucket.ledgers[&volume].truth.is_deleted());
        }
    }

    /// Handles a crash of the writer's process.
    pub(crate) fn writer_died(&mut self) {
        self.ledger_mut().writer_died();
    }

    /// Takes the records that the model has not seen yet.
    pub(crate) fn take_landed(&mut self) -> Vec<Landed> {
        // A fork without a create record has no log.
        let ledger = self.bucket.ledgers.get_mut(&self.volume);
        ledger.map_or_else(Vec::new, |ledger| std::mem::take(&mut ledger.landed))
    }

    /// Replaces the object `key` by `body`, or deletes it. Returns the previous body.
    pub(crate) fn replace(&mut self, key: &str, body: Option<Bytes>) -> Option<Bytes> {
        self.bucket.stored.objects.replace(key, body)
    }

    /// Returns the keys of all objects.
    pub(crate) fn keys(&self) -> Vec<&str> {
        self.bucket.stored.objects.under("").map(|(key, _)| key).collect()
    }

    /// Returns the objects under `prefix`.
    fn objects_under(&self, prefix: String) -> impl Iterator<Item = &[u8]> {
        self.bucket.stored.objects.under(&prefix).map(|(_, body)| &body[..])
    }

    /// Returns the records of the log, oldest first.
    pub(crate) fn log(&self) -> impl Iterator<Item = &[u8]> {
        self.objects_under(log_prefix(&self.volume))
    }

    /// Returns the checkpoints, oldest first.
    pub(crate) fn checkpoints(&self) -> impl Iterator<Item = &[u8]> {
        self.objects_under(checkpoint_prefix(&self.volume))
    }

    /// Returns the segments, each a whole object.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &[u8]> {
        self.objects_under(format!("volumes/{}/segments/", self.volume))
    }

    /// Returns true if the attach of `writer` is at `seq` of the log.
    pub(crate) fn has_attach(&self, seq: Seq, writer: Option<Nonce>) -> bool {
        let record = self.ledger().history.get(&seq).and_then(|body| Record::decode(body).ok());
        record
            .is_some_and(|record| Some(record.nonce) == writer && matches!(record.body, Body::Attach { .. }))
    }

    /// Returns the state of the newest checkpoint and the records after it.
    pub(crate) fn manifest(&self) -> Manifest {
        let mut manifest = match self.checkpoints().last() {
            Some(bytes) => Manifest::decode_checkpoint(bytes).expect("checkpoints are not damaged"),
            None => Manifest::empty(self.volume.clone()),
        };
        self.ledger().apply_to(&mut manifest);
        manifest
    }

    /// Returns the content of the volume after an attach without local data.
    pub(crate) fn last_cut(&self) -> Rc<CapturedContent> {
        Rc::clone(&self.ledger().last_cut)
    }

    /// Returns one block as of the log's end.
    pub(crate) fn read_remote(&self, manifest: &Manifest, block: Block) -> Vec<Stamp> {
        self.bucket.stored.read_block(manifest, block).to_vec()
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

/// Fills a sector: its bytes encode the sector and the write `stamp`.
pub(crate) fn fill(sector: u64, stamp: Stamp, bytes: &mut [u8]) {
    if stamp == 0 {
        return bytes.fill(0);
    }
    for pair in bytes.as_chunks_mut::<16>().0 {
        pair[..8].copy_from_slice(&stamp.to_le_bytes());
        pair[8..].copy_from_slice(&(!sector).to_le_bytes());
    }
}

/// Returns the stamps of a block's bytes.
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
