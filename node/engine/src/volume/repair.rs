//! Repairing the object store with what this node has: sectors that are clean here, and the manifest.
//!
//! The sectors become dirty again on the side that holds their newest bytes. Marks on the active side are sealed with it;
//! a seal of the inactive side needs no swap, since no write goes there. Either commit holds what the last one did and
//! nothing that is newer on the other side: still a prefix of the writes (invariant 4 in `docs/invariants.md`). A checkpoint
//! replaces every record before it.

use holdfast_types::SectorRange;

use super::commit::Commit;
use super::seal::Seal;
use super::{Lifecycle, Volume};
use crate::action::{Action, Report};
use crate::crash_point::{CrashPoint, reach};
use crate::manifest::Manifest;
use crate::record::{Body, Record};
use crate::sector_map::{Side, SideSet};

/// What is to be repaired, and how far that is.
#[derive(Default)]
pub(super) struct Repair {
    asked: bool,
    wanted: Vec<SectorRange>,
    /// Sides with sectors that were marked and are not committed yet.
    marked: SideSet,
    checkpoint: bool,
}

impl Repair {
    pub(super) fn ask(&mut self, ranges: Vec<SectorRange>, checkpoint: bool) {
        self.asked = true;
        self.wanted.extend(ranges);
        self.checkpoint |= checkpoint;
    }

    pub(super) fn is_asked(&self) -> bool {
        self.asked
    }

    /// Whether `side` is to be sealed although no limit is reached.
    pub(super) fn wants_seal(&self, side: Side) -> bool {
        self.marked.contains(side)
    }

    /// Whether a checkpoint is to be made although it is not due.
    pub(super) fn wants_checkpoint(&self) -> bool {
        self.checkpoint
    }

    pub(super) fn committed(&mut self, side: Side) {
        self.marked = self.marked.without(side);
    }

    pub(super) fn checkpointed(&mut self) {
        self.checkpoint = false;
    }
}

impl<M: AsRef<[u8]> + AsMut<[u8]>> Volume<M> {
    pub(super) fn advance_repair(&mut self, out: &mut Vec<Action>) {
        let still = self.seal.is_open() && self.commit == Commit::Idle && self.evict.is_idle();
        let Some(manifest) = &self.manifest else { return };
        if !self.repair.asked || !still || self.lifecycle != Lifecycle::Serving {
            return;
        }
        if !manifest.is_attached() || self.detach_was_sent(manifest) {
            // A predecessor's detach record is in the log, or in flight: nothing may be committed after it (invariant 11).
            self.repair = Repair { asked: true, ..Repair::default() };
        }
        let all = SectorRange::new(0, self.map.sectors());
        for range in std::mem::take(&mut self.repair.wanted) {
            let Some(range) = range.intersect(all) else { continue };
            for side in Side::BOTH {
                if self.mark_unstored(range, side) {
                    self.repair.marked = self.repair.marked.with(side);
                }
            }
        }
        reach(CrashPoint::MarkedForRepair);
        let inactive = self.map.active().other();
        if self.repair.marked.contains(inactive) {
            // No flush waits for this one: what flushes cover is dirty on the active side, or committed.
            self.seal = Seal::Draining(SideSet::only(inactive));
        } else if self.repair.marked == SideSet::NONE && !self.repair.checkpoint {
            self.repair.asked = false;
            out.push(Action::Report(Report::Repaired));
        }
    }

    /// Whether a predecessor died with its detach record made for the next place in the log.
    fn detach_was_sent(&self, manifest: &Manifest) -> bool {
        let next = self.pending.as_ref().filter(|pending| pending.seq == manifest.seq().next());
        next.and_then(|pending| Record::decode(&pending.bytes).ok())
            .is_some_and(|record| record.nonce == self.nonce && record.body == Body::Detach)
    }
}
