//! The log lines of one volume on a ring thread.
//!
//! Invariants: each line is written in the volume's span ([`Label`]). A line that requests can cause is
//! written at most once a second for each kind, with a count of the suppressed lines, so that a client that
//! keeps reading a bad sector does not fill the log.

use std::sync::Arc;

use holdfast_background::{LineLimit, Rest};
use holdfast_engine::action::Report;
use holdfast_engine::event::{Errno, Unprepared};
use holdfast_engine::snapshot::CutAnswer;
use holdfast_fuse::FuseFault;
use holdfast_ring::KernelErrno;
use holdfast_types::{Millis, SectorRange};
use holdfast_ublk::Device;

use crate::label::Label;

/// Writes a volume's log lines.
#[derive(Debug)]
pub(super) struct Lines {
    label: Arc<Label>,
    disk_failed: LineLimit,
    clean_unreadable: LineLimit,
    dirty_unreadable: LineLimit,
    no_map: LineLimit,
    queue_refused: LineLimit,
    late_command: LineLimit,
    fuse_read: LineLimit,
}

impl Lines {
    pub(super) fn new(label: Arc<Label>) -> Self {
        Self {
            label,
            disk_failed: LineLimit::default(),
            clean_unreadable: LineLimit::default(),
            dirty_unreadable: LineLimit::default(),
            no_map: LineLimit::default(),
            queue_refused: LineLimit::default(),
            late_command: LineLimit::default(),
            fuse_read: LineLimit::default(),
        }
    }

    /// Sets the volume's device for all further lines.
    pub(super) fn set_device(&self, device: Device) {
        self.label.set_device(device);
    }

    /// Logs a report of the planner, if it is worth a line.
    pub(super) fn report(&self, report: &Report, now: Millis) {
        match report {
            Report::Ready
            | Report::Detached
            | Report::Preserved { .. }
            | Report::Repaired
            | Report::Grown { .. } => {}
            Report::SnapshotTaken(taken) => self.label.span().in_scope(|| {
                tracing::info!(seq = %taken.seq, uid = %taken.uid, "a snapshot was taken");
            }),
            Report::Cut { uid, answer } => self.label.span().in_scope(|| match answer {
                CutAnswer::Held => tracing::info!(%uid, "writes wait for the other snapshots of the group"),
                CutAnswer::Released => {
                    tracing::info!(%uid, "writes continue: all snapshots of the group have their point")
                }
                CutAnswer::Lapsed => tracing::info!(%uid, "the snapshots of the group have no common point"),
                CutAnswer::Prepared | CutAnswer::Busy => {}
            }),
            Report::SnapshotRefused { uid, why } => self.label.span().in_scope(|| {
                tracing::info!(%uid, reason = ?why, "a snapshot was refused");
            }),
            Report::Fenced => {
                self.label.span().in_scope(|| {
                    tracing::error!("the volume was fenced by another writer, its removal, or a log that was rolled back: all I/O fails from now on");
                });
            }
            Report::LocalDiskFailed(errno) => self.disk_failed(*errno, now),
            Report::CleanUnreadable(range) => self.clean_unreadable(*range, now),
            Report::DirtyUnreadable(range) => {
                if let Some(held_back) = self.dirty_unreadable.admit(now) {
                    self.lost(*range, held_back, "the read fails");
                }
            }
            Report::UploadUnreadable(range) => {
                self.lost(
                    *range,
                    0,
                    "nothing is uploaded until it can read them, or they are overwritten or discarded",
                );
            }
            Report::UploadReadable => self.label.span().in_scope(|| {
                tracing::warn!("an unreadable range was resolved: it was read, overwritten or discarded");
            }),
            Report::Committed(seq) => {
                self.label.span().in_scope(|| tracing::debug!(%seq, "committed"));
            }
        }
    }

    fn disk_failed(&self, errno: Errno, now: Millis) {
        let Some(held_back) = self.disk_failed.admit(now) else { return };
        let _volume = self.label.span().entered();
        tracing::error!(
            errno = errno.0,
            held_back,
            "the local disk failed to store the volume's data or map"
        );
    }

    fn clean_unreadable(&self, range: SectorRange, now: Millis) {
        let Some(held_back) = self.clean_unreadable.admit(now) else { return };
        let _volume = self.label.span().entered();
        tracing::warn!(
            sector = range.start.0,
            sectors = range.sectors,
            held_back,
            "the local disk cannot read cached data; the object store serves the read"
        );
    }

    fn lost(&self, range: SectorRange, held_back: u64, means: &str) {
        let _volume = self.label.span().entered();
        tracing::error!(
            sector = range.start.0,
            sectors = range.sectors,
            held_back,
            "the local disk cannot read the only copy of data: {means}"
        );
    }

    /// Logs that there is no room for the map of a chunk that was never written before, so that writes wait.
    pub(super) fn no_map(&self, why: Unprepared, now: Millis) {
        let Some(held_back) = self.no_map.admit(now) else { return };
        let _volume = self.label.span().entered();
        match why {
            Unprepared::RunDir(errno) => tracing::error!(
                errno = errno.0,
                held_back,
                "node.run_dir had no room for the volume's map; first writes of a chunk wait; make room in that tmpfs or enlarge it"
            ),
            Unprepared::Disk(errno) => tracing::error!(
                errno = errno.0,
                held_back,
                "node.state_dir had no room for the volume's map; first writes of a chunk wait; make room on that filesystem"
            ),
        }
    }

    /// Logs that the kernel refused a command of a queue, by its number: a tag, without batches. The kernel
    /// may refuse each command of the queue.
    pub(super) fn queue_refused(&self, queue: u16, command: u16, errno: KernelErrno, now: Millis) {
        let Some(held_back) = self.queue_refused.admit(now) else { return };
        let _volume = self.label.span().entered();
        tracing::error!(queue, command, %errno, held_back, "the kernel refused a queue command");
    }

    /// Logs that the kernel answered a command of a closed queue.
    pub(super) fn late_command(&self, queue: u16, tag: u16, now: Millis) {
        let Some(held_back) = self.late_command.admit(now) else { return };
        let _volume = self.label.span().entered();
        tracing::error!(queue, tag, held_back, "a bug: a completion for a closed queue was dropped");
    }

    /// Logs a fault of the connection of a device without ublk.
    pub(super) fn fuse_fault(&self, fault: FuseFault, now: Millis) {
        let _volume = self.label.span().entered();
        match fault {
            // A detach clears the device before it closes the queue. The daemon logs an end outside a detach.
            FuseFault::Ended => tracing::debug!("the device was cleared or its connection aborted"),
            FuseFault::Read(errno) => {
                let Some(held_back) = self.fuse_read.admit(now) else { return };
                tracing::error!(%errno, held_back, "requests of the device could not be read; the read is retried");
            }
        }
    }

    /// Logs the counts of suppressed lines that no later line has reported.
    pub(super) fn write(&self, rest: Rest) {
        let Self {
            label,
            disk_failed,
            clean_unreadable,
            dirty_unreadable,
            no_map,
            queue_refused,
            late_command,
            fuse_read,
        } = self;
        for (what, limit) in [
            ("the local disk failed to store the volume's data or map", disk_failed),
            ("the local disk could not read cached data", clean_unreadable),
            ("the local disk could not read the only copy of data", dirty_unreadable),
            ("the volume's map had no room", no_map),
            ("the kernel refused a queue command", queue_refused),
            ("a command of a closed queue ended", late_command),
            ("requests of the device could not be read", fuse_read),
        ] {
            if let Some(times) = limit.take_suppressed(rest) {
                let _volume = label.span().entered();
                tracing::warn!(times, "{what}, since the last line about it");
            }
        }
    }
}

/// Writes the counts of suppressed lines before the volume is dropped.
impl Drop for Lines {
    fn drop(&mut self) {
        self.write(Rest::All);
    }
}

#[cfg(test)]
mod tests;
