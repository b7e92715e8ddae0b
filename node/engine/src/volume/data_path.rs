//! The data path: admission and completion of reads, writes and discards.
//!
//! Owns: the requests in flight, the eviction that makes room for them, the pace that delays writes, and
//! the known unreadable ranges, which a write may replace. Does not own: flushes, and the seal for which
//! writes wait, whose state a [`WriteGate`] describes.
//! Runs on: the ring thread of the volume.
//! Invariants: only the active side takes writes, which need no reads and no requests to the object store
//! (2, 10); data that may have been stored, but without proof, counts as dirty (4).

use holdfast_format::crash_point::{CrashPoint, reach};
use holdfast_format::safeguard::{Safeguard::PlanMergedReads, safeguard};
use holdfast_format::side::Side;
use holdfast_types::{CHUNK_SECTORS, Chunk, Millis, SectorRange};

use super::core::{Core, Memory};
use super::evict::Evictor;
use super::lifecycle::Lifecycle;
use super::pace::Pace;
use super::read::tile;
use super::requests::{Request, RequestTable};
use super::unreadable::UnreadableDirty;
use crate::action::{Action, Report};
use crate::event::{Errno, Op, RequestId, Unprepared};

/// Maximum number of new plans of a read that failed on the local disk, where nothing could be dropped.
const MAX_LOCAL_RETRIES: u8 = 3;
/// Maximum number of plans of a read that fail because runs were merged since.
const MAX_STALE_PLANS: u8 = 3;

pub(super) struct DataPath {
    pub(super) requests: RequestTable,
    pub(super) evictor: Evictor,
    pub(super) pace: Pace,
    pub(super) unreadable: UnreadableDirty,
}

/// State of the seal, as seen by writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct WriteGate {
    /// No seal is in progress.
    pub(super) is_open: bool,
    /// A seal covers the active side: writes wait for it.
    pub(super) holds_active: bool,
    /// Writes wait for the release of a cut.
    pub(super) is_held: bool,
}

impl WriteGate {
    /// Returns true if no write or punch may begin.
    fn stops_writes(self) -> bool {
        self.holds_active || self.is_held
    }
}

/// The remaining step after the end of a write or punch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreEnd {
    Nothing,
    /// The data is stored; the request completes once it is durable.
    MakeDurable,
}

impl DataPath {
    /// Creates the data path of a device with this many requests, over a map with `pages` pages.
    pub(super) fn new(requests: u32, pages: u64) -> Self {
        Self {
            requests: RequestTable::new(requests),
            evictor: Evictor::after_takeover(pages),
            pace: Pace::default(),
            unreadable: UnreadableDirty::default(),
        }
    }

    /// Plans a request, or parks it.
    pub(super) fn plan<M: Memory>(
        &mut self,
        id: RequestId,
        core: &mut Core<M>,
        gate: WriteGate,
        out: &mut Vec<Action>,
    ) {
        let Request { op, range, .. } = *self.requests.get(id);
        let is_planned = match op {
            Op::Read => self.plan_read(id, range, core, out),
            Op::Write | Op::WriteFua => self.plan_write(id, range, core, gate, out),
            Op::Discard | Op::WriteZeroes => self.plan_zero(id, range, core, gate, out),
            Op::Flush => unreachable!("a flush is never parked"),
        };
        if !is_planned {
            self.requests.park(id, core.now);
        }
    }

    /// Plans every parked request again; those that still cannot start are parked again.
    pub(super) fn unpark<M: Memory>(&mut self, core: &mut Core<M>, gate: WriteGate, out: &mut Vec<Action>) {
        for _ in 0..self.requests.parked() {
            let Some(id) = self.requests.unpark() else { break };
            self.plan(id, core, gate, out);
        }
        self.requests.all_unparked();
        self.release_paced(core, gate, out);
    }

    /// Handles the end of the pause.
    #[inline(never)] // as for `keeps_pace`
    pub(super) fn pause_ended<M: Memory>(
        &mut self,
        core: &mut Core<M>,
        gate: WriteGate,
        out: &mut Vec<Action>,
    ) {
        self.pace.pause_ended();
        let was_used = self.pace.was_used();
        self.release_paced(core, gate, out);
        // While writes arrive, the clock is no older than one pause.
        if was_used && !gate.is_open && !gate.stops_writes() && self.has_room(core, gate) {
            self.look_at_pace(core);
            self.pause(out);
        }
    }

    fn pause(&mut self, out: &mut Vec<Action>) {
        if self.pace.pauses() {
            out.push(Action::Pause);
        }
    }

    /// Plans the writes that waited for the pace, oldest first, as many as it grants; all of them once no
    /// seal is in progress. Writes that also wait for something else wait only for that from now on.
    #[inline(never)] // as for `keeps_pace`
    fn release_paced<M: Memory>(&mut self, core: &mut Core<M>, gate: WriteGate, out: &mut Vec<Action>) {
        if self.requests.paced() == 0 {
            return;
        }
        if gate.stops_writes() || !self.has_room(core, gate) {
            return self.park_paced(core.now);
        }
        if !gate.is_open {
            self.look_at_pace(core);
        }
        while gate.is_open || self.pace.has_grant() {
            let Some((id, since)) = self.requests.take_paced() else { return };
            self.pace.waited(since, core.now);
            self.plan(id, core, gate, out);
        }
        self.pause(out);
    }

    /// Parks the writes that wait for the pace, until something changes.
    pub(super) fn park_paced(&mut self, now: Millis) {
        while let Some((id, since)) = self.requests.take_paced() {
            self.pace.waited(since, now);
            self.requests.park(id, now);
        }
    }

    fn look_at_pace<M: Memory>(&mut self, core: &Core<M>) {
        if self.pace.may_look(core.now) {
            let active = core.map.active();
            let dirty_bytes = core.dirty_bytes(active) + self.requests.storing_bytes(active);
            self.pace.look(dirty_bytes, core.limits.max_bytes, core.now);
        }
    }

    /// Returns true if the pace lets a write begin; it must not overtake earlier delayed writes. Otherwise
    /// the write waits, too.
    #[inline(never)] // while no seal is in progress, requests pay nothing for it
    fn keeps_pace<M: Memory>(
        &mut self,
        id: RequestId,
        range: SectorRange,
        core: &Core<M>,
        out: &mut Vec<Action>,
    ) -> bool {
        if !self.pace.has_grant() && self.requests.paced() == 0 {
            self.look_at_pace(core);
        }
        let begins = self.pace.has_grant() || self.unreadable.is_overwritten_by(range);
        if begins {
            self.pace.take(range.bytes());
        } else {
            self.requests.pace(id, core.now);
            self.pause(out);
        }
        begins
    }

    /// Plans a read. Returns false if it must wait; the other plan functions do the same.
    fn plan_read<M: Memory>(
        &mut self,
        id: RequestId,
        range: SectorRange,
        core: &Core<M>,
        out: &mut Vec<Action>,
    ) -> bool {
        let Some(tiles) = tile(core, id, range, out) else { return false };
        let on_side = tiles.on_side.then(|| self.evictor.read_began());
        self.requests.reading(id, tiles.parts, on_side, core.merges);
        true
    }

    fn plan_write<M: Memory>(
        &mut self,
        id: RequestId,
        range: SectorRange,
        core: &mut Core<M>,
        gate: WriteGate,
        out: &mut Vec<Action>,
    ) -> bool {
        if gate.stops_writes()
            || !(self.has_room(core, gate) || self.unreadable.is_overwritten_by(range))
            || self.requests.needs_preparing(range, &core.map, out)
        {
            return false;
        }
        if !gate.is_open && !self.keeps_pace(id, range, core, out) {
            return true;
        }
        let side = self.start_store(id, core);
        self.evictor.take_room(range.bytes());
        out.push(Action::Write { id, range, side });
        true
    }

    fn plan_zero<M: Memory>(
        &mut self,
        id: RequestId,
        range: SectorRange,
        core: &mut Core<M>,
        gate: WriteGate,
        out: &mut Vec<Action>,
    ) -> bool {
        let Some(manifest) = &core.manifest else { return false };
        // Zeros take no space, but the next seal lists their blocks.
        let commit_may_wait = gate.is_open || !core.has_most_blocks(core.map.active());
        if gate.stops_writes() || !(commit_may_wait || self.unreadable.is_overwritten_by(range)) {
            return false;
        }
        let mut affected = Vec::new();
        for piece in range.split_at_multiples(CHUNK_SECTORS) {
            let chunk = piece.start.chunk();
            if manifest.may_hold(chunk) || core.map.is_prepared(chunk) {
                affected.push(chunk);
            }
        }
        let (Some(first), Some(last)) = (affected.first(), affected.last()) else {
            // The range was never written and is already zero.
            self.requests.complete(id, Ok(()), out);
            return true;
        };
        let hull = SectorRange::new(first.first_sector().0, (last.0 - first.0 + 1) * CHUNK_SECTORS);
        let touched = range.intersect(hull).expect("the chunks came from the range");
        let mut waits = false;
        for chunk in affected {
            waits |= self.requests.chunk_needs_preparing(chunk, &core.map, out);
        }
        if waits {
            return false;
        }
        let side = self.start_store(id, core);
        out.push(Action::Punch { id, range: touched, side });
        true
    }

    /// Begins a read that one part of a side fully answers. For any other read, returns `None` and changes
    /// nothing.
    #[inline(always)] // as for `Volume::begin`
    pub(super) fn begin_read<M: Memory>(
        &mut self,
        id: RequestId,
        range: SectorRange,
        core: &Core<M>,
    ) -> Option<Side> {
        let side = core.map.newest_of_all(range)?;
        let on_side = Some(self.evictor.read_began());
        let request = Request {
            pending: 1,
            merges: core.merges,
            on_side,
            ..Request::new(Op::Read, range, core.map.active())
        };
        self.requests.insert(id, request);
        Some(side)
    }

    /// Begins a read that comes entirely from the object store, in one part.
    #[inline]
    pub(super) fn begin_remote<M: Memory>(&mut self, id: RequestId, range: SectorRange, core: &Core<M>) {
        let request =
            Request { pending: 1, merges: core.merges, ..Request::new(Op::Read, range, core.map.active()) };
        self.requests.insert(id, request);
    }

    /// Begins a write that does not have to wait, while no seal is in progress. For a write that may have to
    /// wait, returns `None` and changes nothing.
    #[inline(always)] // as for `Volume::begin`
    pub(super) fn begin_write<M: Memory>(
        &mut self,
        id: RequestId,
        range: SectorRange,
        core: &mut Core<M>,
    ) -> Option<Side> {
        let chunk = range.start.chunk();
        let is_prepared = range.end() <= (chunk.0 + 1) * CHUNK_SECTORS && core.map.is_prepared(chunk);
        if !is_prepared || self.evictor.is_full() {
            return None;
        }
        self.requests.begin(id, Op::Write, range, core.map.active());
        let side = self.start_store(id, core);
        self.evictor.take_room(range.bytes());
        Some(side)
    }

    /// Completes a read or a write on the active side whose last part succeeded. For any other request,
    /// returns false and changes nothing.
    #[inline(always)] // as for `Volume::end`
    pub(super) fn end<M: Memory>(&mut self, id: RequestId, core: &mut Core<M>) -> bool {
        let &mut Request { op, range, side, on_side, .. } = match self.requests.get(id) {
            request if request.ends_well_next() => request,
            _ => return false,
        };
        let active = core.map.active();
        match op {
            Op::Read if !core.is_seal_full(active) => {
                if let Some(generation) = on_side {
                    self.evictor.read_ended(generation);
                }
            }
            Op::Write if side == active && !core.may_fill(active, range) => {
                core.dirty[active].in_flight -= 1;
                core.unflushed.side_written(active);
                self.written(range, active, core);
            }
            Op::Read | Op::Write | Op::WriteFua | Op::Discard | Op::WriteZeroes | Op::Flush => return false,
        }
        self.requests.end(id);
        true
    }

    #[inline(always)] // as for `Volume::begin`
    fn start_store<M: Memory>(&mut self, id: RequestId, core: &mut Core<M>) -> Side {
        let side = core.map.active();
        core.dirty[side].in_flight += 1;
        self.evictor.may_hold_more(side);
        self.requests.storing(id, side);
        side
    }

    /// Returns true if a write may be planned: the dirty limit and the volume's share of the cache are not
    /// reached, or no eviction is possible until this write is committed.
    pub(super) fn has_room<M: Memory>(&self, core: &Core<M>, gate: WriteGate) -> bool {
        let commit_may_wait = gate.is_open || !core.is_dirty_full(core.map.active());
        commit_may_wait && (!self.evictor.is_full() || core.lacks_commit_to_evict())
    }

    /// Handles the end of a read's last part. `is_in_doubt`: the log may have a record that merged runs
    /// and that this writer does not know yet.
    pub(super) fn read_ended<M: Memory>(
        &mut self,
        id: RequestId,
        request: Request,
        is_in_doubt: bool,
        core: &mut Core<M>,
        out: &mut Vec<Action>,
    ) {
        if let Some(generation) = request.on_side {
            self.evictor.read_ended(generation);
        }
        let Some(errno) = request.failed.or(request.unreadable) else {
            return self.requests.complete(id, Ok(()), out);
        };
        // A sweep may have deleted the objects that the unknown record replaced.
        if core.lifecycle == Lifecycle::Serving && request.failed.is_some() && is_in_doubt {
            return self.requests.park(id, core.now);
        }
        if core.lifecycle != Lifecycle::Serving || !self.may_read_again(id, request, core, out) {
            return self.requests.complete(id, Err(errno), out);
        }
        if !self.plan_read(id, request.range, core, out) {
            self.requests.park(id, core.now);
        }
    }

    /// Returns true if a failed read may succeed with another plan.
    fn may_read_again<M: Memory>(
        &mut self,
        id: RequestId,
        request: Request,
        core: &mut Core<M>,
        out: &mut Vec<Action>,
    ) -> bool {
        let slot = self.requests.get(id);
        if request.failed.is_some() {
            // The plan may name runs that were merged since and that a sweep has deleted.
            let is_stale = request.merges != core.merges
                && request.stale < MAX_STALE_PLANS
                && safeguard(PlanMergedReads);
            slot.stale += u8::from(is_stale);
            return is_stale;
        }
        // The read is retried even if there was nothing to drop: the failed part may have been evicted or
        // overwritten.
        slot.retries = slot.retries.saturating_add(1);
        if core.forget_clean(request.range) {
            out.push(Action::Report(Report::CleanUnreadable(request.range)));
            return true;
        }
        if request.retries > 0 && core.is_on_a_side(request.range) {
            out.push(Action::Report(Report::DirtyUnreadable(request.range)));
            return false;
        }
        request.retries < MAX_LOCAL_RETRIES
    }

    /// Handles the end of a write to, or a punch of, the side's file.
    pub(super) fn store_ended<M: Memory>(
        &mut self,
        id: RequestId,
        request: Request,
        core: &mut Core<M>,
        out: &mut Vec<Action>,
    ) -> StoreEnd {
        let side = request.side;
        core.dirty[side].in_flight -= 1;
        self.requests.store_ended(request.op);
        core.unflushed.side_written(side);
        match request.failed {
            None => return self.stored(id, request, core, out),
            // Stores still in flight on the sealed side were requested while this one was in flight. If one
            // of them succeeds, its data counts, and the failure mark on the active side would hide it
            // (invariant 2).
            Some(_) if side == core.map.active() && core.dirty[side.other()].in_flight > 0 => {
                self.requests.defer_failure(id);
            }
            Some(errno) => self.not_stored(id, request, errno, core, out),
        }
        StoreEnd::Nothing
    }

    /// Answers the failures that waited for stores on the sealed side, once no store is in flight there.
    pub(super) fn answer_deferred_failures<M: Memory>(
        &mut self,
        side: Side,
        core: &mut Core<M>,
        out: &mut Vec<Action>,
    ) {
        if side == core.map.active() || core.dirty[side].in_flight > 0 {
            return;
        }
        for id in self.requests.take_deferred_failures() {
            let request = *self.requests.get(id);
            let errno = request.failed.expect("only failures wait");
            self.not_stored(id, request, errno, core, out);
        }
    }

    fn stored<M: Memory>(
        &mut self,
        id: RequestId,
        request: Request,
        core: &mut Core<M>,
        out: &mut Vec<Action>,
    ) -> StoreEnd {
        let Request { op, range, side, .. } = request;
        if op.is_write() {
            self.written(range, side, core);
        } else {
            self.evictor.disk_has_space();
            reach(CrashPoint::Stored);
            core.record_zeroes(range, side);
            for written in self.requests.take_overlaps(id) {
                core.mark_unstored(written, side);
            }
            self.unreadable.stored(range);
            reach(CrashPoint::Marked);
        }
        if op == Op::WriteFua {
            return StoreEnd::MakeDurable;
        }
        self.requests.complete(id, Ok(()), out);
        StoreEnd::Nothing
    }

    /// Records a write whose bytes are in the side's file.
    #[inline(always)] // as for `Volume::end`
    fn written<M: Memory>(&mut self, range: SectorRange, side: Side, core: &mut Core<M>) {
        self.evictor.disk_has_space();
        reach(CrashPoint::Stored);
        core.record_write(range, side);
        self.unreadable.stored(range);
        reach(CrashPoint::Marked);
    }

    fn not_stored<M: Memory>(
        &mut self,
        id: RequestId,
        request: Request,
        errno: Errno,
        core: &mut Core<M>,
        out: &mut Vec<Action>,
    ) {
        self.requests.take_overlaps(id);
        core.mark_unstored(request.range, request.side);
        reach(CrashPoint::MarkedUncertain);
        // A full disk only delays writes: eviction or the commit in progress will free space.
        if errno == Errno::ENOSPC && core.lifecycle == Lifecycle::Serving {
            self.evictor.disk_is_full();
            self.requests.park(id, core.now);
        } else {
            self.requests.complete(id, Err(errno), out);
        }
    }

    /// Handles the end of allocating the live map's bytes of `chunk`.
    pub(super) fn map_prepared<M: Memory>(
        &mut self,
        chunk: Chunk,
        result: Result<(), Unprepared>,
        core: &mut Core<M>,
        gate: WriteGate,
        out: &mut Vec<Action>,
    ) {
        self.requests.prepared(chunk, result);
        if result == Err(Unprepared::Disk(Errno::ENOSPC)) {
            self.evictor.disk_is_full();
        }
        if result.is_ok() {
            reach(CrashPoint::ChunkAllocated);
            core.map.set_prepared(chunk);
            reach(CrashPoint::ChunkPrepared);
            self.unpark(core, gate, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_types::SECTOR_BYTES;

    use super::super::core::tests::{core, sector_of};
    use super::*;
    use crate::sector_map::{PAGE_SECTORS, SectorMap, map_bytes};
    use holdfast_format::side::SideSet;

    const OPEN: WriteGate = WriteGate { is_open: true, holds_active: false, is_held: false };
    const ID: RequestId = RequestId(0);

    fn begun(op: Op, core: &mut Core<Vec<u8>>, gate: WriteGate) -> (DataPath, Vec<Action>) {
        let (mut data, mut out) = (DataPath::new(4, 2), Vec::new());
        data.requests.begin(ID, op, sector_of(1), core.map.active());
        data.plan(ID, core, gate, &mut out);
        (data, out)
    }

    fn end(
        data: &mut DataPath,
        core: &mut Core<Vec<u8>>,
        result: Result<(), Errno>,
    ) -> (StoreEnd, Vec<Action>) {
        let mut out = Vec::new();
        let request = data.requests.io_completed(ID, result).unwrap();
        (data.store_ended(ID, request, core, &mut out), out)
    }

    #[test]
    fn a_write_goes_to_the_active_side_and_is_dirty_once_stored() {
        let mut core = core(2);
        let (mut data, out) = begun(Op::Write, &mut core, OPEN);
        assert_eq!(out, [Action::Write { id: ID, range: sector_of(1), side: Side::A }]);
        assert!(core.dirty[Side::A].blocks.is_empty());
        let (left, out) = end(&mut data, &mut core, Ok(()));
        assert_eq!((left, out), (StoreEnd::Nothing, vec![Action::Complete { id: ID, result: Ok(()) }]));
        assert!(!core.dirty[Side::A].blocks.is_empty());
    }

    #[test]
    fn a_fua_write_is_left_to_be_made_durable() {
        let mut core = core(2);
        let (mut data, _) = begun(Op::WriteFua, &mut core, OPEN);
        assert_eq!(end(&mut data, &mut core, Ok(())), (StoreEnd::MakeDurable, vec![]));
    }

    /// Ends the discard that was planned as a punch of `punched`.
    fn end_punch(data: &mut DataPath, core: &mut Core<Vec<u8>>, out: &[Action], punched: SectorRange) {
        assert_eq!(out, [Action::Punch { id: ID, range: punched, side: Side::A }]);
        assert_eq!(core.dirty[Side::A].in_flight, 1);
        let (left, out) = end(data, core, Ok(()));
        assert_eq!((left, out), (StoreEnd::Nothing, vec![Action::Complete { id: ID, result: Ok(()) }]));
        assert_eq!(core.dirty[Side::A].in_flight, 0);
    }

    #[test]
    fn a_discard_punches_the_active_side_and_marks_what_held_data() {
        let mut core = core(2);
        core.record_write(SectorRange::new(PAGE_SECTORS, 8), Side::A);
        assert_eq!(core.dirty_bytes(Side::A), 8 * SECTOR_BYTES);
        let (mut data, out) = begun(Op::Discard, &mut core, OPEN);
        end_punch(&mut data, &mut core, &out, sector_of(1));
        assert_eq!(core.dirty_bytes(Side::A), 7 * SECTOR_BYTES, "zeros take no space");
        assert_eq!(core.map.newest(PAGE_SECTORS), Some(Side::A));
    }

    /// A sector that is zeroed and written concurrently has unknown content.
    #[test]
    fn a_sector_written_while_it_is_zeroed_counts_as_data() {
        let (other, mut core) = (RequestId(1), core(2));
        let (mut data, out) = begun(Op::WriteZeroes, &mut core, OPEN);
        data.requests.begin(other, Op::Write, sector_of(1), Side::A);
        data.plan(other, &mut core, OPEN, &mut Vec::new());
        let request = data.requests.io_completed(other, Ok(())).unwrap();
        data.store_ended(other, request, &mut core, &mut Vec::new());
        end_punch(&mut data, &mut core, &out, sector_of(1));
        assert_eq!(core.dirty_bytes(Side::A), SECTOR_BYTES);
    }

    #[test]
    fn zeroing_touches_only_chunks_that_may_hold_data() {
        let mut core = core(3 * CHUNK_SECTORS / PAGE_SECTORS);
        let volume = core.header.volume.clone();
        let memory = vec![0; usize::try_from(map_bytes(core.map.sectors())).unwrap()];
        core.map = SectorMap::format(memory, core.map.sectors(), &volume);
        let begin = |core: &mut Core<Vec<u8>>| {
            let (mut data, mut out) = (DataPath::new(4, core.map.pages()), Vec::new());
            data.requests.begin(ID, Op::Discard, SectorRange::new(8, 2 * CHUNK_SECTORS), Side::A);
            data.plan(ID, core, OPEN, &mut out);
            (data, out)
        };
        assert_eq!(begin(&mut core).1, [Action::Complete { id: ID, result: Ok(()) }], "it is zero already");
        core.map.set_prepared(Chunk(1));
        let (mut data, out) = begin(&mut core);
        end_punch(&mut data, &mut core, &out, SectorRange::new(CHUNK_SECTORS, CHUNK_SECTORS));
        assert_eq!(core.dirty_sides(), SideSet::NONE, "nothing was there");
    }

    #[test]
    fn writes_wait_for_a_seal_of_the_active_side_and_for_room() {
        let mut core = core(2);
        let (mut data, out) =
            begun(Op::Write, &mut core, WriteGate { is_open: false, holds_active: true, is_held: false });
        assert_eq!((data.requests.parked(), out), (1, vec![]));
        data.evictor.space_measured(0, 0);
        let mut out = Vec::new();
        data.unpark(&mut core, OPEN, &mut out);
        assert_eq!((data.requests.parked(), out.len()), (1, 0));
        data.evictor.space_measured(0, 1);
        data.unpark(&mut core, OPEN, &mut out);
        assert_eq!((data.requests.parked(), out.len()), (0, 1));
    }

    #[test]
    fn a_full_disk_delays_a_write_and_marks_what_it_may_have_stored() {
        let mut core = core(2);
        core.record_write(sector_of(1), Side::A);
        core.clear(1, Side::A);
        let (mut data, _) = begun(Op::Write, &mut core, OPEN);
        assert_eq!(end(&mut data, &mut core, Err(Errno::ENOSPC)), (StoreEnd::Nothing, vec![]));
        assert!(data.requests.parked() == 1 && data.evictor.is_disk_full());
        assert!(!core.dirty[Side::A].blocks.is_empty());
    }

    #[test]
    fn a_failure_is_answered_after_what_is_in_flight_on_the_sealed_side() {
        let mut core = core(2);
        core.dirty[Side::B].in_flight = 1;
        let (mut data, _) = begun(Op::Write, &mut core, OPEN);
        assert_eq!(end(&mut data, &mut core, Err(Errno::EIO)), (StoreEnd::Nothing, vec![]));
        let mut out = Vec::new();
        data.answer_deferred_failures(Side::B, &mut core, &mut out);
        assert_eq!(out, []);
        core.dirty[Side::B].in_flight = 0;
        data.answer_deferred_failures(Side::B, &mut core, &mut out);
        assert_eq!(out, [Action::Complete { id: ID, result: Err(Errno::EIO) }]);
    }

    #[test]
    fn a_failed_read_is_tried_where_the_data_is_too() {
        let mut core = core(2);
        core.record_write(sector_of(1), Side::A);
        let (mut data, _) = begun(Op::Read, &mut core, OPEN);
        for ended in [1, 2] {
            let mut out = Vec::new();
            let request = data.requests.io_completed(ID, Err(Errno::EIO)).unwrap();
            data.read_ended(ID, request, false, &mut core, &mut out);
            let is_completed = out.contains(&Action::Complete { id: ID, result: Err(Errno::EIO) });
            assert_eq!(is_completed, ended == 2, "{out:?}");
        }
    }
}
