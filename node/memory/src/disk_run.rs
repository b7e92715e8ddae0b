//! The spill file of a volume: a page of the device at its own offset, and what a request has the disk do.
//!
//! A page that finds no slot is written there, by the caller; once the disk has it, one store of its word
//! says so, and then its slot is free. The file has no table: page N lies at `N * 4096`, and whether it does
//! the word says. A page whose word says something else is a hole, or garbage of a process that ended in
//! between.
//!
//! Owns: nothing; these are values between a volume and the caller that drives its disk.

use std::ops::Range;

use crate::PAGE_BYTES;

/// An operation of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskOperation {
    /// Read pages into the request.
    Read,
    /// Write pages that are in memory, or nowhere, until it has ended.
    Write,
    /// Write over pages that are in the spill file.
    Rewrite,
    /// Make a hole where pages were. Where it fails the disk keeps them, and nothing is lost.
    Hole,
}

/// Adjacent pages and what the disk is to do with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskRun {
    /// The operation.
    pub operation: DiskOperation,
    /// The first page.
    pub first: u64,
    /// Pages of the run.
    pub pages: u32,
    /// Pages of it that count as the file's until it has ended, and that no word names.
    pub(crate) held: u32,
}

impl DiskRun {
    /// A run of so many pages from `first` on.
    #[must_use]
    pub const fn of(operation: DiskOperation, first: u64, pages: u32) -> Self {
        let held = match operation {
            DiskOperation::Read | DiskOperation::Rewrite => 0,
            DiskOperation::Write | DiskOperation::Hole => pages,
        };
        Self { operation, first, pages, held }
    }

    /// Its pages.
    #[must_use]
    pub const fn range(&self) -> Range<u64> {
        self.first..self.first + self.pages as u64
    }

    /// Its first byte in the spill file.
    #[must_use]
    pub const fn offset_bytes(&self) -> u64 {
        self.first * PAGE_BYTES as u64
    }

    /// Its length in bytes.
    #[must_use]
    pub const fn len_bytes(&self) -> u64 {
        self.pages as u64 * PAGE_BYTES as u64
    }
}

/// Adds a page to the newest run, if that has the same operation and ends there, else as a run of its own.
pub(crate) fn push_page(runs: &mut Vec<DiskRun>, operation: DiskOperation, page: u64) {
    match runs.last_mut() {
        Some(last) if last.operation == operation && last.first + u64::from(last.pages) == page => {
            *last = DiskRun::of(operation, last.first, last.pages + 1);
        }
        Some(_) | None => runs.push(DiskRun::of(operation, page, 1)),
    }
}

/// Makes one hole of several, and of what lies between them.
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
