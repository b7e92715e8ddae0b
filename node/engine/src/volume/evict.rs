//! Eviction of clean data, so that the sides stay within the volume's share of the node's cache.
//!
//! 1. the clean data of the inactive side in some pages becomes remote in the live map (`Released`);
//! 2. a round begun after that writes this to the durable map, which may still call the data dirty, as of the
//!    time before its commit;
//! 3. reads planned before step 1 end (`Unneeded`);
//! 4. the ranges are punched (`Punched`).
//!
//! The names are crash points. Stale copies, whose newest data is elsewhere, are evicted in the same way.
//! Upholds invariants 1, 2 and 10 (`docs/invariants.md`): only the inactive side is touched, only in blocks
//! without a dirty sector on it, and no seal swaps the sides in between.
//! On failure: a failed round is requested again; a failed punch frees nothing, as the next measurement
//! shows.

use holdfast_format::crash_point::{CrashPoint, reach};
use holdfast_format::safeguard::{
    Safeguard::{ReadsBeforePunch, RoundBeforePunch},
    safeguard,
};
use holdfast_format::side::Side;
use holdfast_types::{Chunk, Millis, SECTOR_BYTES, Sector, SectorRange};

use super::core::{Core, Memory};
use super::flush::RoundProgress;
use super::lifecycle::Lifecycle;
use crate::action::Action;
use crate::event::Errno;
use crate::limit::{DISK_FULL_EVICT_BYTES, EARLY_SEAL_EVERY_MS, EVICT_PAGES};
use crate::sector_map::PerSide;
use crate::sector_map::{PAGE_SECTORS, append, chunk_pages};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EvictStep {
    Idle,
    /// Step 1 is done; the next step is to request a round.
    Released,
    /// Step 2, as part of the round with this number.
    Round(u64),
    /// Step 3.
    Reads,
    /// Step 4, with this many punches left.
    Punching(usize),
}

/// One of the two generations of reads in flight: those planned before the last step 1, and those planned
/// since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReadGeneration(u8);

impl ReadGeneration {
    fn other(self) -> Self {
        Self(1 - self.0)
    }
}

/// Eviction target and progress.
pub(super) struct Evictor {
    step: EvictStep,
    ranges: Vec<SectorRange>,
    /// The chunks in which the batch marked data as remote.
    chunks: Vec<Chunk>,
    /// Bytes to evict.
    wanted: u64,
    /// Bytes that may be written before the next measurement.
    room: u64,
    /// The next page to check.
    cursor: u64,
    /// Pages to check on each side before it is known to have nothing more to evict.
    pages_to_scan: PerSide<u64>,
    /// Pages of the map.
    pages: u64,
    /// Reads in flight planned on a side, by generation.
    reads: [u32; 2],
    generation: ReadGeneration,
    /// Time of the last swap of the sides.
    swapped_at: Option<Millis>,
    /// Total bytes evicted.
    evicted_bytes: u64,
    /// True if the last attempted write found no space on the disk.
    disk_full: bool,
}

impl Evictor {
    pub(super) fn after_takeover(pages: u64) -> Self {
        Self {
            step: EvictStep::Idle,
            ranges: Vec::new(),
            chunks: Vec::new(),
            wanted: 0,
            room: u64::MAX,
            cursor: 0,
            pages_to_scan: PerSide::from_fn(|_side| pages),
            pages,
            reads: [0; 2],
            generation: ReadGeneration(0),
            swapped_at: None,
            evicted_bytes: 0,
            disk_full: false,
        }
    }

    /// Grows the map to `pages` pages. The counts of pages to check, which run from the cursor and wrap at
    /// the former end, restart.
    pub(super) fn grow(&mut self, pages: u64) {
        self.pages = pages;
        Side::BOTH.into_iter().for_each(|side| self.may_hold_more(side));
    }

    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.step == EvictStep::Idle
    }

    /// Returns true if no writes are allowed before the next measurement.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.room == 0
    }

    pub(super) fn is_disk_full(&self) -> bool {
        self.disk_full
    }

    pub(super) fn evicted_bytes(&self) -> u64 {
        self.evicted_bytes
    }

    pub(super) fn sides_swapped(&mut self, now: Millis) {
        self.swapped_at = Some(now);
    }

    /// Takes `bytes` of the room.
    #[inline]
    pub(super) fn take_room(&mut self, bytes: u64) {
        self.room = self.room.saturating_sub(bytes);
    }

    /// Begins a read on a side. Returns the argument for [`Self::read_ended`].
    #[inline]
    pub(super) fn read_began(&mut self) -> ReadGeneration {
        self.reads[usize::from(self.generation.0)] += 1;
        self.generation
    }

    #[inline]
    pub(super) fn read_ended(&mut self, generation: ReadGeneration) {
        self.reads[usize::from(generation.0)] -= 1;
    }

    /// Updates the measured space of the sides.
    pub(super) fn space_measured(&mut self, excess: u64, room: u64) {
        self.wanted = excess.max(if self.disk_full { DISK_FULL_EVICT_BYTES } else { 0 });
        self.room = room;
    }

    /// Records that a write found no space on the disk.
    pub(super) fn disk_is_full(&mut self) {
        self.disk_full = true;
        self.wanted = self.wanted.max(DISK_FULL_EVICT_BYTES);
    }

    /// Records that a write found space on the disk.
    #[inline]
    pub(super) fn disk_has_space(&mut self) {
        self.disk_full = false;
    }

    /// Restarts the check of `side`, which may have more to evict than was found.
    #[inline]
    pub(super) fn may_hold_more(&mut self, side: Side) {
        self.pages_to_scan[side] = self.pages;
    }

    /// Returns true if a batch must begin before any other work on the sides. Overdue work, however, does not
    /// wait for another batch.
    pub(super) fn evicts_first<M: Memory>(&self, core: &Core<M>, seal_is_open: bool) -> bool {
        let side = core.map.active().other();
        self.wanted > 0
            && self.pages_to_scan[side] > 0
            && core.dirty[side].in_flight == 0
            && !(seal_is_open && core.is_overdue(core.map.active()))
            && core.lifecycle == Lifecycle::Serving
            && core.manifest.is_some()
            && (!core.is_sync_failed() || core.is_invalidated())
    }

    /// Ends the batch after a failed sync: no round will record the eviction, so the data stays in place.
    pub(super) fn sync_failed(&mut self, inactive: Side) {
        if let EvictStep::Round(_) = self.step {
            // Reads that were planned before must still end before the next punch.
            self.step = EvictStep::Reads;
            self.ranges.clear();
            self.chunks.clear();
            self.may_hold_more(inactive);
        }
    }

    /// Returns true if the active side should be sealed below its limits, because the inactive side has
    /// nothing more to evict.
    pub(super) fn wants_other_side<M: Memory>(&self, core: &Core<M>, seal_is_open: bool) -> bool {
        let waited = self.swapped_at.is_none_or(|at| core.now >= at + EARLY_SEAL_EVERY_MS);
        self.wanted > 0
            && waited
            && !self.evicts_first(core, seal_is_open)
            && self.pages_to_scan[core.map.active()] > 0
            && core.lifecycle == Lifecycle::Serving
    }

    /// Returns the round that step 2 waits for.
    pub(super) fn round(&self) -> Option<u64> {
        match self.step {
            EvictStep::Round(number) => Some(number),
            EvictStep::Idle | EvictStep::Released | EvictStep::Reads | EvictStep::Punching(_) => None,
        }
    }

    /// Sets the number of the requested round.
    pub(super) fn wait_for(&mut self, number: u64) {
        assert!(matches!(self.step, EvictStep::Released | EvictStep::Round(_)), "no round was requested");
        self.step = EvictStep::Round(number);
    }

    /// Advances as far as possible; `round` is the progress of the round that step 2 waits for. Returns
    /// true if a round is needed.
    pub(super) fn advance<M: Memory>(
        &mut self,
        core: &mut Core<M>,
        seal_is_open: bool,
        round: Option<RoundProgress>,
        out: &mut Vec<Action>,
    ) -> bool {
        if self.is_idle() {
            self.swap_clean_sides(core, seal_is_open);
            while self.is_idle() && self.evicts_first(core, seal_is_open) {
                self.begin_batch(core);
            }
        }
        let wants_round = match round {
            Some(RoundProgress::Ended) => {
                self.step = EvictStep::Reads;
                false
            }
            Some(RoundProgress::Failed) => true,
            Some(RoundProgress::Pending) => false,
            None => self.step == EvictStep::Released,
        };
        if self.step == EvictStep::Reads
            && !(safeguard(ReadsBeforePunch) && self.reads[usize::from(self.generation.other().0)] > 0)
        {
            self.punch(core, out);
        }
        wants_round
    }

    fn punch<M: Memory>(&mut self, core: &Core<M>, out: &mut Vec<Action>) {
        reach(CrashPoint::Unneeded);
        let side = core.map.active().other();
        let punches = self.ranges.len();
        self.step = if punches == 0 { EvictStep::Idle } else { EvictStep::Punching(punches) };
        out.extend(self.ranges.drain(..).map(|range| Action::Evict { range, side }));
    }

    /// Swaps the sides at once if nothing is dirty, so that no seal is needed, and the swap allows an
    /// eviction.
    fn swap_clean_sides<M: Memory>(&mut self, core: &mut Core<M>, seal_is_open: bool) {
        let active = core.map.active();
        if seal_is_open
            && core.manifest.is_some()
            && core.dirty[active].in_flight == 0
            && core.dirty[active].blocks.is_empty()
            && !core.lacks_commit_to_evict()
            && self.wants_other_side(core, seal_is_open)
        {
            core.swap_sides();
            self.sides_swapped(core.now);
        }
    }

    fn begin_batch<M: Memory>(&mut self, core: &mut Core<M>) {
        let side = core.map.active().other();
        let mut released = 0;
        let mut batch = EVICT_PAGES;
        while self.pages_to_scan[side] > 0 && batch > 0 && released < self.wanted {
            let page = self.cursor;
            let chunk = Sector(page * PAGE_SECTORS).chunk();
            // A chunk without a map was not written since the host started; its data in the file is
            // obsolete.
            let scanned = if core.map.is_prepared(chunk) {
                let (sectors, blocks) = core.map.release(page, side, &mut self.ranges);
                if sectors > 0 {
                    core.unflushed.blocks_changed(page, blocks);
                    if self.chunks.last() != Some(&chunk) {
                        self.chunks.push(chunk);
                    }
                }
                released += sectors * SECTOR_BYTES;
                batch -= 1;
                1
            } else {
                let rest = chunk_pages(chunk).end.min(self.pages) - page;
                let end = ((page + rest) * PAGE_SECTORS).min(core.map.sectors());
                append(&mut self.ranges, SectorRange::new(page * PAGE_SECTORS, end - page * PAGE_SECTORS));
                rest
            };
            self.cursor = (page + scanned) % self.pages;
            let left = &mut self.pages_to_scan[side];
            *left = left.saturating_sub(scanned);
        }
        self.wanted -= released.min(self.wanted);
        self.evicted_bytes += released;
        if self.ranges.is_empty() {
            return;
        }
        reach(CrashPoint::Released);
        // From now on reads find these sectors remote; earlier reads must end first.
        self.generation = self.generation.other();
        let needs_round = safeguard(RoundBeforePunch) && !core.is_invalidated();
        self.step = if needs_round { EvictStep::Released } else { EvictStep::Reads };
    }

    /// Takes the chunks in which the completed batch marked data as remote.
    pub(super) fn take_chunks(&mut self) -> Vec<Chunk> {
        std::mem::take(&mut self.chunks)
    }

    /// Handles the end of one punch. Returns true if it was the last of the batch.
    pub(super) fn evicted(&mut self, result: Result<(), Errno>, inactive: Side) -> bool {
        let EvictStep::Punching(left) = self.step else { unreachable!("nothing was being punched") };
        reach(CrashPoint::Punched);
        if result.is_err() {
            // Nothing was freed: the next measurement shows the remaining excess.
            self.may_hold_more(inactive);
            self.wanted = 0;
        }
        self.step = if left > 1 { EvictStep::Punching(left - 1) } else { EvictStep::Idle };
        self.is_idle()
    }
}

#[cfg(test)]
mod tests;
