//! Seals: the point in time that one commit captures.
//!
//! 1. the sides are swapped (`SidesSwapped`);
//! 2. operations in flight on the sealed side end (`SideStill`);
//! 3. a round begun after that makes the map of the sealed side durable (`SealDurable`), unless a sync failed
//!    (`volume/durability.rs`);
//! 4. its dirty sectors are listed and become one segment (`SegmentBuilt`), which is stored
//!    (`SegmentStored`);
//! 5. the commit record is created (`volume/commit.rs`);
//! 6. the sides' dirty bits are cleared (`SomeCleared`, `DirtyCleared`), and a volume that was recovering
//!    serves (`Recovered`).
//!
//! The names are crash points. Each turn of the ring thread lists sectors, or clears bits, of
//! `MAP_WRITE_PAGES` pages. Nothing is written to the sealed sides in the meantime; rounds and evictions
//! continue. Pages that are already clean are in the commit, and a successor commits the other pages once
//! more. If both sides are sealed, the bits of the inactive side are therefore cleared first: while the newer
//! copy of a sector is dirty, the older copy is not uploaded. Upholds invariants 4: by this order, and
//! because the sealed side has no writes in flight when it is uploaded; 1: a commit never precedes its round;
//! 7: the segment is stored before the commit that names it (`docs/invariants.md`).

use holdfast_format::chunk_set::ChunkSet;
use holdfast_format::crash_point::{CrashPoint, reach};
use holdfast_format::safeguard::{Safeguard::ClearOlderFirst, safeguard};
use holdfast_format::side::{Side, SideSet};
use holdfast_types::{Block, Mask};

use super::core::{Core, Memory};
use super::durability::Seals;
use crate::action::{Action, DirtyBlock};
use crate::round_size::round_size;

/// State of the seal. It covers one side, or both (after the loss of the host, or if one was unreadable).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seal {
    /// Nothing is sealed.
    Open,
    /// Operations planned before the swap still run on the sealed side.
    Draining(SideSet),
    /// No write is in flight on the side; the round with this number makes the map durable first.
    Round(SideSet, u64),
    /// The dirty blocks are being listed for the upload.
    Listing(SideSet),
    /// The segment is in flight.
    Uploading(SideSet),
    /// The commit record is in flight.
    Committing(SideSet),
    /// The commit is in the log, and the dirty marks are being cleared.
    Clearing(SideSet),
    /// The local disk could not read all of the data (`volume/unreadable.rs`).
    Unreadable(SideSet),
}

/// An event that advances a seal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SealEvent {
    /// These sides are sealed.
    Begun(SideSet),
    /// A round that makes the map durable was requested.
    RoundWanted(u64),
    /// The dirty blocks can be listed.
    Durable,
    /// All dirty blocks are listed.
    Listed,
    /// The segment is stored.
    Stored,
    /// A predecessor's record for this seal is sent again.
    Repeated,
    /// The local disk cannot read some of the data.
    Unreadable,
    /// The commit record is in the log.
    Committed,
    /// All dirty marks are cleared.
    Cleared,
}

impl Seal {
    /// # Panics
    /// On an event that cannot happen in this state: a bug of the engine.
    fn next(self, event: SealEvent) -> Self {
        use SealEvent as E;
        match (self, event) {
            (Self::Open | Self::Unreadable(_), E::Begun(sides)) => Self::Draining(sides),
            (Self::Draining(sides) | Self::Round(sides, _), E::RoundWanted(number)) => {
                Self::Round(sides, number)
            }
            (Self::Draining(sides) | Self::Round(sides, _) | Self::Unreadable(sides), E::Durable) => {
                Self::Listing(sides)
            }
            (Self::Listing(sides), E::Listed) => Self::Uploading(sides),
            (Self::Uploading(sides), E::Stored) | (Self::Draining(sides), E::Repeated) => {
                Self::Committing(sides)
            }
            (Self::Uploading(sides), E::Unreadable) => Self::Unreadable(sides),
            (Self::Committing(sides), E::Committed) => Self::Clearing(sides),
            (Self::Clearing(_), E::Cleared) => Self::Open,
            (state, event) => unreachable!("{event:?} in {state:?}"),
        }
    }

    /// Returns true if writes to `side` are not allowed.
    fn holds_still(self, side: Side) -> bool {
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

/// Contents of an upload, as listed so far.
#[derive(Default)]
struct UploadListing {
    blocks: Vec<DirtyBlock>,
    /// The chunks of these blocks.
    chunks: ChunkSet,
    /// The first page that was not listed.
    next_page: u64,
}

/// The seal in progress, and all seals by number.
pub(super) struct Sealer {
    seal: Seal,
    listed: UploadListing,
    pub(super) seals: Seals,
}

impl Sealer {
    pub(super) fn open() -> Self {
        Self { seal: Seal::Open, listed: UploadListing::default(), seals: Seals::default() }
    }

    pub(super) fn seal(&self) -> Seal {
        self.seal
    }

    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.seal == Seal::Open
    }

    /// Returns true if the commit record of the seal is in flight.
    pub(super) fn is_committing(&self) -> bool {
        matches!(self.seal, Seal::Committing(_))
    }

    /// Returns true if writes must wait for a seal that covers `side`.
    pub(super) fn holds_still(&self, side: Side) -> bool {
        self.seal.holds_still(side)
    }

    /// Begins a seal that flushes may wait for.
    pub(super) fn begin(&mut self, sides: SideSet) {
        self.seals.begin();
        self.seal = self.seal.next(SealEvent::Begun(sides));
    }

    /// Begins a seal for a repair. Data covered by flushes is dirty on the active side, or committed: no
    /// flush waits for this seal.
    pub(super) fn begin_repair(&mut self, inactive: Side) {
        self.seal = self.seal.next(SealEvent::Begun(SideSet::only(inactive)));
    }

    pub(super) fn want_round(&mut self, number: u64) {
        self.seal = self.seal.next(SealEvent::RoundWanted(number));
    }

    pub(super) fn record_repeated(&mut self) {
        self.seal = self.seal.next(SealEvent::Repeated);
    }

    /// Starts listing the dirty data for its upload.
    pub(super) fn upload<M: Memory>(&mut self, core: &Core<M>, out: &mut Vec<Action>) {
        self.seal = self.seal.next(SealEvent::Durable);
        self.listed = UploadListing::default();
        self.list(core, out);
    }

    /// Lists the blocks of one turn.
    pub(super) fn list<M: Memory>(&mut self, core: &Core<M>, out: &mut Vec<Action>) {
        let Seal::Listing(sides) = self.seal else { unreachable!("nothing to list in {:?}", self.seal) };
        let most = round_size().written;
        let mut pages: Vec<u64> = Vec::new();
        for side in sides.iter() {
            pages.extend(core.dirty[side].blocks.pages_from(self.listed.next_page).take(most + 1));
        }
        pages.sort_unstable();
        pages.dedup();
        let next = pages.get(most).copied();
        pages.truncate(most);
        for page in pages {
            self.list_page(page, sides, core);
        }
        if let Some(next) = next {
            self.listed.next_page = next;
            return out.push(Action::NextTurn);
        }
        self.seal = self.seal.next(SealEvent::Listed);
        let blocks = std::mem::take(&mut self.listed.blocks);
        blocks.iter().for_each(|dirty| self.listed.chunks.add(dirty.block.chunk()));
        out.push(Action::Upload { place: core.upload_place(), blocks });
    }

    fn list_page<M: Memory>(&mut self, page: u64, sides: SideSet, core: &Core<M>) {
        let blocks = &mut self.listed.blocks;
        let from = blocks.len();
        for side in sides.iter() {
            for (block, mask) in core.map.dirty_blocks(page, core.dirty[side].blocks.blocks(page), side) {
                add(blocks, from, block, mask, side);
            }
        }
        blocks[from..].sort_unstable_by_key(|dirty| dirty.block);
        // Where both sides are dirty, the copy on the active side is newer.
        for dirty in &mut blocks[from..] {
            match core.map.active() {
                Side::A => dirty.b = dirty.b.minus(dirty.a),
                Side::B => dirty.a = dirty.a.minus(dirty.b),
            }
        }
    }

    /// Handles the stored segment. Returns the sides and the chunks that it covers.
    pub(super) fn stored(&mut self) -> (SideSet, ChunkSet) {
        let Seal::Uploading(sides) = self.seal else { unreachable!("no upload in {:?}", self.seal) };
        reach(CrashPoint::SegmentStored);
        self.seal = self.seal.next(SealEvent::Stored);
        (sides, std::mem::take(&mut self.listed).chunks)
    }

    /// Handles an upload with unreadable data. Returns the sides that it covers.
    pub(super) fn unreadable(&mut self) -> SideSet {
        let Seal::Uploading(sides) = self.seal else { unreachable!("no upload in {:?}", self.seal) };
        self.seal = self.seal.next(SealEvent::Unreadable);
        sides
    }

    /// Notes that the commit of the sealed sides is in the log, so that their data is clean from now on.
    pub(super) fn committed(&mut self) {
        self.seal = self.seal.next(SealEvent::Committed);
    }

    /// Clears the bits of one turn. Returns the sides once all their bits are cleared.
    pub(super) fn clear<M: Memory>(&mut self, core: &mut Core<M>, out: &mut Vec<Action>) -> Option<SideSet> {
        let Seal::Clearing(sides) = self.seal else { unreachable!("nothing to clear in {:?}", self.seal) };
        let mut left = round_size().written;
        let newer = core.map.active();
        let order = if safeguard(ClearOlderFirst) { [newer.other(), newer] } else { [newer, newer.other()] };
        for side in order.into_iter().filter(|side| sides.contains(*side)) {
            let pages: Vec<u64> = core.dirty[side].blocks.pages().take(left).collect();
            left -= pages.len();
            for page in pages {
                core.clear(page, side);
            }
        }
        if sides.iter().any(|side| !core.dirty[side].blocks.is_empty()) {
            reach(CrashPoint::SomeCleared);
            out.push(Action::NextTurn);
            return None;
        }
        self.seal = self.seal.next(SealEvent::Cleared);
        Some(sides)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_in_every_state() {
        use {Seal as S, SealEvent as E};
        let (one, both) = (SideSet::only(Side::A), SideSet::BOTH);
        let states = [
            S::Open,
            S::Draining(one),
            S::Round(one, 1),
            S::Listing(one),
            S::Uploading(one),
            S::Committing(one),
            S::Clearing(one),
            S::Unreadable(one),
        ];
        // The next state of each state above, if the event can happen.
        let table = [
            (
                E::Begun(both),
                [Some(S::Draining(both)), None, None, None, None, None, None, Some(S::Draining(both))],
            ),
            (
                E::RoundWanted(2),
                [None, Some(S::Round(one, 2)), Some(S::Round(one, 2)), None, None, None, None, None],
            ),
            (
                E::Durable,
                [
                    None,
                    Some(S::Listing(one)),
                    Some(S::Listing(one)),
                    None,
                    None,
                    None,
                    None,
                    Some(S::Listing(one)),
                ],
            ),
            (E::Listed, [None, None, None, Some(S::Uploading(one)), None, None, None, None]),
            (E::Stored, [None, None, None, None, Some(S::Committing(one)), None, None, None]),
            (E::Repeated, [None, Some(S::Committing(one)), None, None, None, None, None, None]),
            (E::Unreadable, [None, None, None, None, Some(S::Unreadable(one)), None, None, None]),
            (E::Committed, [None, None, None, None, None, Some(S::Clearing(one)), None, None]),
            (E::Cleared, [None, None, None, None, None, None, Some(S::Open), None]),
        ];
        for (event, row) in table {
            for (state, expected) in states.into_iter().zip(row) {
                let next = std::panic::catch_unwind(|| state.next(event)).ok();
                assert_eq!(next, expected, "{event:?} in {state:?}");
            }
        }
    }

    #[test]
    fn a_seal_holds_its_sides_still_until_they_are_clean() {
        let sealed = SideSet::only(Side::B);
        for seal in [Seal::Draining(sealed), Seal::Uploading(sealed), Seal::Clearing(sealed)] {
            assert!(seal.holds_still(Side::B) && !seal.holds_still(Side::A), "{seal:?}");
        }
        assert!(!Seal::Open.holds_still(Side::A) && !Seal::Unreadable(sealed).holds_still(Side::B));
    }
}
