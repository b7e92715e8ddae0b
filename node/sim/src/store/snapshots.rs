//! Snapshots in the store: the registered ones, and their contents.

use std::rc::Rc;

use bytes::Bytes;
use holdfast_format::manifest::Manifest;
use holdfast_format::prefetch_list::PrefetchList;
use holdfast_format::record::Record;
use holdfast_format::snapshot::Snapshot;
use holdfast_types::key::ObjectKey;
use holdfast_types::{Sector, Seq, SnapshotName, SnapshotUid};

use super::Store;
use super::ledger::VolumeLedger;
use super::objects::BucketObjects;
use super::stored::Stored;
use crate::expect::CapturedContent;
use crate::invariant::Invariant;

impl Stored {
    /// Checks a root that is stored: it never changes, nor follows its record. A root left by another
    /// history belongs to another position.
    pub(super) fn check_root(&self, seq: Seq, key: &str, body: &Bytes) {
        let is_foreign =
            |existing: &Bytes| Manifest::decode_checkpoint(existing).is_ok_and(|of| of.seq() != seq);
        let existing = self.objects.get(key).ok().filter(|existing| !is_foreign(existing));
        Invariant::SnapshotIsItsCut.check(existing.is_none_or(|existing| existing == body), || {
            format!("the root of snapshot {} is made again, and says something else", seq.0)
        });
    }
}

impl VolumeLedger {
    /// Checks a mark that is stored: only at the position of a snapshot.
    pub(super) fn check_mark(&self, seq: Seq) {
        Invariant::SnapshotIsItsCut.check(self.snapshots.contains_key(&seq), || {
            format!("{} is forgotten and was no snapshot", seq.0)
        });
    }

    /// Checks a stored origin: of a registered snapshot. It may arrive late, after that was forgotten.
    pub(super) fn check_origin(&self, uid: SnapshotUid) {
        let mut records = self.history.values().filter_map(|body| Record::decode(body).ok());
        let was_registered = records.any(|record| record.body.snapshot_taken() == Some(uid));
        Invariant::SnapshotIsItsCut
            .check(was_registered, || format!("{uid} gets an origin and was no snapshot"));
    }

    /// Checks a stored prefetch list: of a snapshot of this volume. It may arrive late, like an origin.
    pub(super) fn check_prefetch_list(&self, seq: Seq, body: &Bytes) {
        let snapshot = PrefetchList::decode(body).expect("forks send whole lists").snapshot;
        let is_here = snapshot == SnapshotName { volume: self.truth.volume().clone(), seq };
        Invariant::SnapshotIsItsCut.check(is_here && self.snapshots.contains_key(&seq), || {
            format!("{seq} gets the prefetch list of {snapshot}")
        });
    }

    /// Handles `record` in the log. If it registers a snapshot, the root must be stored and match the log,
    /// and no mark may exist that says it is forgotten.
    pub(super) fn note_snapshot(&mut self, record: &Record, stored: &Stored) {
        if record.body.snapshot_taken().is_none() {
            return;
        }
        let root = stored.objects.get(&self.root_key(record.seq)).ok();
        Invariant::SnapshotIsItsCut.check(root.is_some_and(|root| *root == self.truth.encode_root()), || {
            format!("log/{} registers a snapshot whose root is {root:?}", record.seq.0)
        });
        let mark = ObjectKey::Forgotten(self.truth.volume().clone(), record.seq).to_string();
        Invariant::SnapshotIsItsCut.check(stored.objects.created_at(&mark).is_none(), || {
            format!("log/{} registers a snapshot that counts as forgotten", record.seq.0)
        });
        self.snapshots.insert(record.seq, Rc::clone(&self.last_cut));
    }

    fn root_key(&self, seq: Seq) -> String {
        ObjectKey::Snapshot(self.truth.volume().clone(), seq).to_string()
    }

    /// Returns the registered snapshots that were forgotten.
    fn forgotten_snapshots(&self, objects: &BucketObjects) -> Vec<Seq> {
        let volume = self.truth.volume();
        let is_marked =
            |seq: &Seq| objects.created_at(&ObjectKey::Forgotten(volume.clone(), *seq).to_string()).is_some();
        self.truth.snapshots().iter().map(|known| known.seq).filter(is_marked).collect()
    }

    /// Returns the snapshots that count.
    pub(super) fn live_snapshots(&self, objects: &BucketObjects) -> Vec<Seq> {
        let forgotten = self.forgotten_snapshots(objects);
        let registered = self.truth.snapshots().iter().map(|known| known.seq);
        registered.filter(|seq| !forgotten.contains(seq)).collect()
    }

    /// Returns the state of the volume in a snapshot; `None` if its root does not exist.
    pub(super) fn root(&self, seq: Seq, objects: &BucketObjects) -> Option<Manifest> {
        Manifest::decode_checkpoint(objects.get(&self.root_key(seq)).ok()?).ok()
    }
}

impl Store {
    /// Returns the registered snapshots.
    pub(crate) fn registered(&self) -> &[Snapshot] {
        self.ledger().truth.snapshots()
    }

    /// Returns the seqs of the forgotten snapshots.
    pub(crate) fn forgotten_snapshots(&self) -> Vec<Seq> {
        self.ledger().forgotten_snapshots(&self.bucket.stored.objects)
    }

    /// Returns the seqs of the snapshots that count.
    pub(crate) fn live_snapshots(&self) -> Vec<Seq> {
        self.ledger().live_snapshots(&self.bucket.stored.objects)
    }

    /// Returns true if this snapshot was ever registered.
    pub(crate) fn was_registered(&self, snapshot: &Snapshot) -> bool {
        let record = self.ledger().history.get(&snapshot.seq).and_then(|body| Record::decode(body).ok());
        record.is_some_and(|record| {
            record.body.snapshot_taken() == Some(snapshot.uid) && record.unix_ms == snapshot.unix_ms
        })
    }

    /// Returns the content of a snapshot that was ever registered.
    pub(crate) fn cut_of_snapshot(&self, seq: Seq) -> Option<Rc<CapturedContent>> {
        self.ledger().snapshots.get(&seq).map(Rc::clone)
    }

    /// Reads a snapshot from its stored objects, and compares it with its content in the model.
    pub(crate) fn check_snapshot(&self, seq: Seq) {
        let ledger = self.ledger();
        let Some(root) = ledger.root(seq, &self.bucket.stored.objects) else {
            Invariant::SnapshotIsItsCut.broken(&format!("the root of snapshot {} is not there", seq.0))
        };
        self.check_state(Invariant::SnapshotIsItsCut, &root, &ledger.snapshots[&seq]);
    }

    /// Reads the volume, a fork, as of the log's last record, and compares it with the content of its
    /// snapshot.
    pub(crate) fn check_content(&self, cut: &CapturedContent) {
        self.check_state(Invariant::ForkIsItsSnapshot, &self.ledger().truth, cut);
    }

    fn check_state(&self, invariant: Invariant, state: &Manifest, cut: &CapturedContent) {
        let mut read = (u64::MAX, Vec::new());
        let last_cut = &self.ledger().last_cut;
        let sectors = cut.touched().chain(last_cut.touched()).filter(|sector| *sector < state.sectors());
        for sector in sectors {
            let block = Sector(sector).block();
            if read.0 != block.0 {
                read = (block.0, self.read_remote(state, block));
            }
            let stamp = read.1[Sector(sector).in_block() as usize];
            let allowed = cut.allowed(sector);
            invariant.check(allowed.contains(&stamp), || {
                let (volume, seq) = (state.volume(), state.seq().0);
                format!("{volume}@{seq} has write {stamp} in sector {sector}; its commit had {allowed:?}")
            });
        }
    }
}
