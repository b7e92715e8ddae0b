//! Reports of the planner: logged, counted, shown on the board.

use holdfast_engine::action::Report;

use super::Served;
use crate::node::clock::now;
use crate::node::ring::board::SnapshotAnswer;
use crate::node::volume::state::Writer;

impl Served {
    pub(super) fn report(&mut self, report: &Report) {
        self.lines.report(report, now());
        match *report {
            Report::Ready => self.board.report(Writer::Ready),
            Report::Fenced => self.board.report(Writer::Fenced),
            Report::CleanUnreadable(_) | Report::DirtyUnreadable(_) => self.tally.local_read_errors += 1,
            Report::LocalDiskFailed(_)
            | Report::UploadUnreadable(_)
            | Report::UploadReadable
            | Report::Committed(_) => {}
            Report::Detached => self.board.report(Writer::Detached),
            Report::Preserved { complete } => self.board.report(Writer::Preserved { complete }),
            Report::Repaired => self.board.repaired(),
            Report::SnapshotTaken(taken) => self.board.snapshot_answered(SnapshotAnswer::Taken(taken)),
            Report::SnapshotRefused { uid, why } => {
                self.board.snapshot_answered(SnapshotAnswer::Refused(uid, why));
            }
        }
        self.show();
    }
}
