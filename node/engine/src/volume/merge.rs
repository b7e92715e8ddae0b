//! Merges of the volume's runs.
//!
//! 1. after an attach and after each record of this writer the policy chooses neighbours of the list to
//!    merge (`index/policy.rs`);
//! 2. they are merged and the output is stored in the background (`MergeStored`);
//! 3. the next commit carries it (`MergeCarried`): its run replaces its inputs from then on. Without a
//!    commit, a separate record is created for a merge into the base, which frees space, or if the list is
//!    long.
//!
//! Owns: the merges in progress, one of each kind, because a merge into the base takes hours, during which
//! newer levels must be merged. Does not own: the list, which is the manifest's. The names are crash points.
//! A commit never waits for a merge. Upholds invariants 21: the list stays short; 27: a merge whose place the
//! log has passed is dropped; 11: a merge whose inputs are no longer in the list as planned is dropped, too
//! (`docs/invariants.md`).
//! On failure: the list stays unchanged. A run that is damaged, or whose merge the store rejects, is
//! excluded from later merges of this process; newer and older runs are not. A merge that no record of its
//! process carried is dropped, and its object is garbage; a detach does not wait for merges.

use holdfast_format::crash_point::{CrashPoint, reach};
use holdfast_format::index::policy::{Choice, MergeKind, Shape, is_due_whole, max_runs, next_merges};
use holdfast_format::index::{MergePlan, Run, RunRef, Runs};
use holdfast_format::manifest::Manifest;
use holdfast_format::manifest::apply::LogError;
use holdfast_format::record::{Body, Merge, Record};
use holdfast_format::safeguard::{
    Safeguard::{
        CarryFreshMerge, CheckMergePlace, MergeInOrder, MergeKeepsZeros, MergeNeighbours, MergeWhenDue,
    },
    safeguard,
};
use holdfast_types::{Place, PlacedId};

use super::core::{Core, Memory};
use super::lifecycle::Lifecycle;
use crate::action::Action;

/// State of the merges of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Merging {
    Idle,
    /// These inputs, newest first, are being merged into a run with this place.
    Running(Vec<PlacedId>, Place),
    /// The merge is stored, and the next record will carry it.
    Stored(Vec<PlacedId>, Box<RunRef>),
}

/// An event that advances a merge.
#[derive(Debug, Clone, PartialEq, Eq)]
enum MergeEvent {
    /// These inputs were chosen for a merge into a run with this place.
    Chosen(Vec<PlacedId>, Place),
    /// Their merge is stored.
    Stored(Box<RunRef>),
    /// The merge failed.
    Failed,
    /// A record carries the merge, or the merge was dropped.
    Taken,
}

impl Merging {
    /// # Panics
    /// On an event that cannot happen in this state: a bug of the engine.
    fn next(self, event: MergeEvent) -> Self {
        use MergeEvent as E;
        match (self, event) {
            (Self::Idle, E::Chosen(inputs, place)) => Self::Running(inputs, place),
            (Self::Running(inputs, _), E::Stored(output)) => Self::Stored(inputs, output),
            (Self::Running(..), E::Failed) | (Self::Stored(..), E::Taken) => Self::Idle,
            (state, event) => unreachable!("{event:?} in {state:?}"),
        }
    }

    fn advance(&mut self, event: MergeEvent) {
        *self = std::mem::replace(self, Self::Idle).next(event);
    }

    fn inputs(&self) -> &[PlacedId] {
        match self {
            Self::Idle => &[],
            Self::Running(inputs, _) | Self::Stored(inputs, _) => inputs,
        }
    }

    /// Returns the place of the output that a record may still add.
    fn place(&self) -> Option<Place> {
        match self {
            Self::Idle => None,
            Self::Running(_, place) => Some(*place),
            Self::Stored(_, output) => Some(output.id.place()),
        }
    }
}

/// The merges in progress.
pub(super) struct Merger {
    levels: Merging,
    base: Merging,
    /// The place of the next merge, once it is known. A process starts past all places of the previous
    /// process, so its next record closes those.
    next_place: Option<Place>,
    /// True if the policy was not called yet, or not since the last record.
    is_due: bool,
    /// Runs excluded from the merges of this process.
    barred: Vec<PlacedId>,
    /// Merges that records of this process carried.
    carried: u64,
    /// Merges that were stored but not carried.
    dropped: u64,
}

impl Merger {
    /// Creates a merger that calls the policy at once, so that a volume with one commit in each of many
    /// short attaches is merged, too.
    pub(super) fn idle() -> Self {
        Self {
            levels: Merging::Idle,
            base: Merging::Idle,
            next_place: None,
            is_due: safeguard(MergeWhenDue),
            barred: Vec::new(),
            carried: 0,
            dropped: 0,
        }
    }

    /// Returns the number of merges carried by records of this process.
    pub(super) fn carried(&self) -> u64 {
        self.carried
    }

    /// Returns the number of merges that were stored but not carried.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Handles a record of this writer in the log.
    pub(super) fn won(&mut self, record: &Record) {
        if let Body::Change { merges, .. } = &record.body {
            self.is_due = safeguard(MergeWhenDue);
            self.carried += merges.len() as u64;
        }
    }

    /// Requests due merges. A record in flight, even from the previous process, may carry merges of the
    /// same runs: until it is in the log, no merge is chosen.
    pub(super) fn advance<M: Memory>(&mut self, core: &Core<M>, log_is_idle: bool, out: &mut Vec<Action>) {
        let Some(manifest) = core.manifest.as_ref().filter(|manifest| manifest.is_attached()) else { return };
        let list_is_known = log_is_idle || !safeguard(CarryFreshMerge);
        if !list_is_known || core.lifecycle != Lifecycle::Serving || !std::mem::take(&mut self.is_due) {
            return;
        }
        let runs = manifest.runs();
        self.barred.retain(|id| runs.iter().any(|run| run.id() == *id));
        while let Some(choice) = self.next_choice(runs) {
            let inputs = runs[choice.inputs.clone()].iter().map(Run::id).collect();
            let place = self.next_place(manifest);
            self.next_place = Some(place.next());
            self.of(choice.kind).advance(MergeEvent::Chosen(inputs, place));
            out.push(Action::Merge(Box::new(plan(runs, choice, place))));
        }
    }

    /// Returns the next merge of a kind without a merge in progress.
    fn next_choice(&self, runs: &Runs) -> Option<Choice> {
        let taken = [&self.levels, &self.base].map(Merging::inputs);
        let is_free = |run: &&Run| {
            let id = run.id();
            !self.barred.contains(&id) && !taken.iter().any(|inputs| inputs.contains(&id))
        };
        let shapes: Vec<Option<Shape>> =
            runs.iter().map(|run| Some(run).filter(is_free).map(Run::shape)).collect();
        next_merges(&shapes).into_iter().find(|choice| match choice.kind {
            MergeKind::Level => self.levels == Merging::Idle,
            MergeKind::Base => self.base == Merging::Idle,
        })
    }

    fn of(&mut self, kind: MergeKind) -> &mut Merging {
        match kind {
            MergeKind::Level => &mut self.levels,
            MergeKind::Base => &mut self.base,
        }
    }

    /// Handles a stored merge.
    pub(super) fn merged(&mut self, kind: MergeKind, output: Box<RunRef>) {
        reach(CrashPoint::MergeStored);
        self.of(kind).advance(MergeEvent::Stored(output));
    }

    /// Handles a failed merge. `barred` is excluded from later merges; the rest of the list is not.
    pub(super) fn failed(&mut self, kind: MergeKind, barred: PlacedId) {
        self.of(kind).advance(MergeEvent::Failed);
        self.barred.push(barred);
        self.is_due = safeguard(MergeWhenDue);
    }

    /// Returns true if a record should be created for merges alone.
    pub(super) fn wants_record(&self, runs: &Runs) -> bool {
        let is_stored = |merging: &Merging| matches!(merging, Merging::Stored(..));
        // A stored merge may make a merge of the whole list due, which is chosen only after a record carries
        // it.
        let is_awaited = || runs.len() > max_runs() || is_due_whole(&shapes(runs));
        is_stored(&self.base) || (is_stored(&self.levels) && is_awaited())
    }

    /// Takes the merges for the next record. Drops a merge whose exact inputs are no longer in the list.
    pub(super) fn take(&mut self, manifest: &Manifest) -> Vec<Merge> {
        let mut merges = Vec::new();
        for kind in [MergeKind::Level, MergeKind::Base] {
            let Merging::Stored(inputs, output) = self.of(kind) else { continue };
            let [newest, .., oldest] = inputs[..] else { unreachable!("the policy chooses two or more") };
            let ids: Vec<PlacedId> = manifest.runs().iter().map(Run::id).collect();
            let is_stale = !ids.windows(inputs.len()).any(|ids| ids == inputs) && safeguard(CarryFreshMerge);
            merges.push(Merge { newest, oldest, output: RunRef::clone(output) });
            if is_stale || refuses(manifest, &merges) {
                merges.pop();
                self.dropped += 1;
            }
            self.of(kind).advance(MergeEvent::Taken);
        }
        if !merges.is_empty() {
            reach(CrashPoint::MergeCarried);
        }
        merges
    }

    /// Returns the place below which the next record, which has taken its merges, closes all others: no
    /// current or later merge has a lower place. Unnamed outputs of closed merges are thus known to be
    /// garbage.
    pub(super) fn closed(&mut self, manifest: &Manifest) -> Place {
        let next = self.next_place(manifest);
        let open = [&self.levels, &self.base].into_iter().filter_map(Merging::place).min();
        open.filter(|_| safeguard(CheckMergePlace)).unwrap_or(next)
    }

    fn next_place(&mut self, manifest: &Manifest) -> Place {
        *self.next_place.get_or_insert_with(|| manifest.first_place_of_process())
    }
}

fn shapes(runs: &Runs) -> Vec<Shape> {
    runs.iter().map(Run::shape).collect()
}

/// Returns true if the next record cannot carry `merges`.
fn refuses(manifest: &Manifest, merges: &[Merge]) -> bool {
    match manifest.check_merges(merges) {
        Ok(()) => false,
        Err(LogError::Place { .. }) => safeguard(CheckMergePlace),
        Err(_) => safeguard(CarryFreshMerge),
    }
}

/// Returns the plan of a chosen merge.
fn plan(runs: &Runs, choice: Choice, place: Place) -> MergePlan {
    let Choice { kind, inputs, level } = choice;
    let is_oldest = inputs.end == runs.len() || !safeguard(MergeKeepsZeros);
    let chosen = &runs[inputs];
    let is_input = |at: &usize| safeguard(MergeNeighbours) || *at != 1;
    let mut inputs: Vec<Run> = (0..chosen.len()).filter(is_input).map(|at| chosen[at].clone()).collect();
    if !safeguard(MergeInOrder) {
        inputs.reverse();
    }
    MergePlan { kind, place, level, inputs: runs.with(inputs), is_oldest }
}

#[cfg(test)]
mod tests;
