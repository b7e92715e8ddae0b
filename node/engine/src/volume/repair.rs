//! Repairs the object store from this node's data: sectors that are clean here, and the manifest.
//!
//! The sectors become dirty again on the side with their newest bytes. Sectors marked on the active side are
//! sealed with it; a seal of the inactive side needs no swap, because no write goes to it. Either commit thus
//! has the data of the last commit and nothing newer from the other side, so the volume's content is still a
//! prefix of the writes (invariant 4 in `docs/invariants.md`). A checkpoint replaces every earlier record.

use holdfast_format::crash_point::{CrashPoint, reach};
use holdfast_format::side::{Side, SideSet};
use holdfast_types::SectorRange;

use super::core::{Core, Memory};

/// The repair in progress, if any.
#[derive(Default)]
pub(super) struct RepairJob(Option<Repair>);

/// The remaining work of a repair.
#[derive(Default)]
struct Repair {
    /// Ranges that are not marked yet.
    wanted: Vec<SectorRange>,
    /// Sides with marked sectors that are not committed yet.
    marked: SideSet,
    /// True if a checkpoint must be created although it is not due.
    checkpoint: bool,
}

/// The next step of a repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RepairStep {
    /// Seal the inactive side.
    Seal(Side),
    /// Wait for a commit or a checkpoint, which is due anyway.
    Wait,
    Done,
}

impl RepairJob {
    pub(super) fn ask(&mut self, ranges: Vec<SectorRange>, checkpoint: bool) {
        let repair = self.0.get_or_insert_default();
        repair.wanted.extend(ranges);
        repair.checkpoint |= checkpoint;
    }

    pub(super) fn is_asked(&self) -> bool {
        self.0.is_some()
    }

    /// Returns true if `side` must be sealed although no limit is reached.
    pub(super) fn wants_seal(&self, side: Side) -> bool {
        self.0.as_ref().is_some_and(|repair| repair.marked.contains(side))
    }

    /// Returns true if a checkpoint must be created although it is not due.
    pub(super) fn wants_checkpoint(&self) -> bool {
        self.0.as_ref().is_some_and(|repair| repair.checkpoint)
    }

    pub(super) fn committed(&mut self, side: Side) {
        if let Some(repair) = &mut self.0 {
            repair.marked = repair.marked.without(side);
        }
    }

    pub(super) fn checkpointed(&mut self) {
        if let Some(repair) = &mut self.0 {
            repair.checkpoint = false;
        }
    }

    /// Drops the repair in progress: commits are no longer allowed.
    pub(super) fn forget(&mut self) {
        self.0 = self.0.take().map(|_unfinished| Repair::default());
    }

    /// Marks the clean data of the ranges. No seal, commit or eviction runs in the meantime.
    pub(super) fn advance<M: Memory>(&mut self, core: &mut Core<M>) -> RepairStep {
        let Some(repair) = &mut self.0 else { return RepairStep::Done };
        let all = SectorRange::new(0, core.map.sectors());
        for range in std::mem::take(&mut repair.wanted) {
            let Some(range) = range.intersect(all) else { continue };
            for side in Side::BOTH {
                if core.mark_unstored(range, side) {
                    repair.marked = repair.marked.with(side);
                }
            }
        }
        reach(CrashPoint::MarkedForRepair);
        let inactive = core.map.active().other();
        if repair.marked.contains(inactive) {
            RepairStep::Seal(inactive)
        } else if repair.marked == SideSet::NONE && !repair.checkpoint {
            self.0 = None;
            RepairStep::Done
        } else {
            RepairStep::Wait
        }
    }
}

#[cfg(test)]
mod tests;
