//! What the planner reports: logged, counted, shown on the board.

use holdfast_engine::action::Report;
use holdfast_types::SectorRange;

use super::Served;
use crate::node::board::Phase;

impl Served {
    pub(super) fn report(&mut self, report: Report) {
        match report {
            Report::Ready => self.board.set_phase(Phase::Ready),
            Report::Fenced => {
                tracing::error!(
                    device = self.index,
                    "another writer holds the volume: all I/O fails from here on"
                );
                self.board.set_phase(Phase::Fenced);
            }
            Report::LocalDiskFailed(errno) => {
                tracing::error!(
                    device = self.index,
                    errno = errno.0,
                    "the local disk failed to keep the volume's data or map"
                );
            }
            Report::CleanUnreadable(range) => {
                self.tally.local_read_errors += 1;
                tracing::warn!(
                    device = self.index,
                    sector = range.start.0,
                    sectors = range.sectors,
                    "the local disk cannot read cached data: it is read from the object store"
                );
            }
            Report::DirtyUnreadable(range) => {
                self.tally.local_read_errors += 1;
                self.lost(range, "the read fails");
            }
            Report::UploadUnreadable(range) => {
                self.lost(range, "nothing is uploaded until it can, or the sectors are written or discarded");
            }
            Report::UploadReadable => {
                tracing::warn!(
                    device = self.index,
                    "what the local disk could not read is committed, or written anew"
                );
            }
            Report::Committed(seq) => tracing::debug!(device = self.index, %seq, "committed"),
            Report::Detached => self.board.set_phase(Phase::Detached),
            Report::Kept { whole } => self.board.set_phase(Phase::Kept { whole }),
            Report::Repaired => self.board.repaired(),
        }
        self.board.show(self.volume.status());
    }

    fn lost(&self, range: SectorRange, means: &str) {
        tracing::error!(
            device = self.index,
            sector = range.start.0,
            sectors = range.sectors,
            "the local disk cannot read data that is nowhere else: {means}"
        );
    }
}
