//! Detach.
//!
//! 1. what is dirty is committed (`Clean`);
//! 2. the detach record is created (`DetachWon`);
//! 3. one last round closes the local state clean (`Closed`).
//!
//! The names are crash points.

use holdfast_types::Seq;

use super::commit::Commit;
use super::{Lifecycle, Volume};
use crate::action::{Action, Report};
use crate::crash_point::{CrashPoint, reach};
use crate::record::Body;
use crate::safeguard::{Safeguard::LastRoundOfFenced, safeguard};

impl<M: AsRef<[u8]> + AsMut<[u8]>> Volume<M> {
    pub(super) fn advance_detach(&mut self, out: &mut Vec<Action>) {
        match self.lifecycle {
            Lifecycle::Detaching => {
                let clean = self.seal.is_open()
                    && self.evict.is_idle()
                    && self.dirty_pages.iter().all(|pages| pages.is_empty());
                let Some(manifest) = &self.manifest else { return };
                if !clean || self.commit != Commit::Idle {
                    return;
                }
                reach(CrashPoint::Clean);
                self.lifecycle = Lifecycle::Closing;
                if manifest.is_attached() {
                    self.create_record(Body::Detach, out);
                } else {
                    // A predecessor died between its detach record and the end of its last round.
                    self.close(manifest.seq(), out);
                }
            }
            Lifecycle::Closing => {
                let Some(number) = self.closing_round else { return };
                if self.round.ended >= number {
                    reach(CrashPoint::Closed);
                    self.lifecycle = Lifecycle::Detached;
                    out.push(Action::Report(Report::Detached));
                } else if self.round.begun >= number && self.may_retry_round() {
                    self.want_last_round(out);
                }
            }
            Lifecycle::Recovering | Lifecycle::Serving | Lifecycle::Detached | Lifecycle::Fenced => {}
        }
    }

    /// The device of a fenced writer is gone: one last round makes the durable map tell what the sides hold. Where it fails,
    /// the local disk is failing, and the report says so.
    pub(super) fn advance_keep(&mut self, out: &mut Vec<Action>) {
        if !self.leaving {
            return;
        }
        let number = match self.closing_round {
            Some(number) => number,
            None => self.want_last_round(out),
        };
        if (self.round.begun >= number && self.round.is_idle()) || !safeguard(LastRoundOfFenced) {
            self.leaving = false;
            let whole = self.round.ended >= number || !safeguard(LastRoundOfFenced);
            out.push(Action::Report(Report::Kept { whole }));
        }
    }

    /// The detach record is in the log: the header says so after one last round.
    pub(super) fn close(&mut self, seq: Seq, out: &mut Vec<Action>) {
        reach(CrashPoint::DetachWon);
        self.header.closed_clean = true;
        self.header.seq = seq;
        self.round.header_changed();
        self.want_last_round(out);
    }

    fn want_last_round(&mut self, out: &mut Vec<Action>) -> u64 {
        self.closing_round = Some(self.round.begun + 1);
        self.want_round(out)
    }
}
