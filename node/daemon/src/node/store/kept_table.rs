//! The table of the slab on disk, next to its file: what earlier processes put into which slot.
//!
//! Owns: the file. Does not own: its format (`holdfast_format::slab_table`), and the comparison of a slot
//! with its entry, before which nothing of the slab is believed.
//! On failure: the daemon serves without it, and what the slab has then is fetched again after a restart. An
//! entry that was not written leaves an older one, which does not prove what is in the slot.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use holdfast_background::LineLimit;
use holdfast_format::slab_table::{self, SlabEntry};

use crate::node::clock::now;

/// The table of a slab.
pub(super) struct KeptTable {
    file: File,
    lines: LineLimit,
}

impl KeptTable {
    /// The table of the slab in the file `slab` with so many slots, and its entries. One that cannot be used
    /// is made again, without any.
    pub(super) fn open(slab: &Path, slots: u32) -> (Option<Self>, Vec<(u32, SlabEntry)>) {
        let path = slab.with_extension("table");
        match open(&path, slab_table::offset_of(slots)) {
            Ok((file, entries)) => (Some(Self { file, lines: LineLimit::default() }), entries),
            Err(error) => {
                tracing::warn!(
                    path = %path.display(),
                    error = &error as &dyn Error,
                    "the table of the slab was not opened; after a restart all blocks are fetched again"
                );
                (None, Vec::new())
            }
        }
    }

    /// Names the content that was written into a slot.
    pub(super) fn put(&self, slot: u32, entry: &SlabEntry) {
        if let Err(error) = self.file.write_all_at(&entry.encode(), slab_table::offset_of(slot))
            && let Some(held_back) = self.lines.one(now())
        {
            tracing::warn!(
                error = &error as &dyn Error,
                held_back,
                "the table of the slab was not written; after a restart a block is fetched again"
            );
        }
    }
}

/// Opens a table that is to be `length` bytes long; one of another length is made longer or shorter.
fn open(path: &Path, length: u64) -> io::Result<(File, Vec<(u32, SlabEntry)>)> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    file.set_len(file.metadata()?.len().min(length))?;
    let mut table = Vec::new();
    (&file).read_to_end(&mut table)?;
    let entries = slab_table::entries(&table).or_else(|error| {
        if !table.is_empty() {
            tracing::warn!(
                path = %path.display(),
                error = &error as &dyn Error,
                "the table of the slab was made again; all blocks are fetched again"
            );
        }
        file.set_len(0)?;
        table = slab_table::head().to_vec();
        file.write_all_at(&table, 0).map(|()| Vec::new())
    })?;
    // Its space is taken now: what is written later needs none. A table that finds no room serves as it is.
    let zeros = vec![0; usize::try_from(length).unwrap_or(usize::MAX) - table.len()];
    if let Err(error) = file.write_all_at(&zeros, table.len() as u64) {
        tracing::warn!(path = %path.display(), error = &error as &dyn Error, "the table of the slab found no room");
    }
    Ok((file, entries))
}
