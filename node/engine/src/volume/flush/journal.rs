//! The journal of the durable map, as a writer uses it: a round puts the changes of pages of which few blocks
//! changed there, instead of each page into a slot of its own.
//!
//! Owns: which slots of it are used, and which pages have changes there that their own slots lack. Does not
//! own: the bytes (`durable_map::journal`).
//! Invariants: what it holds is written over only once the slots of every page have it (13); a page that
//! holds nothing has no changes there, since pages of chunks that were given back take part in no round.

use std::ops::Range;

use holdfast_format::safeguard::{
    Safeguard::{JournalAfterFullRound, KeepJournal},
    safeguard,
};

use crate::durable_map::{Entry, journal_slots, record_slots};
use crate::round_size::round_size;
use crate::sector_map::PageSet;

pub(super) struct Journal {
    slots: u64,
    /// Generation of the round in which this process began to fill it; none before.
    start: Option<u64>,
    /// The slots that are filled.
    filled: u64,
    /// The slot behind its newest record.
    next_slot: u64,
    /// The pages with changes that their slots lack.
    pages: PageSet,
    /// Nothing counts in the journal that an earlier process left: it may be filled.
    is_ours: bool,
}

impl Journal {
    /// Of a map with `pages` pages, of which some may have changes in the journal of an earlier process if
    /// `is_inherited`.
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

    /// The map has so many pages from here on.
    pub(super) fn grow(&mut self, pages: u64) {
        self.pages.grow(pages);
    }

    /// A round ended well, and the first one covers every page.
    pub(super) fn round_ended(&mut self) {
        self.is_ours = true;
    }

    /// Returns true if records may be written.
    pub(super) fn is_usable(&self) -> bool {
        self.slots > 0 && (self.is_ours || !safeguard(JournalAfterFullRound))
    }

    /// Returns true if a record of `entries` is worth its slots, which stands for `pages` pages, and finds
    /// room where the journal is empty.
    pub(super) fn is_worth(&self, entries: &[Entry], pages: usize) -> bool {
        let slots = record_slots(entries.len());
        end(0, entries) <= self.slots && pages as u64 >= slots * round_size().saved && pages > 0
    }

    /// Returns true if a record of `entries` finds room behind the others.
    pub(super) fn has_room(&self, entries: &[Entry]) -> bool {
        end(self.next_slot, entries) <= self.slots
    }

    /// The slots that are to be filled before a record of `entries` is written.
    pub(super) fn unfilled(&self, entries: &[Entry]) -> Range<u64> {
        let needed = end(self.next_slot, entries);
        // Twice as many each time: few rounds wait for it, and it is in proportion to what is written.
        let end =
            if needed > self.filled { needed.max(2 * self.filled).min(self.slots) } else { self.filled };
        self.filled..end
    }

    /// The disk has no room for it: this process puts nothing more there.
    pub(super) fn find_no_place(&mut self) {
        self.slots = 0;
    }

    /// Generation of its units without a record.
    pub(super) fn start(&self) -> Option<u64> {
        self.start
    }

    /// Its slots up to this one are filled. `generation` is that of the round.
    pub(super) fn filled(&mut self, slots: u64, generation: u64) {
        self.filled = slots;
        self.start.get_or_insert(generation);
    }

    /// The slot where the next record begins.
    pub(super) fn next_slot(&self) -> u64 {
        self.next_slot
    }

    /// The pages whose slots lack what is here, lowest first.
    pub(super) fn pages(&self) -> impl Iterator<Item = u64> + '_ {
        self.pages.iter()
    }

    /// It has no room: all of its pages are about to be written into slots.
    pub(super) fn begin_emptying(&mut self) {
        if !safeguard(KeepJournal) {
            self.next_slot = 0;
        }
    }

    /// A record of `entries` for these pages was synced, and the slots of `whole` pages.
    pub(super) fn synced(&mut self, entries: &[Entry], journaled: &[u64], whole: &[u64]) {
        self.next_slot += record_slots(entries.len());
        journaled.iter().for_each(|page| self.pages.insert(*page));
        whole.iter().for_each(|page| self.pages.remove(*page));
        if self.pages.is_empty() {
            self.next_slot = 0;
        }
    }
}

/// The slot behind a record of `entries` that begins at `slot`, and behind the filled one that shows where
/// the records end.
fn end(slot: u64, entries: &[Entry]) -> u64 {
    slot + record_slots(entries.len()) + 1
}
