//! Snapshots in the store: what was registered, and what each holds.

use std::rc::Rc;

use bytes::Bytes;
use holdfast_engine::manifest::Manifest;
use holdfast_engine::record::Record;
use holdfast_engine::snapshot::Snapshot;
use holdfast_types::key::ObjectKey;
use holdfast_types::{Sector, Seq};

use super::Store;
use crate::expect::Cut;
use crate::invariant::Invariant;

impl Store {
    /// The root of a snapshot is stored: it never changes, nor comes behind its record.
    pub(super) fn check_root(&self, seq: Seq, key: &str, body: &Bytes) {
        let there = self.get(key).ok();
        Invariant::SnapshotIsItsCut.check(there.is_none_or(|there| there == body), || {
            format!("the root of snapshot {} is made again, and says something else", seq.0)
        });
    }

    /// A mark is stored: in no other place than a snapshot's.
    pub(super) fn check_mark(&self, seq: Seq) {
        Invariant::SnapshotIsItsCut.check(self.snapshots.contains_key(&seq), || {
            format!("{} is forgotten and was no snapshot", seq.0)
        });
    }

    /// `record` is in the log. If it registers a snapshot, the root is stored and says what the log says.
    pub(super) fn note_snapshot(&mut self, record: &Record) {
        if record.body.snapshot_taken().is_none() {
            return;
        }
        let root = self.get(&self.root_key(record.seq)).ok();
        Invariant::SnapshotIsItsCut.check(root.is_some_and(|root| *root == self.truth.encode_root()), || {
            format!("log/{} registers a snapshot whose root is {root:?}", record.seq.0)
        });
        self.snapshots.insert(record.seq, Rc::clone(&self.last_cut));
    }

    fn root_key(&self, seq: Seq) -> String {
        ObjectKey::Snapshot(self.volume.clone(), seq).to_string()
    }

    /// The snapshots that the log has registered.
    pub(crate) fn registered(&self) -> &[Snapshot] {
        self.truth.snapshots()
    }

    /// Those that were forgotten.
    pub(crate) fn forgotten(&self) -> Vec<Seq> {
        let is_marked =
            |seq: &Seq| self.get(&ObjectKey::Forgotten(self.volume.clone(), *seq).to_string()).is_ok();
        self.registered().iter().map(|known| known.seq).filter(is_marked).collect()
    }

    /// Returns true if this one was ever registered.
    pub(crate) fn was_registered(&self, snapshot: &Snapshot) -> bool {
        let record = self.history.get(&snapshot.seq).and_then(|body| Record::decode(body).ok());
        record.is_some_and(|record| {
            record.body.snapshot_taken() == Some(snapshot.uid) && record.unix_ms == snapshot.unix_ms
        })
    }

    /// Content of a snapshot that was ever registered.
    pub(crate) fn cut_of_snapshot(&self, seq: Seq) -> Option<Rc<Cut>> {
        self.snapshots.get(&seq).map(Rc::clone)
    }

    /// Reads a snapshot from what is stored of it, and compares it with the content that it is of.
    pub(crate) fn check_snapshot(&self, seq: Seq) {
        let cut = &self.snapshots[&seq];
        let root = self.get(&self.root_key(seq)).ok().and_then(|root| Manifest::decode_checkpoint(root).ok());
        let Some(root) = root else {
            Invariant::SnapshotIsItsCut.broken(&format!("the root of snapshot {} is not there", seq.0))
        };
        self.check_state(Invariant::SnapshotIsItsCut, &root, cut);
    }

    /// Reads the volume, a fork, as the log's last record has it, and compares it with the content that its
    /// snapshot is of.
    pub(crate) fn check_content(&self, cut: &Cut) {
        self.check_state(Invariant::ForkIsItsSnapshot, &self.truth, cut);
    }

    fn check_state(&self, invariant: Invariant, state: &Manifest, cut: &Cut) {
        let mut read = (u64::MAX, Vec::new());
        let sectors = cut.touched().chain(self.last_cut.touched()).filter(|sector| *sector < state.sectors());
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
