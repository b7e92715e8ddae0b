//! A cut: the common point at which snapshots of several volumes are taken.
//!
//! 1. the volume prepares (`Event::PrepareCut`): the seal in progress, or else one of the dirty data, is
//!    committed, which proves that the store answers, and for a while no seal starts because of the amount
//!    or the age of dirty data. The next step thus takes no longer than a write in flight. If a seal starts
//!    nevertheless and is not expected to end soon, the volume prepares again;
//! 2. writes wait (`Event::Cut`). Once those in flight have ended, the snapshot is requested, and the
//!    sides are swapped if anything is dirty. From then on the volume is *held*;
//! 3. when all volumes are held, writes continue (`Event::ReleaseCut`). The answer says whether writes
//!    waited until then: if the hold of one volume lapsed earlier, the snapshots have no common point.
//!
//! A write that is not in its volume's snapshot thus completes only after all volumes are held. Any
//! operation started after its completion, on any of the volumes, is in no snapshot either.
//!
//! An earlier snapshot of the same name, taken or in progress, has an earlier point, so no cut is possible.
//!
//! The snapshot is *exact*: it contains no data of a later seal, or else is refused (`volume/snapshot.rs`).
//!
//! Owns: the state of the cut. Does not own: the snapshot, the seal.
//! Upholds invariant 32 (`docs/invariants.md`).
//! On failure: a hold ends by itself after [`HOLD_MS`]. The state does not outlive the process: a
//! successor answers that the cut has lapsed.

use holdfast_types::{Millis, Seq, SnapshotUid};

use crate::action::{Action, Report};
use crate::limit::{HOLD_MS, PREPARED_AT_MOST_MS, PREPARED_MS};
use crate::snapshot::CutAnswer;

/// CutState of a volume's cut.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
enum CutState {
    #[default]
    Idle,
    /// Waits for the commit of the seal with number `seal`. `first` is the time at which it was first
    /// prepared, if it was.
    Preparing { uid: SnapshotUid, seal: u64, first: Option<Millis> },
    /// Defers seals due to the amount of dirty data until `until`, and those due to its age for
    /// [`PREPARED_MS`] after `since` at least. It was first prepared at `first`.
    Prepared { uid: SnapshotUid, until: Millis, since: Millis, first: Millis },
    /// Holds writes until `until` at most, and waits for those in flight.
    Stopping { uid: SnapshotUid, until: Millis },
    /// Holds writes until `until` at most, and waits for the seal with this number.
    Swapping { uid: SnapshotUid, until: Millis, seal: u64 },
    /// The point is after all completed writes; new writes wait until this time at most.
    Held(SnapshotUid, Millis),
}

/// The cut of a volume.
#[derive(Debug, Default)]
pub(super) struct Cut {
    state: CutState,
    /// Positions of forgotten snapshots.
    forgotten: Vec<Seq>,
}

/// The newest seals of a volume, by number, and the one in progress.
#[derive(Debug, Clone, Copy)]
pub(super) struct SealCounts {
    /// The newest seal that was begun.
    pub(super) begun: u64,
    /// The newest seal whose commit is in the log.
    pub(super) committed: u64,
    /// True if a hold would wait for the seal in progress, and that is not expected to end soon.
    pub(super) delays_hold: bool,
}

/// The next step of the volume for a cut.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CutAdvance {
    /// Nothing.
    Wait,
    /// Request the snapshot with this uid; these snapshots are forgotten. Answer: [`Cut::asked`].
    Ask(SnapshotUid, Vec<Seq>),
    /// Writes may continue.
    Continue,
}

impl Cut {
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.state == CutState::Idle
    }

    /// Returns true if writes must wait.
    #[inline]
    pub(super) fn stops_writes(&self) -> bool {
        matches!(self.state, CutState::Stopping { .. } | CutState::Swapping { .. } | CutState::Held(..))
    }

    /// Returns true if seals due to the amount of dirty data must wait.
    pub(super) fn defers_seals(&self) -> bool {
        matches!(self.state, CutState::Prepared { .. })
    }

    /// Returns true if a seal of data that is overdue since `overdue_at` must wait. Repeated requests do not
    /// extend this time: so much older is the data that the loss of the node costs.
    pub(super) fn defers_overdue(&self, overdue_at: Millis, now: Millis) -> bool {
        matches!(self.state, CutState::Prepared { since, .. } if now < since.max(overdue_at) + PREPARED_MS)
    }

    /// Prepares for a cut, or extends the preparation within a bound. `seal` is in progress or covers the
    /// dirty data; returns true if the cut waits for it.
    pub(super) fn prepare(
        &mut self,
        uid: SnapshotUid,
        forgotten: Vec<Seq>,
        seal: u64,
        now: Millis,
        out: &mut Vec<Action>,
    ) -> bool {
        match &mut self.state {
            CutState::Idle => {
                self.state = CutState::Preparing { uid, seal, first: None };
                self.forgotten = forgotten;
                return true;
            }
            CutState::Preparing { uid: known, .. } if *known == uid => {}
            CutState::Prepared { uid: known, first, .. }
                if *known == uid && now >= *first + PREPARED_AT_MOST_MS =>
            {
                self.lapse(out);
            }
            CutState::Prepared { uid: known, until, .. } if *known == uid => {
                *until = now + PREPARED_MS;
                answer(uid, CutAnswer::Prepared, out);
            }
            CutState::Preparing { .. }
            | CutState::Prepared { .. }
            | CutState::Stopping { .. }
            | CutState::Swapping { .. }
            | CutState::Held(..) => answer(uid, CutAnswer::Busy, out),
        }
        false
    }

    /// Prepares the volume again if a hold would wait long for the seal in progress.
    pub(super) fn note_seals(&mut self, seals: SealCounts) {
        if let CutState::Prepared { uid, first, .. } = self.state
            && seals.delays_hold
        {
            self.state = CutState::Preparing { uid, seal: seals.begun, first: Some(first) };
        }
    }

    /// Holds writes from now on, if the volume is prepared for this cut; otherwise the cut lapses.
    pub(super) fn begin(&mut self, uid: SnapshotUid, now: Millis, out: &mut Vec<Action>) {
        match &self.state {
            CutState::Prepared { uid: known, .. } if *known == uid => {
                self.state = CutState::Stopping { uid, until: now + HOLD_MS };
            }
            CutState::Preparing { uid: known, .. } if *known == uid => self.lapse(out),
            CutState::Stopping { uid: known, .. } | CutState::Swapping { uid: known, .. }
                if *known == uid => {}
            CutState::Held(known, _) if *known == uid => answer(uid, CutAnswer::Held, out),
            CutState::Idle
            | CutState::Preparing { .. }
            | CutState::Prepared { .. }
            | CutState::Stopping { .. }
            | CutState::Swapping { .. }
            | CutState::Held(..) => answer(uid, CutAnswer::Lapsed, out),
        }
    }

    /// Answers whether the volume was held until now. Returns true if writes may continue.
    pub(super) fn release(&mut self, uid: SnapshotUid, out: &mut Vec<Action>) -> bool {
        let (own, said) = match &self.state {
            CutState::Held(known, _) => (*known == uid, CutAnswer::Released),
            CutState::Preparing { uid: known, .. } | CutState::Prepared { uid: known, .. } => {
                (*known == uid, CutAnswer::Lapsed)
            }
            CutState::Stopping { uid: known, .. } | CutState::Swapping { uid: known, .. } => {
                (*known == uid, CutAnswer::Lapsed)
            }
            CutState::Idle => (false, CutAnswer::Lapsed),
        };
        answer(uid, if own { said } else { CutAnswer::Lapsed }, out);
        let continues = own && self.stops_writes();
        if own {
            self.state = CutState::Idle;
        }
        continues
    }

    /// Notes that the snapshot of [`CutAdvance::Ask`] was requested, at the point of the seal with this
    /// number.
    pub(super) fn asked(&mut self, seal: u64) {
        if let CutState::Stopping { uid, until } = self.state {
            self.state = CutState::Swapping { uid, until, seal };
        }
    }

    /// Advances the cut of a volume with `stores` writes and punches in flight.
    pub(super) fn advance(
        &mut self,
        now: Millis,
        stores: u32,
        seals: SealCounts,
        out: &mut Vec<Action>,
    ) -> CutAdvance {
        match &mut self.state {
            CutState::Idle => {}
            CutState::Preparing { uid, seal, first } => {
                let (uid, first) = (*uid, *first);
                if first.is_some_and(|first| now >= first + PREPARED_AT_MOST_MS) {
                    self.lapse(out);
                } else if seals.committed >= *seal && !seals.delays_hold {
                    let (until, first) = (now + PREPARED_MS, first.unwrap_or(now));
                    self.state = CutState::Prepared { uid, until, since: now, first };
                    answer(uid, CutAnswer::Prepared, out);
                }
            }
            CutState::Prepared { until, .. } if now >= *until => self.lapse(out),
            CutState::Prepared { .. } => self.note_seals(seals),
            CutState::Stopping { until, .. }
            | CutState::Swapping { until, .. }
            | CutState::Held(_, until)
                if now >= *until =>
            {
                self.lapse(out);
                return CutAdvance::Continue;
            }
            CutState::Stopping { uid, .. } => {
                if stores == 0 {
                    return CutAdvance::Ask(*uid, std::mem::take(&mut self.forgotten));
                }
            }
            CutState::Swapping { uid, until, seal } => {
                if seals.begun >= *seal {
                    let (uid, until) = (*uid, *until);
                    self.state = CutState::Held(uid, until);
                    answer(uid, CutAnswer::Held, out);
                }
            }
            CutState::Held(..) => {}
        }
        CutAdvance::Wait
    }

    /// Ends the cut without a common point.
    pub(super) fn lapse(&mut self, out: &mut Vec<Action>) {
        match std::mem::take(&mut self.state) {
            CutState::Idle => {}
            CutState::Preparing { uid, .. }
            | CutState::Prepared { uid, .. }
            | CutState::Stopping { uid, .. }
            | CutState::Swapping { uid, .. }
            | CutState::Held(uid, _) => answer(uid, CutAnswer::Lapsed, out),
        }
    }
}

/// Answers a request for a cut.
pub(super) fn answer(uid: SnapshotUid, answer: CutAnswer, out: &mut Vec<Action>) {
    out.push(Action::Report(Report::Cut { uid, answer }));
}

#[cfg(test)]
mod tests;
