//! One volume: events in, actions out.
//!
//! Owns: routing of each event to the owners of the volume's state, each of which has its file in
//! `volume/` and does not know the steps of the others. Does not own: files, sockets, clocks, threads,
//! request memory. It only pairs file ranges with requests.
//! Runs on: the ring thread that owns the volume, alone. It is created elsewhere, since that reads the
//! whole live map.
//! Invariants:
//! - every request is completed exactly once (8 in `docs/invariants.md`);
//! - a read's actions cover each byte of the request exactly once (9);
//! - only the active side takes writes; the sealed side no longer changes once its in-flight count is zero
//!   (10);
//! - a commit is created only after a round that began when the sealed side had no writes in flight (1,
//!   4); after a failed sync it needs no round (`volume/durability.rs`).
//!
//! On failure: a failed map write fails the flushes that needed it; fencing fails all I/O; dirty data
//! stays in place.
//!
//! An event changes the state of its owner, and this file applies its direct effects on other owners.
//! Follow-up work (rounds, evictions, seals, checkpoints, the detach) is done afterwards in
//! `Volume::settle`, a list of steps of fixed length: there is no recursion.
//!
//! ```text
//!                Tick: limit reached / Detach
//! Seal:   Open ───────────────────────────────► Draining ──in flight 0──► Round
//!           ▲                                                               │
//!           └─ Clearing ◄─ Committing ◄─ Uploading ◄─ Listing ◄─round done──┘
//! ```
//!
//! The states of the volume as a whole are in `volume/lifecycle.rs`.

mod commit;
mod core;
mod cut;
mod data_path;
mod direct;
mod dirty;
mod durability;
mod ending;
mod evict;
mod flush;
mod give_back;
mod growth;
mod lifecycle;
mod merge;
mod pace;
mod read;
mod receipt;
mod repair;
mod requests;
mod seal;
mod sealing;
mod snapshot;
mod snapshotting;
mod status;
mod turn;
mod unflushed;
mod unreadable;

use holdfast_format::chunk_set::ChunkSet;
use holdfast_format::crash_point::{CrashPoint, reach};
use holdfast_format::limit::MAX_SECTORS;
use holdfast_format::manifest::Manifest;
use holdfast_format::record::Body;
use holdfast_format::safeguard::{
    Safeguard::{
        CommitAfterFailedSync, FlushInNextRound, FlushInNextSeal, FlushInRoundWaits, FuaInNextRound,
        FuaIsDurable, FuaWaitsForCommit, GrowInLogFirst, HoldUntilRelease, RememberFailedSync,
    },
    safeguard,
};
use holdfast_format::side::{Side, SideSet};
use holdfast_format::snapshot::{Snapshot, SnapshotChange};
use holdfast_types::{Block, Chunk, Millis, SectorRange};

use crate::action::{Action, Report};
use crate::event::{Errno, Event, Op, RequestId, Unprepared};
use crate::sector_map::{CommitScope, LiveMapError, SectorMap};
use crate::settings::{AttachState, Durability, Pending, RuntimeSettings, Setup};

use self::core::{Core, map_after_attach};
use commit::LogWriter;
use cut::Cut;
use data_path::{DataPath, StoreEnd, WriteGate};
use flush::{FlushRounds, FlushWaiter, RoundEnd, RoundProgress};
use growth::Growth;
use lifecycle::{Lifecycle, LifecycleEvent};
use merge::Merger;
pub use pace::PaceStatus;
use repair::{RepairJob, RepairStep};
use seal::{Seal, Sealer};
use snapshot::Snapshotter;
pub use status::{Delay, FullResources, IndexStatus, SealStatus, Status};
use turn::{AFTER_EVENT, AFTER_FENCING, AFTER_FLUSH, Turn};
pub use unreadable::Unreadable;

/// The planner of one volume over live-map memory `M`.
pub struct Volume<M> {
    core: Core<M>,
    durability: Durability,
    data: DataPath,
    rounds: FlushRounds,
    sealer: Sealer,
    log: LogWriter,
    merger: Merger,
    snapshots: Snapshotter,
    cut: Cut,
    growth: Growth,
    repair: RepairJob,
}

impl<M: AsRef<[u8]> + AsMut<[u8]>> Volume<M> {
    /// Creates the planner of a newly attached volume, from its log and durable map.
    ///
    /// `memory` has at least the fixed part of the map allocated, and is zeroed or holds the contents of the
    /// durable map: see [`RestoredMap`](crate::sector_map::RestoredMap). If anything is dirty, requests are
    /// not allowed before [`Report::Ready`].
    pub fn attach(setup: Setup, memory: M, state: AttachState, now: Millis, out: &mut Vec<Action>) -> Self {
        let AttachState { manifest, generation } = state;
        let map = map_after_attach(&setup.header, memory, generation, now);
        let mut volume = Self::over(setup, map, None, now);
        volume.log.learned(&manifest, now);
        volume.core.learn(manifest);
        if volume.core.dirty_sides() == SideSet::NONE {
            out.push(Action::Report(Report::Ready));
        } else {
            volume.core.map.set_commit_scope(CommitScope::BothBeforeServing);
            volume.core.lifecycle = Lifecycle::Recovering { detach: false };
            volume.sealer.begin(SideSet::BOTH);
        }
        reach(CrashPoint::MapCreated);
        volume.core.map.publish();
        reach(CrashPoint::MapPublished);
        volume.settle(AFTER_EVENT, out);
        volume
    }

    /// Creates the planner of a volume taken over from a dead or retired process, over its live map.
    ///
    /// Requests are allowed at once unless [`Status::recovering`] says otherwise; reads of remote sectors
    /// wait for [`Event::ManifestLoaded`].
    ///
    /// # Errors
    /// [`LiveMapError`] if `memory` is not this volume's live map.
    pub fn resume(
        mut setup: Setup,
        memory: M,
        pending: Option<Pending>,
        now: Millis,
    ) -> Result<Self, LiveMapError> {
        let map = SectorMap::open(memory, setup.header.sectors, &setup.header.volume)?;
        let own = setup.header.nonces.last().copied();
        setup.header.claim_as_of(map.epoch(), own);
        // The first round writes the header.
        setup.header.sectors = map.sectors();
        let mut volume = Self::over(setup, map, pending, now);
        let sealed = volume.core.map.active().other();
        match volume.core.map.commit_scope() {
            CommitScope::BothBeforeServing => {
                volume.core.lifecycle = Lifecycle::Recovering { detach: false };
                volume.sealer.begin(SideSet::BOTH);
            }
            CommitScope::Both => volume.sealer.begin(SideSet::BOTH),
            CommitScope::OneSide if volume.core.dirty_sides().contains(sealed) => {
                volume.data.pace.commit_taken_over(volume.core.dirty_bytes(sealed), now);
                volume.sealer.begin(SideSet::only(sealed));
            }
            CommitScope::OneSide => {}
        }
        if volume.durability == Durability::Object {
            // The predecessor may have crashed before it sealed data flushed while durability was `local`.
            let seal = volume.covering_seal();
            volume.sealer.seals.want(seal);
        }
        reach(CrashPoint::Resumed);
        Ok(volume)
    }

    fn over(setup: Setup, map: SectorMap<M>, pending: Option<Pending>, now: Millis) -> Self {
        let pages = map.pages();
        let nonce = setup.header.nonces.last().copied().unwrap_or_default();
        Self {
            durability: setup.durability,
            data: DataPath::new(setup.requests, pages),
            rounds: FlushRounds::after_takeover(&map, setup.header.has_journal, setup.header_generation),
            sealer: Sealer::open(),
            log: LogWriter::idle(nonce, pending, now),
            merger: Merger::idle(),
            snapshots: Snapshotter::default(),
            cut: Cut::default(),
            growth: Growth::default(),
            repair: RepairJob::default(),
            core: Core::over(setup, map, now),
        }
    }

    /// Returns the figures as of the last event.
    pub fn status(&self) -> Status {
        Status::of(self)
    }

    /// Returns true while eviction runs or waits to retry a failed step.
    pub fn is_evicting(&self) -> bool {
        !self.data.evictor.is_idle()
    }

    /// Returns the registered snapshots, oldest first; none while the manifest is not loaded.
    pub fn snapshots(&self) -> &[Snapshot] {
        self.core.manifest.as_ref().map_or(&[], Manifest::snapshots)
    }

    /// Updates the time of day for later timestamps.
    pub fn set_time_of_day(&mut self, unix_ms_at_zero: u64) {
        self.core.unix_ms_at_zero = unix_ms_at_zero;
    }

    /// Handles one event and appends the resulting actions.
    ///
    /// # Panics
    /// On an event that answers no action, which is a bug of the caller.
    pub fn handle(&mut self, now: Millis, event: Event, out: &mut Vec<Action>) {
        self.core.now = now;
        match event {
            Event::Request { id, op, range } => return self.request(id, op, range, out),
            Event::IoCompleted { id, result } => {
                self.io_completed(id, result, out);
                if self.is_quiet() {
                    return;
                }
            }
            Event::ColdReadCompleted { id, result } => {
                if let Some(request) = self.data.requests.cold_read_completed(id, result) {
                    self.data.read_ended(id, request, self.log.carries_merges(), &mut self.core, out);
                }
                if self.is_quiet() {
                    return;
                }
            }
            Event::Evicted { result } => self.evicted(result, out),
            Event::MapReleased { chunk } => self.map_released(chunk, out),
            Event::Space { excess_bytes, room_bytes } => self.space_measured(excess_bytes, room_bytes, out),
            Event::MapPrepared { chunk, result } => self.map_prepared(chunk, result, out),
            Event::SideSynced { side, result } => self.side_synced(side, result, out),
            Event::MapWritten { result } => self.map_written(result, out),
            Event::MapSynced { result } => self.map_synced(result, out),
            Event::ManifestLoaded(manifest) => self.manifest_loaded(*manifest, out),
            Event::NextTurn => self.next_turn(out),
            Event::PauseEnded => return self.pause_ended(out),
            Event::Uploaded(segment) => self.uploaded(segment, out),
            Event::SidesUnreadable(ranges) => self.sides_unreadable(ranges, out),
            Event::Merged { kind, output } => self.merger.merged(kind, output),
            Event::MergeFailed { kind, barred } => self.merger.failed(kind, barred),
            Event::Snapshot { uid, forgotten } => self.snapshot(uid, forgotten, out),
            Event::AwaitCut { uid } => self.snapshots.await_exact(uid, self.core.manifest.as_ref(), out),
            Event::PrepareCut { uid, forgotten } => self.prepare_cut(uid, forgotten, out),
            Event::Cut { uid } => self.begin_cut(uid, out),
            Event::ReleaseCut { uid } => self.release_cut(uid, out),
            Event::RootStored => self.log.root_stored(out),
            Event::RootBarred => self.root_barred(out),
            Event::PendingStored { result } => self.log.pending_stored(result, &self.core, out),
            Event::CreateAnswered(answer) => self.create_answered(answer, out),
            Event::RecordRead { seq, bytes } => self.record_read(seq, bytes.as_deref(), out),
            Event::CheckpointWritten { seq, written } => {
                self.checkpoint_written(seq, written);
                self.unpark(out);
            }
            Event::Detach => self.detach(out),
            Event::Grow { sectors } => self.grow(sectors, out),
            Event::Configure(settings) => self.configure(settings, out),
            Event::CommitSoon(soon) => self.core.commits_soon = soon,
            Event::Repair { ranges, checkpoint } => self.ask_repair(ranges, checkpoint, out),
            Event::Tick => {
                self.unpark(out);
                self.probe_log(out);
            }
        }
        self.settle(if self.core.lifecycle.is_fenced() { AFTER_FENCING } else { AFTER_EVENT }, out);
    }

    /// Runs the follow-up steps of the state, in this order; some of them repeat after others.
    fn settle(&mut self, steps: &[Turn], out: &mut Vec<Action>) {
        for step in steps {
            match step {
                Turn::Repeat => self.repeat_record(out),
                Turn::Round => self.begin_round(out),
                Turn::Evict => self.advance_evict(out),
                Turn::Punch if self.evict_progress() == Some(RoundProgress::Ended) => self.advance_evict(out),
                Turn::Punch => {}
                Turn::Repair => self.advance_repair(out),
                Turn::Cut => self.advance_cut(out),
                Turn::Seal => self.advance_seal(out),
                Turn::Snapshot => self.advance_snapshots(out),
                Turn::Growth => self.advance_growth(out),
                Turn::Merge => self.advance_merge(out),
                Turn::Checkpoint => {
                    self.log.advance_checkpoint(&self.core, self.repair.wants_checkpoint(), out);
                }
                Turn::Detach => self.advance_detach(out),
                Turn::LastRound => self.advance_last_round(out),
            }
        }
    }

    /// Returns true in the common case: nothing to seal, and the end of an operation only answers its
    /// request.
    fn is_quiet(&self) -> bool {
        let few_dirty = !self.core.is_seal_full(self.core.map.active());
        self.sealer.is_open() && self.cut.is_idle() && self.data.evictor.is_idle() && few_dirty
    }

    fn transition(&mut self, event: LifecycleEvent) {
        self.core.lifecycle = self.core.lifecycle.next(event);
    }

    // ---- requests ----

    fn request(&mut self, id: RequestId, op: Op, range: SectorRange, out: &mut Vec<Action>) {
        let inside = range.end() <= self.core.map.sectors();
        self.data.requests.begin(id, op, range, self.core.map.active());
        if !inside || self.core.lifecycle != Lifecycle::Serving {
            return self.data.requests.complete(id, Err(Errno::EIO), out);
        }
        match op {
            Op::Flush => self.plan_flush(id, out),
            Op::Read | Op::Write | Op::WriteFua | Op::Discard | Op::WriteZeroes => {
                let gate = self.gate();
                self.data.plan(id, &mut self.core, gate, out);
            }
        }
    }

    fn gate(&self) -> WriteGate {
        let holds_active = self.sealer.holds_still(self.core.map.active());
        let is_held = self.cut.stops_writes() && safeguard(HoldUntilRelease);
        WriteGate { is_open: self.sealer.is_open() && self.may_seal(), holds_active, is_held }
    }

    /// Returns true unless the log must be read, or a checkpoint stored, before the next seal. The dirty data
    /// could grow without limit until then.
    #[inline]
    fn may_seal(&self) -> bool {
        self.core.manifest.as_ref().is_some_and(|manifest| !self.log.is_full(manifest))
    }

    fn unpark(&mut self, out: &mut Vec<Action>) {
        let gate = self.gate();
        self.data.unpark(&mut self.core, gate, out);
    }

    fn map_prepared(&mut self, chunk: Chunk, result: Result<(), Unprepared>, out: &mut Vec<Action>) {
        let gate = self.gate();
        self.data.map_prepared(chunk, result, &mut self.core, gate, out);
    }

    fn map_released(&mut self, chunk: Chunk, out: &mut Vec<Action>) {
        self.data.requests.released(chunk);
        self.unpark(out);
    }

    fn space_measured(&mut self, excess_bytes: u64, room_bytes: u64, out: &mut Vec<Action>) {
        self.data.evictor.space_measured(excess_bytes, room_bytes);
        if room_bytes > 0 {
            self.unpark(out);
        }
    }

    fn pause_ended(&mut self, out: &mut Vec<Action>) {
        let gate = self.gate();
        self.data.pause_ended(&mut self.core, gate, out);
    }

    fn io_completed(&mut self, id: RequestId, result: Result<(), Errno>, out: &mut Vec<Action>) {
        let Some(request) = self.data.requests.io_completed(id, result) else { return };
        if request.op == Op::Read {
            return self.data.read_ended(id, request, self.log.carries_merges(), &mut self.core, out);
        }
        if self.data.store_ended(id, request, &mut self.core, out) == StoreEnd::MakeDurable {
            self.make_durable(id, out);
        }
        self.data.answer_deferred_failures(request.side, &mut self.core, out);
    }

    // ---- flushes and rounds ----

    /// Completes a stored and marked FUA write like a FLUSH issued now. A writer that was fenced meanwhile
    /// makes nothing durable.
    fn make_durable(&mut self, id: RequestId, out: &mut Vec<Action>) {
        let only_local = FlushWaiter { id, seal: 0 };
        if self.core.lifecycle.is_fenced() {
            self.data.requests.complete(id, Err(Errno::EIO), out);
        } else if !safeguard(FuaIsDurable) {
            self.data.requests.complete(id, Ok(()), out);
        } else if !safeguard(FuaInNextRound) && !self.rounds.is_idle() {
            self.rounds.join_running(only_local);
        } else if !safeguard(FuaWaitsForCommit) && !self.core.is_sync_failed() {
            self.rounds.join(only_local);
            self.settle(AFTER_FLUSH, out);
        } else {
            self.plan_flush(id, out);
        }
    }

    fn plan_flush(&mut self, id: RequestId, out: &mut Vec<Action>) {
        if self.core.is_sync_failed() {
            self.flush_by_commit(id, out);
        } else {
            let seal = match self.durability {
                Durability::Local => 0,
                Durability::Object => self.covering_seal(),
            };
            self.sealer.seals.want(seal);
            let waiter = FlushWaiter { id, seal };
            if safeguard(FlushInNextRound) || self.rounds.is_idle() {
                self.rounds.join(waiter);
            } else {
                self.rounds.join_running(waiter);
            }
        }
        self.settle(AFTER_FLUSH, out);
    }

    /// After a failed sync, lets only a commit answer the flush.
    fn flush_by_commit(&mut self, id: RequestId, out: &mut Vec<Action>) {
        let seal = self.covering_seal();
        self.sealer.seals.want(seal);
        if self.sealer.seals.wait_for_commit(FlushWaiter { id, seal }) {
            self.data.requests.complete(id, Ok(()), out);
        }
    }

    /// Returns the number of the seal whose commit includes everything that has completed.
    fn covering_seal(&self) -> u64 {
        let active = self.core.map.active();
        // A seal of both sides also includes writes that complete while it drains.
        let is_covered = self.core.dirty[active].blocks.is_empty() || self.sealer.holds_still(active);
        let needs_next = !is_covered && (safeguard(FlushInNextSeal) || self.sealer.is_open());
        self.sealer.seals.begun() + u64::from(needs_next)
    }

    /// Applies these settings. Data that is older than the new age limit, or was flushed before durability
    /// became `object`, is sealed in the same turn.
    fn configure(&mut self, settings: RuntimeSettings, out: &mut Vec<Action>) {
        let RuntimeSettings { max_age_ms, durability } = settings;
        self.core.limits.max_age_ms = max_age_ms;
        let before = std::mem::replace(&mut self.durability, durability);
        match (before, durability) {
            (Durability::Local, Durability::Object) if safeguard(FlushInRoundWaits) => {
                let seal = self.covering_seal();
                self.rounds.wait_for_seal(seal);
                // The seal includes the data that earlier flushes left on the node.
                self.sealer.seals.want(seal);
            }
            // Seals that flushes requested still take place.
            (Durability::Object, Durability::Local) => {
                self.rounds.wait_for_seal(0);
                if !self.core.is_sync_failed() || !safeguard(CommitAfterFailedSync) {
                    for waiter in self.sealer.seals.take_waiting() {
                        self.data.requests.complete(waiter.id, Ok(()), out);
                    }
                }
            }
            (Durability::Local | Durability::Object, _) => {}
        }
    }

    fn begin_round(&mut self, out: &mut Vec<Action>) {
        if self.rounds.is_due(&self.core) {
            let end = self.rounds.begin(&mut self.core, out);
            self.round_ended(end, out);
        }
    }

    fn side_synced(&mut self, side: Side, result: Result<(), Errno>, out: &mut Vec<Action>) {
        // Recorded immediately, because the process may die before the other side's sync ends.
        self.remember_failed_sync(result);
        let end = self.rounds.side_synced(side, result, &mut self.core, out);
        self.round_ended(end, out);
    }

    fn remember_failed_sync(&mut self, result: Result<(), Errno>) {
        if result.is_err() && safeguard(RememberFailedSync) {
            self.core.map.set_sync_failed();
            self.data.evictor.sync_failed(self.core.map.active().other());
        }
    }

    fn map_written(&mut self, result: Result<(), Errno>, out: &mut Vec<Action>) {
        let end = self.rounds.map_written(result, &mut self.core, out);
        self.round_ended(end, out);
    }

    fn map_synced(&mut self, result: Result<(), Errno>, out: &mut Vec<Action>) {
        // It flushes the whole disk: writes to the sides that have ended since their syncs may be lost, too.
        self.remember_failed_sync(result);
        let end = self.rounds.map_synced(result, &mut self.core, out);
        self.round_ended(end, out);
    }

    fn round_ended(&mut self, end: Option<RoundEnd>, out: &mut Vec<Action>) {
        let Some(RoundEnd { result, waiters, unserved }) = end else { return };
        let seals_first = !unserved.is_empty();
        for waiter in unserved {
            self.flush_by_commit(waiter.id, out);
        }
        if seals_first {
            self.advance_seal(out);
        }
        for waiter in waiters {
            let answer = match &result {
                Ok(proof) if self.sealer.seals.locally_durable(waiter, proof) => Ok(()),
                Ok(_waits_for_a_commit) => continue,
                Err(errno) => Err(*errno),
            };
            self.data.requests.complete(waiter.id, answer, out);
        }
    }

    /// Returns those of the 128 blocks after `block`, the next one in the lowest bit, that are not
    /// entirely on a side: a sequential reader of `block` will get them from the store. Blocks past the
    /// end of the device are not included.
    pub fn remote_after(&self, block: Block) -> u128 {
        self.core.map.remote_after(block)
    }

    // ---- growth ----

    /// Returns the memory of the live map, to replace it with a longer mapping of the same bytes before
    /// [`Event::Grow`].
    pub fn memory_mut(&mut self) -> &mut M {
        self.core.map.memory_mut()
    }

    fn grow(&mut self, sectors: u64, out: &mut Vec<Action>) {
        if sectors <= self.core.map.sectors() {
            return out.push(Action::Report(Report::Grown { sectors: self.core.map.sectors() }));
        }
        // A record with a larger size could not be decoded.
        if sectors > MAX_SECTORS {
            return;
        }
        if matches!(self.core.lifecycle, Lifecycle::Serving | Lifecycle::Recovering { detach: false }) {
            self.growth.ask(sectors);
            if !safeguard(GrowInLogFirst) {
                self.take_size(sectors, out);
            }
        }
    }

    /// Creates a record for a growth that no commit carries, or applies the size in the log.
    fn advance_growth(&mut self, out: &mut Vec<Action>) {
        if self.growth.is_idle() || self.core.lifecycle.is_recovering() {
            return;
        }
        if self.core.lifecycle != Lifecycle::Serving {
            return self.growth.forget();
        }
        if let Some(sectors) = self.growth.take(&self.core) {
            return self.take_size(sectors, out);
        }
        let Some(manifest) = &self.core.manifest else { return };
        // An unreadable sealed side is no reason to wait.
        let is_still = matches!(self.sealer.seal(), Seal::Open | Seal::Unreadable(_)) && self.log.is_idle();
        if is_still && !self.log.is_full(manifest) && manifest.is_attached() {
            self.create_change(Default::default(), SideSet::NONE, SnapshotChange::default(), out);
        }
    }

    fn take_size(&mut self, sectors: u64, out: &mut Vec<Action>) {
        let pages = self.core.grow(sectors);
        self.rounds.grow(pages);
        self.data.evictor.grow(pages);
        out.push(Action::Report(Report::Grown { sectors }));
    }

    // ---- eviction and repair ----

    fn advance_evict(&mut self, out: &mut Vec<Action>) {
        let round = self.evict_progress();
        let may_seal = self.sealer.is_open() && !self.defers_overdue();
        if self.data.evictor.advance(&mut self.core, may_seal, round, out) {
            self.data.evictor.wait_for(self.rounds.want());
        }
    }

    /// Returns the progress of the round that the eviction waits for.
    fn evict_progress(&self) -> Option<RoundProgress> {
        self.data.evictor.round().map(|number| self.rounds.progress(number, self.core.now))
    }

    fn evicted(&mut self, result: Result<(), Errno>, out: &mut Vec<Action>) {
        if self.data.evictor.evicted(result, self.core.map.active().other()) {
            self.data.give_back(&mut self.core, &self.rounds, out);
            self.unpark(out);
        }
    }

    fn ask_repair(&mut self, ranges: Vec<SectorRange>, checkpoint: bool, out: &mut Vec<Action>) {
        if self.core.lifecycle.is_fenced() {
            // A fenced volume cannot be repaired; the report only ends the caller's wait.
            return out.push(Action::Report(Report::Repaired));
        }
        self.repair.ask(ranges, checkpoint);
    }

    fn advance_repair(&mut self, out: &mut Vec<Action>) {
        let is_still = self.sealer.is_open() && self.log.is_idle() && self.data.evictor.is_idle();
        let Some(manifest) = &self.core.manifest else { return };
        if !self.repair.is_asked() || !is_still || self.core.lifecycle != Lifecycle::Serving {
            return;
        }
        if !manifest.is_attached() {
            // A predecessor's detach record is in the log: nothing may be committed after it (invariant 11).
            self.repair.forget();
        }
        match self.repair.advance(&mut self.core) {
            RepairStep::Seal(inactive) => self.sealer.begin_repair(inactive),
            RepairStep::Wait => {}
            RepairStep::Done => out.push(Action::Report(Report::Repaired)),
        }
    }

    fn advance_merge(&mut self, out: &mut Vec<Action>) {
        self.merger.advance(&self.core, self.log.is_idle(), out);
        let Some(manifest) = &self.core.manifest else { return };
        // A seal in progress ends with its own record.
        let is_still = self.sealer.is_open() && self.log.is_idle() && !self.log.is_full(manifest);
        if !is_still
            || self.core.lifecycle != Lifecycle::Serving
            || !self.merger.wants_record(manifest.runs())
        {
            return;
        }
        let merges = self.merger.take(manifest);
        let closed = self.merger.closed(manifest);
        if merges.is_empty() {
            return;
        }
        let (segments, chunks, invalidated) = (Vec::new(), ChunkSet::default(), SideSet::NONE);
        let (snapshots, generation, sectors) = (SnapshotChange::default(), 0, None);
        let body =
            Body::Change { segments, chunks, invalidated, generation, merges, closed, snapshots, sectors };
        self.log.create_record(body, &self.core, out);
    }
}
