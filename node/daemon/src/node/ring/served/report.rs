//! Reports of the planner: logged, counted, shown on the board.

use holdfast_engine::action::Report;

use super::ServedVolume;
use crate::node::clock::now;
use crate::node::ring::board::SnapshotAnswer;
use crate::node::volume::state::WriterState;

impl ServedVolume {
    pub(super) fn report(&mut self, report: &Report) {
        self.lines.report(report, now());
        match *report {
            Report::Ready => self.board.report(WriterState::Ready),
            Report::Fenced => self.board.report(WriterState::Fenced),
            Report::CleanUnreadable(_) | Report::DirtyUnreadable(_) => self.tally.local_read_errors += 1,
            Report::LocalDiskFailed(_)
            | Report::UploadUnreadable(_)
            | Report::UploadReadable
            | Report::Committed(_) => {}
            Report::Detached => self.board.report(WriterState::Detached),
            Report::Preserved { complete } => self.board.report(WriterState::Preserved { complete }),
            Report::Repaired => self.board.repaired(),
            Report::SnapshotTaken(taken) => self.board.snapshot_answered(SnapshotAnswer::Taken(taken)),
            Report::SnapshotRefused { uid, why } => {
                self.board.snapshot_answered(SnapshotAnswer::Refused(uid, why));
            }
        }
        self.show();
    }
}
