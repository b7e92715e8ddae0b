//! The requests in flight: each is completed exactly once.
//!
//! Owns: a slot for each request that the device can have in flight, the waiting (*parked*) requests, and
//! the effects of concurrent stores on each other's marks. Does not own: the plan of a request
//! (`volume/read.rs`, `volume.rs`).
//! Runs on: the ring thread of the volume.
//! Invariants: a request is in one slot from its start to its completion (8); if zeros and data are stored
//! concurrently in the same sectors, the data counts (2).

use std::collections::VecDeque;

use holdfast_format::safeguard::{Safeguard::PrepareReleased, safeguard};
use holdfast_format::side::Side;
use holdfast_types::{CHUNK_SECTORS, Chunk, Millis, SectorRange};

use super::evict::ReadGeneration;
use crate::action::Action;
use crate::event::{Errno, Op, RequestId, Unprepared};
use crate::sector_map::SectorMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) op: Op,
    pub(super) range: SectorRange,
    /// Destination of a store.
    pub(super) side: Side,
    /// Parts in flight.
    pub(super) pending: u32,
    pub(super) failed: Option<Errno>,
    /// For a read: the error of a failed part on a side.
    pub(super) unreadable: Option<Errno>,
    /// Number of times the read was replanned because of that error.
    pub(super) retries: u8,
    /// For a read: [`Core::merges`](super::core::Core::merges) when it was planned.
    pub(super) merges: u64,
    /// For a read: number of times it was replanned because runs had been merged.
    pub(super) stale: u8,
    /// Set for a read with parts on a side.
    pub(super) on_side: Option<ReadGeneration>,
}

impl Request {
    /// Creates an unplanned request. `active` is the active side.
    #[inline]
    pub(super) const fn new(op: Op, range: SectorRange, active: Side) -> Self {
        Self {
            op,
            range,
            side: active,
            pending: 0,
            failed: None,
            unreadable: None,
            retries: 0,
            merges: 0,
            stale: 0,
            on_side: None,
        }
    }

    /// Returns true if no part failed and one part remains.
    #[inline]
    pub(super) fn ends_well_next(&self) -> bool {
        self.pending == 1 && self.failed.is_none() && self.unreadable.is_none()
    }
}

#[inline]
fn is_zeroing(op: Op) -> bool {
    matches!(op, Op::Discard | Op::WriteZeroes)
}

/// The requests in flight.
pub(super) struct RequestTable {
    slots: Vec<Option<Request>>,
    parked: VecDeque<RequestId>,
    /// Time since which at least one request is parked.
    parked_since: Option<Millis>,
    /// Writes that wait only for the pace, and the start of their wait.
    paced: VecDeque<(RequestId, Millis)>,
    /// Chunks whose part of the live map is being allocated or released.
    preparing: Vec<Chunk>,
    /// True if the run directory had no space for the last chunk tried.
    run_dir_full: bool,
    /// Error of the durable map for the last chunk tried, except that of a full disk.
    chunk_failed: Option<Errno>,
    /// Discards and zeroes in flight.
    zeroing: u32,
    /// Parts of these requests that were written while they were in flight.
    overlaps: Vec<(RequestId, SectorRange)>,
    /// Writes that failed on the active side while others were in flight on the sealed side, and that are
    /// answered after those.
    deferred_failures: Vec<RequestId>,
}

impl RequestTable {
    /// Creates a table for `requests` requests.
    pub(super) fn new(requests: u32) -> Self {
        Self {
            slots: vec![None; requests as usize],
            parked: VecDeque::with_capacity(requests as usize),
            parked_since: None,
            paced: VecDeque::new(),
            preparing: Vec::new(),
            run_dir_full: false,
            chunk_failed: None,
            zeroing: 0,
            overlaps: Vec::new(),
            deferred_failures: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }

    /// Adds a new request.
    #[inline(always)] // as for `Volume::begin`
    pub(super) fn begin(&mut self, id: RequestId, op: Op, range: SectorRange, active: Side) {
        self.insert(id, Request::new(op, range, active));
    }

    #[inline(always)] // as for `Volume::begin`
    pub(super) fn insert(&mut self, id: RequestId, request: Request) {
        let slot = &mut self.slots[id.0 as usize];
        assert!(slot.is_none(), "a request id is in use once");
        *slot = Some(request);
    }

    #[inline(always)] // as for `Volume::begin`
    pub(super) fn get(&mut self, id: RequestId) -> &mut Request {
        self.slots[id.0 as usize].as_mut().expect("an answer belongs to a request in flight")
    }

    pub(super) fn complete(&mut self, id: RequestId, result: Result<(), Errno>, out: &mut Vec<Action>) {
        self.end(id);
        out.push(Action::Complete { id, result });
    }

    /// Ends the request: its id is free.
    #[inline(always)] // as for `Volume::end`
    pub(super) fn end(&mut self, id: RequestId) {
        let taken = self.slots[id.0 as usize].take();
        assert!(taken.is_some(), "a request is completed once");
    }

    /// Parks the request until something changes.
    pub(super) fn park(&mut self, id: RequestId, now: Millis) {
        self.parked.push_back(id);
        self.parked_since = self.parked_since.or(Some(now));
    }

    pub(super) fn parked(&self) -> usize {
        self.parked.len()
    }

    /// Returns for how long at least one request has been parked.
    pub(super) fn parked_for(&self, now: Millis) -> Option<Millis> {
        self.parked_since.map(|since| now.saturating_sub(since))
    }

    /// Takes the request that has been parked the longest.
    pub(super) fn unpark(&mut self) -> Option<RequestId> {
        self.parked.pop_front()
    }

    /// Notes that all parked requests were planned again.
    pub(super) fn all_unparked(&mut self) {
        if self.parked.is_empty() {
            self.parked_since = None;
        }
    }

    /// Makes the write wait for the pace.
    pub(super) fn pace(&mut self, id: RequestId, now: Millis) {
        self.paced.push_back((id, now));
    }

    pub(super) fn paced(&self) -> usize {
        self.paced.len()
    }

    /// Takes the write that has waited for the pace the longest, and the start of its wait.
    pub(super) fn take_paced(&mut self) -> Option<(RequestId, Millis)> {
        self.paced.pop_front()
    }

    /// Returns the number of bytes in flight to `side`.
    pub(super) fn storing_bytes(&self, side: Side) -> u64 {
        let requests = self.slots.iter().flatten();
        let storing = requests.filter(|request| request.op.is_write() && request.pending > 0);
        storing.filter(|request| request.side == side).map(|request| request.range.bytes()).sum()
    }

    /// Records the plan of a read with `parts` parts.
    #[inline]
    pub(super) fn reading(
        &mut self,
        id: RequestId,
        parts: u32,
        on_side: Option<ReadGeneration>,
        merges: u64,
    ) {
        let slot = self.get(id);
        slot.on_side = on_side;
        slot.merges = merges;
        (slot.failed, slot.unreadable) = (None, None);
        slot.pending = parts;
    }

    /// Records the plan of a write or punch on `side`.
    #[inline(always)] // as for `Volume::begin`
    pub(super) fn storing(&mut self, id: RequestId, side: Side) {
        let slot = self.get(id);
        slot.side = side;
        slot.pending = 1;
        slot.failed = None;
        let zeroing = is_zeroing(slot.op);
        if zeroing || self.zeroing > 0 {
            self.record_overlaps(id);
            self.zeroing += u32::from(zeroing);
        }
    }

    /// Records overlaps of concurrent zeroing and writing, which complete in any order: the sectors count as
    /// data.
    #[cold]
    fn record_overlaps(&mut self, id: RequestId) {
        let request = *self.get(id);
        let zeroing = is_zeroing(request.op);
        for (other_id, other) in (0..).map(RequestId).zip(&self.slots) {
            let Some(other) = other else { continue };
            let is_opposite = if zeroing { other.op.is_write() } else { is_zeroing(other.op) };
            if !is_opposite || other.pending == 0 || other.side != request.side {
                continue;
            }
            if let Some(both) = request.range.intersect(other.range) {
                self.overlaps.push((if zeroing { id } else { other_id }, both));
            }
        }
    }

    /// Handles the end of one part on a side. Returns the request if it was the last.
    pub(super) fn io_completed(&mut self, id: RequestId, result: Result<(), Errno>) -> Option<Request> {
        let slot = self.get(id);
        match slot.op {
            Op::Read => slot.unreadable = slot.unreadable.or(result.err()),
            Op::Write | Op::WriteFua | Op::Discard | Op::WriteZeroes => {
                slot.failed = slot.failed.or(result.err());
            }
            Op::Flush => unreachable!("a flush moves no bytes"),
        }
        self.part_ended(id)
    }

    /// Handles the end of one part from the object store. Returns the request if it was the last.
    pub(super) fn cold_read_completed(
        &mut self,
        id: RequestId,
        result: Result<(), Errno>,
    ) -> Option<Request> {
        let slot = self.get(id);
        slot.failed = slot.failed.or(result.err());
        self.part_ended(id)
    }

    fn part_ended(&mut self, id: RequestId) -> Option<Request> {
        let slot = self.get(id);
        slot.pending = slot.pending.checked_sub(1).expect("one answer for each action");
        (slot.pending == 0).then_some(*slot)
    }

    /// Handles the end of a write or punch.
    pub(super) fn store_ended(&mut self, op: Op) {
        self.zeroing -= u32::from(is_zeroing(op));
    }

    /// Takes those parts of a discard or zeroing that were written while it was in flight.
    pub(super) fn take_overlaps(&mut self, id: RequestId) -> Vec<SectorRange> {
        self.overlaps.extract_if(.., |(zeroes, _)| *zeroes == id).map(|(_, written)| written).collect()
    }

    /// Defers the answer of a failure until the writes in flight on the sealed side have ended.
    pub(super) fn defer_failure(&mut self, id: RequestId) {
        self.deferred_failures.push(id);
    }

    pub(super) fn take_deferred_failures(&mut self) -> Vec<RequestId> {
        std::mem::take(&mut self.deferred_failures)
    }

    /// Returns true if a chunk of `range` is not prepared in the live map yet, and requests the preparation
    /// of such chunks.
    pub(super) fn needs_preparing<M: AsRef<[u8]> + AsMut<[u8]>>(
        &mut self,
        range: SectorRange,
        map: &SectorMap<M>,
        out: &mut Vec<Action>,
    ) -> bool {
        let mut any = false;
        for piece in range.split_at_multiples(CHUNK_SECTORS) {
            any |= self.chunk_needs_preparing(piece.start.chunk(), map, out);
        }
        any
    }

    /// Does the same for one chunk.
    pub(super) fn chunk_needs_preparing<M: AsRef<[u8]> + AsMut<[u8]>>(
        &mut self,
        chunk: Chunk,
        map: &SectorMap<M>,
        out: &mut Vec<Action>,
    ) -> bool {
        if map.is_prepared(chunk) {
            return false;
        }
        if !self.preparing.contains(&chunk) {
            self.preparing.push(chunk);
            out.push(Action::PrepareMap { chunk });
        }
        true
    }

    /// Returns true if a write or punch in `range` was planned and may still change its marks.
    pub(super) fn stores_in(&self, range: SectorRange) -> bool {
        let stores =
            self.slots.iter().flatten().filter(|request| request.op.is_write() || is_zeroing(request.op));
        let mut planned = stores.filter(|request| request.pending > 0 || request.failed.is_some());
        planned.any(|request| request.range.intersect(range).is_some())
    }

    /// Blocks the preparation of the chunk until [`Self::released`].
    pub(super) fn releasing(&mut self, chunk: Chunk) {
        if safeguard(PrepareReleased) {
            self.preparing.push(chunk);
        }
    }

    pub(super) fn released(&mut self, chunk: Chunk) {
        self.preparing.retain(|other| *other != chunk);
    }

    /// Handles the end of preparing a chunk. After a failure the parked requests retry at the next tick: a
    /// full tmpfs delays requests but does not fail them.
    pub(super) fn prepared(&mut self, chunk: Chunk, result: Result<(), Unprepared>) {
        self.released(chunk);
        self.run_dir_full = matches!(result, Err(Unprepared::RunDir(_)));
        self.chunk_failed = match result {
            Err(Unprepared::Disk(errno)) if errno != Errno::ENOSPC => Some(errno),
            Err(Unprepared::Disk(_) | Unprepared::RunDir(_)) | Ok(()) => None,
        };
    }

    /// Returns the local disk's error for the first write of a chunk, and for how long requests have
    /// waited.
    pub(super) fn chunk_failed_for(&self, now: Millis) -> Option<(Errno, Millis)> {
        self.chunk_failed.zip(self.parked_for(now))
    }

    pub(super) fn is_run_dir_full(&self) -> bool {
        self.run_dir_full
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: RequestId = RequestId(0);
    const B: RequestId = RequestId(1);

    fn storing(ops: [(RequestId, Op, u64); 2]) -> RequestTable {
        let mut table = RequestTable::new(4);
        for (id, op, start) in ops {
            table.begin(id, op, SectorRange::new(start, 8), Side::A);
            table.storing(id, Side::A);
        }
        table
    }

    #[test]
    fn a_request_ends_with_its_last_part() {
        let mut table = RequestTable::new(4);
        table.begin(A, Op::Read, SectorRange::new(0, 8), Side::A);
        table.reading(A, 2, None, 0);
        assert_eq!(table.io_completed(A, Err(Errno::EIO)), None);
        let ended = table.cold_read_completed(A, Ok(())).unwrap();
        assert_eq!((ended.unreadable, ended.failed), (Some(Errno::EIO), None));
        let mut out = Vec::new();
        table.complete(A, Ok(()), &mut out);
        assert!(table.is_empty());
    }

    #[test]
    #[should_panic(expected = "a request is completed once")]
    fn a_request_is_not_completed_twice() {
        let mut table = storing([(A, Op::Write, 0), (B, Op::Write, 8)]);
        let mut out = Vec::new();
        table.complete(A, Ok(()), &mut out);
        table.complete(A, Ok(()), &mut out);
    }

    #[test]
    fn zeros_remember_what_is_written_under_them() {
        for ops in [[(A, Op::Discard, 0), (B, Op::Write, 4)], [(B, Op::Write, 4), (A, Op::Discard, 0)]] {
            let mut table = storing(ops);
            assert_eq!(table.take_overlaps(B), []);
            assert_eq!(table.take_overlaps(A), [SectorRange::new(4, 4)]);
            assert_eq!(table.take_overlaps(A), []);
        }
    }

    #[test]
    fn writes_alone_and_zeros_that_ended_overlap_nothing() {
        let mut table = storing([(A, Op::Write, 0), (B, Op::Write, 4)]);
        assert_eq!((table.take_overlaps(A), table.take_overlaps(B)), (vec![], vec![]));
        let mut table = storing([(A, Op::Discard, 0), (B, Op::Discard, 64)]);
        for id in [A, B] {
            table.io_completed(id, Ok(())).unwrap();
            table.store_ended(Op::Discard);
        }
        table.begin(RequestId(2), Op::Write, SectorRange::new(0, 8), Side::A);
        table.storing(RequestId(2), Side::A);
        assert_eq!(table.take_overlaps(A), []);
    }

    #[test]
    fn parked_requests_keep_their_order_and_the_first_ones_time() {
        let mut table = RequestTable::new(4);
        table.park(B, 5);
        table.park(A, 7);
        assert_eq!((table.parked(), table.parked_for(9)), (2, Some(4)));
        assert_eq!(table.unpark(), Some(B));
        table.all_unparked();
        assert_eq!(table.parked_for(9), Some(4));
        assert_eq!(table.unpark(), Some(A));
        table.all_unparked();
        assert_eq!((table.unpark(), table.parked_for(9)), (None, None));
    }
}
