//! The last attach of a host: how it was begun, and what came of it.

use holdfast_types::Epoch;

/// Result of an attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attach {
    /// This host is the writer.
    Acquired,
    /// Another writer holds the volume.
    Refused,
    /// The process died, or the host, on the way.
    Died,
    /// The store or the local disk failed.
    Failed,
}

/// Steps of an attach after which it can die.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachStep {
    /// The intent stands in the header's file.
    HeaderWritten,
    /// It is synced.
    HeaderSynced,
    /// The record's PUT was sent.
    RecordSent,
}

/// The writer that an attach replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Displaces {
    /// None.
    None,
    /// The one of this epoch.
    Epoch(Epoch),
    /// The model cannot know if what the disk has is all that the writer had.
    Unclear,
}

/// An attach of one host.
pub(crate) struct Attempt {
    came_of: Option<Attach>,
    writers_before: usize,
    displaces: Displaces,
}

impl Attempt {
    /// That of a host that never attached.
    pub(crate) const fn none() -> Self {
        Self { came_of: None, writers_before: 0, displaces: Displaces::None }
    }

    /// Another one is begun, after so many writers.
    pub(crate) fn begin(&mut self, writers_before: usize) {
        self.came_of = None;
        self.writers_before = writers_before;
    }

    pub(crate) fn end(&mut self, came_of: Attach) {
        self.came_of = Some(came_of);
    }

    /// Its result, once.
    pub(crate) fn take_result(&mut self) -> Option<Attach> {
        self.came_of.take()
    }

    /// True if it was begun when there had been so many writers: none has come since.
    pub(crate) fn began_after(&self, writers: usize) -> bool {
        self.writers_before == writers
    }

    /// Its record came into the log.
    pub(crate) fn replaced(&mut self, displaces: Displaces) {
        self.displaces = displaces;
    }

    /// The writer that it replaced, as the model knows it.
    pub(crate) fn displaces(&self) -> Displaces {
        self.displaces
    }
}
