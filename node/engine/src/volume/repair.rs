//! Repairing the object store with what this node has: sectors that are clean here, and the manifest.
//!
//! The sectors become dirty again on the side that holds their newest bytes. Marks on the active side are
//! sealed with it; a seal of the inactive side needs no swap, since no write goes there. Either commit holds
//! what the last one did and nothing that is newer on the other side: still a prefix of the writes (invariant
//! 4 in `docs/invariants.md`). A checkpoint replaces every record before it.

use holdfast_types::SectorRange;

use super::core::{Core, Memory};
use crate::crash_point::{CrashPoint, reach};
use crate::sector_map::{Side, SideSet};

/// Ranges to repair, and the progress of that repair.
#[derive(Default)]
pub(super) struct RepairJob {
    asked: bool,
    wanted: Vec<SectorRange>,
    /// Sides with sectors that were marked and are not committed yet.
    marked: SideSet,
    checkpoint: bool,
}

/// The next step of a repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RepairStep {
    /// A seal of the inactive side.
    Seal(Side),
    /// A commit or a checkpoint, which is due anyway.
    Wait,
    Done,
}

impl RepairJob {
    pub(super) fn ask(&mut self, ranges: Vec<SectorRange>, checkpoint: bool) {
        self.asked = true;
        self.wanted.extend(ranges);
        self.checkpoint |= checkpoint;
    }

    pub(super) fn is_asked(&self) -> bool {
        self.asked
    }

    /// Returns true if `side` is to be sealed although no limit is reached.
    pub(super) fn wants_seal(&self, side: Side) -> bool {
        self.marked.contains(side)
    }

    /// Returns true if a checkpoint is to be made although it is not due.
    pub(super) fn wants_checkpoint(&self) -> bool {
        self.checkpoint
    }

    pub(super) fn committed(&mut self, side: Side) {
        self.marked = self.marked.without(side);
    }

    pub(super) fn checkpointed(&mut self) {
        self.checkpoint = false;
    }

    /// Nothing may be committed any more.
    pub(super) fn forget(&mut self) {
        *self = Self { asked: self.asked, ..Self::default() };
    }

    /// Marks what is clean of the ranges. Nothing is sealed, committed or evicted meanwhile.
    pub(super) fn advance<M: Memory>(&mut self, core: &mut Core<M>) -> RepairStep {
        let all = SectorRange::new(0, core.map.sectors());
        for range in std::mem::take(&mut self.wanted) {
            let Some(range) = range.intersect(all) else { continue };
            for side in Side::BOTH {
                if core.mark_unstored(range, side) {
                    self.marked = self.marked.with(side);
                }
            }
        }
        reach(CrashPoint::MarkedForRepair);
        let inactive = core.map.active().other();
        if self.marked.contains(inactive) {
            RepairStep::Seal(inactive)
        } else if self.marked == SideSet::NONE && !self.checkpoint {
            self.asked = false;
            RepairStep::Done
        } else {
            RepairStep::Wait
        }
    }
}

#[cfg(test)]
mod tests;
