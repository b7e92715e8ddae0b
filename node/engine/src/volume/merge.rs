//! Merges of the volume's runs.
//!
//! 1. after an attach and after each commit the policy says which neighbours of the list to merge
//!    (`index/policy.rs`);
//! 2. their merge is made and stored in the background (`MergeStored`);
//! 3. the next commit carries it (`MergeCarried`): its run stands in the place of its inputs from then on.
//!
//! Owns: the one merge in progress. Does not own: the list, which is the manifest's.
//! The names are crash points. A commit never waits for a merge, and a volume that commits nothing makes at
//! most one. Upholds invariants 21: the list stays short; 27: a merge whose place the log has passed is
//! dropped (`docs/invariants.md`).
//! On failure: nothing changes; after a later commit the policy is asked again. A merge that its process did
//! not carry is dropped, and its object is garbage.

use holdfast_types::{PlacedId, Seq};

use super::core::{Core, Memory};
use super::lifecycle::Lifecycle;
use crate::action::Action;
use crate::crash_point::{CrashPoint, reach};
use crate::index::policy::{Choice, Shape, next_merge, places_ahead};
use crate::index::{MergePlan, Run, RunRef};
use crate::limit::MERGED_ENTRIES_A_PLACE;
use crate::record::Merge;
use crate::safeguard::{
    Safeguard::{CheckMergePlace, MergeInOrder, MergeKeepsZeros, MergeNeighbours, MergeWhenDue},
    safeguard,
};

/// State of the merge.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Merging {
    Idle,
    /// The inputs from the newest to the oldest are being merged.
    Running(PlacedId, PlacedId),
    /// The next commit is to carry it.
    Stored(Box<Merge>),
}

/// An event that advances a merge.
#[derive(Debug, Clone, PartialEq, Eq)]
enum MergeEvent {
    /// These inputs are to be merged.
    Chosen(PlacedId, PlacedId),
    /// Their merge is stored.
    Stored(Box<RunRef>),
    /// It was not made.
    Failed,
    /// A commit carries it, or it was dropped.
    Taken,
}

impl Merging {
    /// # Panics
    /// On an event that cannot happen in this state: a bug of the engine.
    fn next(self, event: MergeEvent) -> Self {
        use MergeEvent as E;
        match (self, event) {
            (Self::Idle, E::Chosen(newest, oldest)) => Self::Running(newest, oldest),
            (Self::Running(newest, oldest), E::Stored(output)) => {
                Self::Stored(Box::new(Merge { newest, oldest, output: *output }))
            }
            (Self::Running(..), E::Failed) | (Self::Stored(_), E::Taken) => Self::Idle,
            (state, event) => unreachable!("{event:?} in {state:?}"),
        }
    }
}

/// The merge in progress.
pub(super) struct Merger {
    state: Merging,
    /// A commit came into the log since the policy was asked, or it was not asked yet.
    is_due: bool,
    /// Merges that commits of this process carried.
    carried: u64,
}

impl Merger {
    /// A merger that asks the policy at once: a volume that commits once in each of many short attaches is
    /// merged too.
    pub(super) fn idle() -> Self {
        Self { state: Merging::Idle, is_due: safeguard(MergeWhenDue), carried: 0 }
    }

    /// Merges that commits of this process carried.
    pub(super) fn carried(&self) -> u64 {
        self.carried
    }

    /// A commit is in the log.
    pub(super) fn committed(&mut self) {
        self.is_due = safeguard(MergeWhenDue);
    }

    /// Has a merge made if one is due.
    pub(super) fn advance<M: Memory>(&mut self, core: &Core<M>, out: &mut Vec<Action>) {
        let Some(manifest) = &core.manifest else { return };
        let is_asked = std::mem::take(&mut self.is_due);
        if !is_asked || self.state != Merging::Idle || core.lifecycle != Lifecycle::Serving {
            return;
        }
        let runs = manifest.runs();
        let shapes: Vec<Shape> = runs.iter().map(Run::shape).collect();
        let Some(Choice { inputs, level }) = next_merge(&shapes) else { return };
        let entries: u64 = shapes[inputs.clone()].iter().map(|shape| shape.entries).sum();
        let is_oldest = inputs.end == runs.len();
        let chosen = &runs[inputs];
        let [newest, .., oldest] = chosen else { unreachable!("the policy chooses two or more") };
        self.state = std::mem::replace(&mut self.state, Merging::Idle)
            .next(MergeEvent::Chosen(newest.id(), oldest.id()));
        let is_input = |at: &usize| safeguard(MergeNeighbours) || *at != 1;
        let mut inputs: Vec<Run> = (0..chosen.len()).filter(is_input).map(|at| chosen[at].clone()).collect();
        if !safeguard(MergeInOrder) {
            inputs.reverse();
        }
        let inputs = inputs.into();
        let is_oldest = is_oldest || !safeguard(MergeKeepsZeros);
        out.push(Action::Merge(Box::new(MergePlan {
            place: place(core, entries),
            level,
            inputs,
            is_oldest,
        })));
    }

    /// The merge is stored.
    pub(super) fn merged(&mut self, output: Box<RunRef>) {
        reach(CrashPoint::MergeStored);
        self.advance_to(MergeEvent::Stored(output));
    }

    /// The merge was not made.
    pub(super) fn failed(&mut self) {
        self.advance_to(MergeEvent::Failed);
    }

    /// Takes the merge that the record at `next` is to carry. It is dropped where the log has passed its
    /// place.
    pub(super) fn take(&mut self, next: Seq) -> Option<Merge> {
        let Merging::Stored(merge) = &self.state else { return None };
        let merge = Merge::clone(merge);
        self.advance_to(MergeEvent::Taken);
        if merge.output.id.place() < next && safeguard(CheckMergePlace) {
            return None;
        }
        reach(CrashPoint::MergeCarried);
        self.carried += 1;
        Some(merge)
    }

    fn advance_to(&mut self, event: MergeEvent) {
        self.state = std::mem::replace(&mut self.state, Merging::Idle).next(event);
    }
}

/// The place of a merge of so many entries: commits continue while it is made.
fn place<M: Memory>(core: &Core<M>, entries: u64) -> Seq {
    core.place_ahead(places_ahead() + entries / MERGED_ENTRIES_A_PLACE)
}

#[cfg(test)]
mod tests;
