//! Requested snapshots, until the log has them.
//!
//! 1. a snapshot waits for the seal that covers all that has completed, like a FLUSH with `durability:
//!    object` (`volume/durability.rs`);
//! 2. the record of that seal's commit registers it; if nothing is dirty, a separate record;
//! 3. the snapshot's root is stored between the local copy of that record and its creation (`RootStored`,
//!    `volume/commit.rs`). If another root exists at that position, in a bucket that was rolled back, the
//!    record registers no snapshot, and this one waits for the next record.
//!
//! A snapshot of a cut (`volume/cut.rs`) is exact: it is registered by the record of its own seal, or by
//! a record between that and the record of the next seal. Otherwise it is refused.
//!
//! Owns: the waiting snapshots. Does not own: the list of registered snapshots, which is the manifest's.
//! The name is a crash point. A record registers one snapshot; other waiting snapshots follow one by one.
//! Upholds invariant 29 (`docs/invariants.md`).
//! On failure: waiting snapshots are refused once commits end; a later request with the same uid is
//! answered from the manifest if the record reached the log.

use std::collections::VecDeque;

use holdfast_format::limit::MAX_SNAPSHOTS;
use holdfast_format::manifest::Manifest;
use holdfast_format::safeguard::{Safeguard::ExactCut, safeguard};
use holdfast_format::snapshot::{Snapshot, SnapshotChange};
use holdfast_types::{Seq, SnapshotUid};

use crate::action::{Action, Report};
use crate::limit::WAITING_SNAPSHOTS;
use crate::snapshot::SnapshotRefused;

/// A snapshot that waits for its record.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Waiting {
    uid: SnapshotUid,
    /// The number of the seal that covers it.
    seal: u64,
    /// Positions of forgotten snapshots, ascending. Because marks are permanent, there may be many more of
    /// them than registered snapshots.
    forgotten: Vec<Seq>,
    /// True if the snapshot must not contain data of a later seal.
    is_exact: bool,
}

/// The waiting snapshots, oldest first.
#[derive(Debug, Default)]
pub(super) struct Snapshotter {
    waiting: VecDeque<Waiting>,
    /// The snapshot whose record is in flight.
    in_flight: Option<Waiting>,
}

impl Snapshotter {
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns true if the snapshot waits to be registered.
    pub(super) fn waits(&self, uid: SnapshotUid) -> bool {
        self.in_flight.iter().chain(&self.waiting).any(|waiting| waiting.uid == uid)
    }

    /// Requests a snapshot of the data covered by the seal with this number. A snapshot that already waits
    /// keeps its place in the queue.
    pub(super) fn ask(&mut self, uid: SnapshotUid, seal: u64, forgotten: Vec<Seq>, out: &mut Vec<Action>) {
        self.add(Waiting { uid, seal, forgotten, is_exact: false }, out);
    }

    /// Requests a snapshot of exactly the data of this seal.
    pub(super) fn ask_exact(
        &mut self,
        uid: SnapshotUid,
        seal: u64,
        forgotten: Vec<Seq>,
        out: &mut Vec<Action>,
    ) {
        self.add(Waiting { uid, seal, forgotten, is_exact: true }, out);
    }

    fn add(&mut self, new: Waiting, out: &mut Vec<Action>) {
        debug_assert!(new.forgotten.is_sorted(), "binary search needs sorted seqs");
        if self.waits(new.uid) {
            return;
        }
        if self.waiting.len() >= WAITING_SNAPSHOTS {
            return refuse(new.uid, SnapshotRefused::Busy, out);
        }
        self.waiting.push_back(new);
    }

    /// Answers for an exact snapshot that was requested from this process or from a dead one; while the
    /// snapshot waits, the answer comes later.
    pub(super) fn await_exact(&self, uid: SnapshotUid, manifest: Option<&Manifest>, out: &mut Vec<Action>) {
        if self.waits(uid) {
            return;
        }
        let Some(manifest) = manifest else { return refuse(uid, SnapshotRefused::Busy, out) };
        match manifest.snapshots().iter().find(|known| known.uid == uid) {
            Some(known) => out.push(Action::Report(Report::SnapshotTaken(*known))),
            None => refuse(uid, SnapshotRefused::Missed, out),
        }
    }

    /// Returns true if no more snapshots can be registered even after these were dropped.
    pub(super) fn is_full(manifest: &Manifest, forgotten: &[Seq]) -> bool {
        let live = manifest.snapshots().iter().filter(|known| !holds(forgotten, known.seq));
        live.count() >= MAX_SNAPSHOTS
    }

    /// Takes the next record's change to the snapshot list of `manifest`: the record covers the data of
    /// all seals up to `seal`.
    pub(super) fn take(&mut self, seal: u64, manifest: &Manifest, out: &mut Vec<Action>) -> SnapshotChange {
        while let Some(at) = self.waiting.iter().position(|waiting| waiting.seal <= seal) {
            let next = self.waiting.remove(at).expect("it was found there");
            let Waiting { uid, forgotten, seal: own, is_exact } = &next;
            let uid = *uid;
            // The record also contains data of a later seal.
            if *is_exact && *own < seal && safeguard(ExactCut) {
                refuse(uid, SnapshotRefused::Missed, out);
                continue;
            }
            let (dropped, live): (Vec<&Snapshot>, Vec<&Snapshot>) =
                manifest.snapshots().iter().partition(|known| holds(forgotten, known.seq));
            if let Some(known) = live.iter().find(|known| known.uid == uid) {
                out.push(Action::Report(Report::SnapshotTaken(**known)));
            } else if live.len() >= MAX_SNAPSHOTS {
                refuse(uid, SnapshotRefused::TooMany, out);
            } else {
                let dropped = dropped.iter().map(|gone| gone.seq).collect();
                self.in_flight = Some(next);
                return SnapshotChange { taken: Some(uid), dropped };
            }
        }
        SnapshotChange::default()
    }

    /// Handles a record in the log that registers a snapshot: `manifest` has it.
    pub(super) fn registered(&mut self, manifest: &Manifest, out: &mut Vec<Action>) {
        self.in_flight = None;
        let newest = manifest.snapshots().last().expect("the record registered one");
        out.push(Action::Report(Report::SnapshotTaken(*newest)));
    }

    /// Handles another root at the position of the snapshot in flight: the record registers no snapshot, so
    /// this one waits again. A snapshot requested from a dead process must be requested again.
    pub(super) fn postpone(&mut self) {
        self.waiting.extend(self.in_flight.take());
    }

    /// Refuses all snapshots, because commits have ended.
    pub(super) fn refuse_all(&mut self, why: SnapshotRefused, out: &mut Vec<Action>) {
        for Waiting { uid, .. } in self.in_flight.take().into_iter().chain(self.waiting.drain(..)) {
            refuse(uid, why, out);
        }
    }
}

/// Returns true if `forgotten`, in ascending order, contains `seq`.
fn holds(forgotten: &[Seq], seq: Seq) -> bool {
    forgotten.binary_search(&seq).is_ok()
}

/// Reports that a snapshot is refused.
pub(super) fn refuse(uid: SnapshotUid, why: SnapshotRefused, out: &mut Vec<Action>) {
    out.push(Action::Report(Report::SnapshotRefused { uid, why }));
}

#[cfg(test)]
mod tests;
