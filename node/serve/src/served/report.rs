//! Logs, counts and publishes the planner's reports.

use holdfast_engine::action::Report;

use super::ServedVolume;
use crate::clock::now;
use crate::published_status::SnapshotAnswer;
use crate::writer_state::WriterState;

impl ServedVolume {
    pub(super) fn report(&mut self, report: &Report) {
        self.lines.report(report, now());
        match *report {
            Report::Ready => self.published.report(WriterState::Ready),
            Report::Fenced => {
                self.fence_limits(now());
                self.published.report(WriterState::Fenced);
            }
            Report::CleanUnreadable(_) | Report::DirtyUnreadable(_) => self.tally.local_read_errors += 1,
            Report::LocalDiskFailed(_)
            | Report::UploadUnreadable(_)
            | Report::UploadReadable
            | Report::Committed(_) => {}
            Report::Detached => self.published.report(WriterState::Detached),
            Report::Preserved { complete } => self.published.report(WriterState::Preserved { complete }),
            Report::Repaired => self.published.repaired(),
            Report::Grown { sectors } => self.published.grown(sectors),
            Report::SnapshotTaken(taken) => {
                // Published before the answer, whose receiver may delete the snapshot and request the next
                // one.
                self.show_snapshots();
                self.published.snapshot_answered(SnapshotAnswer::Taken(taken));
            }
            Report::Cut { uid, answer } => {
                self.published.snapshot_answered(SnapshotAnswer::Cut(uid, answer));
            }
            Report::SnapshotRefused { uid, why } => {
                self.published.snapshot_answered(SnapshotAnswer::Refused(uid, why));
            }
        }
        self.show();
    }
}
