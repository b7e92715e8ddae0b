//! The live map's memory: a shared mapping of a file in a tmpfs directory.
//!
//! It survives the end of the process, but not that of the host.
#![allow(unsafe_code)] // mmap of a file of the process

use std::fs::File;
use std::io;

use memmap2::MmapMut;

/// A volume's mapped live map. Only a ring's table keeps its file open.
#[derive(Debug)]
pub struct LiveMap(MmapMut);

impl LiveMap {
    /// Maps a file.
    ///
    /// # Errors
    /// Error of the kernel, if it cannot map the file.
    ///
    /// # Safety
    /// No other process uses the file, and this process writes to it through one mapping at a time. The file
    /// is never truncated while it is mapped, and its pages are allocated before their first use: otherwise
    /// the kernel kills the process.
    pub unsafe fn map(file: &File) -> io::Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { MmapMut::map_mut(file) }.map(Self)
    }
}

impl AsRef<[u8]> for LiveMap {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsMut<[u8]> for LiveMap {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
