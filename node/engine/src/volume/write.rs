//! Writes, discards and zeroes: only the active side is touched, nothing is read, nothing is asked of the object store.
//!
//! Upholds invariants 2 and 10 (`docs/invariants.md`).

use holdfast_types::{CHUNK_SECTORS, SectorRange};

use super::{Lifecycle, Request, Volume};
use crate::action::Action;
use crate::crash_point::{CrashPoint, reach};
use crate::event::{Errno, Op, RequestId};
use crate::sector_map::Side;

fn is_zeroing(op: Op) -> bool {
    matches!(op, Op::Discard | Op::WriteZeroes)
}

impl<M: AsRef<[u8]> + AsMut<[u8]>> Volume<M> {
    pub(super) fn plan_write(&mut self, id: RequestId, range: SectorRange, out: &mut Vec<Action>) {
        if self.is_active_sealed() || !(self.has_room() || self.lost.is_overwritten_by(range)) {
            return self.park(id);
        }
        let mut waits = false;
        for piece in range.split_at_multiples(CHUNK_SECTORS) {
            waits |= self.needs_preparing(piece.start.chunk(), out);
        }
        if waits {
            return self.park(id);
        }
        let side = self.start_store(id);
        self.evict.take_room(range.bytes());
        out.push(Action::Write { id, range, side });
    }

    pub(super) fn plan_zero(&mut self, id: RequestId, range: SectorRange, out: &mut Vec<Action>) {
        let Some(manifest) = &self.manifest else { return self.park(id) };
        if self.is_active_sealed() {
            return self.park(id);
        }
        let mut affected = Vec::new();
        for piece in range.split_at_multiples(CHUNK_SECTORS) {
            let chunk = piece.start.chunk();
            if manifest.layers(chunk).is_some() || self.map.is_prepared(chunk) {
                affected.push(chunk);
            }
        }
        let (Some(first), Some(last)) = (affected.first(), affected.last()) else {
            // Nothing was ever written there: it is zero already.
            return self.complete(id, Ok(()), out);
        };
        let hull = SectorRange::new(first.first_sector().0, (last.0 - first.0 + 1) * CHUNK_SECTORS);
        let touched = range.intersect(hull).expect("the chunks came from the range");
        let mut waits = false;
        for chunk in affected {
            waits |= self.needs_preparing(chunk, out);
        }
        if waits {
            return self.park(id);
        }
        let side = self.start_store(id);
        out.push(Action::Punch { id, range: touched, side });
    }

    pub(super) fn has_room(&self) -> bool {
        let commit_may_wait =
            self.seal.is_open() || self.dirty_bytes(self.map.active()) < self.limits.most_bytes;
        commit_may_wait && !self.evict.is_full()
    }

    fn start_store(&mut self, id: RequestId) -> Side {
        let side = self.map.active();
        self.in_flight[side] += 1;
        self.may_hold_more(side);
        let slot = self.in_slot(id);
        slot.side = side;
        slot.pending = 1;
        slot.failed = None;
        let request = *slot;
        self.note_races(id, request);
        self.zeroing += u32::from(is_zeroing(request.op));
        side
    }

    /// Concurrent zeroing and writing of a sector complete in unknown order, so the sector counts as data.
    fn note_races(&mut self, id: RequestId, request: Request) {
        let zeroing = is_zeroing(request.op);
        if !zeroing && self.zeroing == 0 {
            return;
        }
        for (other_id, other) in (0..).map(RequestId).zip(&self.requests) {
            let Some(other) = other else { continue };
            let races = if zeroing { other.op.is_write() } else { is_zeroing(other.op) };
            if !races || other.pending == 0 || other.side != request.side {
                continue;
            }
            if let Some(both) = request.range.intersect(other.range) {
                self.raced.push((if zeroing { id } else { other_id }, both));
            }
        }
    }

    /// The bytes are in the side's file, or not.
    pub(super) fn stored(&mut self, id: RequestId, request: Request, out: &mut Vec<Action>) {
        let side = request.side;
        self.in_flight[side] -= 1;
        self.zeroing -= u32::from(is_zeroing(request.op));
        self.round.side_touched(side);
        match request.failed {
            None => {
                self.disk_full = false;
                reach(CrashPoint::Stored);
                match request.op {
                    Op::Write | Op::WriteFua => self.record_write(request.range, side),
                    Op::Discard | Op::WriteZeroes => {
                        self.record_zeroes(request.range, side);
                        for (_, written) in
                            self.raced.extract_if(.., |(zeroes, _)| *zeroes == id).collect::<Vec<_>>()
                        {
                            self.mark_unstored(written, side);
                        }
                    }
                    Op::Read | Op::Flush => unreachable!("they store nothing"),
                }
                reach(CrashPoint::Marked);
                match request.op {
                    Op::WriteFua => self.make_durable(id, out),
                    Op::Read | Op::Write | Op::Flush | Op::Discard | Op::WriteZeroes => {
                        self.complete(id, Ok(()), out);
                    }
                }
            }
            // What still comes on the sealed side was asked for while this was in flight: if it succeeds, it counts, and the
            // mark of a failure on the active side would hide it (invariant 2).
            Some(_) if side == self.map.active() && self.in_flight[side.other()] > 0 => {
                self.failed_early.push(id);
            }
            Some(errno) => self.not_stored(id, request, errno, out),
        }
        if self.in_flight[side] == 0 && side != self.map.active() {
            for id in std::mem::take(&mut self.failed_early) {
                let request = *self.in_slot(id);
                let errno = request.failed.expect("only failures wait");
                self.not_stored(id, request, errno, out);
            }
        }
    }

    fn not_stored(&mut self, id: RequestId, request: Request, errno: Errno, out: &mut Vec<Action>) {
        self.raced.retain(|(zeroes, _)| *zeroes != id);
        self.mark_unstored(request.range, request.side);
        reach(CrashPoint::MarkedUncertain);
        // A full disk delays; eviction or the commit in progress will make room.
        if errno == Errno::ENOSPC && self.lifecycle == Lifecycle::Serving {
            self.disk_is_full();
            self.park(id);
        } else {
            self.complete(id, Err(errno), out);
        }
    }

    fn record_write(&mut self, range: SectorRange, side: Side) {
        if self.map.mark_written(range, side) {
            self.now_dirty(range, side);
        }
        self.lost.stored(range);
    }

    fn record_zeroes(&mut self, range: SectorRange, side: Side) {
        for piece in range.split_at_multiples(CHUNK_SECTORS) {
            let chunk = piece.start.chunk();
            let remote_data = self.manifest.as_ref().is_none_or(|manifest| manifest.layers(chunk).is_some());
            if self.map.is_prepared(chunk) && self.map.mark_zeroed(piece, side, remote_data) {
                self.now_dirty(piece, side);
            }
        }
        self.lost.stored(range);
    }

    /// What is clean on `side` and newest there is not, or no longer, what the object store has: it becomes dirty. Returns
    /// whether anything did.
    pub(super) fn mark_unstored(&mut self, range: SectorRange, side: Side) -> bool {
        let mut any = false;
        for piece in range.split_at_multiples(CHUNK_SECTORS) {
            if self.map.is_prepared(piece.start.chunk()) && self.map.mark_uncertain(piece, side) {
                self.now_dirty(piece, side);
                any = true;
            }
        }
        any
    }

    fn now_dirty(&mut self, range: SectorRange, side: Side) {
        self.round.range_changed(range);
        self.dirty_pages[side].insert_range(range);
        if self.dirty_since[side].is_none() {
            self.dirty_since[side] = Some(self.now);
            self.map.set_dirty_since(side, self.now);
        }
    }
}
