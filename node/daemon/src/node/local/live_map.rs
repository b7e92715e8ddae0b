//! Creates, opens and checks the file of a volume's live map in the run directory.
#![allow(unsafe_code)] // mmap of a file of our own

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use holdfast_engine::sector_map::{HEAD_BYTES, chunk_extent, fixed_extents, map_bytes, sectors_of};
use holdfast_serve::LiveMap;
use holdfast_types::{Chunk, VolumeId};

use crate::node::error::{LocalDamage, NodeError, file};

/// Creates a zeroed map with the fixed part allocated.
pub(crate) fn create(path: &Path, sectors: u64) -> Result<LiveMap, NodeError> {
    // A map of an unfinished attach is discardable.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(file(path, "removed")(error));
        }
        Ok(()) | Err(_) => {}
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    let handle = options.open(path).map_err(file(path, "created"))?;
    allocate_fixed(path, &handle, sectors)?;
    map(path, &handle)
}

/// Opens a predecessor's map, with room for `sectors` sectors: it may belong to a smaller volume.
pub(crate) fn open(path: &Path, sectors: u64) -> Result<LiveMap, NodeError> {
    let handle = open_file(path)?;
    allocate_fixed(path, &handle, sectors)?;
    map(path, &handle)
}

/// The file of a map, for the allocation of chunks.
pub(crate) fn open_file(path: &Path) -> Result<File, NodeError> {
    OpenOptions::new().read(true).write(true).open(path).map_err(file(path, "opened"))
}

/// Checks that the map at `path` belongs to the volume, and that this version can read it. Changes nothing.
pub(crate) fn check(path: &Path, volume: &VolumeId) -> Result<(), NodeError> {
    let mut head = Vec::new();
    let handle = File::open(path).map_err(file(path, "opened"))?;
    handle.take(HEAD_BYTES).read_to_end(&mut head).map_err(file(path, "read"))?;
    match sectors_of(&head, volume) {
        Ok(_) => Ok(()),
        Err(error) => {
            let source = LocalDamage::LiveMap(error);
            Err(NodeError::Damaged { path: path.to_owned(), source })
        }
    }
}

fn map(path: &Path, handle: &File) -> Result<LiveMap, NodeError> {
    // SAFETY: the file is in a directory of the daemon, whose lock makes this process its only user. It is
    // not truncated while it is mapped, and the planner allocates pages before it touches them. A growing map
    // is written through the new mapping only.
    unsafe { LiveMap::map(handle) }.map_err(file(path, "mapped"))
}

/// Allocates a chunk in the file of a map, so that its part may be accessed.
pub(crate) fn allocate_chunk(handle: &File, path: &Path, chunk: Chunk) -> Result<(), NodeError> {
    allocate(path, handle, chunk_extent(chunk))
}

/// Extends the file to the length of a map of `sectors` sectors, unless it is longer, and allocates its fixed
/// parts. Existing content stays.
fn allocate_fixed(path: &Path, handle: &File, sectors: u64) -> Result<(), NodeError> {
    let length = handle.metadata().map_err(file(path, "read"))?.len();
    if length < map_bytes(sectors) {
        handle.set_len(map_bytes(sectors)).map_err(file(path, "resized"))?;
    }
    fixed_extents(sectors).try_for_each(|extent| allocate(path, handle, extent))
}

fn allocate(path: &Path, handle: &File, (offset, length): (u64, u64)) -> Result<(), NodeError> {
    rustix::fs::fallocate(handle, rustix::fs::FallocateFlags::empty(), offset, length)
        .map_err(|errno| file(path, "allocated")(errno.into()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use holdfast_types::CHUNK_SECTORS;

    use super::*;

    const CHUNK_BYTES: u64 = 16 << 10;

    /// Regression: the layout depended on the volume's size: a restart during a growth found an unusable map.
    #[test]
    fn a_map_is_opened_for_a_volume_that_grew() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map");
        let mut small = create(&path, CHUNK_SECTORS).unwrap();
        allocate_chunk(&open_file(&path).unwrap(), &path, Chunk(0)).unwrap();
        let (offset, length) = chunk_extent(Chunk(0));
        let marks = usize::try_from(offset).unwrap()..usize::try_from(offset + length).unwrap();
        small.as_mut()[marks.clone()].fill(0x55);
        drop(small);
        let groups = 3;
        let sectors = (groups - 1) * 1024 * CHUNK_SECTORS + 1;
        let large = open(&path, sectors).unwrap();
        assert_eq!(large.as_ref().len() as u64, map_bytes(sectors));
        assert!(large.as_ref()[marks].iter().all(|byte| *byte == 0x55), "nothing has moved");
        let allocated = path.metadata().unwrap().blocks() * 512;
        assert_eq!(allocated, 4096 + groups * 4096 + CHUNK_BYTES, "and only fixed parts are new");
        drop(large);
        let again = open(&path, CHUNK_SECTORS).unwrap();
        assert_eq!(again.as_ref().len() as u64, map_bytes(sectors), "it is never cut off");
    }

    /// Like the ring for `Action::PrepareMap` and `Action::ReleaseMap`.
    #[test]
    fn a_chunk_that_is_given_back_takes_no_memory() {
        use rustix::fs::{FallocateFlags, fallocate};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map");
        let mut map = create(&path, 8 * CHUNK_SECTORS).unwrap();
        let handle = open_file(&path).unwrap();
        let allocated = || handle.metadata().unwrap().blocks() * 512;
        let empty = allocated();
        let (offset, length) = chunk_extent(Chunk(5));
        let marks = usize::try_from(offset).unwrap()..usize::try_from(offset + length).unwrap();
        for _ in 0..2 {
            fallocate(&handle, FallocateFlags::KEEP_SIZE, offset, length).unwrap();
            assert!(map.as_ref()[marks.clone()].iter().all(|byte| *byte == 0));
            map.as_mut()[marks.clone()].fill(0x55);
            assert_eq!(allocated(), empty + CHUNK_BYTES);
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&handle, hole, offset, length).unwrap();
            assert_eq!(allocated(), empty);
        }
    }
}
