//! The last attach of a host: its start and its result.

use holdfast_types::Epoch;

/// Result of an attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attach {
    /// This host is the writer.
    Acquired,
    /// Another writer holds the volume.
    Refused,
    /// The process or the host died in the meantime.
    Died,
    /// The store or the local disk failed.
    Failed,
}

/// Steps of an attach after which the process can die.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachStep {
    /// The intent is in the header's file.
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
    /// The model cannot know if the disk has all of the writer's data.
    Unclear,
}

/// An attach of one host.
pub(crate) struct Attempt {
    came_of: Option<Attach>,
    writers_before: usize,
    displaces: Displaces,
}

impl Attempt {
    /// Returns the state of a host that never attached.
    pub(crate) const fn none() -> Self {
        Self { came_of: None, writers_before: 0, displaces: Displaces::None }
    }

    /// Begins another attach, after this many writers.
    pub(crate) fn begin(&mut self, writers_before: usize) {
        self.came_of = None;
        self.writers_before = writers_before;
    }

    pub(crate) fn end(&mut self, came_of: Attach) {
        self.came_of = Some(came_of);
    }

    /// Takes its result, once.
    pub(crate) fn take_result(&mut self) -> Option<Attach> {
        self.came_of.take()
    }

    /// Returns true if no writer was added since it began, when there were `writers`.
    pub(crate) fn began_after(&self, writers: usize) -> bool {
        self.writers_before == writers
    }

    /// Notes that its record is in the log.
    pub(crate) fn replaced(&mut self, displaces: Displaces) {
        self.displaces = displaces;
    }

    /// Returns the writer that it replaced, according to the model.
    pub(crate) fn displaces(&self) -> Displaces {
        self.displaces
    }
}
