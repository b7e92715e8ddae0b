//! The live map's memory: a file in a tmpfs directory, mapped shared.
//!
//! It survives the death of the process and vanishes with the host, which is exactly when it must not be
//! trusted.
#![allow(unsafe_code)] // mmap of a file of our own

use std::fs::{File, OpenOptions};
use std::path::Path;

use holdfast_engine::sector_map::{chunk_extent, fixed_bytes, map_bytes};
use holdfast_types::Chunk;
use memmap2::MmapMut;

use crate::node::error::{NodeError, file};

/// A volume's live map, mapped.
pub(crate) struct LiveMap {
    memory: MmapMut,
    file: File,
}

impl LiveMap {
    /// A new, zeroed map with the fixed part and these chunks allocated.
    pub(crate) fn create(path: &Path, sectors: u64, chunks: &[Chunk]) -> Result<Self, NodeError> {
        // A map left by an attach that never finished is worth nothing.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(file(path, "removed")(error));
            }
            Ok(()) | Err(_) => {}
        }
        let mut options = OpenOptions::new();
        let handle =
            options.read(true).write(true).create_new(true).open(path).map_err(file(path, "created"))?;
        handle.set_len(map_bytes(sectors)).map_err(file(path, "resized"))?;
        let extents = chunks.iter().map(|chunk| chunk_extent(sectors, *chunk));
        for (offset, length) in std::iter::once((0, fixed_bytes(sectors))).chain(extents) {
            rustix::fs::fallocate(&handle, rustix::fs::FallocateFlags::empty(), offset, length)
                .map_err(|errno| file(path, "allocated")(errno.into()))?;
        }
        Self::map(path, handle)
    }

    /// The map a predecessor left.
    pub(crate) fn open(path: &Path) -> Result<Self, NodeError> {
        let handle = OpenOptions::new().read(true).write(true).open(path).map_err(file(path, "opened"))?;
        Self::map(path, handle)
    }

    fn map(path: &Path, handle: File) -> Result<Self, NodeError> {
        // SAFETY: the file lies in a directory of the daemon, whose lock makes this process its only user; it
        // is never truncated while mapped, and pages are allocated before they are touched.
        let memory = unsafe { MmapMut::map_mut(&handle) }.map_err(file(path, "mapped"))?;
        Ok(Self { memory, file: handle })
    }

    /// The file, for allocating chunks through the ring.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

impl AsRef<[u8]> for LiveMap {
    fn as_ref(&self) -> &[u8] {
        &self.memory
    }
}

impl AsMut<[u8]> for LiveMap {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }
}
