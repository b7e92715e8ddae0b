//! A memory volume that a ring thread is to serve.

use std::fs::File;
use std::sync::Arc;

use holdfast_memory::MemoryVolume;

use super::files::MemoryFiles;
use super::published::PublishedMemory;
use crate::label::Label;

/// A memory volume for a ring thread.
pub struct NewMemoryVolume {
    /// The volume, opened.
    pub volume: MemoryVolume<MemoryFiles>,
    /// Its spill file, where it has one: a page longer than the device, for direct I/O.
    pub spill_file: Option<File>,
    /// The name in its log lines.
    pub label: Arc<Label>,
    /// Receives its figures.
    pub published: Arc<PublishedMemory>,
    /// Reserved room on the ring: dropped once the thread has released the volume.
    pub place: Box<dyn Send>,
}
