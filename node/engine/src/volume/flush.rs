//! Flush rounds: what makes a completed write durable on this host.
//!
//! 1. the round begins: the set of pages changed since the last round is fixed (`RoundBegun`);
//! 2. the next group of them, at most `ROUND_PAGES`, is copied (`PagesCopied`);
//! 3. sync the sides written since they were last synced (`SidesSynced`);
//! 4. write the group to the durable map, `MAP_WRITE_PAGES` at a time, each page into the slot that is not its newest, for the
//!    first time into both (`PagesWritten`);
//! 5. sync the durable map (`PagesSynced`), and only then make those slots the newest (`SlotsSwapped`); from 2 again while the
//!    set holds more;
//! 6. write (`HeaderWritten`) and sync (`HeaderSynced`) the header if it changed or a page was written for the first time;
//! 7. complete the flushes (after `RoundEnded` or `RoundFailed`).
//!
//! The names are crash points. Each turn of the ring thread does a bounded part of it, whatever the size of the volume: the
//! answer to each write or sync is where it continues. Usually there is one group.
//!
//! A page of a later group is copied after the round began and may name what was written since. That is sound, because no page
//! is written before the sides were synced *after* its copy was made: all data that a page names was stored when it was copied,
//! so it is on the disk before the page is. Without the second sync a power cut could leave a page that names newer data in
//! one side, and that side without it, while the older data that a flush covered, in the other side or under the older page,
//! is no longer named. Pages of different groups may show different moments; nothing relies on more than each of them
//! covering what had completed when the round began, since a power cut may keep any part of what came later anyway. A side
//! counts as named by the round if it was dirty at any of its copies. A round that fails half-way leaves groups that are
//! durable and pages that are as of the last round: that is the same.
//!
//! Upholds invariants 1 and 13 (`docs/invariants.md`), and 12: background work asks again for a round that failed.
//! A flush joins only a round that has not begun. A failed round marks its pages changed again, but for those already durable,
//! and fails its flushes. A FUA write whose data is stored counts as a flush here (`volume/durability.rs`).

use holdfast_types::{Chunk, SectorRange};

use super::Volume;
use crate::action::{Action, MapWrite, Report};
use crate::crash_point::{CrashPoint, reach};
use crate::durable_map::{Header, encode_page, header_offset, page_offset};
use crate::event::{Errno, Millis, RequestId};
use crate::limit::RETRY_ROUND_AFTER_MS;
use crate::round_size::{map_write_pages, round_pages};
use crate::safeguard::{
    Safeguard::{FirstRoundIsFull, FlushInNextRound, SyncEachGroup, SyncMapBeforeAnswer, SyncSidesBeforeMap},
    safeguard,
};
use crate::sector_map::{PAGE_BYTES, PageSet, Side, SideSet, chunk_pages};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Idle,
    /// Step 3, with so many sides to go.
    SyncingSides(u8),
    WritingPages,
    SyncingPages,
    WritingHeader,
    SyncingHeader,
}

/// A flush, or a FUA write whose data is stored, that takes part in a round.
#[derive(Debug, Clone, Copy)]
pub(super) struct Guest {
    pub(super) id: RequestId,
    /// The seal whose commit it waits for as well; 0 for none.
    pub(super) seal: u64,
}

/// The round in progress and what waits for the next.
pub(super) struct Round {
    step: Step,
    failed: Option<Errno>,
    /// When a round last failed: background work waits a while before it asks for another.
    failed_at: Option<Millis>,
    generation: u64,
    /// The pages of this round that are not durable yet; empty between rounds.
    pages: PageSet,
    /// The first of them that is in no group yet.
    next_page: u64,
    /// The group in progress: its pages, their copies one after the other, and how many of them were sent to the disk.
    group: Vec<u64>,
    copies: Vec<u8>,
    sent: usize,
    /// The sides synced for this round.
    sides: SideSet,
    header: Option<Header>,
    guests: Vec<Guest>,
    next_guests: Vec<Guest>,
    /// Rounds begun and rounds ended well, for those who wait for one begun after a certain point.
    pub(super) begun: u64,
    pub(super) ended: u64,
    wanted: bool,
    changed: PageSet,
    unsynced: SideSet,
    /// The sides that were dirty when a group of the round was copied.
    pub(super) names: SideSet,
    first_pages: bool,
    header_changed: bool,
    header_generation: u64,
    /// `synced_generation` of the newest header that this process wrote and synced; 0 before the first.
    durable_generation: u64,
}

impl Round {
    /// The first round syncs both sides and writes the whole map: what "changed since" meant died with the last process.
    pub(super) fn after_takeover(pages: u64, header_generation: u64) -> Self {
        Self {
            step: Step::Idle,
            failed: None,
            failed_at: None,
            generation: 0,
            pages: PageSet::new(pages),
            next_page: 0,
            group: Vec::new(),
            copies: Vec::new(),
            sent: 0,
            sides: SideSet::NONE,
            header: None,
            guests: Vec::new(),
            next_guests: Vec::new(),
            begun: 0,
            ended: 0,
            wanted: false,
            changed: PageSet::new(pages),
            unsynced: if !safeguard(FirstRoundIsFull) { SideSet::NONE } else { SideSet::BOTH },
            names: SideSet::NONE,
            first_pages: true,
            header_changed: true,
            header_generation,
            durable_generation: 0,
        }
    }

    /// A generation that a header on the disk has reached, whatever happens to the host from now on.
    pub(super) fn durable_generation(&self) -> u64 {
        self.durable_generation
    }

    pub(super) fn is_idle(&self) -> bool {
        self.step == Step::Idle
    }

    /// For planted bugs: `guest` did not complete before this round began.
    pub(super) fn join_running(&mut self, guest: Guest) {
        self.guests.push(guest);
    }

    pub(super) fn page_changed(&mut self, page: u64) {
        self.changed.insert(page);
    }

    pub(super) fn range_changed(&mut self, range: SectorRange) {
        self.changed.insert_range(range);
    }

    fn end_group(&mut self) {
        self.group.clear();
        self.copies.clear();
        self.sent = 0;
    }

    pub(super) fn side_touched(&mut self, side: Side) {
        self.unsynced = self.unsynced.with(side);
    }

    pub(super) fn header_changed(&mut self) {
        self.header_changed = true;
    }

    pub(super) fn chunk_prepared(&mut self, chunk: Chunk, pages: u64) {
        for page in chunk_pages(chunk).filter(|page| *page < pages) {
            self.changed.insert(page);
        }
        self.first_pages = true;
    }
}

impl<M: AsRef<[u8]> + AsMut<[u8]>> Volume<M> {
    pub(super) fn join_round(&mut self, flush: Guest, out: &mut Vec<Action>) {
        if !safeguard(FlushInNextRound) && self.round.step != Step::Idle {
            return self.round.join_running(flush);
        }
        self.round.next_guests.push(flush);
        // A seal that the flush asks for may begin its round now: then one round serves both.
        self.advance_seal(out);
        self.begin_round(out);
    }

    /// Asks for a round begun from now on; returns the number it will have.
    pub(super) fn want_round(&mut self, out: &mut Vec<Action>) -> u64 {
        let number = self.round.begun + 1;
        self.round.wanted = true;
        self.begin_round(out);
        number
    }

    /// Whether a round that failed may be asked for again.
    pub(super) fn may_retry_round(&self) -> bool {
        let waited = self.round.failed_at.is_none_or(|at| self.now >= at + RETRY_ROUND_AFTER_MS);
        self.round.step == Step::Idle && waited
    }

    fn begin_round(&mut self, out: &mut Vec<Action>) {
        let sync_failed = self.is_sync_failed();
        let asked_for = self.round.wanted || !self.round.next_guests.is_empty();
        if self.round.step != Step::Idle || !asked_for || (sync_failed && self.closing_round.is_none()) {
            return;
        }
        let round = &mut self.round;
        round.names = SideSet::NONE;
        round.begun += 1;
        round.wanted = false;
        round.failed = None;
        std::mem::swap(&mut round.guests, &mut round.next_guests);
        round.generation = self.map.generation() + 1;
        self.map.set_generation(round.generation);
        round.pages.append(&mut round.changed);
        round.next_page = 0;
        let first_pages = std::mem::take(&mut round.first_pages);
        // What is clean on these pages is in the store only with these records.
        let known = self.manifest.as_ref().map_or(self.header.seq, |manifest| manifest.seq());
        if known > self.header.seq {
            self.header.seq = known;
            round.header_changed = true;
        }
        if std::mem::take(&mut round.header_changed) || first_pages {
            self.header.synced_generation = round.generation;
            round.header = Some(self.header.clone());
        }
        round.sides = SideSet::NONE;
        reach(CrashPoint::RoundBegun);
        self.copy_group(out);
    }

    /// Steps 2 and 3 for the next group, which is empty where no page changed.
    fn copy_group(&mut self, out: &mut Vec<Action>) {
        let sync_failed = self.is_sync_failed();
        let dirty = |side: &Side| !self.dirty_pages[*side].is_empty();
        let dirty = Side::BOTH.into_iter().filter(dirty).fold(SideSet::NONE, SideSet::with);
        let round = &mut self.round;
        round.names = round.names.or(dirty);
        let is_later = round.next_page > 0;
        round.group.extend(round.pages.iter_from(round.next_page).take(round_pages()));
        round.next_page = round.group.last().map_or(round.next_page, |page| page + 1);
        round.copies.reserve_exact(round.group.len() * PAGE_BYTES);
        for page in &round.group {
            round.copies.extend_from_slice(self.map.page(*page));
        }
        let waits = is_later && !safeguard(SyncEachGroup);
        let unsynced = if waits { SideSet::NONE } else { std::mem::take(&mut round.unsynced) };
        let mut to_sync = 0;
        round.sides = round.sides.or(unsynced);
        for side in unsynced.iter() {
            if !sync_failed && safeguard(SyncSidesBeforeMap) {
                to_sync += 1;
                out.push(Action::SyncSide { side });
            }
        }
        round.step = Step::SyncingSides(to_sync);
        reach(CrashPoint::PagesCopied);
        if to_sync == 0 {
            self.sides_are_synced(out);
        }
    }

    pub(super) fn side_synced(&mut self, _side: Side, result: Result<(), Errno>, out: &mut Vec<Action>) {
        let Step::SyncingSides(left) = self.round.step else { unreachable!("no side sync was asked for") };
        if result.is_err() {
            // At once: the process may not live to hear of the other side.
            self.note_failed_sync();
        }
        self.round.failed = self.round.failed.or(result.err());
        self.round.step = Step::SyncingSides(left - 1);
        if left > 1 {
            return;
        }
        let Some(errno) = self.round.failed else { return self.sides_are_synced(out) };
        if self.is_last_round() && self.is_sync_failed() {
            self.sides_are_synced(out);
        } else {
            self.end_round(Err(errno), out);
        }
    }

    fn sides_are_synced(&mut self, out: &mut Vec<Action>) {
        reach(CrashPoint::SidesSynced);
        if self.round.group.is_empty() {
            return self.write_header(out);
        }
        self.round.step = Step::WritingPages;
        self.write_pages(out);
    }

    /// A part of step 4.
    fn write_pages(&mut self, out: &mut Vec<Action>) {
        let round = &mut self.round;
        let mut writes = Vec::new();
        let copies = round.group.iter().zip(round.copies.chunks_exact(PAGE_BYTES));
        for (page, nibbles) in copies.skip(round.sent).take(map_write_pages()) {
            let synced = self.map.synced_slot(*page);
            let bytes = encode_page(*page, round.generation, synced.is_none(), nibbles);
            if synced.is_none() {
                writes.push(MapWrite { offset: page_offset(*page, 0), bytes: bytes.clone() });
            }
            let slot = synced.map_or(1, |slot| 1 - slot);
            writes.push(MapWrite { offset: page_offset(*page, slot), bytes });
            round.sent += 1;
        }
        out.push(Action::WriteMap(writes));
    }

    fn write_header(&mut self, out: &mut Vec<Action>) {
        let round = &mut self.round;
        let Some(header) = &mut round.header else { return self.end_round(Ok(()), out) };
        if self.map.is_sync_failed() && header.closed_clean {
            // Nothing is dirty, and what is clean may not be what the store has.
            header.void = SideSet::BOTH;
        }
        round.step = Step::WritingHeader;
        // A write that failed is repeated in its own slot: the other one is all that is left.
        let generation = round.header_generation + 1;
        let slot = u8::from(generation % 2 == 1);
        let bytes = header.encode(generation);
        out.push(Action::WriteMap(vec![MapWrite { offset: header_offset(slot), bytes }]));
    }

    pub(super) fn map_written(&mut self, result: Result<(), Errno>, out: &mut Vec<Action>) {
        if let Err(errno) = result {
            return self.end_round(Err(errno), out);
        }
        self.round.step = match self.round.step {
            Step::WritingPages if self.round.sent < self.round.group.len() => return self.write_pages(out),
            Step::WritingPages => {
                reach(CrashPoint::PagesWritten);
                Step::SyncingPages
            }
            Step::WritingHeader => {
                reach(CrashPoint::HeaderWritten);
                Step::SyncingHeader
            }
            Step::Idle | Step::SyncingSides(_) | Step::SyncingPages | Step::SyncingHeader => {
                unreachable!("no map write was asked for")
            }
        };
        if !safeguard(SyncMapBeforeAnswer) {
            return self.map_synced(Ok(()), out);
        }
        out.push(Action::SyncMap);
    }

    pub(super) fn map_synced(&mut self, result: Result<(), Errno>, out: &mut Vec<Action>) {
        if let Err(errno) = result {
            return self.end_round(Err(errno), out);
        }
        match self.round.step {
            Step::SyncingPages => {
                reach(CrashPoint::PagesSynced);
                // Only now may the slots swap: until here the other slot is the one that holds.
                for page in &self.round.group {
                    let slot = self.map.synced_slot(*page).map_or(0, |slot| 1 - slot);
                    self.map.set_synced_slot(*page, Some(slot));
                    self.round.pages.remove(*page);
                }
                reach(CrashPoint::SlotsSwapped);
                self.round.end_group();
                if self.round.pages.is_empty() {
                    self.write_header(out);
                } else {
                    self.copy_group(out);
                }
            }
            Step::SyncingHeader => {
                reach(CrashPoint::HeaderSynced);
                self.round.header_generation += 1;
                if let Some(header) = &self.round.header {
                    self.round.durable_generation = header.synced_generation;
                }
                self.end_round(Ok(()), out);
            }
            Step::Idle | Step::SyncingSides(_) | Step::WritingPages | Step::WritingHeader => {
                unreachable!("no map sync was asked for")
            }
        }
    }

    fn end_round(&mut self, result: Result<(), Errno>, out: &mut Vec<Action>) {
        let round = &mut self.round;
        round.step = Step::Idle;
        round.end_group();
        round.copies = Vec::new();
        let had_header = round.header.take().is_some();
        match result {
            Ok(()) => {
                round.ended = round.begun;
                self.map.set_flushed_sides(round.names);
                reach(CrashPoint::RoundEnded);
            }
            Err(errno) => {
                round.changed.append(&mut round.pages);
                round.unsynced = round.unsynced.or(round.sides);
                round.header_changed |= had_header;
                round.failed_at = Some(self.now);
                reach(CrashPoint::RoundFailed);
                out.push(Action::Report(Report::LocalDiskFailed(errno)));
            }
        }
        if self.is_sync_failed() {
            // They wait for a commit instead.
            for flush in std::mem::take(&mut self.round.next_guests) {
                self.plan_flush(flush.id, out);
            }
        }
        for flush in std::mem::take(&mut self.round.guests) {
            match result {
                Ok(()) => self.flushed_locally(flush, out),
                Err(errno) => self.complete(flush.id, Err(errno), out),
            }
        }
        self.begin_round(out);
    }
}
