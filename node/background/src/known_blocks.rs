//! Blocks of one volume that are known to be in the slab: reads of them need no task.
//!
//! Owns: for each block the slot found last, the sectors that it has, and the list of runs used to find it.
//! Does not own: the slots. The slab reuses a slot for another content at any time, and a block whose slot is
//! gone is no longer known.
//! Runs on: the ring thread of the volume. Pure: no I/O, no lock.
//!
//! A commit prepends runs to the list. A block stays known unless one of these may have its chunk; any other
//! change of the list, such as a merge, makes all blocks unknown.
//! Invariants: a slot is only returned for sectors that the caller's list composes exactly as stored in the
//! slot (2 in `docs/invariants.md`).

use std::collections::VecDeque;
use std::mem;

use holdfast_format::index::Runs;
use holdfast_format::safeguard::{
    Safeguard::{ForgetChangedBlocks, KnowHeldSectors},
    safeguard,
};
use holdfast_types::{Block, Mask};

use crate::slab_slot::{SlabSlot, WeakSlabSlot};

/// Initial and maximum number of places for blocks: 2 GiB of blocks.
const PLACES: usize = 64;
const MAX_PLACES: usize = 1 << 14;
/// Number of adjacent places that a block may use.
const WAYS: usize = 2;
/// Number of remembered changes of the list. Blocks found before them are forgotten.
const CHANGES: usize = 32;
/// Maximum first uses reported to the slab per call; others are reported when their places are swept.
const MAX_USED: usize = 256;
/// Number of places swept per call.
const SWEPT: usize = 64;

/// A block in a slot of the slab.
#[derive(Debug, Clone)]
pub struct SlabBlock {
    /// The slot.
    pub slot: SlabSlot,
    /// The sectors of the block whose slot content matches the runs; the others are zeros there.
    pub sectors: Mask,
}

#[derive(Debug)]
struct KnownBlock {
    block: Block,
    sectors: Mask,
    slot: WeakSlabSlot,
    /// Number of the list used to find it, or of a later one with the same runs for its chunk.
    list: u64,
    /// True if it was used since the last report to the slab.
    is_used: bool,
}

/// A list of runs that replaced another one.
#[derive(Debug)]
struct ListChange {
    runs: Runs,
    /// The first of its runs that the other one did not have.
    added: usize,
}

/// Blocks of one volume that are known to be in the slab.
#[derive(Debug, Default)]
pub struct KnownBlocks {
    /// Empty, or with a power of two as its length.
    places: Vec<Option<KnownBlock>>,
    /// Number of occupied places.
    taken: usize,
    /// The newest list.
    runs: Option<Runs>,
    /// Number of the newest list.
    list: u64,
    /// The latest lists, newest last.
    changes: VecDeque<ListChange>,
    /// Places of blocks used since the last report to the slab.
    used: Vec<usize>,
    /// The next place to sweep.
    next: usize,
}

impl KnownBlocks {
    /// Returns the slot that has the sectors `wanted` of `block` as `runs` compose them, if it is known. The
    /// caller's lists must be those of one volume, and never go back to an older one.
    #[inline]
    pub fn find(&mut self, block: Block, wanted: Mask, runs: &Runs) -> Option<SlabSlot> {
        if self.places.is_empty() {
            return None;
        }
        self.follow(runs);
        let place = self.find_place(block)?;
        let known = self.places[place].as_mut()?;
        if !wanted.minus(known.sectors).is_empty() && safeguard(KnowHeldSectors) {
            return None;
        }
        let slot =
            if Self::is_changed(known, self.list, &self.changes) { None } else { known.slot.upgrade() };
        let Some(slot) = slot else {
            self.clear(place);
            return None;
        };
        known.list = self.list;
        if !known.is_used {
            known.is_used = true;
            if self.used.len() < MAX_USED {
                self.used.push(place);
            }
        }
        Some(slot)
    }

    /// Returns true if a run added since a block was found may have its chunk.
    fn is_changed(known: &KnownBlock, list: u64, changes: &VecDeque<ListChange>) -> bool {
        if known.list == list || !safeguard(ForgetChangedBlocks) {
            return false;
        }
        let since = usize::try_from(list - known.list).unwrap_or(usize::MAX);
        let Some(forgotten) = changes.len().checked_sub(since) else { return true };
        let chunk = known.block.chunk();
        changes
            .range(forgotten..)
            .any(|change| change.runs[..change.added].iter().any(|run| run.chunk_ranges().may_hold(chunk)))
    }

    /// Records a block that was found with `runs`. No effect if the list has changed since.
    pub fn found(&mut self, block: Block, found: &SlabBlock, runs: &Runs) {
        if self.runs.is_none() {
            self.runs = Some(runs.clone());
        }
        if !self.runs.as_ref().is_some_and(|newest| newest.is(runs)) {
            return;
        }
        let &SlabBlock { ref slot, sectors } = found;
        let slot = slot.downgrade();
        let place = self.place_for(block);
        let known = KnownBlock { block, sectors, slot, list: self.list, is_used: false };
        self.taken += usize::from(self.places[place].replace(known).is_none());
    }

    /// Forgets a block whose slot is unusable.
    pub fn forget(&mut self, block: Block) {
        if let Some(place) = self.find_place(block) {
            self.clear(place);
        }
    }

    /// Returns slots of blocks used since the last call: those of first uses, and those of a rotating subset
    /// of places. Forgets blocks there whose slots are gone, so that they use no memory.
    pub fn take_used(&mut self) -> Vec<WeakSlabSlot> {
        let (mut places, mut slots) = (mem::take(&mut self.used), Vec::new());
        let end = (self.next + SWEPT).min(self.places.len());
        places.extend(mem::replace(&mut self.next, if end == self.places.len() { 0 } else { end })..end);
        for place in places {
            let Some(known) = &mut self.places[place] else { continue };
            if known.slot.is_gone() {
                self.clear(place);
            } else if mem::take(&mut known.is_used) {
                slots.push(known.slot.clone());
            }
        }
        slots
    }

    /// Records `runs` as the volume's current list.
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

    /// Returns the first place that a block may use; requires existing places. Blocks at regular distances,
    /// such as neighbours and ext4's block groups, get different ones. The factor is 2^64 divided by the
    /// golden ratio.
    #[inline]
    fn first_place(&self, block: Block) -> usize {
        let mixed = block.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (mixed as usize * WAYS) & (self.places.len() - 1)
    }

    #[inline]
    fn find_place(&self, block: Block) -> Option<usize> {
        if self.places.is_empty() {
            return None;
        }
        let first = self.first_place(block);
        let is_of = |place: &usize| self.places[*place].as_ref().is_some_and(|known| known.block == block);
        (first..first + WAYS).find(is_of)
    }

    fn clear(&mut self, place: usize) {
        self.taken -= usize::from(self.places[place].take().is_some());
    }

    /// Returns the place for a block: its own, a free one or, while less than a quarter of the table is
    /// occupied, that of another block, preferably an unused one. Otherwise doubles the table first.
    fn place_for(&mut self, block: Block) -> usize {
        if self.places.is_empty() {
            self.places.resize_with(PLACES, || None);
        }
        if let Some(own) = self.find_place(block) {
            return own;
        }
        loop {
            let first = self.first_place(block);
            let is_free =
                |place: &usize| self.places[*place].as_ref().is_none_or(|known| known.slot.is_gone());
            if let Some(free) = (first..first + WAYS).find(is_free) {
                return free;
            }
            if self.places.len() == MAX_PLACES || 4 * self.taken < self.places.len() {
                let is_unused =
                    |place: &usize| self.places[*place].as_ref().is_some_and(|known| !known.is_used);
                return (first..first + WAYS).find(is_unused).unwrap_or(first);
            }
            self.grow();
        }
    }

    fn grow(&mut self) {
        let more = 2 * self.places.len();
        let known = mem::take(&mut self.places);
        self.places.resize_with(more, || None);
        // Blocks dropped from `used` are reported when their places are swept.
        (self.taken, self.next) = (0, 0);
        self.used.clear();
        for known in known.into_iter().flatten().filter(|known| !known.slot.is_gone()) {
            let first = self.first_place(known.block);
            if let Some(free) = (first..first + WAYS).find(|place| self.places[*place].is_none()) {
                self.places[free] = Some(known);
                self.taken += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
