//! The files of a memory volume.
//!
//! ```text
//! <run>/memory.d/<id>/table     head and words (`docs/formats/memory-volume.md`)
//! <run>/memory.d/<id>/slabs     contents
//! <run>/memory.d/<id>/attached  record for the recovery of the device by a restarted daemon; JSON
//! <state>/memory.d/<id>/spill-<nonce>  pages that did not fit in memory, if the volume may spill
//! ```
//! The first three are in the tmpfs of the run directory: they outlive the daemon, and are lost when the host
//! restarts; the next daemon then removes the spill file. The nonce belongs to the attach, so that an earlier
//! attach's file is never read. Only root has access: directories have mode 0700, files 0600.
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
use crate::node::device::tag::Installation;
use crate::node::error::{LocalDamage, NodeError, file};
use crate::node::local::file::{allocated_bytes, random, truncate};
use crate::node::local::record_file::spare;
use crate::node::local::record_json;
use crate::node::local::volume_files::{LocalDirs, spill_files_dir, trash_dir, volumes_under};

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
    /// The nonce of its attach, part of the tag.
    pub(super) nonce: u64,
    /// The epoch of its attach; 0 if a user attached it.
    #[serde(default)]
    pub(super) epoch: u64,
    /// The uid of its Volume object; `None` if a user attached it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) owner: Option<String>,
    /// A growth in progress: the table gets this head, but may still have the previous one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    growth: Option<RecordedGrowth>,
}

/// The head of a table as recorded; size and nonce are those of the record.
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

    /// Returns the record of the volume while its head changes to this one.
    fn growing(self, head: &TableHead) -> Self {
        let &TableHead { pages, slabs, codec, nonce: _, spill_pages } = head;
        let growth = RecordedGrowth { slabs, spill_pages, zstd: codec == PageCodec::Zstd };
        Self { sectors: pages, growth: Some(growth), ..self }
    }

    /// Returns the head to be written by a growth.
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

/// Maximum bytes of the files of a memory volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MaxBytes {
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

/// Returns the directory of the memory volumes' files in a run directory.
fn memory_dir(run_dir: &Path) -> PathBuf {
    run_dir.join("memory.d")
}

/// Returns the bytes that the spill files of all volumes occupy on the disk.
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

/// Moves spill files of volumes without other files to the trash: the host restarted, or an attach or a
/// detach did not finish. The trash is deleted once the volumes are served.
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

/// Returns the memory volumes with files in a run directory.
///
/// # Errors
/// It cannot be listed.
pub(super) fn attached_memory(run_dir: &Path) -> Result<Vec<VolumeId>, NodeError> {
    let dir = memory_dir(run_dir);
    if !dir.try_exists().map_err(file(&dir, "checked"))? {
        return Ok(Vec::new());
    }
    volumes_under(&dir)
}

/// Reads what a recovery of each memory volume needs, without changes: checks that this version can read it,
/// and that `installation` attached it.
///
/// # Errors
/// The unreadable file; [`NodeError::OtherInstallation`].
pub(in crate::node) fn check_attached(
    dirs: &LocalDirs,
    installation: Option<Installation>,
) -> Result<(), NodeError> {
    for volume in attached_memory(&dirs.run)? {
        let local = MemoryLocal::new(dirs, &volume);
        let Some(record) = local.record()? else { continue };
        if installation.is_none_or(|ours| ours.tag(&volume, record.nonce).0 != record.tag) {
            return Err(NodeError::OtherInstallation(volume));
        }
        local.check(&record)?;
    }
    Ok(())
}

/// Returns the slabs of a volume of this many pages whose content may take `limit_bytes`: at most enough for
/// any content, which is a slab for each 16 pages, plus a partly used one for each class.
pub(super) fn slabs_of(pages: u64, limit_bytes: Option<u64>) -> Option<u32> {
    let most = pages.div_ceil(SLAB_BYTES as u64 / SECTOR_BYTES).checked_add(u64::from(PAGE_CLASS))?;
    let slabs = limit_bytes.map_or(most, |limit| most.min(limit.div_ceil(SLAB_BYTES as u64).max(1)));
    u32::try_from(slabs).ok().filter(|slabs| *slabs < u32::MAX)
}

/// Returns the length of a table in bytes.
const fn table_bytes(head: &TableHead) -> u64 {
    HEAD_BYTES as u64 + head.pages * size_of::<u64>() as u64
}

/// Returns the length of the slabs in bytes.
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

    /// Creates the files of a new volume. Its table is allocated: 8 bytes a page.
    ///
    /// # Errors
    /// No space.
    pub(super) fn create(&self, head: &TableHead) -> Result<OpenedMemory, NodeError> {
        // Files of an unfinished attach are discardable. A volume without a spill file does not need the
        // state disk.
        if head.spill_pages > 0 || self.has_files()? {
            self.remove()?;
        }
        // Only the owner has access to the content, as for the device.
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

    /// Opens a predecessor's files, which it no longer writes, and completes its unfinished growth.
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
        // An unrecorded growth may have extended them.
        truncate(&table, &self.table_path(), table_bytes(&head))?;
        truncate(&slabs, &self.slabs_path(), slab_bytes(&head))?;
        let volume = self.map(&table, slabs, &head)?;
        let spill_file = match head.spill_pages {
            0 => None,
            1.. => Some(self.spill_file(head.nonce).open(&volume, head.pages)?),
        };
        Ok(OpenedMemory { volume, spill_file })
    }

    /// Checks that [`Self::open`] finds this record's table and spill file. An unfinished growth may have
    /// changed the table.
    fn check(&self, record: &MemoryRecord) -> Result<(), NodeError> {
        let path = self.table_path();
        let table = File::open(&path).map_err(file(&path, "opened"))?;
        let head = match record.head() {
            Some(head) => head,
            None => self.read_head(&table, record)?,
        };
        if head.spill_pages > 0 {
            let SpillFile { path } = self.spill_file(head.nonce);
            File::open(&path).map_err(file(&path, "opened"))?;
        }
        Ok(())
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

    /// Extends the files to the volume's needs, and allocates the table. They are not shortened.
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

    /// Truncates the files to the lengths of a volume with this head.
    fn shorten(&self, head: &TableHead) -> Result<(), NodeError> {
        let (table, slabs) = self.open_memory()?;
        truncate(&table, &self.table_path(), table_bytes(head))?;
        truncate(&slabs, &self.slabs_path(), slab_bytes(head))?;
        match head.spill_pages {
            0 => Ok(()),
            1.. => self.spill_file(head.nonce).truncate(head.pages),
        }
    }

    /// Applies a growth to the volume. Once it is recorded, the next open applies it; if recording fails, the
    /// files are unchanged. Returns the grown volume's memory.
    ///
    /// # Errors
    /// No space; the files cannot be written or mapped. `is_recorded` shows if the growth was recorded: it
    /// may then be retried, but not undone.
    pub(super) fn grow(
        &self,
        record: MemoryRecord,
        (from, to): (&TableHead, &TableHead),
        is_recorded: &AtomicBool,
    ) -> Result<MemoryFiles, NodeError> {
        let recorded = self.lengthen(to).and_then(|()| {
            // An older release would report the extra length left by a failed growth as damage.
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

    /// Extends the files of a served volume.
    ///
    /// # Errors
    /// No space.
    fn lengthen(&self, to: &TableHead) -> Result<(), NodeError> {
        let (table, slabs) = self.open_memory()?;
        if to.spill_pages > 0 {
            self.spill_file(to.nonce).lengthen(to.pages)?;
        }
        self.allocate(&table, &slabs, to)
    }

    /// Writes the recorded head. Afterwards every release can read the record.
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
        // SAFETY: the files are in a directory of the daemon, whose lock makes this process their only user.
        // The table of volumes has each of them once, and a growing one uses its newest mapping. They are
        // truncated to the lengths of the volume, never below; the table is allocated, and the volume
        // allocates a slab before it touches it.
        let files = unsafe { MemoryFiles::map(table, slabs, head.slabs) };
        files.map_err(file(&self.slabs_path(), "mapped"))
    }

    /// Records the volume as attached, so that a restarted daemon recovers it.
    pub(super) fn remember(&self, record: &MemoryRecord) -> Result<(), NodeError> {
        record_json::write(&self.record_path(), record)
    }

    /// Returns true if the volume has files in the run directory.
    ///
    /// # Errors
    /// An error of the run directory.
    pub(super) fn has_files(&self) -> Result<bool, NodeError> {
        self.dir.try_exists().map_err(file(&self.dir, "checked"))
    }

    /// Returns the head of the table; `None` if it is unreadable.
    fn head(&self) -> Option<TableHead> {
        let mut head = [0; HEAD_BYTES];
        File::open(self.table_path()).and_then(|table| table.read_exact_at(&mut head, 0)).ok()?;
        TableHead::decode(&head, &self.volume).ok()
    }

    /// Returns the head to be written by a growth, or that of the table; `None` if neither is readable.
    fn recorded_head(&self) -> Option<TableHead> {
        self.record().ok().flatten().and_then(|record| record.head()).or_else(|| self.head())
    }

    /// Returns the maximum bytes of a predecessor's files; 0 if they cannot be examined.
    pub(super) fn max_bytes(&self) -> MaxBytes {
        let bytes = |path: PathBuf| fs::metadata(path).map_or(0, |found| found.len());
        MaxBytes {
            memory: bytes(self.table_path()).saturating_add(bytes(self.slabs_path())),
            spill: self.recorded_head().map_or(0, |head| head.spill_pages * SECTOR_BYTES),
        }
    }

    /// Returns the record; `None` for an attach that did not get that far.
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

    /// Removes the files, the record first: without it, the rest counts as remains of an attach. The table
    /// shows if there is a spill file, and is removed after it: a hanging disk affects no volume without one.
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
        // Files already being deleted under this name do not conflict.
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
