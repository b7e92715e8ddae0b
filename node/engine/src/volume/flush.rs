//! Flush rounds: the steps that make a completed write durable on this host.
//!
//! 1. the round begins: the set of pages changed since the last round is fixed (`RoundBegun`);
//! 2. the next group of them is copied (`PagesCopied`): at most `ROUND_PAGES`, and at most `ROUND_BLOCKS`
//!    changed blocks if the journal takes them;
//! 3. sync the sides written since they were last synced (`SidesSynced`);
//! 4. write the group to the durable map: the changed blocks of pages with few of them as a record of the
//!    journal, if that saves enough writes; the other pages, `MAP_WRITE_PAGES` at a time, each to the slot
//!    that is not its newest, or to both at its first write (`PagesWritten`);
//! 5. sync the durable map (`PagesSynced`), and only then make those slots the newest (`SlotsSwapped`);
//!    repeat from 2 while pages of the set remain. If the journal is full, its pages are written like those
//!    of the set, and the journal restarts;
//! 6. write (`HeaderWritten`) and sync (`HeaderSynced`) the header if it changed or a page was written for
//!    the first time;
//! 7. complete the flushes (after `RoundEnded` or `RoundFailed`).
//!
//! Journal slots that this process has not used are filled and synced (`JournalFilled`) before a record is
//! written to them; the first such round writes both headers with the flag that the journal counts, so that
//! the loss of one header does not hide the journal. If the disk has no space for them, this and later rounds
//! work without the journal.
//!
//! The names are crash points. Each turn of the ring thread does a bounded part of the work, regardless of
//! the size of the volume; the answer to each write or sync starts the next part. Usually there is one group.
//!
//! A page of a later group is copied after the round began and may name newer writes. That is safe,
//! because pages are written only after the sides were synced *after* the copy was made: all data that a
//! page names was stored when it was copied, so it is on the disk before the page is. Without a separate sync
//! for a later group, a power cut could leave a page that names newer data on one side without that data
//! being on the disk, while the older data that a flush covered, on the other side or named by the older
//! page, would no longer be named. Pages of different groups may show different points in time; correctness
//! needs only that each covers everything that had completed when the round began, since a power cut may keep
//! any part of later writes anyway. A side counts as named by the round if it was dirty at any of the round's
//! copies. The same holds for a round that fails midway, with some groups durable and other pages as of the
//! last round.
//!
//! Upholds invariants 1 and 13 (`docs/invariants.md`), and 12: background work requests a failed round
//! again. A flush joins only a round that has not begun. A failed round marks its pages changed again,
//! except those already durable, and fails its flushes; a page whose slot the round may have torn is written
//! to that slot again. A FUA write whose data is stored counts as a flush here (`volume/durability.rs`).

mod group;
mod journal;

use super::core::{Core, Memory};
use super::receipt::{MapSynced, PagesSynced, SideSyncs, SidesSynced};
use crate::action::{Action, MapWrite, Report};
use crate::durable_map::{
    Header, encode_fill, encode_page, encode_record, header_offset, journal_offset, page_offset,
};
use crate::event::{Errno, RequestId};
use crate::limit::RETRY_ROUND_AFTER_MS;
use crate::round_size::round_size;
use crate::sector_map::{BlockSet, Blocks, PAGE_BYTES, SectorMap};
use group::PageGroup;
use holdfast_format::crash_point::{CrashPoint, reach};
use holdfast_format::safeguard::{
    Safeguard::{RewriteTornSlot, SyncEachGroup, SyncMapBeforeAnswer, SyncSidesBeforeMap},
    safeguard,
};
use holdfast_format::side::{Side, SideSet};
use holdfast_types::Millis;
use journal::Journal;

/// The step whose answers the round in progress awaits.
#[derive(Debug)]
enum RoundStep {
    Idle,
    /// Step 3.
    SyncingSides {
        syncs: SideSyncs,
        failed: Option<Errno>,
    },
    /// The journal is being filled; writes for its slots up to this one were issued.
    FillingJournal {
        sides: SidesSynced,
        sent: u64,
    },
    SyncingJournal {
        sides: SidesSynced,
        filled: u64,
    },
    /// Step 4, with writes for this many pages of the group issued.
    WritingPages {
        sides: SidesSynced,
        sent: usize,
    },
    /// Step 5.
    SyncingPages(SidesSynced),
    /// Step 6.
    WritingHeader(PagesSynced),
    SyncingHeader(PagesSynced),
}

/// A flush, or a FUA write whose data is stored, that takes part in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FlushWaiter {
    pub(super) id: RequestId,
    /// The seal for whose commit the flush also waits; 0 for none.
    pub(super) seal: u64,
}

/// State of a requested round, as seen by the requester.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RoundProgress {
    Pending,
    Ended,
    /// The round failed long enough ago to be requested again.
    Failed,
}

/// Result of a round, and the flushes to answer.
#[derive(Debug)]
pub(super) struct RoundEnd {
    pub(super) result: Result<MapSynced, Errno>,
    /// The flushes that took part.
    pub(super) waiters: Vec<FlushWaiter>,
    /// The flushes that waited for the next round, which a failed sync prevents; they wait for a commit
    /// instead.
    pub(super) unserved: Vec<FlushWaiter>,
}

/// Pages, sides and header of the round in progress.
struct Round {
    generation: u64,
    /// The changes that are not durable yet; empty between rounds.
    blocks: BlockSet,
    /// The first of its pages that is in no group yet.
    next_page: u64,
    /// The sides synced for it.
    synced: SideSet,
    /// The sides that were dirty when a group was copied.
    dirty_at_copy: SideSet,
    /// The header at the start of the round.
    header: Option<Header>,
    /// True if the header changed, or a page is written for the first time.
    writes_header: bool,
    /// True if the journal was full, so that the round also writes the journal's pages.
    empties_journal: bool,
}

/// The round in progress and the requests for the next.
pub(super) struct FlushRounds {
    step: RoundStep,
    round: Round,
    group: PageGroup,
    journal: Journal,
    waiters: Vec<FlushWaiter>,
    next_waiters: Vec<FlushWaiter>,
    /// Rounds begun, and rounds that succeeded, for requesters of a round begun after a certain point.
    begun: u64,
    ended: u64,
    /// True if background work requested another round.
    wanted: bool,
    /// Time of the last failed round: background work delays its next request.
    failed_at: Option<Millis>,
    /// Error of the last round, and the time of the first failure since the last success.
    failing: Option<(Errno, Millis)>,
    header_generation: u64,
    /// `synced_generation` of the newest header that this process wrote and synced; 0 before the first.
    durable_generation: u64,
    /// Number of headers on the disk, at most two, in which this process has set the flag that the journal
    /// counts.
    journal_headers: u8,
}

impl FlushRounds {
    /// Creates the rounds of this map, whose durable header says whether a journal counts.
    pub(super) fn after_takeover<M: Memory>(
        map: &SectorMap<M>,
        has_journal: bool,
        header_generation: u64,
    ) -> Self {
        let pages = map.pages();
        Self {
            step: RoundStep::Idle,
            round: Round {
                generation: 0,
                blocks: BlockSet::new(pages),
                next_page: 0,
                synced: SideSet::NONE,
                dirty_at_copy: SideSet::NONE,
                header: None,
                writes_header: false,
                empties_journal: false,
            },
            group: PageGroup::default(),
            journal: Journal::after_takeover(pages, has_journal || map.is_any_prepared()),
            waiters: Vec::new(),
            next_waiters: Vec::new(),
            begun: 0,
            ended: 0,
            wanted: false,
            failed_at: None,
            failing: None,
            header_generation,
            durable_generation: 0,
            journal_headers: 0,
        }
    }

    /// Grows the map to `pages` pages.
    pub(super) fn grow(&mut self, pages: u64) {
        self.round.blocks.grow(pages);
        self.journal.grow(pages);
    }

    /// Returns a generation that a header on the disk has reached, regardless of later host failures.
    pub(super) fn durable_generation(&self) -> u64 {
        self.durable_generation
    }

    /// Returns true if `page` is not yet durable in the round in progress.
    pub(super) fn holds(&self, page: u64) -> bool {
        self.round.blocks.contains(page)
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self.step, RoundStep::Idle)
    }

    /// Adds `waiter` to the next round.
    pub(super) fn join(&mut self, waiter: FlushWaiter) {
        self.next_waiters.push(waiter);
    }

    /// Makes the flushes of the round in progress and of the next also wait for this seal.
    pub(super) fn wait_for_seal(&mut self, seal: u64) {
        for waiter in self.waiters.iter_mut().chain(&mut self.next_waiters) {
            waiter.seal = seal;
        }
    }

    /// Joins a round that began before the data covered by `waiter` completed: a bug that the simulation
    /// plants.
    pub(super) fn join_running(&mut self, waiter: FlushWaiter) {
        self.waiters.push(waiter);
    }

    /// Fails all flushes after the volume was fenced. Returns those of the round in progress and of the
    /// next.
    pub(super) fn fenced(&mut self) -> Vec<FlushWaiter> {
        self.waiters.append(&mut self.next_waiters);
        std::mem::take(&mut self.waiters)
    }

    /// Requests a round that begins later; returns its number.
    pub(super) fn want(&mut self) -> u64 {
        self.wanted = true;
        self.begun + 1
    }

    /// Returns the progress of the round with `number`.
    pub(super) fn progress(&self, number: u64, now: Millis) -> RoundProgress {
        let waited = self.failed_at.is_none_or(|at| now >= at + RETRY_ROUND_AFTER_MS);
        if self.ended >= number {
            RoundProgress::Ended
        } else if self.begun >= number && self.is_idle() && waited {
            RoundProgress::Failed
        } else {
            RoundProgress::Pending
        }
    }

    /// Returns the error of failing rounds, and for how long they have failed.
    pub(super) fn failing_for(&self, now: Millis) -> Option<(Errno, Millis)> {
        self.failing.map(|(errno, since)| (errno, now.saturating_sub(since)))
    }

    /// Returns true if the round with `number` has ended, with any result.
    pub(super) fn is_over(&self, number: u64) -> bool {
        self.begun >= number && self.is_idle()
    }

    /// Notes that the dirty data of `side` is committed: the durable map may still name it, but its
    /// entries are no longer needed.
    pub(super) fn side_cleared(&mut self, side: Side) {
        self.round.dirty_at_copy = self.round.dirty_at_copy.without(side);
    }

    /// Returns true if a round is requested and can begin. After a failed sync only the last one can.
    pub(super) fn is_due<M: Memory>(&self, core: &Core<M>) -> bool {
        let asked_for = self.wanted || !self.next_waiters.is_empty();
        asked_for && self.is_idle() && (!core.is_sync_failed() || core.lifecycle.last_round().is_some())
    }

    /// Runs steps 1 to 3. Returns the round's end if it has nothing to wait for.
    pub(super) fn begin<M: Memory>(&mut self, core: &mut Core<M>, out: &mut Vec<Action>) -> Option<RoundEnd> {
        assert!(self.is_idle(), "one round runs at a time");
        self.begun += 1;
        self.wanted = false;
        std::mem::swap(&mut self.waiters, &mut self.next_waiters);
        let round = &mut self.round;
        round.generation = core.map.generation() + 1;
        core.map.set_generation(round.generation);
        core.unflushed.move_blocks_to(&mut round.blocks);
        round.next_page = 0;
        round.empties_journal = false;
        round.dirty_at_copy = SideSet::NONE;
        round.synced = SideSet::NONE;
        // Data that is clean in these pages may be in the store only with these records.
        let known = core.known_seq();
        if known > core.header.seq {
            core.header.seq = known;
            core.unflushed.header_changed();
        }
        round.writes_header = core.unflushed.take_header();
        round.header = Some(Header { synced_generation: round.generation, ..core.header.clone() });
        reach(CrashPoint::RoundBegun);
        self.copy_group(core, out)
    }

    /// Runs steps 2 and 3 for the next group, which is empty if no page changed.
    fn copy_group<M: Memory>(&mut self, core: &mut Core<M>, out: &mut Vec<Action>) -> Option<RoundEnd> {
        let round = &mut self.round;
        round.dirty_at_copy = round.dirty_at_copy.or(core.dirty_sides());
        let is_first = round.next_page == 0;
        if round.blocks.pages_from(round.next_page).next().is_none() && round.empties_journal {
            self.group.pages.extend(self.journal.pages().take(round_size().copied));
        } else {
            self.choose(core);
        }
        self.group.copy(&core.map);
        let round = &mut self.round;
        let unsynced =
            if is_first || safeguard(SyncEachGroup) { core.unflushed.take_sides() } else { SideSet::NONE };
        round.synced = round.synced.or(unsynced);
        let asked =
            if safeguard(SyncSidesBeforeMap) && !core.is_sync_failed() { unsynced } else { SideSet::NONE };
        out.extend(asked.iter().map(|side| Action::SyncSide { side }));
        let syncs = SideSyncs::of(asked);
        reach(CrashPoint::PagesCopied);
        if syncs.are_answered() {
            return self.write_group(syncs.receipt(), core, out);
        }
        self.step = RoundStep::SyncingSides { syncs, failed: None };
        None
    }

    /// Adds the next pages to the group, and chooses the destination of each.
    fn choose<M: Memory>(&mut self, core: &Core<M>) {
        let (round, group) = (&mut self.round, &mut self.group);
        if self.journal.is_usable() && !round.empties_journal {
            group.choose(round.blocks.pages_from(round.next_page), &round.blocks, &core.map);
        }
        let is_worth = self.journal.is_worth(&group.entries, group.journaled.len());
        if is_worth && !self.journal.has_room(&group.entries) {
            round.empties_journal = true;
            self.journal.begin_emptying();
        }
        if !is_worth || !self.journal.has_room(&group.entries) {
            // All pages go to slots.
            group.clear();
            group.pages.extend(round.blocks.pages_from(round.next_page).take(round_size().copied));
        }
        round.next_page = group.end().unwrap_or(round.next_page);
    }

    pub(super) fn side_synced<M: Memory>(
        &mut self,
        side: Side,
        result: Result<(), Errno>,
        core: &mut Core<M>,
        out: &mut Vec<Action>,
    ) -> Option<RoundEnd> {
        let RoundStep::SyncingSides { syncs, failed } = &mut self.step else {
            unreachable!("no side sync was asked for in {:?}", self.step)
        };
        syncs.answered(side);
        *failed = failed.or(result.err());
        if !syncs.are_answered() {
            return None;
        }
        let RoundStep::SyncingSides { syncs, failed } = self.take_step() else {
            unreachable!("the sides are being synced")
        };
        // The map entries of the last round do not matter after a loss of the host.
        let is_last = core.lifecycle.last_round().is_some_and(|number| self.begun >= number);
        match failed {
            Some(errno) if !(is_last && core.is_sync_failed()) => Some(self.end(Err(errno), core, out)),
            Some(_) | None => self.write_group(syncs.receipt(), core, out),
        }
    }

    /// Begins step 4, or step 6 if no page changed.
    fn write_group<M: Memory>(
        &mut self,
        sides: SidesSynced,
        core: &mut Core<M>,
        out: &mut Vec<Action>,
    ) -> Option<RoundEnd> {
        reach(CrashPoint::SidesSynced);
        if self.group.is_empty() {
            return self.write_header(sides.no_page_changed(), core, out);
        }
        if self.group.entries.is_empty() {
            self.write_pages(sides, 0, core, out);
        } else if self.journal.unfilled(&self.group.entries).is_empty() {
            self.write_record(sides, core, out);
        } else {
            self.fill_journal(sides, 0, out);
        }
        None
    }

    /// Fills the slots of the journal that the group needs, from `sent` on.
    fn fill_journal(&mut self, sides: SidesSynced, sent: u64, out: &mut Vec<Action>) {
        let unfilled = self.journal.unfilled(&self.group.entries);
        let first = unfilled.start.max(sent);
        let last = unfilled.end.min(first + round_size().written as u64);
        let start = self.journal.start().unwrap_or(self.round.generation);
        let bytes = encode_fill(start, (last - first) as usize);
        out.push(Action::WriteMap(vec![MapWrite { offset: journal_offset(first), bytes }]));
        self.step = RoundStep::FillingJournal { sides, sent: last };
    }

    /// Writes the journal's part of step 4.
    fn write_record<M: Memory>(&mut self, sides: SidesSynced, core: &Core<M>, out: &mut Vec<Action>) {
        let start = self.journal.start().expect("a record is written into slots that were filled");
        let offset = journal_offset(self.journal.next_slot());
        // Data that is clean in the entries is in the store only with these records.
        let seq = core.known_seq();
        let bytes = encode_record(self.round.generation, seq, start, &self.group.entries);
        out.push(Action::WriteMap(vec![MapWrite { offset, bytes }]));
        self.step = RoundStep::WritingPages { sides, sent: 0 };
    }

    /// Writes a part of step 4, from the page of the group with this index.
    fn write_pages<M: Memory>(
        &mut self,
        sides: SidesSynced,
        mut sent: usize,
        core: &Core<M>,
        out: &mut Vec<Action>,
    ) {
        let mut writes = Vec::new();
        let copies = self.group.pages.iter().zip(self.group.copies.chunks_exact(PAGE_BYTES));
        for (page, nibbles) in copies.skip(sent).take(round_size().written) {
            let synced = core.map.synced_slot(*page);
            // Data that is clean in the page is in the store only with these records.
            let seq = core.known_seq();
            let bytes = encode_page(*page, self.round.generation, seq, synced.is_none(), nibbles);
            if synced.is_none() {
                self.round.writes_header = true;
                writes.push(MapWrite { offset: page_offset(*page, 0), bytes: bytes.clone() });
            }
            let slot = synced.map_or(1, |slot| 1 - slot);
            writes.push(MapWrite { offset: page_offset(*page, slot), bytes });
            sent += 1;
        }
        out.push(Action::WriteMap(writes));
        self.step = RoundStep::WritingPages { sides, sent };
    }

    /// Runs step 6, if the header is to be written.
    fn write_header<M: Memory>(
        &mut self,
        pages: PagesSynced,
        core: &mut Core<M>,
        out: &mut Vec<Action>,
    ) -> Option<RoundEnd> {
        let Some(header) = self.round.header.as_mut().filter(|_| self.round.writes_header) else {
            return Some(self.end(Ok(pages.header_unchanged()), core, out));
        };
        if core.is_sync_failed() && header.closed_clean {
            // No data is dirty, but clean data may differ from the store.
            header.invalidated = SideSet::BOTH;
        }
        // A failed write is repeated in the same slot, because the other slot has the only valid header.
        let generation = self.header_generation + 1;
        let slot = u8::from(generation % 2 == 1);
        let bytes = header.encode(generation);
        out.push(Action::WriteMap(vec![MapWrite { offset: header_offset(slot), bytes }]));
        self.step = RoundStep::WritingHeader(pages);
        None
    }

    pub(super) fn map_written<M: Memory>(
        &mut self,
        result: Result<(), Errno>,
        core: &mut Core<M>,
        out: &mut Vec<Action>,
    ) -> Option<RoundEnd> {
        self.step = match (self.take_step(), result) {
            (RoundStep::WritingPages { .. } | RoundStep::WritingHeader(_), Err(errno)) => {
                return Some(self.end(Err(errno), core, out));
            }
            (RoundStep::FillingJournal { .. }, Err(errno)) => {
                out.push(Action::Report(Report::LocalDiskFailed(errno)));
                return self.do_without_journal(core, out);
            }
            (RoundStep::FillingJournal { sides, sent }, Ok(()))
                if sent < self.journal.unfilled(&self.group.entries).end =>
            {
                self.fill_journal(sides, sent, out);
                return None;
            }
            (RoundStep::FillingJournal { sides, sent }, Ok(())) => {
                RoundStep::SyncingJournal { sides, filled: sent }
            }
            (RoundStep::WritingPages { sides, sent }, Ok(())) if sent < self.group.pages.len() => {
                self.write_pages(sides, sent, core, out);
                return None;
            }
            (RoundStep::WritingPages { sides, .. }, Ok(())) => {
                reach(CrashPoint::PagesWritten);
                RoundStep::SyncingPages(sides)
            }
            (RoundStep::WritingHeader(pages), Ok(())) => {
                reach(CrashPoint::HeaderWritten);
                RoundStep::SyncingHeader(pages)
            }
            (step, _) => unreachable!("no map write was asked for in {step:?}"),
        };
        if safeguard(SyncMapBeforeAnswer) {
            out.push(Action::SyncMap);
            None
        } else {
            self.map_synced(Ok(()), core, out)
        }
    }

    pub(super) fn map_synced<M: Memory>(
        &mut self,
        result: Result<(), Errno>,
        core: &mut Core<M>,
        out: &mut Vec<Action>,
    ) -> Option<RoundEnd> {
        match (self.take_step(), result) {
            (
                RoundStep::SyncingJournal { .. } | RoundStep::SyncingPages(_) | RoundStep::SyncingHeader(_),
                Err(errno),
            ) => Some(self.end(Err(errno), core, out)),
            (RoundStep::SyncingJournal { sides, filled }, Ok(())) => {
                reach(CrashPoint::JournalFilled);
                self.journal_filled(filled, core);
                self.write_record(sides, core, out);
                None
            }
            (RoundStep::SyncingPages(sides), Ok(())) => {
                self.swap_slots(core);
                let empties_journal = self.round.empties_journal && self.journal.pages().next().is_some();
                if self.round.blocks.is_empty() && !empties_journal {
                    self.write_header(sides.pages_synced(), core, out)
                } else {
                    self.copy_group(core, out)
                }
            }
            (RoundStep::SyncingHeader(pages), Ok(())) => {
                reach(CrashPoint::HeaderSynced);
                self.header_generation += 1;
                if let Some(header) = &self.round.header {
                    self.durable_generation = header.synced_generation;
                    self.journal_headers += u8::from(header.has_journal && self.journal_headers < 2);
                }
                if self.journal_headers == 1 {
                    // The header in the other slot does not have the flag, and one of the two headers may be
                    // lost.
                    return self.write_header(pages, core, out);
                }
                Some(self.end(Ok(pages.header_synced()), core, out))
            }
            (step, _) => unreachable!("no map sync was asked for in {step:?}"),
        }
    }

    /// Continues without the journal, for which the disk has no space. The group goes to slots, whose space
    /// is allocated: it is copied again, and the sides are synced again before it is written.
    fn do_without_journal<M: Memory>(
        &mut self,
        core: &mut Core<M>,
        out: &mut Vec<Action>,
    ) -> Option<RoundEnd> {
        self.journal.find_no_place();
        let first = self.group.pages.iter().chain(&self.group.journaled).min();
        self.round.next_page = first.copied().unwrap_or(self.round.next_page);
        self.group.clear();
        self.copy_group(core, out)
    }

    /// Makes the journal count from this round's header on.
    fn journal_filled<M: Memory>(&mut self, slots: u64, core: &mut Core<M>) {
        self.journal.filled(slots, self.round.generation);
        if !core.header.has_journal {
            core.header.has_journal = true;
            self.round.writes_header = true;
            self.round.header.iter_mut().for_each(|header| header.has_journal = true);
        }
    }

    /// Ends step 5. Only now may the slots swap: until now the other slot was the valid one.
    fn swap_slots<M: Memory>(&mut self, core: &mut Core<M>) {
        reach(CrashPoint::PagesSynced);
        for page in &self.group.pages {
            let slot = core.map.synced_slot(*page).map_or(0, |slot| 1 - slot);
            core.map.set_synced_slot(*page, Some(slot));
            self.round.blocks.remove(*page);
        }
        for page in &self.group.journaled {
            self.round.blocks.remove(*page);
        }
        self.journal.synced(&self.group.entries, &self.group.journaled, &self.group.pages);
        reach(CrashPoint::SlotsSwapped);
        self.group.clear();
    }

    fn take_step(&mut self) -> RoundStep {
        std::mem::replace(&mut self.step, RoundStep::Idle)
    }

    /// Runs step 7, except the answers.
    fn end<M: Memory>(
        &mut self,
        result: Result<MapSynced, Errno>,
        core: &mut Core<M>,
        out: &mut Vec<Action>,
    ) -> RoundEnd {
        self.step = RoundStep::Idle;
        if result.is_err() && safeguard(RewriteTornSlot) {
            // The slots being written may be torn. Their pages are written to the same slots again before a
            // header can cover them, even if their changes would fit the journal.
            for page in &self.group.pages {
                self.round.blocks.insert(*page, Blocks::ALL);
            }
        }
        self.group.clear();
        self.group.copies = Vec::new();
        self.group.entries = Vec::new();
        self.round.header = None;
        match &result {
            Ok(_) => {
                self.failing = None;
                self.ended = self.begun;
                self.journal.round_ended();
                core.map.set_flushed_sides(self.round.dirty_at_copy);
                reach(CrashPoint::RoundEnded);
            }
            Err(errno) => {
                core.unflushed.take_back(&mut self.round.blocks, self.round.synced, self.round.writes_header);
                self.failed_at = Some(core.now);
                self.failing = Some((*errno, self.failing.map_or(core.now, |(_, since)| since)));
                reach(CrashPoint::RoundFailed);
                out.push(Action::Report(Report::LocalDiskFailed(*errno)));
            }
        }
        let unserved =
            if core.is_sync_failed() { std::mem::take(&mut self.next_waiters) } else { Vec::new() };
        RoundEnd { result, waiters: std::mem::take(&mut self.waiters), unserved }
    }
}

#[cfg(test)]
mod tests;
