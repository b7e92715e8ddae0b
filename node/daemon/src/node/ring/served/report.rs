//! What the planner reports: logged, counted, shown on the board.
//!
//! Invariants: what a request can cause is logged at most once a second for each volume and kind, with a
//! count of the rest: a client that reads a bad sector again and again fills no log.

use holdfast_engine::action::Report;
use holdfast_engine::event::{Millis, Unprepared};
use holdfast_types::SectorRange;

use super::Served;
use crate::node::clock::now;
use crate::node::ring::board::Phase;

/// Time between two log lines of a kind.
const LINE_EVERY_MS: Millis = 1000;

/// Log lines of one kind: the first at once, then one a second with the count of those between.
#[derive(Debug, Default)]
struct Limited {
    /// When the next one may be written.
    next: Millis,
    held_back: u64,
}

impl Limited {
    /// Counts one; returns how many were held back before it, if it may be written.
    fn one(&mut self, now: Millis) -> Option<u64> {
        if now < self.next {
            self.held_back += 1;
            return None;
        }
        self.next = now + LINE_EVERY_MS;
        Some(std::mem::take(&mut self.held_back))
    }

    /// How many were held back and are due, if any.
    fn rest(&mut self, now: Millis) -> Option<u64> {
        (self.held_back > 0 && now >= self.next).then(|| {
            self.next = now + LINE_EVERY_MS;
            std::mem::take(&mut self.held_back)
        })
    }
}

/// The kinds of a volume that requests can cause.
#[derive(Debug, Default)]
pub(super) struct Reports {
    disk_failed: Limited,
    clean_unreadable: Limited,
    dirty_unreadable: Limited,
    no_map: Limited,
}

impl Served {
    pub(super) fn report(&mut self, report: Report) {
        let volume = &self.name;
        match report {
            Report::Ready => self.board.set_phase(Phase::Ready),
            Report::Fenced => {
                tracing::error!(%volume, "another writer holds the volume: all I/O fails from here on");
                self.board.set_phase(Phase::Fenced);
            }
            Report::LocalDiskFailed(errno) => {
                if let Some(held_back) = self.reports.disk_failed.one(now()) {
                    tracing::error!(
                        %volume,
                        errno = errno.0,
                        held_back,
                        "the local disk failed to keep the volume's data or map"
                    );
                }
            }
            Report::CleanUnreadable(range) => {
                self.tally.local_read_errors += 1;
                if let Some(held_back) = self.reports.clean_unreadable.one(now()) {
                    tracing::warn!(
                        %volume,
                        sector = range.start.0,
                        sectors = range.sectors,
                        held_back,
                        "the local disk cannot read cached data: it is read from the object store"
                    );
                }
            }
            Report::DirtyUnreadable(range) => {
                self.tally.local_read_errors += 1;
                if let Some(held_back) = self.reports.dirty_unreadable.one(now()) {
                    self.lost(range, held_back, "the read fails");
                }
            }
            Report::UploadUnreadable(range) => {
                self.lost(
                    range,
                    0,
                    "nothing is uploaded until it can, or the sectors are written or discarded",
                );
            }
            Report::UploadReadable => {
                tracing::warn!(%volume, "what the local disk could not read is committed, or written again");
            }
            Report::Committed(seq) => tracing::debug!(%volume, %seq, "committed"),
            Report::Detached => self.board.set_phase(Phase::Detached),
            Report::Kept { whole } => self.board.set_phase(Phase::Kept { whole }),
            Report::Repaired => self.board.repaired(),
        }
        self.board.show(self.volume.status());
    }

    fn lost(&self, range: SectorRange, held_back: u64, means: &str) {
        tracing::error!(
            volume = %self.name,
            sector = range.start.0,
            sectors = range.sectors,
            held_back,
            "the local disk cannot read the only copy of data: {means}"
        );
    }

    /// The map of a chunk that was never written before has no room: the writes wait.
    pub(super) fn no_map(&mut self, why: Unprepared, now: Millis) {
        let Some(held_back) = self.reports.no_map.one(now) else { return };
        let volume = &self.name;
        match why {
            Unprepared::RunDir(errno) => tracing::error!(
                %volume,
                errno = errno.0,
                held_back,
                "node.run_dir had no room for the volume's map; first writes of a chunk wait; make room in that tmpfs or enlarge it"
            ),
            Unprepared::Disk(errno) => tracing::error!(
                %volume,
                errno = errno.0,
                held_back,
                "node.state_dir had no room for the volume's map; first writes of a chunk wait; make room on that filesystem"
            ),
        }
    }

    /// Tells of what was held back and is followed by no other.
    pub(super) fn tell_held_back(&mut self, now: Millis) {
        let Reports { disk_failed, clean_unreadable, dirty_unreadable, no_map } = &mut self.reports;
        for (what, limited) in [
            ("the local disk failed to keep the volume's data or map", disk_failed),
            ("the local disk could not read cached data", clean_unreadable),
            ("the local disk could not read the only copy of data", dirty_unreadable),
            ("the volume's map had no room", no_map),
        ] {
            if let Some(times) = limited.rest(now) {
                tracing::warn!(volume = %self.name, times, "{what}, since the last line about it");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each request to a bad sector wrote a line, from the thread that serves all devices.
    #[test]
    fn one_line_a_second_counts_the_others() {
        let mut lines = Limited::default();
        assert_eq!(lines.one(10), Some(0), "the first at once");
        for now in 11..1000 {
            assert_eq!((lines.one(now), lines.rest(now)), (None, None));
        }
        assert_eq!(lines.one(1010), Some(989));
        assert_eq!(lines.one(1011), None);
        assert_eq!(lines.rest(2009), None);
        assert_eq!(lines.rest(2010), Some(1), "the last are told of too");
        assert_eq!(lines.rest(9000), None);
    }
}
