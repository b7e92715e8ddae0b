//! One volume: events in, actions out.
//!
//! Owns: the live map, the requests in flight, the flush rounds, the seal and its commit.
//! Does not own: files, sockets, clocks, threads, request memory. It only says which file range goes with which request.
//! Runs on: the ring thread that owns the volume, alone. It is made elsewhere, since that reads the whole live map.
//! Invariants:
//! - every request is completed exactly once (8 in `docs/invariants.md`);
//! - a read's actions tile the request exactly (9);
//! - only the active side takes writes; the sealed side changes no more once its in-flight count is zero
//!   (10);
//! - a commit is created only after a round that began when the sealed side was still (1, 4).
//!
//! On failure: a failed map write fails the flushes that needed it; fencing fails all I/O; what is dirty stays where it is.
//!
//! ```text
//!              resume                      Tick: limit reached / Detach
//! Serving ──────────────┐      Open ───────────────────────────────► Draining ──in flight 0──► Round
//!    │ Detach           │        ▲                                                               │
//!    ▼                  │        └─ Clearing ◄─ Committing ◄─ Uploading ◄─ Listing ◄─round done──┘
//! Detaching ─► Closing ─► Detached          (any state ─► Fenced when the log holds another writer)
//! ```

mod commit;
mod detach;
mod durability;
mod evict;
mod flush;
mod read;
mod repair;
mod seal;
mod status;
mod sync_failed;
mod unreadable;
mod write;

use std::collections::VecDeque;

use holdfast_types::{CHUNK_SECTORS, Chunk, Nonce, SECTOR_BYTES, SectorRange, Seq};

use crate::action::{Action, Report};
use crate::crash_point::{CrashPoint, reach};
use crate::durable_map::{FoundPage, Header};
use crate::event::{Errno, Event, Millis, Op, RequestId, Unprepared};
use crate::manifest::Manifest;
use crate::safeguard::{Safeguard::FirstRoundIsFull, safeguard};
use crate::sector_map::{
    LiveMapError, Nibble, PAGE_SECTORS, PageSet, PerSide, SectorMap, Side, SideSet, Union,
};

use commit::Commit;
pub use durability::Durability;
use durability::Seals;
use evict::Evict;
use flush::Round;
use repair::Repair;
use seal::{Listed, Seal};
pub use status::{Delay, Status};
use unreadable::Lost;
pub use unreadable::Unreadable;

/// When dirty data is sealed and when writes are delayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirtyLimits {
    /// Dirty bytes on the active side at which it is sealed.
    pub seal_bytes: u64,
    /// Dirty bytes on the active side at which writes wait for the commit in progress.
    pub most_bytes: u64,
    /// Age of the oldest dirty byte at which the side is sealed.
    pub max_age_ms: Millis,
}

/// What a volume is started with.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Requests the device can have in flight (`queues * depth`).
    pub requests: u32,
    /// Its limits.
    pub limits: DirtyLimits,
    /// What a successful FLUSH means.
    pub durability: Durability,
    /// The durable header as last written; its newest nonce is this writer's, and at an attach its epoch too.
    pub header: Header,
    /// The header's generation.
    pub header_generation: u64,
    /// Milliseconds since 1970 when the clock of `now` stood at zero: for the times in records.
    pub unix_ms_at_zero: u64,
}

/// What a successor knows of a volume beyond its live map.
#[derive(Debug, Clone)]
pub struct Pending {
    /// The place of the record the predecessor was about to create.
    pub seq: Seq,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lifecycle {
    /// After host loss: what was dirty is being committed, no request comes.
    Recovering,
    Serving,
    /// No requests any more; what is dirty is being committed.
    Detaching,
    /// The detach record is being created, or the last round runs.
    Closing,
    Detached,
    Fenced,
}

#[derive(Debug, Clone, Copy)]
struct Request {
    op: Op,
    range: SectorRange,
    side: Side,
    pending: u32,
    failed: Option<Errno>,
    /// Of a read: a part on a side failed.
    unreadable: Option<Errno>,
    /// It was planned again for that.
    again: bool,
    /// A read with parts on a side: what [`Evict::read_ended`] wants to know.
    on_side: Option<u8>,
}

/// A volume's planner over live-map memory `M`.
pub struct Volume<M> {
    map: SectorMap<M>,
    header: Header,
    nonce: Nonce,
    manifest: Option<Manifest>,
    limits: DirtyLimits,
    lifecycle: Lifecycle,
    requests: Vec<Option<Request>>,
    parked: VecDeque<RequestId>,
    /// Since when at least one request is parked.
    parked_since: Option<Millis>,
    preparing: Vec<Chunk>,
    in_flight: PerSide<u32>,
    /// Discards and zeroes in flight.
    zeroing: u32,
    /// Which parts of those were written while they were in flight.
    raced: Vec<(RequestId, SectorRange)>,
    /// Writes that failed on the active side while others were in flight on the sealed one: answered after those.
    failed_early: Vec<RequestId>,
    dirty_since: PerSide<Option<Millis>>,
    /// Map pages with a sector dirty in the side.
    dirty_pages: PerSide<PageSet>,
    evict: Evict,
    round: Round,
    durability: Durability,
    seals: Seals,
    seal: Seal,
    listed: Listed,
    commit: Commit,
    pending: Option<Pending>,
    checkpointed: Seq,
    checkpointing: bool,
    closing_round: Option<u64>,
    repair: Repair,
    lost: Lost,
    /// The device is gone.
    leaving: bool,
    unix_ms_at_zero: u64,
    heard_from_log: Millis,
    disk_full: bool,
    /// The run directory had no room for the last chunk tried.
    run_dir_full: bool,
    now: Millis,
}

impl<M: AsRef<[u8]> + AsMut<[u8]>> Volume<M> {
    /// A volume just attached, with what the durable map held (`newest_pages`; empty on a fresh node).
    ///
    /// `memory` is zeroed, with at least the fixed part of the map and the chunks of `found` allocated. With
    /// `trust_clean`, clean data counts too: the header was closed clean and the log ended at its seq. When something is
    /// dirty, no request may come before [`Report::Ready`].
    pub fn attach(
        setup: Setup,
        memory: M,
        manifest: Manifest,
        found: &[FoundPage],
        trust_clean: bool,
        now: Millis,
        out: &mut Vec<Action>,
    ) -> Self {
        let mut map = SectorMap::format(memory, setup.header.sectors, &setup.header.volume);
        for page in found {
            map.set_prepared(Chunk(page.page * PAGE_SECTORS / CHUNK_SECTORS));
            let kept = |nibble: u8| Nibble(nibble).after_host_loss(trust_clean).0;
            let nibbles: Vec<u8> =
                page.nibbles.iter().map(|byte| kept(byte & 15) | (kept(byte >> 4) << 4)).collect();
            map.set_page(page.page, &nibbles);
            map.set_synced_slot(page.page, page.slot);
        }
        // Rounds that wrote no page count too: what is written from now on was not synced before.
        let written = found.iter().map(|page| page.generation).max().unwrap_or(0);
        map.set_generation(written.max(setup.header.synced_generation));
        map.set_active(setup.header.active);
        map.set_epoch(setup.header.epoch);
        for side in Side::BOTH {
            map.set_dirty_since(side, now);
        }
        let mut volume = Self::over(setup, map, now);
        volume.checkpointed = manifest.checkpointed();
        volume.manifest = Some(manifest);
        if volume.dirty_pages.iter().any(|pages| !pages.is_empty()) {
            volume.map.set_union(Union::Recovering);
            volume.recover();
        } else {
            out.push(Action::Report(Report::Ready));
        }
        reach(CrashPoint::MapMade);
        volume.map.publish();
        reach(CrashPoint::MapPublished);
        volume.advance(out);
        volume
    }

    /// A volume taken over from a dead or retired process of this host, over the live map it left.
    ///
    /// Requests may come at once unless [`Status::recovering`] says otherwise; reads of remote sectors wait for
    /// [`Event::ManifestLoaded`].
    ///
    /// # Errors
    /// [`LiveMapError`] when `memory` is not this volume's live map.
    pub fn resume(
        mut setup: Setup,
        memory: M,
        pending: Option<Pending>,
        now: Millis,
    ) -> Result<Self, LiveMapError> {
        let map = SectorMap::open(memory, setup.header.sectors, &setup.header.volume)?;
        let own = setup.header.nonces.last().copied();
        setup.header.is_ours_as_of(map.epoch(), own);
        let mut volume = Self::over(setup, map, now);
        volume.pending = pending;
        let sealed = volume.map.active().other();
        let union = volume.map.union();
        if union != Union::No {
            volume.recover();
            if union == Union::Serving {
                volume.lifecycle = Lifecycle::Serving;
            }
        } else if !volume.dirty_pages[sealed].is_empty() {
            volume.begin_seal(SideSet::only(sealed));
        }
        reach(CrashPoint::Resumed);
        Ok(volume)
    }

    /// What the host's loss left dirty is one state of the volume: it is committed as one before anything else.
    fn recover(&mut self) {
        self.lifecycle = Lifecycle::Recovering;
        self.begin_seal(SideSet::BOTH);
    }

    fn over(setup: Setup, map: SectorMap<M>, now: Millis) -> Self {
        let pages = map.pages();
        let mut volume = Self {
            nonce: setup.header.nonces.last().copied().unwrap_or_default(),
            round: Round::after_takeover(pages, setup.header_generation),
            header: setup.header,
            manifest: None,
            limits: setup.limits,
            durability: setup.durability,
            seals: Seals::default(),
            lifecycle: Lifecycle::Serving,
            requests: vec![None; setup.requests as usize],
            parked: VecDeque::with_capacity(setup.requests as usize),
            parked_since: None,
            preparing: Vec::new(),
            in_flight: PerSide::default(),
            zeroing: 0,
            raced: Vec::new(),
            failed_early: Vec::new(),
            dirty_since: PerSide::default(),
            dirty_pages: PerSide::from_fn(|_side| PageSet::new(pages)),
            evict: Evict::after_takeover(pages),
            seal: Seal::Open,
            listed: Listed::default(),
            commit: Commit::Idle,
            pending: None,
            checkpointed: Seq(0),
            checkpointing: false,
            closing_round: None,
            repair: Repair::default(),
            lost: Lost::default(),
            leaving: false,
            unix_ms_at_zero: setup.unix_ms_at_zero,
            heard_from_log: now,
            disk_full: false,
            run_dir_full: false,
            now,
            map,
        };
        // The first round writes every page; what was void before it is forgotten.
        volume.header.void = SideSet::NONE;
        let prepared: Vec<u64> = volume.map.prepared_pages().collect();
        for page in prepared {
            if safeguard(FirstRoundIsFull) {
                volume.round.page_changed(page);
            }
            let dirty = volume.map.count(page);
            for side in dirty.iter() {
                volume.dirty_pages[side].insert(page);
                volume.dirty_since[side] = Some(volume.map.dirty_since(side).min(now));
            }
        }
        volume
    }

    /// Takes one event and appends what to do.
    ///
    /// # Panics
    /// On an event that answers no action: a bug of the caller.
    pub fn handle(&mut self, now: Millis, event: Event, out: &mut Vec<Action>) {
        self.now = now;
        match event {
            Event::Request { id, op, range } => return self.request(id, op, range, out),
            Event::Moved { id, result } => {
                self.moved(id, result, out);
                // The common case, a write on a volume that has nothing to seal, ends here.
                let few_dirty = self.dirty_bytes(self.map.active()) < self.limits.seal_bytes;
                if self.seal.is_open() && self.evict.is_idle() && few_dirty {
                    return;
                }
            }
            Event::Fetched { id, result } => self.fetched(id, result, out),
            Event::Evicted { result } => self.evicted(result, out),
            Event::Space { excess_bytes, room_bytes } => self.space_measured(excess_bytes, room_bytes, out),
            Event::MapPrepared { chunk, result } => self.map_prepared(chunk, result, out),
            Event::SideSynced { side, result } => self.side_synced(side, result, out),
            Event::MapWritten { result } => self.map_written(result, out),
            Event::MapSynced { result } => self.map_synced(result, out),
            Event::ManifestLoaded(manifest) => self.manifest_loaded(*manifest, out),
            Event::NextTurn if self.is_fenced() => {}
            Event::NextTurn => self.next_turn(out),
            Event::Uploaded(segment) => self.uploaded(segment, out),
            Event::SidesUnreadable(ranges) => self.sides_unreadable(ranges, out),
            Event::PendingStored { result } => self.pending_stored(result, out),
            Event::CreateAnswered(answer) => self.create_answered(answer, out),
            Event::RecordRead { seq, bytes } => self.record_read(seq, bytes.as_deref(), out),
            Event::CheckpointWritten { seq, written } => self.checkpoint_written(seq, written),
            Event::Detach => {
                assert!(self.requests.iter().all(Option::is_none), "a device is gone before its detach");
                self.leaving = true;
            }
            Event::Repair { ranges, checkpoint } => self.repair.ask(ranges, checkpoint),
            Event::Tick => {
                self.unpark(out);
                self.look_for_fence(out);
            }
        }
        self.advance(out);
    }

    /// The time of day was set: from now on times are told by it.
    pub fn set_time_of_day(&mut self, unix_ms_at_zero: u64) {
        self.unix_ms_at_zero = unix_ms_at_zero;
    }

    fn is_fenced(&self) -> bool {
        self.lifecycle == Lifecycle::Fenced
    }

    fn dirty_bytes(&self, side: Side) -> u64 {
        self.map.counted(side) * SECTOR_BYTES
    }

    fn request(&mut self, id: RequestId, op: Op, range: SectorRange, out: &mut Vec<Action>) {
        let inside = range.end() <= self.map.sectors();
        let slot = &mut self.requests[id.0 as usize];
        assert!(slot.is_none(), "a request id is in use once");
        let side = self.map.active();
        *slot = Some(Request {
            op,
            range,
            side,
            pending: 0,
            failed: None,
            unreadable: None,
            again: false,
            on_side: None,
        });
        if !inside || !matches!(self.lifecycle, Lifecycle::Serving) {
            return self.complete(id, Err(Errno::EIO), out);
        }
        self.plan(id, op, range, out);
    }

    fn plan(&mut self, id: RequestId, op: Op, range: SectorRange, out: &mut Vec<Action>) {
        match op {
            Op::Read => self.plan_read(id, range, out),
            Op::Write | Op::WriteFua => self.plan_write(id, range, out),
            Op::Discard | Op::WriteZeroes => self.plan_zero(id, range, out),
            Op::Flush => self.plan_flush(id, out),
        }
    }

    fn in_slot(&mut self, id: RequestId) -> &mut Request {
        self.requests[id.0 as usize].as_mut().expect("an answer belongs to a request in flight")
    }

    fn complete(&mut self, id: RequestId, result: Result<(), Errno>, out: &mut Vec<Action>) {
        let taken = self.requests[id.0 as usize].take();
        assert!(taken.is_some(), "a request is completed once");
        out.push(Action::Complete { id, result });
    }

    fn moved(&mut self, id: RequestId, result: Result<(), Errno>, out: &mut Vec<Action>) {
        let slot = self.in_slot(id);
        match slot.op {
            Op::Read => slot.unreadable = slot.unreadable.or(result.err()),
            Op::Write | Op::WriteFua | Op::Discard | Op::WriteZeroes => slot.failed = result.err(),
            Op::Flush => unreachable!("a flush moves no bytes"),
        }
        self.part_ended(id, out);
    }

    fn fetched(&mut self, id: RequestId, result: Result<(), Errno>, out: &mut Vec<Action>) {
        let slot = self.in_slot(id);
        slot.failed = slot.failed.or(result.err());
        self.part_ended(id, out);
    }

    fn part_ended(&mut self, id: RequestId, out: &mut Vec<Action>) {
        let slot = self.in_slot(id);
        slot.pending = slot.pending.checked_sub(1).expect("one answer for each action");
        if slot.pending > 0 {
            return;
        }
        let request = *slot;
        match request.op {
            Op::Read => self.read(id, request, out),
            Op::Write | Op::WriteFua | Op::Discard | Op::WriteZeroes => self.stored(id, request, out),
            Op::Flush => unreachable!("a flush moves no bytes"),
        }
    }

    fn park(&mut self, id: RequestId) {
        self.parked.push_back(id);
        self.parked_since = self.parked_since.or(Some(self.now));
    }

    /// Plans every parked request again; those that still cannot start are parked again.
    fn unpark(&mut self, out: &mut Vec<Action>) {
        for _ in 0..self.parked.len() {
            let Some(id) = self.parked.pop_front() else { break };
            let request = self.in_slot(id);
            let (op, range) = (request.op, request.range);
            self.plan(id, op, range, out);
        }
        if self.parked.is_empty() {
            self.parked_since = None;
        }
    }

    fn needs_preparing(&mut self, chunk: Chunk, out: &mut Vec<Action>) -> bool {
        if self.map.is_prepared(chunk) {
            return false;
        }
        if !self.preparing.contains(&chunk) {
            self.preparing.push(chunk);
            out.push(Action::PrepareMap { chunk });
        }
        true
    }

    fn map_prepared(&mut self, chunk: Chunk, result: Result<(), Unprepared>, out: &mut Vec<Action>) {
        self.preparing.retain(|other| *other != chunk);
        // On failure the parked requests ask again at the next tick: a full tmpfs delays, it does not fail.
        self.run_dir_full = matches!(result, Err(Unprepared::RunDir(_)));
        if result == Err(Unprepared::Disk(Errno::ENOSPC)) {
            self.disk_is_full();
        }
        if result.is_ok() {
            reach(CrashPoint::ChunkAllocated);
            self.map.set_prepared(chunk);
            reach(CrashPoint::ChunkPrepared);
            self.round.chunk_prepared(chunk, self.map.pages());
            self.unpark(out);
        }
    }

    fn manifest_loaded(&mut self, manifest: Manifest, out: &mut Vec<Action>) {
        // A log that was set back lacks what is clean here.
        let is_set_back = manifest.seq() < self.header.seq;
        if manifest.is_deleted() || manifest.writer() != Some(self.nonce) || is_set_back {
            return self.fence(manifest.seq(), out);
        }
        self.checkpointed = manifest.checkpointed();
        self.heard_from_log = self.now;
        self.manifest = Some(manifest);
        reach(CrashPoint::LogLearned);
        self.unpark(out);
    }

    /// Invariant 5. Another writer holds the volume: nothing is served or uploaded any more, nothing local is touched. `known`
    /// is how much of the log says so, or all of it that does not.
    fn fence(&mut self, known: Seq, out: &mut Vec<Action>) {
        if self.lifecycle == Lifecycle::Fenced {
            return;
        }
        self.lifecycle = Lifecycle::Fenced;
        // What the last round names came after all that this writer's commits call void.
        self.header.seq = self.header.seq.max(known);
        self.round.header_changed();
        reach(CrashPoint::Fenced);
        while let Some(id) = self.parked.pop_front() {
            self.complete(id, Err(Errno::EIO), out);
        }
        self.fail_waiting_flushes(out);
        out.push(Action::Report(Report::Fenced));
    }

    /// Drives what follows from the state: rounds, the seal, the commit, the end.
    fn advance(&mut self, out: &mut Vec<Action>) {
        if self.lifecycle == Lifecycle::Fenced {
            return self.advance_keep(out);
        }
        if self.leaving && self.lifecycle == Lifecycle::Serving {
            self.lifecycle = Lifecycle::Detaching;
        }
        self.advance_evict(out);
        self.advance_repair(out);
        self.advance_seal(out);
        self.advance_checkpoint(out);
        self.advance_detach(out);
    }
}
