//! The log, fencing and the end: the steps that involve several owners of a volume's state.
//!
//! Owns: nothing; each step lists in one place its changes to the owners' state.
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
use crate::event::{CreateAnswer, Errno};
use crate::snapshot::SnapshotRefused;

impl<M: AsRef<[u8]> + AsMut<[u8]>> Volume<M> {
    pub(super) fn manifest_loaded(&mut self, manifest: Manifest, out: &mut Vec<Action>) {
        // A log that was rolled back lacks data that is clean on this node.
        let is_rolled_back = manifest.seq() < self.core.known_seq();
        if manifest.is_deleted() || manifest.writer() != Some(self.log.nonce()) || is_rolled_back {
            return self.fence(manifest.seq(), out);
        }
        self.log.learned(&manifest, self.core.now);
        self.core.learn(manifest);
        reach(CrashPoint::LogLearned);
        self.unpark(out);
    }

    /// Checks the next position in the log, so that a writer without commits, because it is idle or cannot
    /// read the data to commit, learns that it is fenced.
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

    pub(super) fn create_answered(&mut self, answer: CreateAnswer, out: &mut Vec<Action>) {
        let news = self.log.create_answered(answer, out);
        self.log_news(news, out);
    }

    pub(super) fn record_read(&mut self, seq: Seq, bytes: Option<&[u8]>, out: &mut Vec<Action>) {
        let news = self.log.record_read(seq, bytes, self.core.now, out);
        self.log_news(news, out);
    }

    fn log_news(&mut self, news: LogNews, out: &mut Vec<Action>) {
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
                    // The record is from the previous process and has no effect here. If that process
                    // detached, its device was removed, and this writer receives a detach, too.
                    Body::Change { .. } | Body::Detach { .. } => {}
                    Body::Create { .. } | Body::Attach { .. } | Body::Delete => {
                        unreachable!("a running writer creates no such record")
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

    /// Sends the stored record of the previous process. The record's seal was found in the live map; nothing
    /// is in flight on its sides, because no request was planned on them.
    pub(super) fn repeat_record(&mut self, out: &mut Vec<Action>) {
        let Some(record) = self.log.inherited() else { return };
        // A record without segments belongs to no seal.
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

    /// Stops all serving and uploads after another writer took the volume (invariant 5); local data is not
    /// touched. `known` is the position of that writer's record, or of the log's end without one.
    pub(super) fn fence(&mut self, known: Seq, out: &mut Vec<Action>) {
        if self.core.lifecycle.is_fenced() || self.core.lifecycle == Lifecycle::Detached {
            return;
        }
        self.transition(LifecycleEvent::Fenced);
        // The header of the last round must be newer than everything that this writer's commits invalidated.
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
        assert!(self.data.requests.is_empty(), "the device is removed before the detach");
        self.transition(LifecycleEvent::Detach);
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
                self.transition(LifecycleEvent::Clean);
                if let Some(detach) = detach {
                    self.log.create_record(detach, &self.core, out);
                } else {
                    // A predecessor crashed between its detach record and the end of its last round.
                    self.close(seq);
                }
            }
            Lifecycle::Closing(number) => match self.rounds.progress(number, self.core.now) {
                RoundProgress::Pending => {}
                RoundProgress::Failed => self.want_last_round(),
                RoundProgress::Ended => {
                    reach(CrashPoint::Closed);
                    self.transition(LifecycleEvent::Closed { complete: true });
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

    /// Closes the volume after its detach record: one last round records this in the header.
    pub(super) fn close(&mut self, seq: Seq) {
        reach(CrashPoint::DetachWon);
        self.core.header.closed_clean = true;
        self.core.header.seq = seq;
        self.core.unflushed.header_changed();
        self.want_last_round();
    }

    pub(super) fn want_last_round(&mut self) {
        let number = self.rounds.want();
        self.transition(LifecycleEvent::LastRound(number));
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
        self.transition(LifecycleEvent::Closed { complete });
        out.extend(self.core.lifecycle.end().map(Action::Report));
    }
}
