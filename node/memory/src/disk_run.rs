//! The spill file of a volume: pages of the device, each at its own offset, and the disk work of a request.
//!
//! The caller writes a page that finds no slot to this file; once the disk has it, one store of its word
//! records that, and then its slot is free. The file has no table: page N is at `N * 4096` if its word says
//! so. At any other page the file has a hole, or garbage of a process that ended before it stored the word.
//!
//! Owns: nothing; these are values between a volume and the caller that drives its disk.

use std::ops::Range;

use crate::PAGE_BYTES;

/// An operation on the spill file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskOperation {
    /// Read pages into the request.
    Read,
    /// Write pages. Until the operation ends, their words name their old content in memory, or zeros.
    Write,
    /// Overwrite pages that are in the spill file.
    Rewrite,
    /// Punch a hole over pages. If this fails, the disk keeps the pages and no data is lost.
    Hole,
}

/// Adjacent pages and the disk's operation on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskRun {
    /// The operation.
    pub operation: DiskOperation,
    /// The first page.
    pub first: u64,
    /// Pages of the run.
    pub pages: u32,
    /// Number of its pages that count towards the file until the run ends, although no word names them.
    pub(crate) held: u32,
}

impl DiskRun {
    /// Creates a run of `pages` pages from `first` on.
    #[must_use]
    pub const fn of(operation: DiskOperation, first: u64, pages: u32) -> Self {
        let held = match operation {
            DiskOperation::Read | DiskOperation::Rewrite => 0,
            DiskOperation::Write | DiskOperation::Hole => pages,
        };
        Self { operation, first, pages, held }
    }

    /// Returns its pages.
    #[must_use]
    pub const fn range(&self) -> Range<u64> {
        self.first..self.first + self.pages as u64
    }

    /// Returns its first byte in the spill file.
    #[must_use]
    pub const fn offset_bytes(&self) -> u64 {
        self.first * PAGE_BYTES as u64
    }

    /// Returns its length in bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.pages as u64 * PAGE_BYTES as u64
    }
}

/// Adds a page to the newest run if that run has the same operation and ends at the page, otherwise as a new
/// run.
pub(crate) fn push_page(runs: &mut Vec<DiskRun>, operation: DiskOperation, page: u64) {
    match runs.last_mut() {
        Some(last) if last.operation == operation && last.first + u64::from(last.pages) == page => {
            *last = DiskRun::of(operation, last.first, last.pages + 1);
        }
        Some(_) | None => runs.push(DiskRun::of(operation, page, 1)),
    }
}

/// Joins several holes, and the pages between them, into one hole.
pub(crate) fn join_holes(holes: &mut Vec<DiskRun>) {
    if let [first, .., last] = &holes[..] {
        let pages = last.first + u64::from(last.pages) - first.first;
        let pages = u32::try_from(pages).expect("a request has fewer pages");
        let held = holes.iter().map(|hole| hole.held).sum();
        let joined = DiskRun { operation: DiskOperation::Hole, first: first.first, pages, held };
        holes.clear();
        holes.push(joined);
    }
}
