//! Snapshots that were asked for, until the log has them.
//!
//! 1. a snapshot waits for the seal that covers all that has completed, as a FLUSH with `durability: object`
//!    does (`volume/durability.rs`);
//! 2. the record of that seal's commit registers it; where nothing is dirty, a record of its own;
//! 3. between the local copy of that record and its creation the snapshot's root is stored (`RootStored`,
//!    `volume/commit.rs`). Where a bucket that was set back has another root there, the record registers
//!    none, and the snapshot waits for the next one.
//!
//! A snapshot of a cut (`volume/cut.rs`) is exact: the record of its own seal registers it, or one that
//! follows before that of the next seal. Where none can, it is refused.
//!
//! Owns: what waits. Does not own: the list of registered snapshots, which is the manifest's.
//! The name is a crash point. A record registers one snapshot; more that wait follow one by one. Upholds
//! invariant 29 (`docs/invariants.md`).
//! On failure: those that wait are refused once nothing more is committed; a request with the same
//! uid is answered later from the manifest if the record came into the log.

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
    /// Places of snapshots that were forgotten, ascending: marks stay for good, so there may be many more
    /// than are registered.
    forgotten: Vec<Seq>,
    /// It is of that seal and of no later one.
    is_exact: bool,
}

/// The snapshots that wait, oldest first.
#[derive(Debug, Default)]
pub(super) struct Snapshotter {
    waiting: VecDeque<Waiting>,
    /// The one whose record is in flight.
    in_flight: Option<Waiting>,
}

impl Snapshotter {
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns true if the snapshot is not registered and will be.
    pub(super) fn waits(&self, uid: SnapshotUid) -> bool {
        self.in_flight.iter().chain(&self.waiting).any(|waiting| waiting.uid == uid)
    }

    /// A snapshot of what the seal with this number covers is wanted. One that waits already stays in its
    /// place.
    pub(super) fn ask(&mut self, uid: SnapshotUid, seal: u64, forgotten: Vec<Seq>, out: &mut Vec<Action>) {
        self.add(Waiting { uid, seal, forgotten, is_exact: false }, out);
    }

    /// A snapshot of just this seal is wanted.
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
        debug_assert!(new.forgotten.is_sorted(), "the ring thread does not search them one by one");
        if self.waits(new.uid) {
            return;
        }
        if self.waiting.len() >= WAITING_SNAPSHOTS {
            return refuse(new.uid, SnapshotRefused::Busy, out);
        }
        self.waiting.push_back(new);
    }

    /// Answers for a snapshot that was asked for as an exact one, by this process or by one that died; if it
    /// waits, later.
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

    /// Returns true if no more snapshots can be registered once these are forgotten.
    pub(super) fn is_full(manifest: &Manifest, forgotten: &[Seq]) -> bool {
        let live = manifest.snapshots().iter().filter(|known| !holds(forgotten, known.seq));
        live.count() >= MAX_SNAPSHOTS
    }

    /// Takes the change that the next record makes to the list, which is that of `manifest` before it: the
    /// record holds all that seals up to `seal` cover.
    pub(super) fn take(&mut self, seal: u64, manifest: &Manifest, out: &mut Vec<Action>) -> SnapshotChange {
        while let Some(at) = self.waiting.iter().position(|waiting| waiting.seal <= seal) {
            let next = self.waiting.remove(at).expect("it was found there");
            let Waiting { uid, forgotten, seal: own, is_exact } = &next;
            let uid = *uid;
            // The record holds what a later seal captured, too.
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

    /// A record that registers a snapshot is in the log: `manifest` has it.
    pub(super) fn registered(&mut self, manifest: &Manifest, out: &mut Vec<Action>) {
        self.in_flight = None;
        let newest = manifest.snapshots().last().expect("the record registered one");
        out.push(Action::Report(Report::SnapshotTaken(*newest)));
    }

    /// The record in flight registers none: its place is taken by another root. One that a dead process was
    /// asked for is asked for again.
    pub(super) fn postpone(&mut self) {
        self.waiting.extend(self.in_flight.take());
    }

    /// Nothing more is committed.
    pub(super) fn refuse_all(&mut self, why: SnapshotRefused, out: &mut Vec<Action>) {
        for Waiting { uid, .. } in self.in_flight.take().into_iter().chain(self.waiting.drain(..)) {
            refuse(uid, why, out);
        }
    }
}

/// Returns true if `forgotten`, which ascends, has the place.
fn holds(forgotten: &[Seq], seq: Seq) -> bool {
    forgotten.binary_search(&seq).is_ok()
}

/// Says that a snapshot is not taken.
pub(super) fn refuse(uid: SnapshotUid, why: SnapshotRefused, out: &mut Vec<Action>) {
    out.push(Action::Report(Report::SnapshotRefused { uid, why }));
}

#[cfg(test)]
mod tests;
