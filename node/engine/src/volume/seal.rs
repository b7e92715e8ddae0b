//! Seals: the point in time that one commit captures.
//!
//! 1. the sides are swapped (`SidesSwapped`);
//! 2. operations in flight on the sealed side end (`SideStill`);
//! 3. a round begun after that makes its map durable (`SealDurable`), unless the disk is not believed (`volume/sync_failed.rs`);
//! 4. its dirty sectors are listed and become one segment (`SegmentBuilt`), which is stored (`SegmentStored`);
//! 5. the commit record is created (`volume/commit.rs`);
//! 6. the sides' dirty marks fall (`SomeCleared`, `DirtyCleared`), and a volume that was recovering serves (`Recovered`).
//!
//! The names are crash points. The sectors are listed, and the marks fall, `MAP_WRITE_PAGES` pages in each turn of the ring thread.
//! Nothing is written to the sealed sides meanwhile; rounds and evictions continue. Pages that are clean already are in the
//! commit, and those that are not yet are committed once more by a successor. Upholds invariant 4: the sealed side is still before it is uploaded; 1: a commit never runs ahead of a round; 7: the
//! segment is stored before the commit that names it (`docs/invariants.md`).

use holdfast_types::{Block, Mask};

use super::commit::Commit;
use super::{Lifecycle, Volume};
use crate::action::{Action, DirtyBlock, Report};
use crate::crash_point::{CrashPoint, reach};
use crate::log_length::most_records_after_checkpoint;
use crate::manifest::Manifest;
use crate::record::{Body, SegmentRef};
use crate::round_size::map_write_pages;
use crate::safeguard::{
    Safeguard::{FlushAfterCommit, RoundBeforeCommit, SealByAge, UploadStillSides},
    safeguard,
};
use crate::sector_map::{Side, SideSet, Union};

/// Where the seal stands. It covers one side, or both (after the loss of the host, or when one could not be read).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seal {
    /// Nothing is sealed.
    Open,
    /// Operations planned before the swap still run on the sealed side.
    Draining(SideSet),
    /// The side is still; the round with this number makes the map durable first.
    Round(SideSet, u64),
    /// What is dirty is being listed for the upload.
    Listing(SideSet),
    /// The segment is in flight.
    Uploading(SideSet),
    /// The commit record is in flight.
    Committing(SideSet),
    /// The commit is in the log, and the dirty marks are falling.
    Clearing(SideSet),
    /// The local disk could not read all of it (`volume/unreadable.rs`).
    Unreadable(SideSet),
}

impl Seal {
    pub(super) fn is_open(self) -> bool {
        self == Self::Open
    }

    /// Whether nothing may be written to `side`.
    pub(super) fn holds_still(self, side: Side) -> bool {
        match self {
            Self::Open | Self::Unreadable(_) => false,
            Self::Draining(sides)
            | Self::Round(sides, _)
            | Self::Listing(sides)
            | Self::Uploading(sides)
            | Self::Committing(sides)
            | Self::Clearing(sides) => sides.contains(side),
        }
    }
}

/// What an upload is to cover, as far as it is listed.
#[derive(Default)]
pub(super) struct Listed {
    blocks: Vec<DirtyBlock>,
    /// The first page that was not looked at.
    next_page: u64,
}

impl<M: AsRef<[u8]> + AsMut<[u8]>> Volume<M> {
    pub(super) fn advance_seal(&mut self, out: &mut Vec<Action>) {
        self.advance_unreadable(out);
        if self.seal.is_open() && self.should_seal() {
            let sealed = self.swap_sides();
            self.begin_seal(SideSet::only(sealed));
        }
        let Some(manifest) = &self.manifest else { return };
        // While the next place in the log is being looked at, no record is made for it.
        if let Seal::Draining(sides) = self.seal
            && self.commit == Commit::Idle
            && (sides.iter().all(|side| self.in_flight[side] == 0) || !safeguard(UploadStillSides))
        {
            reach(CrashPoint::SideStill);
            // What a predecessor was about to create comes first, with the same bytes: it may have been created already.
            match self.pending.take() {
                Some(pending) if pending.seq == manifest.seq().next() => {
                    self.seal = Seal::Committing(sides);
                    self.repeat_record(pending, out);
                }
                Some(_) | None if !safeguard(RoundBeforeCommit) => self.upload(sides, out),
                Some(_) | None => {
                    let number = self.want_sealing_round(out);
                    self.seal = Seal::Round(sides, number);
                }
            }
        }
        if let Seal::Round(sides, number) = self.seal {
            if self.round.ended >= number || self.is_sync_failed() {
                reach(CrashPoint::SealDurable);
                self.upload(sides, out);
            } else if self.round.begun >= number && self.may_retry_round() {
                // The round failed: ask again.
                let number = self.want_sealing_round(out);
                self.seal = Seal::Round(sides, number);
            }
        }
    }

    /// Asks for the round before a commit. It writes the header, whose generation the commit names (invariant 18).
    pub(super) fn want_sealing_round(&mut self, out: &mut Vec<Action>) -> u64 {
        self.round.header_changed();
        self.want_round(out)
    }

    /// Begins a seal that flushes may wait for.
    pub(super) fn begin_seal(&mut self, sides: SideSet) {
        self.seals.begun += 1;
        self.seal = Seal::Draining(sides);
    }

    /// Writes go to the other side from here on. Returns the one that was active.
    pub(super) fn swap_sides(&mut self) -> Side {
        let active = self.map.active();
        self.map.set_active(active.other());
        reach(CrashPoint::SidesSwapped);
        self.header.active = active.other();
        self.round.header_changed();
        self.evict.sides_swapped(self.now);
        active
    }

    fn should_seal(&self) -> bool {
        let Some(manifest) = &self.manifest else { return false };
        let side = self.map.active();
        // What an eviction is about to punch must not become active, and what is needed is evicted before new data is sealed.
        if !self.evict.is_idle() || self.evicts_first() {
            return false;
        }
        if self.dirty_pages[side].is_empty()
            || self.records_after_checkpoint(manifest) >= most_records_after_checkpoint()
        {
            return false;
        }
        self.lifecycle == Lifecycle::Detaching
            || self.seals.is_wanted()
            || self.dirty_bytes(side) >= self.limits.seal_bytes
            || self.is_overdue(side)
            || self.wants_other_side()
            || self.repair.wants_seal(side)
    }

    /// Whether dirty data of `side` reached its age limit.
    pub(super) fn is_overdue(&self, side: Side) -> bool {
        let age = self.dirty_since[side].map_or(0, |since| self.now.saturating_sub(since));
        !self.dirty_pages[side].is_empty() && age >= self.limits.max_age_ms && safeguard(SealByAge)
    }

    pub(super) fn records_after_checkpoint(&self, manifest: &Manifest) -> u64 {
        manifest.seq().0.saturating_sub(self.checkpointed.0)
    }

    /// Lists what is dirty in `sides` and has it uploaded.
    pub(super) fn upload(&mut self, sides: SideSet, out: &mut Vec<Action>) {
        self.seal = Seal::Listing(sides);
        self.listed = Listed::default();
        self.list(sides, out);
    }

    /// The next turn of what is too long for one.
    pub(super) fn next_turn(&mut self, out: &mut Vec<Action>) {
        match self.seal {
            Seal::Listing(sides) => self.list(sides, out),
            Seal::Clearing(sides) => self.clear(sides, out),
            seal @ (Seal::Open
            | Seal::Draining(_)
            | Seal::Round(..)
            | Seal::Uploading(_)
            | Seal::Committing(_)
            | Seal::Unreadable(_)) => unreachable!("no turn was asked for in {seal:?}"),
        }
    }

    fn list(&mut self, sides: SideSet, out: &mut Vec<Action>) {
        let most = map_write_pages();
        let mut pages: Vec<u64> = Vec::new();
        for side in sides.iter() {
            pages.extend(self.dirty_pages[side].iter_from(self.listed.next_page).take(most + 1));
        }
        pages.sort_unstable();
        pages.dedup();
        let next = pages.get(most).copied();
        pages.truncate(most);
        for page in pages {
            self.list_page(page, sides);
        }
        if let Some(next) = next {
            self.listed.next_page = next;
            return out.push(Action::NextTurn);
        }
        self.seal = Seal::Uploading(sides);
        out.push(Action::Upload(std::mem::take(&mut self.listed).blocks));
    }

    fn list_page(&mut self, page: u64, sides: SideSet) {
        let blocks = &mut self.listed.blocks;
        let from = blocks.len();
        for side in sides.iter() {
            for (block, mask) in self.map.dirty_blocks(page, side) {
                add(blocks, from, block, mask, side);
            }
        }
        blocks[from..].sort_unstable_by_key(|dirty| dirty.block);
        // Of what is dirty on both, the active side has the newest.
        for dirty in &mut blocks[from..] {
            match self.map.active() {
                Side::A => dirty.b = dirty.b.minus(dirty.a),
                Side::B => dirty.a = dirty.a.minus(dirty.b),
            }
        }
    }

    pub(super) fn uploaded(&mut self, segment: SegmentRef, out: &mut Vec<Action>) {
        let Seal::Uploading(sides) = self.seal else { unreachable!("no upload was asked for") };
        if self.lifecycle == Lifecycle::Fenced {
            return;
        }
        reach(CrashPoint::SegmentStored);
        self.seal = Seal::Committing(sides);
        if !safeguard(FlushAfterCommit) {
            self.seal_committed(out);
        }
        let (void, generation) = (self.void_with(sides), self.round.durable_generation());
        self.create_record(Body::Commit { segment, void, generation }, out);
    }

    /// The commit of the sealed sides is in the log: their data is clean from here on.
    pub(super) fn sealed_is_committed(&mut self, out: &mut Vec<Action>) {
        let Seal::Committing(sides) = self.seal else { unreachable!("a commit belongs to a seal") };
        self.seal = Seal::Clearing(sides);
        self.clear(sides, out);
    }

    fn clear(&mut self, sides: SideSet, out: &mut Vec<Action>) {
        let mut left = map_write_pages();
        for side in sides.iter() {
            let dirty = &mut self.dirty_pages[side];
            let pages: Vec<u64> = dirty.iter().take(left).collect();
            left -= pages.len();
            for page in pages {
                dirty.remove(page);
                self.map.clear_dirty(page, side);
                self.round.page_changed(page);
            }
        }
        if sides.iter().any(|side| !self.dirty_pages[side].is_empty()) {
            reach(CrashPoint::SomeCleared);
            return out.push(Action::NextTurn);
        }
        self.all_is_clear(sides, out);
    }

    fn all_is_clear(&mut self, sides: SideSet, out: &mut Vec<Action>) {
        for side in sides.iter() {
            self.map.set_flushed_sides(self.map.flushed_sides().without(side));
            self.round.names = self.round.names.without(side);
            self.may_hold_more(side);
            self.repair.committed(side);
            self.dirty_since[side] = None;
        }
        reach(CrashPoint::DirtyCleared);
        let manifest = self.manifest.as_ref().expect("the commit was made from it");
        out.push(Action::Report(Report::Committed(manifest.seq())));
        self.seal = Seal::Open;
        self.everything_was_read(out);
        self.seal_committed(out);
        if self.map.union() != Union::No {
            self.map.set_union(Union::No);
            reach(CrashPoint::Recovered);
        }
        if self.lifecycle == Lifecycle::Recovering {
            self.lifecycle = Lifecycle::Serving;
            out.push(Action::Report(Report::Ready));
        }
        self.unpark(out);
    }
}

fn add(blocks: &mut Vec<DirtyBlock>, from: usize, block: Block, mask: Mask, side: Side) {
    let at = blocks[from..].iter().position(|dirty| dirty.block == block).map(|found| from + found);
    let at = at.unwrap_or_else(|| {
        blocks.push(DirtyBlock { block, a: Mask::EMPTY, b: Mask::EMPTY });
        blocks.len() - 1
    });
    match side {
        Side::A => blocks[at].a = mask,
        Side::B => blocks[at].b = mask,
    }
}
