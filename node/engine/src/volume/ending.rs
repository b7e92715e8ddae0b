//! The log, fencing and the end: the steps in which several owners of a volume's state take part.
//!
//! Owns: nothing; each step asks the owners, and lists in one place its changes to their state.
//! Does not own: the state of the log (`volume/commit.rs`), the states of a volume (`volume/lifecycle.rs`).

use holdfast_format::crash_point::{CrashPoint, reach};
use holdfast_format::manifest::Manifest;
use holdfast_format::record::Body;
use holdfast_format::safeguard::{
    Safeguard::{LastRoundOfFenced, UploadStillSides},
    safeguard,
};
use holdfast_format::side::SideSet;
use holdfast_types::Seq;

use super::Volume;
use super::commit::LogNews;
use super::flush::RoundProgress;
use super::lifecycle::{FencedStep, Lifecycle, LifecycleEvent};
use super::seal::Seal;
use crate::action::{Action, Report};
use crate::event::Errno;
use crate::snapshot::SnapshotRefused;

impl<M: AsRef<[u8]> + AsMut<[u8]>> Volume<M> {
    pub(super) fn manifest_loaded(&mut self, manifest: Manifest, out: &mut Vec<Action>) {
        // A log that was set back lacks what is clean here.
        let is_set_back = manifest.seq() < self.core.known_seq();
        if manifest.is_deleted() || manifest.writer() != Some(self.log.nonce()) || is_set_back {
            return self.fence(manifest.seq(), out);
        }
        self.log.learned(&manifest, self.core.now);
        self.core.learn(manifest);
        reach(CrashPoint::LogLearned);
        self.unpark(out);
    }

    /// A writer that commits nothing checks its next place in the log, so that it learns of its fencing: one
    /// that is idle, or cannot read what it is to commit.
    pub(super) fn probe_log(&mut self, out: &mut Vec<Action>) {
        let commits_nothing = match self.core.lifecycle {
            Lifecycle::Serving => matches!(self.sealer.seal(), Seal::Open | Seal::Unreadable(_)),
            Lifecycle::Detaching => matches!(self.sealer.seal(), Seal::Unreadable(_)),
            Lifecycle::Recovering { .. }
            | Lifecycle::Releasing
            | Lifecycle::Closing(_)
            | Lifecycle::Detached
            | Lifecycle::Fenced(_) => false,
        };
        if commits_nothing {
            self.log.probe(&self.core, out);
        }
    }

    pub(super) fn log_news(&mut self, news: LogNews, out: &mut Vec<Action>) {
        match news {
            LogNews::Nothing => {}
            LogNews::Fenced(known) => self.fence(known, out),
            LogNews::Created(record) => {
                self.core.follow(&record);
                self.log.created(self.core.now);
                self.merger.won(&record);
                if record.body.has_merges() {
                    self.unpark(out);
                }
                if record.body.snapshot_taken().is_some() {
                    let manifest = self.core.manifest.as_ref().expect("it has followed the record");
                    self.snapshots.registered(manifest, out);
                }
                match record.body {
                    Body::Change { .. } if self.sealer.is_committing() => {
                        self.sealer.committed();
                        self.clear(out);
                    }
                    Body::Detach { .. } if self.core.lifecycle == Lifecycle::Releasing => {
                        self.close(record.seq)
                    }
                    // Of the previous process: no mark of it was left. Its device was gone where it detached,
                    // and this writer is told to detach too.
                    Body::Change { .. } | Body::Detach { .. } => {}
                    Body::Create { .. } | Body::Attach { .. } | Body::Delete => {
                        unreachable!("a running writer makes none of these")
                    }
                }
            }
        }
    }

    pub(super) fn checkpoint_written(&mut self, seq: Seq, written: bool) {
        self.log.checkpoint_written(seq, written);
        if written {
            self.repair.checkpointed();
        }
    }

    /// Sends the record that the previous process had stored. The seal that it is of was found again in the
    /// live map; its sides are still, since no request was planned on them.
    pub(super) fn repeat_record(&mut self, out: &mut Vec<Action>) {
        let Some(record) = self.log.left() else { return };
        // One without segments is of no seal.
        if let (Body::Change { segments, .. }, Seal::Draining(sides)) = (&record.body, self.sealer.seal())
            && !segments.is_empty()
        {
            if !self.core.is_still(sides) && safeguard(UploadStillSides) {
                return;
            }
            self.sealer.record_repeated();
        }
        self.log.repeat(&self.core, out);
    }

    /// Invariant 5. Another writer holds the volume: nothing is served or uploaded any more, nothing local is
    /// touched. `known` is how much of the log says so, or all of it that does not.
    pub(super) fn fence(&mut self, known: Seq, out: &mut Vec<Action>) {
        if self.core.lifecycle.is_fenced() || self.core.lifecycle == Lifecycle::Detached {
            return;
        }
        self.lives_on(LifecycleEvent::Fenced);
        // What the last round names came after all that this writer's commits call invalid.
        self.core.header.seq = self.core.header.seq.max(known);
        self.core.unflushed.header_changed();
        reach(CrashPoint::Fenced);
        self.data.park_paced(self.core.now);
        while let Some(id) = self.data.requests.unpark() {
            self.data.requests.complete(id, Err(Errno::EIO), out);
        }
        for waiter in self.sealer.seals.take_waiting().into_iter().chain(self.rounds.fenced()) {
            self.data.requests.complete(waiter.id, Err(Errno::EIO), out);
        }
        if std::mem::take(&mut self.repair).is_asked() {
            out.push(Action::Report(Report::Repaired));
        }
        self.snapshots.refuse_all(SnapshotRefused::Fenced, out);
        self.cut.lapse(out);
        self.growth.forget();
        out.push(Action::Report(Report::Fenced));
    }

    pub(super) fn detach(&mut self, out: &mut Vec<Action>) {
        assert!(self.data.requests.is_empty(), "a device is gone before its detach");
        self.lives_on(LifecycleEvent::Detach);
        out.extend(self.core.lifecycle.end().map(Action::Report));
    }

    pub(super) fn advance_detach(&mut self, out: &mut Vec<Action>) {
        match self.core.lifecycle {
            Lifecycle::Detaching => {
                let is_clean = self.sealer.is_open()
                    && self.data.evictor.is_idle()
                    && self.core.dirty_sides() == SideSet::NONE;
                let Some(manifest) = &self.core.manifest else { return };
                if !is_clean || !self.log.is_idle() {
                    return;
                }
                reach(CrashPoint::Clean);
                let (detach, seq) = (manifest.is_attached().then(|| Body::detach(manifest)), manifest.seq());
                self.lives_on(LifecycleEvent::Clean);
                if let Some(detach) = detach {
                    self.log.create_record(detach, &self.core, out);
                } else {
                    // A predecessor died between its detach record and the end of its last round.
                    self.close(seq);
                }
            }
            Lifecycle::Closing(number) => match self.rounds.progress(number, self.core.now) {
                RoundProgress::Pending => {}
                RoundProgress::Failed => self.want_last_round(),
                RoundProgress::Ended => {
                    reach(CrashPoint::Closed);
                    self.lives_on(LifecycleEvent::Closed { complete: true });
                    out.extend(self.core.lifecycle.end().map(Action::Report));
                }
            },
            Lifecycle::Recovering { .. }
            | Lifecycle::Serving
            | Lifecycle::Releasing
            | Lifecycle::Detached
            | Lifecycle::Fenced(_) => {}
        }
    }

    /// The detach record is in the log: the header says so after one last round.
    pub(super) fn close(&mut self, seq: Seq) {
        reach(CrashPoint::DetachWon);
        self.core.header.closed_clean = true;
        self.core.header.seq = seq;
        self.core.unflushed.header_changed();
        self.want_last_round();
    }

    pub(super) fn want_last_round(&mut self) {
        let number = self.rounds.want();
        self.lives_on(LifecycleEvent::LastRound(number));
    }

    pub(super) fn advance_last_round(&mut self, out: &mut Vec<Action>) {
        let Lifecycle::Fenced(step) = self.core.lifecycle else { return };
        let complete = match step {
            FencedStep::Leaving if safeguard(LastRoundOfFenced) => return self.want_last_round(),
            FencedStep::Leaving => true,
            FencedStep::LastRound(number) if self.rounds.is_over(number) => {
                self.rounds.progress(number, self.core.now) == RoundProgress::Ended
            }
            FencedStep::Serving | FencedStep::LastRound(_) | FencedStep::Ended { .. } => return,
        };
        self.lives_on(LifecycleEvent::Closed { complete });
        out.extend(self.core.lifecycle.end().map(Action::Report));
    }
}
