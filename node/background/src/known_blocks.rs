//! Blocks of one volume that are known to be in the slab: what a read of them needs is found without a task.
//!
//! Owns: for each block the slot that was found last, the sectors that it has, and the list of runs by which
//! it was found. Does not own: the slots. The slab gives a slot to another content at any time, and a block
//! whose slot is gone is not known any more.
//! Runs on: the ring thread of the volume. Pure: no I/O, no lock.
//!
//! A commit prepends runs to the list. A block stays known unless one of these may hold its chunk; any other
//! change of the list, as a merge makes it, has all blocks forgotten.
//! Invariants: a slot is found only for sectors that the list of the caller composes as the slot has them (2
//! in `docs/invariants.md`).

use std::collections::VecDeque;
use std::mem;

use holdfast_format::index::Runs;
use holdfast_format::safeguard::{
    Safeguard::{ForgetChangedBlocks, KnowHeldSectors},
    safeguard,
};
use holdfast_types::{Block, Mask};

use crate::slab_slot::{SlabSlot, WeakSlabSlot};

/// Places for blocks at first, and at most: 2 GiB of blocks.
const PLACES: usize = 64;
const MAX_PLACES: usize = 1 << 14;
/// Changes of the list that are remembered. Blocks that were found before them are forgotten.
const CHANGES: usize = 32;
/// Slots of blocks that were used, until the slab hears of them.
const MAX_USED: usize = 256;
/// Places that are looked at for slots that are gone, at a time.
const SWEPT: usize = 128;

/// A block in a slot of the slab.
#[derive(Debug, Clone)]
pub struct SlabBlock {
    /// The slot.
    pub slot: SlabSlot,
    /// The sectors of the block that the slot has as the runs compose them; the others are zeros there.
    pub sectors: Mask,
}

#[derive(Debug)]
struct KnownBlock {
    block: Block,
    sectors: Mask,
    slot: WeakSlabSlot,
    /// Number of the list by which it was found, or of a later one that says the same of its chunk.
    list: u64,
    /// It was used since the slab heard of it last.
    is_used: bool,
}

/// A list of runs that followed another one.
#[derive(Debug)]
struct ListChange {
    runs: Runs,
    /// The first of its runs, which the other did not have.
    added: usize,
}

/// Blocks of one volume that are known to be in the slab.
#[derive(Debug, Default)]
pub struct KnownBlocks {
    /// None, or a power of two; a block has one place.
    places: Vec<Option<KnownBlock>>,
    /// The newest list.
    runs: Option<Runs>,
    /// Its number.
    list: u64,
    /// The last lists, the newest one last.
    changes: VecDeque<ListChange>,
    /// Blocks that were used since the slab heard of any.
    used: Vec<Block>,
    /// Place at which the next sweep begins.
    swept: usize,
}

impl KnownBlocks {
    /// The slot that has the sectors `wanted` of `block` as `runs` compose them, if it is known. The caller's
    /// lists are those of one volume, and none is older than one that it gave before.
    #[inline]
    pub fn find(&mut self, block: Block, wanted: Mask, runs: &Runs) -> Option<SlabSlot> {
        if self.places.is_empty() {
            return None;
        }
        self.follow(runs);
        let place = self.place(block);
        let known = self.places[place].as_mut().filter(|known| known.block == block)?;
        if !wanted.minus(known.sectors).is_empty() && safeguard(KnowHeldSectors) {
            return None;
        }
        let slot =
            if Self::is_changed(known, self.list, &self.changes) { None } else { known.slot.upgrade() };
        let Some(slot) = slot else {
            self.places[place] = None;
            return None;
        };
        known.list = self.list;
        if !known.is_used && self.used.len() < MAX_USED {
            known.is_used = true;
            self.used.push(block);
        }
        Some(slot)
    }

    /// Returns true if a run that came since a block was found may hold its chunk.
    fn is_changed(known: &KnownBlock, list: u64, changes: &VecDeque<ListChange>) -> bool {
        if known.list == list || !safeguard(ForgetChangedBlocks) {
            return false;
        }
        let since = usize::try_from(list - known.list).unwrap_or(usize::MAX);
        let Some(forgotten) = changes.len().checked_sub(since) else { return true };
        let chunk = known.block.chunk();
        changes
            .range(forgotten..)
            .any(|change| change.runs[..change.added].iter().any(|run| run.fence().may_hold(chunk)))
    }

    /// Takes in a block that was found by `runs`. Without effect if the list has changed since.
    pub fn found(&mut self, block: Block, found: &SlabBlock, runs: &Runs) {
        if self.runs.is_none() {
            self.runs = Some(runs.clone());
        }
        if !self.runs.as_ref().is_some_and(|newest| newest.is(runs)) {
            return;
        }
        self.make_room(block);
        let &SlabBlock { ref slot, sectors } = found;
        let known = KnownBlock { block, sectors, slot: slot.downgrade(), list: self.list, is_used: false };
        let place = self.place(block);
        self.places[place] = Some(known);
    }

    /// The slot of a block is of no use.
    pub fn forget(&mut self, block: Block) {
        if !self.places.is_empty() {
            let place = self.place(block);
            self.places[place].take_if(|known| known.block == block);
        }
    }

    /// The slots of blocks that were used since the last time, as far as they are there: some, where they are
    /// many.
    pub fn take_used(&mut self) -> Vec<SlabSlot> {
        let used = mem::take(&mut self.used);
        let slots = used.iter().filter_map(|block| {
            let place = self.place(*block);
            let known = self.places[place].as_mut().filter(|known| known.block == *block)?;
            known.is_used = false;
            known.slot.upgrade()
        });
        slots.collect()
    }

    /// Forgets blocks whose slots are gone, in a part of the places, so that no memory is kept for them.
    pub fn sweep(&mut self) {
        let end = (self.swept + SWEPT).min(self.places.len());
        for place in &mut self.places[self.swept..end] {
            place.take_if(|known| known.slot.is_gone());
        }
        self.swept = if end == self.places.len() { 0 } else { end };
    }

    /// Takes in that this is the volume's list now.
    #[inline]
    fn follow(&mut self, runs: &Runs) {
        if !self.runs.as_ref().is_some_and(|newest| newest.is(runs)) {
            self.changed(runs);
        }
    }

    #[cold]
    fn changed(&mut self, runs: &Runs) {
        let added = self.runs.as_ref().and_then(|older| runs.added_since(older));
        self.list += 1;
        match added {
            Some(added) => {
                if self.changes.len() == CHANGES {
                    self.changes.pop_front();
                }
                self.changes.push_back(ListChange { runs: runs.clone(), added });
            }
            None => self.changes.clear(),
        }
        self.runs = Some(runs.clone());
    }

    /// The place of a block: neighbours have different ones. There are places.
    #[inline]
    fn place(&self, block: Block) -> usize {
        block.0 as usize & (self.places.len() - 1)
    }

    /// Makes more places if the one of a block has another one, whose slot is there.
    fn make_room(&mut self, block: Block) {
        if self.places.is_empty() {
            self.places.resize_with(PLACES, || None);
        }
        while self.places.len() < MAX_PLACES
            && self.places[self.place(block)]
                .as_ref()
                .is_some_and(|other| other.block != block && !other.slot.is_gone())
        {
            let more = 2 * self.places.len();
            let known = mem::take(&mut self.places);
            self.places.resize_with(more, || None);
            for known in known.into_iter().flatten().filter(|known| !known.slot.is_gone()) {
                let place = self.place(known.block);
                self.places[place] = Some(known);
            }
            self.swept = 0;
        }
    }
}

#[cfg(test)]
mod tests;
