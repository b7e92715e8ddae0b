//! The table of the slab on disk, next to its file: the contents that earlier processes wrote to its slots.
//!
//! Owns: the file.
//! Does not own: its format (`holdfast_format::slab_table`), or the comparison of a slot with its entry,
//! before which the slot is not used.
//! On failure: the daemon serves without it, and blocks written to the slab meanwhile are fetched again after
//! a restart. If an entry was not written, the older one does not match the slot's content.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use holdfast_background::LineLimit;
use holdfast_format::slab_table::{self, ENTRY_BYTES, HEAD_BYTES, SlabEntry};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::node::clock::now;

/// Entries per read: 64 KiB.
const READ_ENTRIES: u32 = 2048;

/// The table of a slab.
pub(super) struct KeptTable {
    file: File,
    lines: LineLimit,
}

impl KeptTable {
    /// Opens the table of the slab in the file `slab` with this many slots. An unusable one is recreated
    /// without entries.
    pub(super) fn open(slab: &Path, slots: u32) -> Option<Self> {
        let path = slab.with_extension("table");
        match open(&path, slab_table::offset_of(slots)) {
            Ok(file) => Some(Self { file, lines: LineLimit::default() }),
            Err(error) => {
                tracing::warn!(
                    path = %path.display(),
                    error = &error as &dyn Error,
                    "the table of the slab was not opened; after a restart all blocks are fetched again"
                );
                None
            }
        }
    }

    /// Returns the entries of the first `slots` in order, reading them lazily.
    pub(super) fn entries(&self, slots: u32) -> impl Iterator<Item = (u32, SlabEntry)> {
        // A table for which the disk had no space may be shorter.
        let held = self.file.metadata().map_or(0, |table| table.len().saturating_sub(HEAD_BYTES));
        let held = u32::try_from(held / ENTRY_BYTES as u64).unwrap_or(u32::MAX);
        let slots = slots.min(held);
        let mut table = vec![0; HEAD_BYTES as usize];
        table[..8].copy_from_slice(&slab_table::head());
        let chunks = (0..slots).step_by(READ_ENTRIES as usize).map_while(move |first| {
            let entries = READ_ENTRIES.min(slots - first) as usize;
            table.resize(HEAD_BYTES as usize + entries * ENTRY_BYTES, 0);
            let read =
                self.file.read_exact_at(&mut table[HEAD_BYTES as usize..], slab_table::offset_of(first));
            match read {
                Ok(()) => {
                    let entries = slab_table::entries(&table).unwrap_or_default();
                    Some(entries.into_iter().map(move |(slot, entry)| (first + slot, entry)))
                }
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn Error,
                        first,
                        "the table of the slab was not read; blocks from this slot on are fetched again"
                    );
                    None
                }
            }
        });
        chunks.flatten()
    }

    /// Records the content written to a slot.
    pub(super) fn put(&self, slot: u32, entry: &SlabEntry) {
        if let Err(error) = self.file.write_all_at(&entry.encode(), slab_table::offset_of(slot))
            && let Some(held_back) = self.lines.admit(now())
        {
            tracing::warn!(
                error = &error as &dyn Error,
                held_back,
                "the table of the slab was not written; after a restart a block is fetched again"
            );
        }
    }
}

/// Opens a table of `length` bytes, and extends or truncates one of another length.
fn open(path: &Path, length: u64) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    let found = file.metadata()?.len().min(length);
    file.set_len(found)?;
    let mut head = slab_table::head();
    let known = &mut head[..found.min(8) as usize];
    file.read_exact_at(known, 0)?;
    if let Err(error) = slab_table::entries(known) {
        if found > 0 {
            tracing::warn!(
                path = %path.display(),
                error = &error as &dyn Error,
                "the table of the slab was recreated; all blocks are fetched again"
            );
        }
        file.set_len(0)?;
        file.write_all_at(&slab_table::head(), 0)?;
    }
    // Its space is allocated now: later writes need none. Without space, the table is used as it is.
    match fallocate(&file, FallocateFlags::empty(), 0, length) {
        Ok(()) | Err(Errno::OPNOTSUPP) => {}
        Err(error) => {
            let error = io::Error::from(error);
            tracing::warn!(path = %path.display(), error = &error as &dyn Error, "the disk has no space for the table of the slab");
        }
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use holdfast_background::SlotTable;
    use holdfast_format::compose::ContentKey;

    use super::*;

    /// Returns an entry with a different key for each number.
    fn entry(number: u32) -> SlabEntry {
        SlabEntry { key: ContentKey::of_index("object", number.into()), proof: [7; 16] }
    }

    #[test]
    fn entries_are_read_across_chunks() {
        let dir = tempfile::tempdir().unwrap();
        let (path, slots) = (dir.path().join("slab"), 2 * READ_ENTRIES + 5);
        let table = KeptTable::open(&path, slots).unwrap();
        let mut written: Vec<(u32, SlabEntry)> =
            [0, 1, READ_ENTRIES - 1, READ_ENTRIES, slots - 1].map(|slot| (slot, entry(slot))).into();
        written.iter().for_each(|(slot, entry)| table.put(*slot, entry));
        let table = KeptTable::open(&path, slots).unwrap();
        assert_eq!(table.entries(slots).collect::<Vec<_>>(), written);
        // From a shorter table, and from one without space for all entries.
        written.pop();
        assert_eq!(table.entries(slots - 1).collect::<Vec<_>>(), written);
        table.file.set_len(slab_table::offset_of(READ_ENTRIES + 1)).unwrap();
        assert_eq!(table.entries(slots).collect::<Vec<_>>(), written[..4]);
    }

    /// Returns the resident memory of this process, in bytes.
    fn resident_bytes() -> u64 {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    }

    /// The cost of reading a full table at the start, as given in ADR 24.
    #[test]
    #[ignore = "measures"]
    fn a_full_table_is_read_at_the_start() {
        for slots in [32 << 10, 8 << 20] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("slab");
            let begun = std::time::Instant::now();
            let table = KeptTable::open(&path, slots).unwrap();
            let made = begun.elapsed();
            for first in (0..slots).step_by(READ_ENTRIES as usize) {
                let entries = (first..first + READ_ENTRIES).flat_map(|slot| entry(slot).encode());
                let entries: Vec<u8> = entries.collect();
                table.file.write_all_at(&entries, slab_table::offset_of(first)).unwrap();
            }
            let (begun, before) = (std::time::Instant::now(), resident_bytes());
            let table = KeptTable::open(&path, slots).unwrap();
            let index = SlotTable::with_old(slots, 64, 8, table.entries(slots));
            let (read, bytes) = (begun.elapsed(), resident_bytes() - before);
            let a_slot = bytes / u64::from(slots);
            println!(
                "{slots} slots: made in {made:?}, {} found in {read:?}, {a_slot} bytes a slot",
                index.len()
            );
        }
    }
}
