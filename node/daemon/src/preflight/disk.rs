//! The disk under the state directory: the daemon's operations on volumes' files, tried on an unlinked file.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use holdfast_ring::HeapBuffer;
use holdfast_types::SECTOR_BYTES;
use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_getfl};

use super::{Check, about};
use crate::node::{CacheRoom, NodeConfig, StateDisk, open_mode, random};

/// Results of the operations, in their order.
#[derive(Debug)]
pub(super) struct DiskFacts {
    /// The file was opened for direct I/O.
    pub(super) is_direct: bool,
    /// A sector was written and read back.
    pub(super) sector: io::Result<()>,
    /// The sector was made durable.
    pub(super) sync: io::Result<Duration>,
    /// The sector was punched out of the file.
    pub(super) hole: io::Result<()>,
}

impl DiskFacts {
    /// # Errors
    /// No file can be created in the directory.
    pub(super) fn observe(dir: &Path) -> io::Result<Self> {
        let file = nameless_file(dir)?;
        let is_direct = fcntl_getfl(&file).is_ok_and(|flags| flags.contains(OFlags::DIRECT));
        let sector = write_and_read(&file);
        let begun = Instant::now();
        let synced = file.sync_all().and_then(|()| File::open(dir)?.sync_all());
        let sync = synced.map(|()| begun.elapsed());
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let hole = fallocate(&file, punch, 0, SECTOR_BYTES).map_err(io::Error::from);
        Ok(Self { is_direct, sector, sync, hole })
    }
}

/// Creates a file in `dir` like those of volumes, and unlinks it at once.
pub(super) fn nameless_file(dir: &Path) -> io::Result<File> {
    let path = dir.join(format!("preflight-{:016x}", u64::from_le_bytes(random())));
    let file = open_mode(&path, OpenOptions::new().read(true).write(true).create(true).truncate(true));
    // A failed open may still have created the file.
    match fs::remove_file(&path) {
        Err(error) if file.is_ok() => Err(error),
        _ => file,
    }
}

fn write_and_read(file: &File) -> io::Result<()> {
    let sector = usize::try_from(SECTOR_BYTES).unwrap_or(usize::MAX);
    let written = HeapBuffer::from_slice(&vec![0xa5; sector]);
    file.write_all_at(&written, 0)?;
    let mut read = HeapBuffer::zeroed(sector);
    file.read_exact_at(&mut read, 0)?;
    if *read == *written { Ok(()) } else { Err(io::Error::other("other bytes were read than were written")) }
}

pub(super) fn check(facts: &DiskFacts) -> [Check; 3] {
    const OTHER: &str = "put node.state_dir on ext4 or xfs, on a disk whose blocks have 4096 bytes at most";
    let direct = match (&facts.sector, facts.is_direct) {
        (Ok(()), true) => Check::pass("direct I/O", format!("with {SECTOR_BYTES} bytes, aligned to that")),
        (Ok(()), false) => {
            let found = "the file system has none. After a failed write, reads may return older data";
            Check::warn("direct I/O", found, OTHER)
        }
        (Err(error), _) => {
            let found = format!("{SECTOR_BYTES} bytes cannot be written and read ({error})");
            Check::fail("direct I/O", found, format!("free space, repair the disk, or {OTHER}"))
        }
    };
    let sync = match &facts.sync {
        Ok(took) => Check::pass("fsync", format!("took {took:.1?}")),
        Err(error) => {
            let found = format!("failed ({error}). A FLUSH of a volume would not be durable on this node");
            Check::fail("fsync", found, "repair the disk, or put node.state_dir on another one")
        }
    };
    let hole = match &facts.hole {
        Ok(()) => Check::pass("hole punching", "works"),
        Err(error) => {
            let found = format!("failed ({error}). Space that volumes discard or evict would not be freed");
            Check::fail("hole punching", found, OTHER)
        }
    };
    [direct, sync, hole]
}

pub(super) fn check_sectors(disk: Option<&StateDisk>) -> Check {
    const NAME: &str = "atomic sectors";
    match disk {
        Some(disk) if disk.keeps_sectors_whole() => Check::pass(
            NAME,
            format!("{} has physical blocks of {} bytes", disk.device, disk.physical_block_bytes),
        ),
        Some(disk) => {
            let found = format!(
                "{} has physical blocks of {} bytes. A power cut may mix two writes in a sector that was \
                 overwritten and not flushed yet",
                disk.device, disk.physical_block_bytes
            );
            Check::warn(
                NAME,
                found,
                "format the disk with blocks of 4096 bytes (docs/install.md), or use another one",
            )
        }
        None => {
            let found = "the file system exposes no block device, so it is unknown whether 4096 bytes are written atomically";
            Check::warn(NAME, found, "put node.state_dir on ext4 or xfs on a disk of the node")
        }
    }
}

pub(super) fn check_room(room: CacheRoom, node: &NodeConfig) -> Check {
    const NAME: &str = "cache size";
    const FIX: &str = "give node.state_dir a larger disk, free space, or lower data.slab_size, data.memory_spill and data.cache_size";
    let CacheRoom { free_bytes, quota_bytes } = room;
    let [free, quota, slab] = [free_bytes, quota_bytes, node.slab_bytes].map(about);
    let least = 2 * node.seal_bytes;
    let spill = match node.memory_spill_bytes {
        0 => String::new(),
        bytes => format!("{} for data.memory_spill, ", about(bytes)),
    };
    let found = format!("{free} are free: {slab} for data.slab_size, {spill}and {quota} for the cache");
    match node.cache_bytes {
        _ if quota_bytes < least => {
            let found =
                format!("{found}, less than twice data.seal_size ({}). Writes would wait", about(least));
            Check::fail(NAME, found, FIX)
        }
        Some(wanted) if quota_bytes < wanted => {
            let found = format!("{found}, less than data.cache_size ({})", about(wanted));
            Check::warn(NAME, found, FIX)
        }
        _ => Check::pass(NAME, found),
    }
}
