//! The writer's side of the durable map's journal: a round writes the changes of pages with few changed
//! blocks there, instead of each page to its slot.
//!
//! Owns: the used slots of the journal, and the pages whose changes are only there. Does not own: the
//! bytes (`durable_map::journal`).
//! Invariants: its content is overwritten only once the slots of every page have it (13); a page without
//! local data has no changes there, since pages of released chunks take part in no round.

use std::ops::Range;

use holdfast_format::safeguard::{
    Safeguard::{JournalAfterFullRound, KeepJournal},
    safeguard,
};

use crate::durable_map::{JournalEntry, journal_slots, record_slots};
use crate::round_size::round_size;
use crate::sector_map::PageSet;

pub(super) struct Journal {
    slots: u64,
    /// Generation of the round in which this process began to fill the journal; `None` before.
    start: Option<u64>,
    /// Number of filled slots.
    filled: u64,
    /// The slot after its newest record.
    next_slot: u64,
    /// The pages with changes that are only in the journal.
    pages: PageSet,
    /// True if no content of an earlier process counts, so that the journal may be filled.
    is_ours: bool,
}

impl Journal {
    /// Creates the journal of a map with `pages` pages; if `is_inherited`, some may have changes in the
    /// journal of an earlier process.
    pub(super) fn after_takeover(pages: u64, is_inherited: bool) -> Self {
        Self {
            slots: round_size().journal_slots.unwrap_or_else(|| journal_slots(pages)),
            start: None,
            filled: 0,
            next_slot: 0,
            pages: PageSet::new(pages),
            is_ours: !is_inherited,
        }
    }

    /// Grows the map to `pages` pages.
    pub(super) fn grow(&mut self, pages: u64) {
        self.pages.grow(pages);
    }

    /// Notes a successful round: the first one covers every page.
    pub(super) fn round_ended(&mut self) {
        self.is_ours = true;
    }

    /// Returns true if records may be written.
    pub(super) fn is_usable(&self) -> bool {
        self.slots > 0 && (self.is_ours || !safeguard(JournalAfterFullRound))
    }

    /// Returns true if a record of `entries` fits an empty journal and saves enough writes of the `pages`
    /// pages that it replaces.
    pub(super) fn is_worth(&self, entries: &[JournalEntry], pages: usize) -> bool {
        let slots = record_slots(entries.len());
        end(0, entries) <= self.slots && pages as u64 >= slots * round_size().saved && pages > 0
    }

    /// Returns true if a record of `entries` fits after the others.
    pub(super) fn has_room(&self, entries: &[JournalEntry]) -> bool {
        end(self.next_slot, entries) <= self.slots
    }

    /// Returns the slots to fill before a record of `entries` is written.
    pub(super) fn unfilled(&self, entries: &[JournalEntry]) -> Range<u64> {
        let needed = end(self.next_slot, entries);
        // The filled part doubles each time, so that few rounds wait for a fill and the cost is proportional
        // to the writes.
        let end =
            if needed > self.filled { needed.max(2 * self.filled).min(self.slots) } else { self.filled };
        self.filled..end
    }

    /// Stops the use of the journal by this process: the disk has no space for it.
    pub(super) fn find_no_place(&mut self) {
        self.slots = 0;
    }

    /// Returns the generation that identifies this process's fill.
    pub(super) fn start(&self) -> Option<u64> {
        self.start
    }

    /// Notes that the slots up to this one were filled in the round of `generation`.
    pub(super) fn filled(&mut self, slots: u64, generation: u64) {
        self.filled = slots;
        self.start.get_or_insert(generation);
    }

    /// Returns the slot where the next record begins.
    pub(super) fn next_slot(&self) -> u64 {
        self.next_slot
    }

    /// Returns the pages with changes that are only in the journal, lowest first.
    pub(super) fn pages(&self) -> impl Iterator<Item = u64> + '_ {
        self.pages.iter()
    }

    /// Begins to empty the full journal: all of its pages will be written to slots.
    pub(super) fn begin_emptying(&mut self) {
        if !safeguard(KeepJournal) {
            self.next_slot = 0;
        }
    }

    /// Notes the sync of a record of `entries` for these pages, and of the slots of `whole` pages.
    pub(super) fn synced(&mut self, entries: &[JournalEntry], journaled: &[u64], whole: &[u64]) {
        self.next_slot += record_slots(entries.len());
        journaled.iter().for_each(|page| self.pages.insert(*page));
        whole.iter().for_each(|page| self.pages.remove(*page));
        if self.pages.is_empty() {
            self.next_slot = 0;
        }
    }
}

/// Returns the slot after a record of `entries` that begins at `slot` and after the filled slot that marks
/// the end of the records.
fn end(slot: u64, entries: &[JournalEntry]) -> u64 {
    slot + record_slots(entries.len()) + 1
}
