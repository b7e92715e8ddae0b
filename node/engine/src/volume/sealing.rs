//! The seal: the steps that involve several owners of a volume's state.
//!
//! Owns: nothing; each step lists in one place its changes to the owners' state.
//! Does not own: the state of the seal (`volume/seal.rs`), the upload, the log (`volume/commit.rs`).

use holdfast_format::chunk_set::ChunkSet;
use holdfast_format::crash_point::{CrashPoint, reach};
use holdfast_format::record::Body;
use holdfast_format::safeguard::{
    Safeguard::{FlushAfterCommit, NameHeldChunks, RoundBeforeCommit, UploadStillSides},
    safeguard,
};
use holdfast_format::segment::SegmentRef;
use holdfast_format::side::SideSet;
use holdfast_format::snapshot::SnapshotChange;
use holdfast_types::SectorRange;

use super::Volume;
use super::flush::RoundProgress;
use super::lifecycle::{Lifecycle, LifecycleEvent};
use super::seal::Seal;
use super::unreadable::ReadRetry;
use crate::action::{Action, Report};
use crate::sector_map::CommitScope;

impl<M: AsRef<[u8]> + AsMut<[u8]>> Volume<M> {
    pub(super) fn advance_seal(&mut self, out: &mut Vec<Action>) {
        self.retry_unreadable(out);
        if self.sealer.is_open() && self.should_seal() {
            let sealed = self.core.swap_sides();
            self.data.pace.commit_began(self.core.dirty_bytes(sealed), self.core.now);
            self.data.evictor.sides_swapped(self.core.now);
            self.sealer.begin(SideSet::only(sealed));
        }
        if self.core.manifest.is_none() {
            return;
        }
        // While the next position in the log is being checked, no record is created for it.
        if let Seal::Draining(sides) = self.sealer.seal()
            && self.log.is_idle()
            && (self.core.is_still(sides) || !safeguard(UploadStillSides))
        {
            self.sides_are_still(out);
        }
        if let Seal::Round(_, number) = self.sealer.seal() {
            match self.rounds.progress(number, self.core.now) {
                RoundProgress::Pending if !self.core.is_sync_failed() => {}
                RoundProgress::Failed if !self.core.is_sync_failed() => self.want_sealing_round(),
                RoundProgress::Pending | RoundProgress::Failed | RoundProgress::Ended => {
                    reach(CrashPoint::SealDurable);
                    self.sealer.upload(&self.core, out);
                }
            }
        }
    }

    /// Requests the seal's round.
    pub(super) fn sides_are_still(&mut self, out: &mut Vec<Action>) {
        reach(CrashPoint::SideStill);
        if safeguard(RoundBeforeCommit) {
            self.want_sealing_round();
        } else {
            self.sealer.upload(&self.core, out);
        }
    }

    /// Requests the round before a commit. The round writes the header, whose generation is in the commit
    /// (invariant 18).
    pub(super) fn want_sealing_round(&mut self) {
        self.core.unflushed.header_changed();
        self.sealer.want_round(self.rounds.want());
    }

    pub(super) fn should_seal(&self) -> bool {
        let core = &self.core;
        let Some(manifest) = &core.manifest else { return false };
        let side = core.map.active();
        let defers_overdue = self.defers_overdue();
        // A side that an eviction is about to punch must not become active, and needed evictions precede
        // the seal of new data.
        if !self.data.evictor.is_idle() || self.data.evictor.evicts_first(core, !defers_overdue) {
            return false;
        }
        if core.dirty[side].blocks.is_empty() || self.log.is_full(manifest) {
            return false;
        }
        let may_wait = self.cut.defers_seals() && !core.is_dirty_full(side);
        core.lifecycle == Lifecycle::Detaching
            || self.sealer.seals.is_wanted()
            || (core.is_seal_full(side) && !may_wait)
            || (core.is_overdue(side) && !defers_overdue)
            || self.data.evictor.wants_other_side(core, !defers_overdue)
            || self.repair.wants_seal(side)
    }

    /// Returns true if overdue dirty data is not sealed yet, because the hold of a cut would wait for its
    /// upload.
    pub(super) fn defers_overdue(&self) -> bool {
        let due = self.core.overdue_at(self.core.map.active()).filter(|at| *at <= self.core.now);
        due.is_some_and(|at| self.cut.defers_overdue(at, self.core.now))
    }

    /// Continues work that is too long for one turn.
    pub(super) fn next_turn(&mut self, out: &mut Vec<Action>) {
        match self.sealer.seal() {
            _ if self.core.lifecycle.is_fenced() => {}
            Seal::Listing(_) => self.sealer.list(&self.core, out),
            Seal::Clearing(_) => self.clear(out),
            seal @ (Seal::Open
            | Seal::Draining(_)
            | Seal::Round(..)
            | Seal::Uploading(_)
            | Seal::Committing(_)
            | Seal::Unreadable(_)) => unreachable!("no turn was requested in {seal:?}"),
        }
    }

    pub(super) fn uploaded(&mut self, segment: SegmentRef, out: &mut Vec<Action>) {
        if self.core.lifecycle.is_fenced() {
            return;
        }
        let (sides, chunks) = self.sealer.stored();
        if !safeguard(FlushAfterCommit) {
            self.seal_committed(out);
        }
        let manifest = self.core.manifest.as_ref().expect("a seal is uploaded only with a manifest");
        let chunks = if segment.chunks.is_exact() || !safeguard(NameHeldChunks) {
            ChunkSet::default()
        } else {
            manifest.not_held(chunks)
        };
        let snapshots = self.snapshots.take(self.sealer.seals.begun(), manifest, out);
        let invalidated = self.core.invalidated_with(sides);
        self.create_change((vec![segment], chunks), invalidated, snapshots, out);
    }

    /// Creates the record of a change, with any stored merge.
    pub(super) fn create_change(
        &mut self,
        (segments, chunks): (Vec<SegmentRef>, ChunkSet),
        invalidated: SideSet,
        snapshots: SnapshotChange,
        out: &mut Vec<Action>,
    ) {
        let generation = self.rounds.durable_generation();
        let manifest = self.core.manifest.as_ref().expect("a record is built from it");
        let merges = self.merger.take(manifest);
        let closed = self.merger.closed(manifest);
        let sectors = self.growth.to_record(manifest);
        let body =
            Body::Change { segments, chunks, invalidated, generation, merges, closed, snapshots, sectors };
        self.log.create_record(body, &self.core, out);
    }

    pub(super) fn clear(&mut self, out: &mut Vec<Action>) {
        if let Some(sides) = self.sealer.clear(&mut self.core, out) {
            self.seal_cleared(sides, out);
        }
    }

    pub(super) fn seal_cleared(&mut self, sides: SideSet, out: &mut Vec<Action>) {
        for side in sides.iter() {
            self.core.map.set_flushed_sides(self.core.map.flushed_sides().without(side));
            self.rounds.side_cleared(side);
            self.data.evictor.may_hold_more(side);
            self.repair.committed(side);
            self.core.dirty[side].since = None;
        }
        reach(CrashPoint::DirtyCleared);
        let manifest = self.core.manifest.as_ref().expect("the commit was made from it");
        out.push(Action::Report(Report::Committed(manifest.seq())));
        self.data.unreadable.committed(out);
        self.data.pace.commit_ended(self.core.limits.seal_bytes, self.core.now);
        self.seal_committed(out);
        if self.core.map.commit_scope() != CommitScope::OneSide {
            self.core.map.set_commit_scope(CommitScope::OneSide);
            reach(CrashPoint::Recovered);
        }
        self.recovered(out);
        self.unpark(out);
    }

    pub(super) fn seal_committed(&mut self, out: &mut Vec<Action>) {
        for waiter in self.sealer.seals.committed() {
            self.data.requests.complete(waiter.id, Ok(()), out);
        }
    }

    pub(super) fn recovered(&mut self, out: &mut Vec<Action>) {
        if self.core.lifecycle.is_recovering() {
            self.transition(LifecycleEvent::Recovered);
            out.push(Action::Report(Report::Ready));
        }
    }

    /// Handles an upload of the sealed sides that found unreadable `ranges`.
    pub(super) fn sides_unreadable(&mut self, ranges: Vec<SectorRange>, out: &mut Vec<Action>) {
        if self.core.lifecycle.is_fenced() {
            return;
        }
        let sealed = self.sealer.unreadable();
        self.data.pace.commit_failed();
        self.data.unreadable.found(ranges, sealed, &self.core, out);
        reach(CrashPoint::UploadFailed);
        if self.core.lifecycle.is_recovering() {
            // Without a device, no write could replace the unreadable data.
            self.core.map.set_commit_scope(CommitScope::Both);
        }
        self.recovered(out);
        self.unpark(out);
    }

    pub(super) fn retry_unreadable(&mut self, out: &mut Vec<Action>) {
        let Seal::Unreadable(sealed) = self.sealer.seal() else { return };
        if !self.log.is_idle() {
            return;
        }
        match self.data.unreadable.retry(sealed, self.core.now) {
            ReadRetry::NotYet => {}
            ReadRetry::SameSides => self.sealer.upload(&self.core, out),
            ReadRetry::BothSides => {
                self.core.map.set_commit_scope(CommitScope::Both);
                self.sealer.begin(SideSet::BOTH);
                reach(CrashPoint::BothSealed);
            }
        }
    }
}
