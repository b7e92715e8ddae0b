//! Snapshots and cuts: the steps that involve several owners of a volume's state.
//!
//! Owns: nothing; each step lists in one place its changes to the owners' state.
//! Does not own: the waiting snapshots (`volume/snapshot.rs`), the state of a cut (`volume/cut.rs`).

use holdfast_format::safeguard::{
    Safeguard::{CutIsStill, SnapshotAfterSeal},
    safeguard,
};
use holdfast_format::side::SideSet;
use holdfast_types::{Seq, SnapshotUid};

use super::Volume;
use super::cut::{self, CutAdvance, SealCounts};
use super::lifecycle::Lifecycle;
use super::snapshot::{self, Snapshotter};
use crate::action::Action;
use crate::limit::HOLD_WAITS_MS;
use crate::snapshot::{CutAnswer, SnapshotRefused};

impl<M: AsRef<[u8]> + AsMut<[u8]>> Volume<M> {
    pub(super) fn snapshot(&mut self, uid: SnapshotUid, forgotten: Vec<Seq>, out: &mut Vec<Action>) {
        if self.core.lifecycle.is_fenced() {
            return snapshot::refuse(uid, SnapshotRefused::Fenced, out);
        }
        if self.core.lifecycle == Lifecycle::Detached {
            return snapshot::refuse(uid, SnapshotRefused::Released, out);
        }
        let seal = if safeguard(SnapshotAfterSeal) { self.covering_seal() } else { 0 };
        self.sealer.seals.want(seal);
        self.snapshots.ask(uid, seal, forgotten, out);
    }

    pub(super) fn prepare_cut(&mut self, uid: SnapshotUid, forgotten: Vec<Seq>, out: &mut Vec<Action>) {
        if self.core.lifecycle != Lifecycle::Serving {
            return cut::answer(uid, CutAnswer::Lapsed, out);
        }
        // Fail early, before any writes are held.
        if self.cut.is_idle()
            && let Some(manifest) = &self.core.manifest
        {
            if self.is_begun(uid) {
                return cut::answer(uid, CutAnswer::Lapsed, out);
            }
            if Snapshotter::is_full(manifest, &forgotten) {
                return snapshot::refuse(uid, SnapshotRefused::TooMany, out);
            }
        }
        self.cut.note_seals(self.seal_counts());
        // Data that became dirty after a seal in progress may wait: the hold begins its seal.
        let seal = if self.sealer.is_open() { self.covering_seal() } else { self.sealer.seals.begun() };
        if self.cut.prepare(uid, forgotten, seal, self.core.now, out) {
            self.sealer.seals.want(seal);
        }
    }

    pub(super) fn begin_cut(&mut self, uid: SnapshotUid, out: &mut Vec<Action>) {
        if self.core.lifecycle == Lifecycle::Serving {
            self.cut.note_seals(self.seal_counts());
            self.cut.begin(uid, self.core.now, out);
        } else {
            cut::answer(uid, CutAnswer::Lapsed, out);
        }
    }

    fn seal_counts(&self) -> SealCounts {
        let seals = &self.sealer.seals;
        SealCounts {
            begun: seals.begun(),
            committed: seals.newest_committed(),
            delays_hold: self.delays_hold(),
        }
    }

    /// Returns true if a hold would wait for the seal in progress, which is not expected to end soon.
    fn delays_hold(&self) -> bool {
        let writes = self.core.dirty[self.core.map.active()].in_flight;
        let needs_another = writes > 0 || self.covering_seal() > self.sealer.seals.begun();
        let ends_soon = self.data.pace.ends_within(HOLD_WAITS_MS, self.core.now);
        !self.sealer.is_open() && needs_another && !ends_soon
    }

    pub(super) fn release_cut(&mut self, uid: SnapshotUid, out: &mut Vec<Action>) {
        if self.cut.release(uid, out) {
            self.unpark(out);
        }
    }

    pub(super) fn root_barred(&mut self, out: &mut Vec<Action>) {
        self.log.root_barred(out);
        self.snapshots.postpone();
    }

    /// Returns true if a snapshot of this name, which has an earlier point, is in the log or may still reach
    /// it. A dead process may have taken it, even a version without support for cuts.
    fn is_begun(&self, uid: SnapshotUid) -> bool {
        let known = self.core.manifest.as_ref().map_or(&[][..], |manifest| manifest.snapshots());
        known.iter().any(|known| known.uid == uid) || self.snapshots.waits(uid) || self.log.registers(uid)
    }

    pub(super) fn advance_cut(&mut self, out: &mut Vec<Action>) {
        if self.cut.is_idle() {
            return;
        }
        if self.core.lifecycle != Lifecycle::Serving {
            return self.cut.lapse(out);
        }
        // Earlier snapshots are not known yet.
        if self.core.manifest.is_none() {
            return;
        }
        let stores = self.core.dirty[self.core.map.active()].in_flight;
        let stores = if safeguard(CutIsStill) { stores } else { 0 };
        match self.cut.advance(self.core.now, stores, self.seal_counts(), out) {
            CutAdvance::Wait => {}
            CutAdvance::Continue => self.unpark(out),
            CutAdvance::Ask(uid, _) if self.is_begun(uid) => {
                self.cut.lapse(out);
                self.unpark(out);
            }
            CutAdvance::Ask(uid, forgotten) => {
                let seal = self.covering_seal();
                self.sealer.seals.want(seal);
                self.snapshots.ask_exact(uid, seal, forgotten, out);
                self.cut.asked(seal);
                self.advance_cut(out);
            }
        }
    }

    /// Creates a record for a snapshot that no commit carries, because no data is dirty. The record precedes
    /// a detach record.
    pub(super) fn advance_snapshots(&mut self, out: &mut Vec<Action>) {
        let Some(manifest) = &self.core.manifest else { return };
        if self.snapshots.is_idle() || !self.log.is_idle() {
            return;
        }
        if !manifest.is_attached() {
            // The detach record is in the log, which only the control plane may extend now.
            return self.snapshots.refuse_all(SnapshotRefused::Released, out);
        }
        if !self.sealer.is_open() || self.log.is_full(manifest) {
            return;
        }
        let change = self.snapshots.take(self.sealer.seals.newest_committed(), manifest, out);
        if change.taken.is_some() {
            self.create_change(Default::default(), SideSet::NONE, change, out);
        }
    }
}
