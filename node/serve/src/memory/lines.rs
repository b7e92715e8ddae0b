//! Log lines of a memory volume about failures that may recur with each request.

use std::sync::Arc;

use holdfast_background::{LineLimit, Rest};
use holdfast_memory::{DiskRun, MemoryFigures, PAGE_BYTES, PageError};
use holdfast_ring::KernelErrno;
use holdfast_types::Millis;

use super::serve_failure::ServeFailure;
use crate::label::Label;

/// The log lines of a volume, and their limits.
pub(super) struct MemoryLines {
    label: Arc<Label>,
    queue_refused: LineLimit,
    full: LineLimit,
    damaged: LineLimit,
    disk: LineLimit,
}

impl MemoryLines {
    pub(super) fn new(label: Arc<Label>) -> Self {
        Self {
            label,
            queue_refused: LineLimit::default(),
            full: LineLimit::default(),
            damaged: LineLimit::default(),
            disk: LineLimit::default(),
        }
    }

    pub(super) fn label(&self) -> &Label {
        &self.label
    }

    pub(super) fn queue_refused(&mut self, queue_id: u16, tag: u16, errno: KernelErrno, now: Millis) {
        let Some(held_back) = self.queue_refused.admit(now) else { return };
        let _volume = self.label.span().entered();
        tracing::error!(queue_id, tag, %errno, held_back, "the kernel refused a queue command");
    }

    pub(super) fn disk_failed(&mut self, run: &DiskRun, errno: KernelErrno, now: Millis) {
        let Some(held_back) = self.disk.admit(now) else { return };
        let _volume = self.label.span().entered();
        let (operation, at_bytes, len_bytes) = (run.operation, run.offset_bytes(), run.len_bytes());
        tracing::error!(?operation, at_bytes, len_bytes, %errno, held_back, "the disk failed an operation on the spill file");
    }

    pub(super) fn failed(
        &mut self,
        failure: ServeFailure,
        (sector, sectors): (u64, u32),
        figures: impl FnOnce() -> MemoryFigures,
        now: Millis,
    ) {
        let _volume = self.label.span().entered();
        match failure {
            ServeFailure::Page(PageError::NoSpace) => {
                let Some(held_back) = self.full.admit(now) else { return };
                let figures = figures();
                tracing::error!(
                    slab_bytes = figures.slab_bytes,
                    limit_bytes = figures.limit_bytes,
                    spilled_bytes = figures.spilled_pages * PAGE_BYTES as u64,
                    spill_limit_bytes = figures.spill_limit_pages * PAGE_BYTES as u64,
                    held_back,
                    "a memory volume has reached its limits, or node.run_dir or the disk of its spill file is full: writes \
                     fail; delete files and trim, or give it a higher limit"
                );
            }
            ServeFailure::Page(PageError::Damaged(page)) => {
                let Some(held_back) = self.damaged.admit(now) else { return };
                tracing::error!(page, held_back, "a page of a memory volume is damaged: requests to it fail");
            }
            ServeFailure::Copy => {
                let Some(held_back) = self.damaged.admit(now) else { return };
                tracing::error!(sector, sectors, held_back, "the kernel did not copy the data of a write");
            }
            // The end of the run has already logged this.
            ServeFailure::Disk => {}
        }
    }

    /// Logs the number of lines that were suppressed.
    pub(super) fn tick(&self, now: Millis) {
        for (what, limit) in [
            ("the kernel refused a queue command", &self.queue_refused),
            ("a write found no memory", &self.full),
            ("a page was damaged or not copied", &self.damaged),
            ("the disk failed an operation on the spill file", &self.disk),
        ] {
            if let Some(times) = limit.take_suppressed(Rest::Due(now)) {
                let _volume = self.label.span().entered();
                tracing::warn!(times, "{what}, since the last line about it");
            }
        }
    }
}
