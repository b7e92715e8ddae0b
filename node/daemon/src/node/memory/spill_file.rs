//! The spill file of a memory volume: its creation, and its recovery after the daemon was killed.
//!
//! Page N of the device is at `N * 4096`; the table names the pages with data. The last page of the file is
//! followed by one more page, which is always a hole.
//!
//! Invariants: a page named by the table is data in the file, all others are holes.
//! On failure: the volume is not opened, and its device stays paused.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use holdfast_memory::{MemoryVolume, PageMemory};
use holdfast_types::SECTOR_BYTES;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

use crate::node::error::{LocalDamage, NodeError, file};
use crate::node::local::file::{open_direct, open_mode, truncate};

/// The spill file of a volume.
pub(super) struct SpillFile {
    pub(super) path: PathBuf,
}

impl SpillFile {
    /// Creates the file for a volume of this many pages.
    ///
    /// # Errors
    /// An error of the filesystem.
    pub(super) fn create(&self, pages: u64) -> Result<File, NodeError> {
        let dir = self.path.parent().expect("it lies in the volume's directory");
        // Only the owner has access to the content, as for the device.
        let mut directories = DirBuilder::new();
        directories.recursive(true).mode(0o700).create(dir).map_err(file(dir, "created"))?;
        open_direct(&self.path, file_bytes(pages))
    }

    /// Extends the file for a volume of this many pages. It is never shortened.
    ///
    /// # Errors
    /// An error of the filesystem.
    pub(super) fn lengthen(&self, pages: u64) -> Result<(), NodeError> {
        let spill_file = self.open_for_length()?;
        let found = spill_file.metadata().map_err(file(&self.path, "read"))?.len();
        if found < file_bytes(pages) {
            spill_file.set_len(file_bytes(pages)).map_err(file(&self.path, "resized"))?;
        }
        Ok(())
    }

    /// Truncates the file to the length of a volume of this many pages.
    ///
    /// # Errors
    /// [`NodeError::Damaged`] if it is shorter; an error of the filesystem.
    pub(super) fn truncate(&self, pages: u64) -> Result<(), NodeError> {
        truncate(&self.open_for_length()?, &self.path, file_bytes(pages))
    }

    fn open_for_length(&self) -> Result<File, NodeError> {
        OpenOptions::new().write(true).open(&self.path).map_err(file(&self.path, "opened"))
    }

    /// Opens the file of a predecessor, and punches holes for all pages that the table does not name.
    ///
    /// # Errors
    /// [`NodeError::Damaged`] if pages named by the table are missing; it cannot be opened.
    pub(super) fn open(&self, volume: &MemoryVolume<impl PageMemory>, pages: u64) -> Result<File, NodeError> {
        let damaged = |source| NodeError::Damaged { path: self.path.clone(), source };
        let opened = open_mode(&self.path, OpenOptions::new().read(true).write(true));
        let spill_file = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return match volume.figures().spilled_pages {
                    0 => self.create(pages),
                    pages => Err(damaged(LocalDamage::SpillFile { pages })),
                };
            }
            opened => opened.map_err(file(&self.path, "opened"))?,
        };
        truncate(&spill_file, &self.path, file_bytes(pages))?;
        match settle(&spill_file, volume, pages).map_err(file(&self.path, "read"))? {
            0 => Ok(spill_file),
            pages => Err(damaged(LocalDamage::SpillFile { pages })),
        }
    }
}

/// Returns the file length for a volume of this many pages.
const fn file_bytes(pages: u64) -> u64 {
    (pages + 1) * SECTOR_BYTES
}

/// Waits for writes of a killed process, and punches holes for all pages that the table does not name.
/// Returns the number of named pages that are holes; unless it is 0, nothing is punched.
fn settle(spill_file: &File, volume: &MemoryVolume<impl PageMemory>, pages: u64) -> io::Result<u64> {
    // A filesystem punches a hole once no direct write to the file is in flight. A full one has waited, too.
    match punch(spill_file, pages..pages + 1) {
        Err(error) if error.kind() != io::ErrorKind::StorageFull => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let data = data_runs(spill_file, pages)?;
    let is_named = |run: &Range<u64>| volume.spilled_runs(run.start, run.end - run.start);
    let there: u64 = data.iter().flat_map(is_named).map(|run| u64::from(run.pages)).sum();
    let named = volume.figures().spilled_pages;
    if there < named {
        return Ok(named - there);
    }
    let mut unnamed = Vec::new();
    for run in &data {
        let mut from = run.start;
        for named in is_named(run) {
            unnamed.push(from..named.first);
            from = named.range().end;
        }
        unnamed.push(from..run.end);
    }
    // The remaining pages occupy space, but are never read.
    if let Err(error) = unnamed.into_iter().try_for_each(|pages| punch(spill_file, pages)) {
        tracing::warn!(%error, "blocks of a spill file that no page needs were not freed");
    }
    Ok(0)
}

/// Returns the runs of pages with data, among the first `pages`.
fn data_runs(spill_file: &File, pages: u64) -> io::Result<Vec<Range<u64>>> {
    let end_bytes = pages * SECTOR_BYTES;
    let mut runs = Vec::new();
    let mut at = 0;
    while at < end_bytes {
        let data = match seek(spill_file, SeekFrom::Data(at)) {
            Ok(data) => data,
            // No data after it.
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno.into()),
        };
        let hole = seek(spill_file, SeekFrom::Hole(data))?;
        at = hole.next_multiple_of(SECTOR_BYTES);
        let run = data / SECTOR_BYTES..at.min(end_bytes) / SECTOR_BYTES;
        if !run.is_empty() {
            runs.push(run);
        }
    }
    Ok(runs)
}

fn punch(spill_file: &File, pages: Range<u64>) -> io::Result<()> {
    if pages.is_empty() {
        return Ok(());
    }
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let len_bytes = (pages.end - pages.start) * SECTOR_BYTES;
    Ok(fallocate(spill_file, hole, pages.start * SECTOR_BYTES, len_bytes)?)
}
