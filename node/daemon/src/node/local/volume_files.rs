//! A volume's files on the node.
//!
//! ```text
//! <state>/lock  run                 see `owner.rs`
//! <state>/installation              16 random bytes that identify our devices
//! <state>/slab.data                shared by all volumes
//! <state>/volumes/<id>/a.data       side A, sparse, the device's geometry
//! <state>/volumes/<id>/b.data       side B
//! <state>/volumes/<id>/map          the durable map
//! <state>/volumes/<id>/pending      the log record about to be created (see `pending.rs`)
//! <state>/volumes/<id>/pending.new  space for the next one
//! <state>/trash/<id>-<number>/     files of a volume, being deleted
//! <state>/fenced/<id>-<epoch>/      un-uploaded data of a fenced writer
//! <run>/lock  owner                 see `owner.rs`
//! <run>/volumes.d/<id>/map          the live map (tmpfs)
//! <run>/volumes.d/<id>/attached     record for the recovery of the device by a restarted daemon (tmpfs)
//! <run>/volumes.d/<id>/attached.new space for its next version
//! ```
//! No other file below `<run>` is removed or, except for records of earlier versions, read.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use holdfast_background::LocalState;
use holdfast_engine::durable_map::{
    FoundMap, FoundPart, Header, JOURNAL_OFFSET, MapReader, PageSummary, SLOT_BYTES, file_bytes,
    header_offset, journal_extent, page_offset,
};
use holdfast_engine::sector_map::{PAGE_SECTORS, Restore, RestoredMap};
use holdfast_engine::settings::Pending;
use holdfast_format::wire::{self, Kind};
use holdfast_ring::HeapBuffer;
use holdfast_types::{Epoch, SECTOR_BYTES, VolumeId};
use rustix::fs::{FallocateFlags, SeekFrom};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::node::error::{LocalDamage, NodeError, file};
use crate::node::limit::{MAP_READERS, MAP_WINDOW_BYTES};
use crate::node::local::attached_record::{AttachedRecord, RECORD, attached_record};
use crate::node::local::file::{allocated_bytes, open_direct, open_mode, random, sync_dir};
use crate::node::local::live_map;
use crate::node::local::pending;
use crate::node::local::record_file::{replace_reserved, spare};
use crate::node::run_blocking::blocking;
use holdfast_serve::LiveMap;

/// Paths of one volume's files.
#[derive(Debug, Clone)]
pub(crate) struct Local {
    volume: VolumeId,
    state_dir: PathBuf,
    run_dir: PathBuf,
}

/// Limits the durable maps that may be read concurrently.
static READERS: Semaphore = Semaphore::const_new(MAP_READERS);

/// The live map of a fenced writer, preserved next to its sides.
pub(crate) const KEPT_LIVE_MAP: &str = "live-map";

/// Returns the directory of the volumes' files in a state directory.
pub(crate) fn state_volumes(state_dir: &Path) -> PathBuf {
    state_dir.join("volumes")
}

/// Returns the directory of the memory volumes' spill files in a state directory.
pub(crate) fn spill_files_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("memory.d")
}

/// Returns the directory of the volumes' files in a run directory, which may be shared with other programs.
/// Its name is not a valid volume id: earlier versions treat every directory next to it that could be a
/// volume's as one, and remove it.
pub(crate) fn run_volumes(run_dir: &Path) -> PathBuf {
    run_dir.join("volumes.d")
}

/// Returns the parents of the directories of attached volumes in earlier versions.
fn older_run_volumes(run_dir: &Path) -> [PathBuf; 2] {
    [run_dir.to_owned(), run_dir.join("volumes")]
}

/// Returns the directory of files to be deleted, in a state directory.
pub(in crate::node) fn trash_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("trash")
}

/// Returns the directory of the local files of fenced writers.
pub(crate) fn fenced_dir(state_dir: &Path) -> PathBuf {
    state_dir.join("fenced")
}

/// The open files of a volume.
pub(crate) struct VolumeFiles {
    pub(crate) sides: [File; 2],
    pub(crate) map: File,
}

/// The open files of a volume that is being attached.
pub(crate) struct AttachFiles {
    pub(crate) files: VolumeFiles,
    pub(crate) live_map: LiveMap,
}

/// Directories of the local files of all volumes.
#[derive(Debug, Clone)]
pub(crate) struct LocalDirs {
    /// On the local NVMe.
    pub(crate) state: PathBuf,
    /// In a tmpfs.
    pub(crate) run: PathBuf,
}

impl LocalDirs {
    /// Returns the local files of a volume.
    pub(crate) fn of(&self, volume: &VolumeId) -> Local {
        Local::new(&self.state, &self.run, volume)
    }
}

impl Local {
    pub(crate) fn new(state_dir: &Path, run_dir: &Path, volume: &VolumeId) -> Self {
        Self { volume: volume.clone(), state_dir: state_dir.to_owned(), run_dir: run_dir.to_owned() }
    }

    pub(crate) fn volume(&self) -> &VolumeId {
        &self.volume
    }

    pub(crate) fn dir(&self) -> PathBuf {
        state_volumes(&self.state_dir).join(self.volume.as_str())
    }

    fn run(&self) -> PathBuf {
        run_volumes(&self.run_dir).join(self.volume.as_str())
    }

    pub(crate) fn live_map_path(&self) -> PathBuf {
        self.run().join("map")
    }

    pub(crate) fn map_path(&self) -> PathBuf {
        self.dir().join("map")
    }

    fn pending_path(&self) -> PathBuf {
        self.dir().join("pending")
    }

    fn record_path(&self) -> PathBuf {
        self.run().join(RECORD)
    }

    /// Returns the record of the volume left by an earlier version.
    fn older_record(&self) -> Option<PathBuf> {
        let records = older_run_volumes(&self.run_dir).map(|dir| dir.join(self.volume.as_str()).join(RECORD));
        // An unreadable file may be one.
        let is_ours = |path: &Path| fs::read(path).map_or(true, |bytes| wire::begins_as_ours(&bytes));
        records.into_iter().find(|path| path.is_file() && is_ours(path))
    }

    /// Checks that no earlier version has the volume attached.
    pub(crate) fn check_layout(&self) -> Result<(), NodeError> {
        match self.older_record() {
            Some(record) => Err(NodeError::OlderLayout { volume: self.volume.clone(), record }),
            None => Ok(()),
        }
    }

    /// Creates the volume's directories durably.
    fn make_dirs(&self) -> Result<(), NodeError> {
        for dir in [self.dir(), self.run()] {
            fs::create_dir_all(&dir).map_err(file(&dir, "created"))?;
            dir.parent().map_or(Ok(()), sync_dir)?;
        }
        Ok(())
    }

    /// Opens the sides and the durable map of an attached volume, growing them for `sectors`.
    pub(crate) fn open_files(&self, sectors: u64) -> Result<VolumeFiles, NodeError> {
        let files = self.open_or_make(sectors)?;
        if let Err(error) = self.reserve_commits(&files.map, sectors) {
            // The device must be served without waiting for space; commits request the space again.
            tracing::warn!(volume = %self.volume, error = &error as &dyn std::error::Error,
                "no space was reserved for the volume's commits: they fail while the disk is full");
        }
        Ok(files)
    }

    /// Like [`Self::open_files`], for any volume; creates missing files.
    fn open_or_make(&self, sectors: u64) -> Result<VolumeFiles, NodeError> {
        let dir = self.dir();
        let side = |name| {
            let path = dir.join(name);
            open_direct(&path, sectors * SECTOR_BYTES).map_err(|error| self.too_large(&path, sectors, error))
        };
        let (a, b) = (side("a.data")?, side("b.data")?);
        let pages = sectors.div_ceil(PAGE_SECTORS);
        let map = open_direct(&self.map_path(), file_bytes(pages))?;
        if let Err(error) = allocate_journal(&map, pages) {
            // Flushes work without it.
            tracing::warn!(
                volume = %self.volume,
                %error,
                "no space for the journal of the durable map: flushes of scattered writes cost more until the \
                 volume is attached again"
            );
        }
        sync_dir(&dir)?;
        Ok(VolumeFiles { sides: [a, b], map })
    }

    /// Returns the error for a side that cannot be as large as the device, in terms of the volume.
    fn too_large(&self, side: &Path, sectors: u64, error: NodeError) -> NodeError {
        let is_limit =
            matches!(&error, NodeError::File { source, .. } if source.kind() == io::ErrorKind::FileTooLarge);
        if !is_limit {
            return error;
        }
        let bytes = sectors * SECTOR_BYTES;
        NodeError::TooLarge {
            volume: self.volume.clone(),
            bytes,
            limit_bytes: max_bytes(side, bytes),
            state_dir: self.state_dir.clone(),
        }
    }

    /// Returns the bytes that the sides occupy in the filesystem.
    pub(crate) fn held_bytes(&self) -> Result<u64, NodeError> {
        let dir = self.dir();
        Ok(allocated_bytes(&dir.join("a.data"))? + allocated_bytes(&dir.join("b.data"))?)
    }

    /// Fills a new live map with the content of the durable one.
    fn restore(&self, live_map: LiveMap, sectors: u64, restore: &Restore) -> Result<LiveMap, NodeError> {
        let (path, live_path) = (self.map_path(), self.live_map_path());
        let (live, mut filled) =
            (live_map::open_file(&live_path)?, RestoredMap::new(live_map, sectors, restore));
        let Some(map) = open_map(&path)? else {
            return Err(file(&path, "read")(io::ErrorKind::NotFound.into()));
        };
        read_parts(&map, &path, &restore.found, &mut |part| {
            if let Some(chunk) = filled.needs(&part) {
                live_map::allocate_chunk(&live, &live_path, chunk)?;
            }
            filled.add(&part);
            Ok(())
        })?;
        Ok(filled.into_memory())
    }

    /// Reads the durable header with its generation, and a summary of its pages; `None` if the volume has no
    /// durable map here.
    pub(crate) fn read_map(&self) -> Result<Option<FoundMap>, NodeError> {
        read_map(&self.map_path())
    }

    /// Reads the durable map, and checks that its sides are there. Changes nothing.
    ///
    /// # Errors
    /// An unreadable file; [`NodeError::Damaged`].
    pub(crate) async fn check_map(&self) -> Result<(), NodeError> {
        let (local, turn) = (self.clone(), turn_to_read().await);
        blocking(move || {
            let _until_read = turn;
            let Some(found) = local.read_map()? else { return Ok(()) };
            local.check_sides(found.header.sectors)
        })
        .await
    }

    /// Reads the durable header with its generation, without the pages: if a live map exists, they are not
    /// needed, and the next flush rounds repair damaged ones.
    pub(crate) fn read_header(&self) -> Result<Option<(u64, Header)>, NodeError> {
        let path = self.map_path();
        Ok(open_map(&path)?.map(|map| read_header(&map, &path)).transpose()?.flatten())
    }

    /// Writes the header as the next generation and syncs it.
    fn write_header(&self, map: &File, header: &Header, generation: u64) -> Result<(), NodeError> {
        let path = self.map_path();
        let slot = u8::from(generation % 2 == 1);
        let aligned = HeapBuffer::from_slice(&header.encode(generation));
        map.write_all_at(&aligned, header_offset(slot)).map_err(file(&path, "written"))?;
        map.sync_data().map_err(file(&path, "synced"))
    }

    /// Stores a log record durably, in place of the last one.
    pub(crate) fn store_pending(&self, pending: &Pending) -> Result<(), NodeError> {
        pending::store(&self.pending_path(), pending)
    }

    /// Reads the log record that a predecessor was about to create.
    pub(crate) fn read_pending(&self) -> Result<Option<Pending>, NodeError> {
        pending::read(&self.pending_path())
    }

    /// Allocates the space for all writes of a commit: both slots of the durable map's header, and each log
    /// record of a volume of `sectors` sectors. Map pages are allocated before their chunk is written. A full
    /// disk thus blocks no commit, and commits are required to evict data.
    fn reserve_commits(&self, map: &File, sectors: u64) -> Result<(), NodeError> {
        let path = self.map_path();
        // Allocated space is not requested again: a full XFS rejects even that.
        let written = rustix::fs::seek(map, SeekFrom::Hole(0));
        let header_bytes = page_offset(0, 0);
        if written.is_ok_and(|end| end < header_bytes) {
            rustix::fs::fallocate(map, FallocateFlags::empty(), 0, header_bytes)
                .map_err(|errno| file(&path, "allocated")(errno.into()))?;
        }
        pending::reserve(&self.pending_path(), sectors)
    }

    pub(crate) fn write_record(&self, record: &AttachedRecord) -> Result<(), NodeError> {
        let path = self.record_path();
        let record = AttachedRecord { version: record.written_version(), ..record.clone() };
        let text = serde_json::to_vec(&record)
            .map_err(|error| NodeError::Damaged { path: path.clone(), source: error.into() })?;
        replace_reserved(&path, &wire::enclose(Kind::Attached, &text))
    }

    pub(crate) fn read_record(&self) -> Result<Option<AttachedRecord>, NodeError> {
        let path = self.record_path();
        match fs::read(&path) {
            Ok(bytes) => {
                attached_record(&bytes).map(Some).map_err(|source| NodeError::Damaged { path, source })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(file(&path, "read")(error)),
        }
    }

    /// Removes the attach record; the sides stay as cache. Files that are not ours stay.
    pub(crate) fn forget_attached(&self) -> Result<(), NodeError> {
        let record = self.record_path();
        let gone = |removed: io::Result<()>, path: &Path| match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file(path, "removed")(error)),
            Ok(()) | Err(_) => Ok(()),
        };
        // The record first: without it, the rest counts as the remains of an attach that had no device yet.
        for path in [record.clone(), spare(&record), self.live_map_path()] {
            gone(fs::remove_file(&path), &path)?;
        }
        let run = self.run();
        match fs::remove_dir(&run) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                tracing::warn!(directory = %run.display(), "files that are not holdfast's stayed in the run directory");
                Ok(())
            }
            removed => gone(removed, &run),
        }
    }

    /// Discards the local files: none of them has the volume's newest data. They go at once: a map that stays
    /// without one of its sides would turn the other's data into zeros.
    pub(crate) fn discard(&self) -> Result<(), NodeError> {
        let Some(trash) = self.move_to_trash()? else { return Ok(()) };
        remove_all(&trash)
    }

    /// Moves the local files to the trash, which the next start empties, too. Returns their directory there;
    /// `None` if there are none.
    pub(in crate::node) fn move_to_trash(&self) -> Result<Option<PathBuf>, NodeError> {
        let (dir, trash) = (self.dir(), trash_dir(&self.state_dir));
        fs::create_dir_all(&trash).map_err(file(&trash, "created"))?;
        // Files already being deleted under this volume's name do not conflict.
        let moved = trash.join(format!("{}-{:016x}", self.volume, u64::from_le_bytes(random())));
        match fs::rename(&dir, &moved) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(file(&dir, "moved to the trash")(error)),
        }
        sync_dir(&trash)?;
        Ok(Some(moved))
    }

    /// Checks that both sides exist and are as long as a volume of `sectors` needs: a map is used only with
    /// its sides, because a missing one would read as zeros.
    ///
    /// # Errors
    /// [`NodeError::Damaged`].
    pub(crate) fn check_sides(&self, sectors: u64) -> Result<(), NodeError> {
        for name in ["a.data", "b.data"] {
            let path = self.dir().join(name);
            let found = match fs::metadata(&path) {
                Ok(found) => found.len(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
                Err(error) => return Err(file(&path, "read")(error)),
            };
            let expected = sectors * SECTOR_BYTES;
            if found < expected {
                return Err(damaged(&path, LocalDamage::Side { found, expected }));
            }
        }
        Ok(())
    }

    /// Returns the durable map, if its sides are there. Without a side, the files of a clean detach are
    /// discarded, because all their data is in the store.
    ///
    /// # Errors
    /// An unreadable file; [`NodeError::Damaged`] if a side with data that may not be in the store is
    /// missing.
    fn read_map_and_sides(&self) -> Result<Option<FoundMap>, NodeError> {
        let Some(found) = self.read_map()? else { return Ok(None) };
        match self.check_sides(found.header.sectors) {
            Err(error @ NodeError::Damaged { .. }) if found.header.closed_clean => {
                tracing::error!(
                    volume = %self.volume,
                    error = &error as &dyn std::error::Error,
                    "the cache of the volume is incomplete, and was discarded; all data is in the store"
                );
                self.discard()?;
                Ok(None)
            }
            checked => checked.map(|()| Some(found)),
        }
    }

    /// Copies the live map to the sides' directory, if the durable one could not be updated.
    pub(crate) fn keep_live_map(&self) -> Result<(), NodeError> {
        let path = self.dir().join(KEPT_LIVE_MAP);
        let copied = fs::copy(self.live_map_path(), &path).and_then(|_| File::open(&path)?.sync_all());
        if copied.is_err() {
            // A partial map is useless. The removal fails if no file was created.
            drop(fs::remove_file(&path));
        }
        copied.map_err(file(&path, "written"))
    }

    /// Preserves the local files of a fenced writer. Returns their directory.
    pub(crate) fn preserve(&self, epoch: Epoch) -> Result<PathBuf, NodeError> {
        let fenced = fenced_dir(&self.state_dir);
        fs::create_dir_all(&fenced).map_err(file(&fenced, "created"))?;
        let name = (0..).map(|turn| if turn == 0 { String::new() } else { format!("-{turn}") });
        let kept = name
            .map(|suffix| fenced.join(format!("{}-{epoch}{suffix}", self.volume)))
            .find(|path| !path.exists())
            .expect("an endless list of names");
        let dir = self.dir();
        fs::rename(&dir, &kept).map_err(file(&dir, "preserved"))?;
        sync_dir(&fenced)?;
        Ok(kept)
    }
}

impl LocalState for Local {
    type Error = NodeError;
    type Files = AttachFiles;

    async fn read_map(&self) -> Result<Option<FoundMap>, NodeError> {
        let (local, turn) = (self.clone(), turn_to_read().await);
        blocking(move || {
            let _until_read = turn;
            local.read_map_and_sides()
        })
        .await
    }

    async fn preserve(&self, epoch: Epoch) -> Result<(), NodeError> {
        let local = self.clone();
        let kept = blocking(move || local.preserve(epoch)).await?;
        tracing::error!(volume = %self.volume, %epoch, kept = %kept.display(),
            "preserved local data that had not been uploaded; it is not the volume's newest");
        Ok(())
    }

    async fn discard(&self) -> Result<(), NodeError> {
        let local = self.clone();
        blocking(move || local.discard()).await
    }

    async fn open(&self, sectors: u64, restore: Option<Restore>) -> Result<AttachFiles, NodeError> {
        let (local, turn) = (self.clone(), turn_to_read().await);
        blocking(move || {
            let _until_read = turn;
            local.make_dirs()?;
            let files = local.open_or_make(sectors)?;
            local.reserve_commits(&files.map, sectors)?;
            let mut live_map = live_map::create(&local.live_map_path(), sectors)?;
            if let Some(restore) = restore {
                live_map = local.restore(live_map, sectors, &restore)?;
            }
            Ok(AttachFiles { files, live_map })
        })
        .await
    }

    async fn write_header(
        &self,
        AttachFiles { files, .. }: &AttachFiles,
        header: &Header,
        generation: u64,
    ) -> Result<(), NodeError> {
        let map = files.map.try_clone().map_err(file(&self.map_path(), "shared"))?;
        let (local, header) = (self.clone(), header.clone());
        blocking(move || local.write_header(&map, &header, generation)).await
    }
}

/// Waits until another map may be read.
async fn turn_to_read() -> SemaphorePermit<'static> {
    READERS.acquire().await.expect("never closed")
}

/// Allocates the journal of the durable map before anything is written there: otherwise a flush may find no
/// space for it, and works without it.
fn allocate_journal(map: &File, pages: u64) -> io::Result<()> {
    let (offset, length) = journal_extent(pages);
    if length > 0 {
        rustix::fs::fallocate(map, FallocateFlags::empty(), offset, length)?;
    }
    Ok(())
}

/// Opens the durable map at `path`, and syncs a predecessor's writes; `None` if it does not exist.
fn open_map(path: &Path) -> Result<Option<File>, NodeError> {
    let map = match open_mode(path, OpenOptions::new().read(true).write(true)) {
        Ok(map) => map,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(file(path, "opened")(error)),
    };
    // Unsynced writes of a predecessor can be read now and lost at the next power failure: a decision based
    // on them would overwrite the valid slot.
    map.sync_data().map_err(file(path, "synced"))?;
    Ok(Some(map))
}

fn damaged(path: &Path, source: impl Into<LocalDamage>) -> NodeError {
    NodeError::Damaged { path: path.to_owned(), source: source.into() }
}

fn read_header(map: &File, path: &Path) -> Result<Option<(u64, Header)>, NodeError> {
    if map.metadata().map_err(file(path, "read"))?.len() < page_offset(0, 0) {
        return Ok(None);
    }
    let mut head = HeapBuffer::zeroed(2 * SLOT_BYTES);
    map.read_exact_at(&mut head, 0).map_err(file(path, "read"))?;
    Header::newest(&head).map_err(|error| damaged(path, error))
}

/// Reads the durable map at `path`; `None` if it does not exist.
pub(crate) fn read_map(path: &Path) -> Result<Option<FoundMap>, NodeError> {
    let mut pages = PageSummary::default();
    let read = read_map_parts(path, &mut |part| pages.add(&part))?;
    Ok(read.map(|(generation, header)| FoundMap { generation, header, pages }))
}

/// Passes each part of the durable map at `path` to `each`, then returns its header with its generation;
/// `None` if it does not exist.
pub(crate) fn read_map_parts(
    path: &Path,
    each: &mut dyn FnMut(FoundPart),
) -> Result<Option<(u64, Header)>, NodeError> {
    let Some(map) = open_map(path)? else { return Ok(None) };
    let Some((generation, header)) = read_header(&map, path)? else { return Ok(None) };
    read_parts(&map, path, &header, &mut |part| {
        each(part);
        Ok(())
    })?;
    Ok(Some((generation, header)))
}

/// Passes each part of a durable map to `each`, in windows of [`MAP_WINDOW_BYTES`] of the file.
fn read_parts(
    map: &File,
    path: &Path,
    header: &Header,
    each: &mut dyn FnMut(FoundPart) -> Result<(), NodeError>,
) -> Result<(), NodeError> {
    const PAIR_BYTES: u64 = 2 * SLOT_BYTES as u64;
    let length = map.metadata().map_err(file(path, "read"))?.len();
    let mut reader = MapReader::new(header);
    let mut window = HeapBuffer::zeroed(MAP_WINDOW_BYTES);
    let mut at = page_offset(0, 0);
    while at < length.min(JOURNAL_OFFSET) {
        // Holes are pages that were never written.
        let data = match rustix::fs::seek(map, SeekFrom::Data(at)) {
            Ok(data) if data >= JOURNAL_OFFSET => break,
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => break,
            Err(errno) => return Err(file(path, "searched")(errno.into())),
        };
        let hole = rustix::fs::seek(map, SeekFrom::Hole(data))
            .map_err(|errno| file(path, "searched")(errno.into()))?;
        let first = (data - page_offset(0, 0)) / PAIR_BYTES;
        let start = page_offset(first, 0);
        let wanted = (hole.min(JOURNAL_OFFSET) - start).next_multiple_of(PAIR_BYTES);
        let pairs = window.len().min(usize::try_from(wanted).unwrap_or(usize::MAX));
        map.read_exact_at(&mut window[..pairs], start).map_err(file(path, "read"))?;
        for (page, pair) in (first..).zip(window[..pairs].chunks_exact(2 * SLOT_BYTES)) {
            let found = reader.page(page, pair).map_err(|error| damaged(path, error))?;
            found.map_or(Ok(()), &mut *each)?;
        }
        at = start + pairs as u64;
    }
    let mut at = JOURNAL_OFFSET;
    while reader.wants_journal() && at < length {
        let bytes = window.len().min(usize::try_from(length - at).unwrap_or(usize::MAX));
        map.read_exact_at(&mut window[..bytes], at).map_err(file(path, "read"))?;
        let found = reader.journal(&window[..bytes]).map_err(|error| damaged(path, error))?;
        found.into_iter().try_for_each(&mut *each)?;
        at += bytes as u64;
    }
    reader.end().map_err(|error| damaged(path, error))
}

/// Returns the volumes that were attached through a run directory, by this version or an earlier one.
pub(crate) fn attached_volumes(dirs: &LocalDirs) -> Result<BTreeSet<VolumeId>, NodeError> {
    let mut volumes = BTreeSet::from_iter(volumes_under(&run_volumes(&dirs.run))?);
    for dir in older_run_volumes(&dirs.run).into_iter().filter(|dir| dir.is_dir()) {
        let is_attached = |volume: &VolumeId| dirs.of(volume).older_record().is_some();
        volumes.extend(volumes_under(&dir)?.into_iter().filter(is_attached));
    }
    Ok(volumes)
}

/// Removes a directory with its files, some of which another task may have removed.
pub(in crate::node) fn remove_all(dir: &Path) -> Result<(), NodeError> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file(dir, "removed")(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Returns the volumes with a directory under `dir`: [`run_volumes`] or [`state_volumes`].
pub(crate) fn volumes_under(dir: &Path) -> Result<Vec<VolumeId>, NodeError> {
    let entries = fs::read_dir(dir).map_err(file(dir, "listed"))?;
    let mut volumes = Vec::new();
    for entry in entries {
        let name = entry.map_err(file(dir, "listed"))?.file_name();
        // Other files are not volumes.
        if let Some(volume) = name.to_str().and_then(|name| name.parse().ok())
            && dir.join(&name).is_dir()
        {
            volumes.push(volume);
        }
    }
    Ok(volumes)
}

/// Returns the maximum size in bytes of a sparse file on the filesystem, found by trial; less than
/// `refused_bytes`.
fn max_bytes(path: &Path, refused_bytes: u64) -> u64 {
    let Ok(handle) = OpenOptions::new().write(true).open(path) else { return 0 };
    let length = handle.metadata().map_or(0, |metadata| metadata.len());
    let (mut fits, mut too_large) = (length, refused_bytes);
    while too_large - fits > SECTOR_BYTES {
        let middle = fits + (too_large - fits) / 2;
        if handle.set_len(middle).is_ok() {
            fits = middle;
        } else {
            too_large = middle;
        }
    }
    // Nothing was written beyond it.
    drop(handle.set_len(length));
    fits / SECTOR_BYTES * SECTOR_BYTES
}

#[cfg(test)]
mod tests;
