//! A memory volume for the ring threads that will serve it.

use std::fs::File;
use std::sync::Arc;

use holdfast_memory::MemoryVolume;

use super::files::MemoryFiles;
use super::published::PublishedMemory;
use crate::label::Label;

/// The queues of a device that a ring thread serves: those whose number is `number` modulo `of`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueShare {
    /// Number of the thread among those that share the queues.
    pub number: u16,
    /// Number of these threads.
    pub of: u16,
}

impl QueueShare {
    /// All queues.
    pub const ALL: Self = Self { number: 0, of: 1 };

    /// Returns the shares of `of` threads.
    pub fn each(of: u16) -> impl Iterator<Item = Self> {
        (0..of).map(move |number| Self { number, of })
    }

    /// Returns the numbers of these queues, of a device with `queues` queues.
    pub fn queues(self, queues: u16) -> impl Iterator<Item = u16> {
        (self.number..queues).step_by(usize::from(self.of))
    }

    /// Returns the index of a queue among the thread's queues.
    #[inline]
    pub(super) fn place(self, queue_id: u16) -> usize {
        usize::from(queue_id / self.of)
    }
}

/// A memory volume for a ring thread, which may be one of several that serve it.
pub struct NewMemoryVolume {
    /// The volume, opened.
    pub volume: Arc<MemoryVolume<MemoryFiles>>,
    /// The queues that this thread serves.
    pub share: QueueShare,
    /// Its spill file, if any: one page longer than the device, for direct I/O. One thread then serves all
    /// queues.
    pub spill_file: Option<File>,
    /// The label of its log lines.
    pub label: Arc<Label>,
    /// Receives its figures.
    pub published: Arc<PublishedMemory>,
    /// Reserved room on the ring, dropped once the thread has released the volume.
    pub place: Box<dyn Send>,
}
