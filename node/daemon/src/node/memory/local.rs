//! The files of a memory volume.
//!
//! ```text
//! <run>/memory.d/<id>/table     head and words (`docs/formats/memory-volume.md`)
//! <run>/memory.d/<id>/slabs     contents
//! <run>/memory.d/<id>/attached  what a restarted daemon needs to recover the device; JSON
//! <state>/memory.d/<id>/spill-<nonce>  pages that found no memory, where the volume may spill
//! ```
//! The first three are in the tmpfs of the run directory: they outlive the daemon, and are gone after a
//! restart of the host; then the next daemon removes the spill file. The nonce is that of the attach, so that
//! the file of an earlier one is never read. Only root reads them: directories have mode 0700, files 0600.
#![allow(unsafe_code)] // mmap of files of our own

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use holdfast_memory::pool::{PAGE_CLASS, SLAB_BYTES};
use holdfast_memory::{HEAD_BYTES, MemoryVolume, PageCodec, TableHead};
use holdfast_serve::MemoryFiles;
use holdfast_service::chain;
use holdfast_types::{SECTOR_BYTES, VolumeId};
use rustix::fs::{FallocateFlags, fallocate};
use serde::{Deserialize, Serialize};

use super::spill_file::SpillFile;
use crate::node::error::{LocalDamage, NodeError, file};
use crate::node::local::detached_cache::trash_dir;
use crate::node::local::file::{allocated_bytes, cut, random};
use crate::node::local::record_file::spare;
use crate::node::local::record_json;
use crate::node::local::volume_files::{LocalDirs, spill_files_dir, volumes_under};

/// Version of [`MemoryRecord`].
const VERSION: u32 = 1;

/// Record of an attached memory volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::node) struct MemoryRecord {
    version: u32,
    /// The tag of its device.
    pub(super) tag: u64,
    pub(super) sectors: u64,
    /// The nonce of its attach, of which the tag is made.
    pub(super) nonce: u64,
    /// The number of its attach; 0 where a person attached it.
    #[serde(default)]
    pub(super) epoch: u64,
    /// The uid of its Volume object; none where a person attached it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) owner: Option<String>,
    /// It grows: the head of its table is to say this, and may say what was before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    growth: Option<RecordedGrowth>,
}

/// The head of a table as a record has it: with the size and the nonce of the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordedGrowth {
    slabs: u32,
    spill_pages: u64,
    zstd: bool,
}

impl MemoryRecord {
    pub(super) fn new(tag: u64, sectors: u64, nonce: u64, (epoch, owner): (u64, Option<String>)) -> Self {
        Self { version: VERSION, tag, sectors, nonce, epoch, owner, growth: None }
    }

    /// The record of the volume while its head becomes this one.
    fn growing(self, head: &TableHead) -> Self {
        let &TableHead { pages, slabs, codec, nonce: _, spill_pages } = head;
        let growth = RecordedGrowth { slabs, spill_pages, zstd: codec == PageCodec::Zstd };
        Self { sectors: pages, growth: Some(growth), ..self }
    }

    /// The head that a growth was to write.
    fn head(&self) -> Option<TableHead> {
        self.growth.as_ref().map(|&RecordedGrowth { slabs, spill_pages, zstd }| TableHead {
            pages: self.sectors,
            slabs,
            codec: if zstd { PageCodec::Zstd } else { PageCodec::Lz4 },
            nonce: self.nonce,
            spill_pages,
        })
    }
}

/// The most bytes that the files of a memory volume may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MostBytes {
    /// In the run directory.
    pub(super) memory: u64,
    /// In the state directory.
    pub(super) spill: u64,
}

/// Paths of one memory volume's files.
#[derive(Debug, Clone)]
pub(in crate::node) struct MemoryLocal {
    volume: VolumeId,
    dir: PathBuf,
    /// In the state directory.
    spill_dir: PathBuf,
}

/// A memory volume and its spill file, if it has one.
pub(in crate::node) struct OpenedMemory {
    pub(in crate::node) volume: MemoryVolume<MemoryFiles>,
    pub(in crate::node) spill_file: Option<File>,
}

/// Directory of the files of memory volumes in a run directory.
fn memory_dir(run_dir: &Path) -> PathBuf {
    run_dir.join("memory.d")
}

/// Bytes that the spill files of all volumes take of the disk.
///
/// # Errors
/// They cannot be listed or measured.
pub(in crate::node) fn spill_file_bytes(state_dir: &Path) -> Result<u64, NodeError> {
    let dir = spill_files_dir(state_dir);
    if !dir.is_dir() {
        return Ok(0);
    }
    let mut bytes = 0;
    for volume in volumes_under(&dir)? {
        let dir = dir.join(volume.as_str());
        for entry in fs::read_dir(&dir).map_err(file(&dir, "listed"))? {
            bytes += allocated_bytes(&entry.map_err(file(&dir, "listed"))?.path())?;
        }
    }
    Ok(bytes)
}

/// Moves the spill files of volumes that have no other files to the trash: the host restarted, or an attach
/// or a detach did not end. What is in the trash is deleted once the volumes are served.
///
/// # Errors
/// They cannot be listed; or the first of those that cannot be moved, which stay.
pub(super) fn trash_left_spill_files(dirs: &LocalDirs) -> Result<(), NodeError> {
    let spill_files = spill_files_dir(&dirs.state);
    if !spill_files.is_dir() {
        return Ok(());
    }
    let mut moved = Ok(());
    for volume in volumes_under(&spill_files)? {
        moved = moved.and(MemoryLocal::new(dirs, &volume).trash_if_left(&dirs.state));
    }
    moved
}

/// The memory volumes with files in a run directory.
///
/// # Errors
/// It cannot be listed.
pub(super) fn attached_memory(run_dir: &Path) -> Result<Vec<VolumeId>, NodeError> {
    let dir = memory_dir(run_dir);
    if !dir.try_exists().map_err(file(&dir, "looked for"))? {
        return Ok(Vec::new());
    }
    volumes_under(&dir)
}

/// Slabs of a volume of so many pages whose content may take `limit_bytes`: at most what any content needs,
/// which is a slab for each 16 pages, and one that is partly used for each class.
pub(super) fn slabs_of(pages: u64, limit_bytes: Option<u64>) -> Option<u32> {
    let most = pages.div_ceil(SLAB_BYTES as u64 / SECTOR_BYTES).checked_add(u64::from(PAGE_CLASS))?;
    let slabs = limit_bytes.map_or(most, |limit| most.min(limit.div_ceil(SLAB_BYTES as u64).max(1)));
    u32::try_from(slabs).ok().filter(|slabs| *slabs < u32::MAX)
}

/// Bytes of a table.
const fn table_bytes(head: &TableHead) -> u64 {
    HEAD_BYTES as u64 + head.pages * size_of::<u64>() as u64
}

/// Bytes of the slabs.
const fn slab_bytes(head: &TableHead) -> u64 {
    head.slabs as u64 * SLAB_BYTES as u64
}

impl MemoryLocal {
    pub(in crate::node) fn new(dirs: &LocalDirs, volume: &VolumeId) -> Self {
        Self {
            volume: volume.clone(),
            dir: memory_dir(&dirs.run).join(volume.as_str()),
            spill_dir: spill_files_dir(&dirs.state).join(volume.as_str()),
        }
    }

    fn table_path(&self) -> PathBuf {
        self.dir.join("table")
    }

    fn slabs_path(&self) -> PathBuf {
        self.dir.join("slabs")
    }

    fn record_path(&self) -> PathBuf {
        self.dir.join("attached")
    }

    fn spill_file(&self, nonce: u64) -> SpillFile {
        SpillFile { path: self.spill_dir.join(format!("spill-{nonce:016x}")) }
    }

    /// Makes the files of a new volume. Its table is allocated: 8 bytes a page.
    ///
    /// # Errors
    /// No room.
    pub(super) fn create(&self, head: &TableHead) -> Result<OpenedMemory, NodeError> {
        // What an attach that never ended left is worth nothing. Of the state disk a volume without a spill
        // file needs nothing.
        if head.spill_pages > 0 || self.has_files()? {
            self.remove()?;
        }
        // The content is the owner's alone, as it is on the device.
        let mut directories = DirBuilder::new();
        directories.recursive(true).mode(0o700);
        directories.create(&self.dir).map_err(file(&self.dir, "created"))?;
        let (table_path, slabs_path) = (self.table_path(), self.slabs_path());
        let make = |path: &Path| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create_new(true).mode(0o600);
            options.open(path).map_err(file(path, "created"))
        };
        let (table, slabs) = (make(&table_path)?, make(&slabs_path)?);
        self.allocate(&table, &slabs, head)?;
        self.write_head(&table, head)?;
        let volume = self.map(&table, slabs, head)?;
        let spill_file = match head.spill_pages {
            0 => None,
            1.. => Some(self.spill_file(head.nonce).create(head.pages)?),
        };
        Ok(OpenedMemory { volume, spill_file })
    }

    /// Opens the files that a predecessor left, which writes no more, and ends a growth that it began.
    ///
    /// # Errors
    /// [`NodeError::Damaged`]; they cannot be opened.
    pub(in crate::node) fn open(&self, record: &MemoryRecord) -> Result<OpenedMemory, NodeError> {
        let (table, slabs) = self.open_memory()?;
        let head = match record.head() {
            Some(head) => {
                let is_possible = slabs_of(head.pages, None).is_some_and(|most| head.slabs <= most);
                if !is_possible || head.spill_pages > head.pages {
                    let source = LocalDamage::OtherAttach;
                    return Err(NodeError::Damaged { path: self.record_path(), source });
                }
                self.allocate(&table, &slabs, &head)?;
                self.end_growth(&table, record, &head)?;
                head
            }
            None => self.read_head(&table, record)?,
        };
        // A growth of which the record says nothing may have made them longer.
        cut(&table, &self.table_path(), table_bytes(&head))?;
        cut(&slabs, &self.slabs_path(), slab_bytes(&head))?;
        let volume = self.map(&table, slabs, &head)?;
        let spill_file = match head.spill_pages {
            0 => None,
            1.. => Some(self.spill_file(head.nonce).open(&volume, head.pages)?),
        };
        Ok(OpenedMemory { volume, spill_file })
    }

    fn open_memory(&self) -> Result<(File, File), NodeError> {
        let open =
            |path: &Path| OpenOptions::new().read(true).write(true).open(path).map_err(file(path, "opened"));
        Ok((open(&self.table_path())?, open(&self.slabs_path())?))
    }

    fn read_head(&self, table: &File, record: &MemoryRecord) -> Result<TableHead, NodeError> {
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(table, HEAD_BYTES as u64), &mut bytes)
            .map_err(file(&self.table_path(), "read"))?;
        let damaged = |source| NodeError::Damaged { path: self.table_path(), source };
        let head = TableHead::decode(&bytes, &self.volume).map_err(|error| damaged(error.into()))?;
        if (head.pages, head.nonce) != (record.sectors, record.nonce) {
            return Err(damaged(LocalDamage::OtherAttach));
        }
        Ok(head)
    }

    fn write_head(&self, table: &File, head: &TableHead) -> Result<(), NodeError> {
        table.write_all_at(&head.encode(&self.volume), 0).map_err(file(&self.table_path(), "written"))
    }

    /// Makes the files as long as the volume needs, and the table's memory its own. They do not become
    /// shorter.
    fn allocate(&self, table: &File, slabs: &File, head: &TableHead) -> Result<(), NodeError> {
        let length = |handle: &File, path: &Path| {
            handle.metadata().map(|found| found.len()).map_err(file(path, "read"))
        };
        let (table_path, slabs_path) = (self.table_path(), self.slabs_path());
        if length(slabs, &slabs_path)? < slab_bytes(head) {
            slabs.set_len(slab_bytes(head)).map_err(file(&slabs_path, "resized"))?;
        }
        let (from, to) = (length(table, &table_path)?, table_bytes(head));
        if from < to {
            fallocate(table, FallocateFlags::empty(), from, to - from)
                .map_err(|errno| file(&table_path, "allocated")(errno.into()))?;
        }
        Ok(())
    }

    /// Cuts the files to the lengths of a volume with this head.
    fn shorten(&self, head: &TableHead) -> Result<(), NodeError> {
        let (table, slabs) = self.open_memory()?;
        cut(&table, &self.table_path(), table_bytes(head))?;
        cut(&slabs, &self.slabs_path(), slab_bytes(head))?;
        match head.spill_pages {
            0 => Ok(()),
            1.. => self.spill_file(head.nonce).cut(head.pages),
        }
    }

    /// Makes a growth the volume's. From the record on, one that is opened has it; if that cannot be written,
    /// the files are as before. Returns its memory as the volume is to have it.
    ///
    /// # Errors
    /// No room; the files cannot be written or mapped. `is_recorded` says whether the record has the growth:
    /// then it may be made again, and not be undone.
    pub(super) fn grow(
        &self,
        record: MemoryRecord,
        (from, to): (&TableHead, &TableHead),
        is_recorded: &AtomicBool,
    ) -> Result<MemoryFiles, NodeError> {
        let recorded = self.lengthen(to).and_then(|()| {
            // What a growth that failed left longer, an older release would take for damage.
            self.shorten(to)?;
            let (table, slabs) = self.open_memory()?;
            let memory = self.map_files(&table, slabs, to)?;
            let record = record.growing(to);
            self.remember(&record)?;
            Ok((table, record, memory))
        });
        let (table, record, memory) = recorded.inspect_err(|_error| {
            if let Err(error) = self.shorten(from) {
                tracing::warn!(error = chain(&error), "a memory volume keeps memory that it does not use");
            }
        })?;
        is_recorded.store(true, Ordering::Relaxed);
        self.end_growth(&table, &record, to)?;
        Ok(memory)
    }

    /// Makes the files long enough for a volume that is served.
    ///
    /// # Errors
    /// No room.
    fn lengthen(&self, to: &TableHead) -> Result<(), NodeError> {
        let (table, slabs) = self.open_memory()?;
        if to.spill_pages > 0 {
            self.spill_file(to.nonce).lengthen(to.pages)?;
        }
        self.allocate(&table, &slabs, to)
    }

    /// Writes the head that a record has. Then the record is one that each release reads.
    fn end_growth(&self, table: &File, record: &MemoryRecord, to: &TableHead) -> Result<(), NodeError> {
        self.write_head(table, to)?;
        self.remember(&MemoryRecord { growth: None, ..record.clone() })
    }

    fn map(
        &self,
        table: &File,
        slabs: File,
        head: &TableHead,
    ) -> Result<MemoryVolume<MemoryFiles>, NodeError> {
        MemoryVolume::open(self.map_files(table, slabs, head)?, head)
            .map_err(|error| NodeError::Damaged { path: self.table_path(), source: error.into() })
    }

    fn map_files(&self, table: &File, slabs: File, head: &TableHead) -> Result<MemoryFiles, NodeError> {
        // SAFETY: the files lie in a directory of the daemon, whose lock makes this process their only user.
        // The table of volumes has each once, and one that grows uses the mapping that it got last. They are
        // cut to the lengths that its volume has, never below; the table is allocated, and the volume takes
        // the memory of a slab before it touches it.
        let files = unsafe { MemoryFiles::map(table, slabs, head.slabs) };
        files.map_err(file(&self.slabs_path(), "mapped"))
    }

    /// Makes the volume one of the node: a restarted daemon recovers it.
    pub(super) fn remember(&self, record: &MemoryRecord) -> Result<(), NodeError> {
        record_json::write(&self.record_path(), record)
    }

    /// True if the volume has files in the run directory.
    ///
    /// # Errors
    /// The run directory does not answer.
    pub(super) fn has_files(&self) -> Result<bool, NodeError> {
        self.dir.try_exists().map_err(file(&self.dir, "looked for"))
    }

    /// The head of the table; none where it cannot be read.
    fn head(&self) -> Option<TableHead> {
        let mut head = [0; HEAD_BYTES];
        File::open(self.table_path()).and_then(|table| table.read_exact_at(&mut head, 0)).ok()?;
        TableHead::decode(&head, &self.volume).ok()
    }

    /// The head that a growth was to write, or the one of the table; none where neither can be read.
    fn recorded_head(&self) -> Option<TableHead> {
        self.record().ok().flatten().and_then(|record| record.head()).or_else(|| self.head())
    }

    /// The most bytes that the files of a predecessor may take; 0 where they cannot be looked at.
    pub(super) fn most_bytes(&self) -> MostBytes {
        let bytes = |path: PathBuf| fs::metadata(path).map_or(0, |found| found.len());
        MostBytes {
            memory: bytes(self.table_path()).saturating_add(bytes(self.slabs_path())),
            spill: self.recorded_head().map_or(0, |head| head.spill_pages * SECTOR_BYTES),
        }
    }

    /// The record; none of an attach that never got so far.
    pub(in crate::node) fn record(&self) -> Result<Option<MemoryRecord>, NodeError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let path = self.record_path();
        let Some(value) = record_json::read::<serde_json::Value>(&path)? else { return Ok(None) };
        let damaged = |source| NodeError::Damaged { path: path.clone(), source };
        let Versioned { version } = Versioned::deserialize(&value).map_err(|error| damaged(error.into()))?;
        if version != VERSION {
            return Err(damaged(LocalDamage::Version { found: version, known: VERSION }));
        }
        MemoryRecord::deserialize(&value).map(Some).map_err(|error| damaged(error.into()))
    }

    /// Removes the files, the record first: without it the rest is what an attach left. The spill file goes
    /// before the table that says whether there is one: a disk that hangs stops no volume without.
    pub(super) fn remove(&self) -> Result<(), NodeError> {
        let gone = |removed: io::Result<()>, path: &Path| match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file(path, "removed")(error)),
            Ok(()) | Err(_) => Ok(()),
        };
        let record = self.record_path();
        for path in [record.clone(), spare(&record)] {
            gone(fs::remove_file(&path), &path)?;
        }
        if self.head().is_none_or(|head| head.spill_pages > 0) {
            self.remove_spill_files()?;
        }
        for path in [self.table_path(), self.slabs_path()] {
            gone(fs::remove_file(&path), &path)?;
        }
        gone(fs::remove_dir(&self.dir), &self.dir)
    }

    /// Moves the spill files to the trash if the volume has no other files.
    fn trash_if_left(&self, state_dir: &Path) -> Result<(), NodeError> {
        if self.has_files()? {
            return Ok(());
        }
        let trash = trash_dir(state_dir);
        fs::create_dir_all(&trash).map_err(file(&trash, "created"))?;
        // What is being deleted under this name does not stand in the way.
        let name = format!("{}-{:016x}", self.volume, u64::from_le_bytes(random()));
        fs::rename(&self.spill_dir, trash.join(name)).map_err(file(&self.spill_dir, "moved to the trash"))
    }

    fn remove_spill_files(&self) -> Result<(), NodeError> {
        match fs::remove_dir_all(&self.spill_dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(file(&self.spill_dir, "removed")(error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}
