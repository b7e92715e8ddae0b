//! Eviction of clean data, so that the sides stay within the volume's share of the node's cache.
//!
//! 1. the clean data of the inactive side in some pages becomes remote in the live map (`Released`);
//! 2. a round begun after that makes the durable map say so: it may still call them dirty there, from before their commit;
//! 3. reads that were planned before step 1 end (`Unneeded`);
//! 4. the ranges are punched (`Punched`).
//!
//! The names are crash points. Stale copies (newest elsewhere) go the same way. Upholds invariants 1, 2 and 10 (`docs/invariants.md`): only the
//! inactive side is touched, only blocks without a sector dirty there, and no seal swaps the sides in between.
//! On failure: a round that failed is asked for again; a punch that failed frees nothing, and the next measurement says so.

use holdfast_types::{SECTOR_BYTES, Sector, SectorRange};

use super::{Lifecycle, Volume};
use crate::action::Action;
use crate::crash_point::{CrashPoint, reach};
use crate::event::{Errno, Millis};
use crate::limit::{DISK_FULL_EVICT_BYTES, EARLY_SEAL_EVERY_MS, EVICT_PAGES};
use crate::safeguard::{
    Safeguard::{ReadsBeforePunch, RoundBeforePunch},
    safeguard,
};
use crate::sector_map::{PAGE_SECTORS, PerSide, Side, append, chunk_pages};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Idle,
    /// Step 2, as part of the round with this number.
    Round(u64),
    /// Step 3.
    Reads,
    /// Step 4, with so many punches to go.
    Punching(usize),
}

/// Eviction target and progress.
pub(super) struct Evict {
    step: Step,
    ranges: Vec<SectorRange>,
    /// Bytes to evict.
    wanted: u64,
    /// Bytes that may be written before the next measurement.
    room: u64,
    /// The page looked at next.
    hand: u64,
    /// Pages of each side to look at before it is known to have nothing more to give.
    unswept: PerSide<u64>,
    /// Reads in flight that were planned on a side: before the last step 1, and since.
    reads: [u32; 2],
    turn: u8,
    /// When the sides were last swapped.
    swapped_at: Option<Millis>,
    /// Bytes evicted so far.
    pub(super) evicted_bytes: u64,
}

impl Evict {
    pub(super) fn after_takeover(pages: u64) -> Self {
        Self {
            step: Step::Idle,
            ranges: Vec::new(),
            wanted: 0,
            room: u64::MAX,
            hand: 0,
            unswept: PerSide::from_fn(|_side| pages),
            reads: [0; 2],
            turn: 0,
            swapped_at: None,
            evicted_bytes: 0,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.step == Step::Idle
    }

    /// No more may be written before the next measurement.
    pub(super) fn is_full(&self) -> bool {
        self.room == 0
    }

    pub(super) fn sides_swapped(&mut self, now: Millis) {
        self.swapped_at = Some(now);
    }

    /// `bytes` of the room are about to be taken.
    pub(super) fn take_room(&mut self, bytes: u64) {
        self.room = self.room.saturating_sub(bytes);
    }

    /// A read on a side begins. Returns what [`Self::read_ended`] wants to know.
    pub(super) fn read_began(&mut self) -> u8 {
        self.reads[usize::from(self.turn)] += 1;
        self.turn
    }

    pub(super) fn read_ended(&mut self, turn: u8) {
        self.reads[usize::from(turn)] -= 1;
    }
}

impl<M: AsRef<[u8]> + AsMut<[u8]>> Volume<M> {
    pub(super) fn space_measured(&mut self, excess: u64, room: u64, out: &mut Vec<Action>) {
        self.evict.wanted = excess.max(if self.disk_full { DISK_FULL_EVICT_BYTES } else { 0 });
        self.evict.room = room;
        if room > 0 {
            self.unpark(out);
        }
    }

    /// A write found no space on the disk.
    pub(super) fn disk_is_full(&mut self) {
        self.disk_full = true;
        self.evict.wanted = self.evict.wanted.max(DISK_FULL_EVICT_BYTES);
    }

    /// `side` may hold more to give than was known.
    pub(super) fn may_hold_more(&mut self, side: Side) {
        self.evict.unswept[side] = self.map.pages();
    }

    /// Whether a batch is to begin before anything else touches the sides. What is overdue does not wait for another one.
    pub(super) fn evicts_first(&self) -> bool {
        let side = self.map.active().other();
        self.evict.wanted > 0
            && self.evict.unswept[side] > 0
            && self.in_flight[side] == 0
            && !(self.seal.is_open() && self.is_overdue(self.map.active()))
            && self.lifecycle == Lifecycle::Serving
            && self.manifest.is_some()
            && (!self.is_sync_failed() || self.is_void())
    }

    /// No round will record the eviction: the data stays.
    pub(super) fn evict_nothing(&mut self) {
        if let Step::Round(_) = self.evict.step {
            // Reads that were planned before must end all the same before anything else is punched.
            self.evict.step = Step::Reads;
            self.evict.ranges.clear();
            self.may_hold_more(self.map.active().other());
        }
    }

    /// Whether the active side is to be sealed although no limit is reached: the inactive one has nothing more to give.
    pub(super) fn wants_other_side(&self) -> bool {
        let waited = self.evict.swapped_at.is_none_or(|at| self.now >= at + EARLY_SEAL_EVERY_MS);
        self.evict.wanted > 0
            && waited
            && !self.evicts_first()
            && self.evict.unswept[self.map.active()] > 0
            && self.lifecycle == Lifecycle::Serving
    }

    pub(super) fn advance_evict(&mut self, out: &mut Vec<Action>) {
        if self.evict.is_idle() {
            self.swap_clean_sides();
            while self.evict.is_idle() && self.evicts_first() {
                self.begin_batch(out);
            }
        }
        if let Step::Round(number) = self.evict.step {
            if self.round.ended >= number {
                self.evict.step = Step::Reads;
            } else if self.round.begun >= number && self.may_retry_round() {
                self.evict.step = Step::Round(self.want_round(out));
            }
        }
        let before = usize::from(1 - self.evict.turn);
        if self.evict.step == Step::Reads && (self.evict.reads[before] == 0 || !safeguard(ReadsBeforePunch)) {
            reach(CrashPoint::Unneeded);
            let side = self.map.active().other();
            let punches = self.evict.ranges.len();
            self.evict.step = if punches == 0 { Step::Idle } else { Step::Punching(punches) };
            out.extend(self.evict.ranges.drain(..).map(|range| Action::Evict { range, side }));
        }
    }

    /// With nothing dirty there is nothing to seal: the sides swap roles at once.
    fn swap_clean_sides(&mut self) {
        let active = self.map.active();
        if self.seal.is_open()
            && self.manifest.is_some()
            && self.in_flight[active] == 0
            && self.dirty_pages[active].is_empty()
            && self.wants_other_side()
        {
            self.swap_sides();
        }
    }

    fn begin_batch(&mut self, out: &mut Vec<Action>) {
        let side = self.map.active().other();
        let pages = self.map.pages();
        let mut released = 0;
        let mut batch = EVICT_PAGES;
        while self.evict.unswept[side] > 0 && batch > 0 && released < self.evict.wanted {
            let page = self.evict.hand;
            let chunk = Sector(page * PAGE_SECTORS).chunk();
            // A chunk without a map was never written since the host started; what lies in the file is of no use.
            let looked_at = if self.map.is_prepared(chunk) {
                let sectors = self.map.release(page, side, &mut self.evict.ranges);
                if sectors > 0 {
                    self.round.page_changed(page);
                }
                released += sectors * SECTOR_BYTES;
                batch -= 1;
                1
            } else {
                let rest = chunk_pages(chunk).end.min(pages) - page;
                let end = ((page + rest) * PAGE_SECTORS).min(self.map.sectors());
                append(
                    &mut self.evict.ranges,
                    SectorRange::new(page * PAGE_SECTORS, end - page * PAGE_SECTORS),
                );
                rest
            };
            self.evict.hand = (page + looked_at) % pages;
            let unswept = &mut self.evict.unswept[side];
            *unswept = unswept.saturating_sub(looked_at);
        }
        self.evict.wanted -= released.min(self.evict.wanted);
        self.evict.evicted_bytes += released;
        if self.evict.ranges.is_empty() {
            return;
        }
        reach(CrashPoint::Released);
        // From here on reads find these sectors remote; those before must end.
        self.evict.turn = 1 - self.evict.turn;
        self.evict.step = if self.is_void() || !safeguard(RoundBeforePunch) {
            Step::Reads
        } else {
            Step::Round(self.want_round(out))
        };
    }

    pub(super) fn evicted(&mut self, result: Result<(), Errno>, out: &mut Vec<Action>) {
        let Step::Punching(left) = self.evict.step else { unreachable!("nothing was being punched") };
        reach(CrashPoint::Punched);
        if result.is_err() {
            // Nothing was freed: the next measurement says what is still to be evicted.
            self.may_hold_more(self.map.active().other());
            self.evict.wanted = 0;
        }
        self.evict.step = if left > 1 { Step::Punching(left - 1) } else { Step::Idle };
        if self.evict.is_idle() {
            self.unpark(out);
        }
    }
}
