//! The live map's memory: a file in a tmpfs directory, mapped shared.
//!
//! It survives the death of the process and vanishes with the host, which is exactly when it must not be
//! trusted.
#![allow(unsafe_code)] // mmap of a file of our own

use std::fs::File;
use std::io;

use memmap2::MmapMut;

/// A volume's live map, mapped. Its file is open in a ring's table only.
#[derive(Debug)]
pub struct LiveMap(MmapMut);

impl LiveMap {
    /// Maps a file.
    ///
    /// # Errors
    /// The kernel's, if it cannot map it.
    ///
    /// # Safety
    /// No other process uses the file, and this one writes to it through one mapping at a time. It is never
    /// truncated while it is mapped, and pages are allocated before they are touched: else the process is
    /// killed.
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
