//! The last attach of a host: its start and its result.

use holdfast_types::Epoch;

/// Result of an attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachResult {
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
    /// The intent is synced.
    HeaderSynced,
    /// The record's PUT was sent.
    RecordSent,
}

/// The writer that an attach replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DisplacedWriter {
    /// No writer.
    None,
    /// The writer of this epoch.
    Epoch(Epoch),
    /// The model cannot know if the disk has all of the writer's data.
    Unclear,
}

/// An attach of one host.
pub(crate) struct Attempt {
    result: Option<AttachResult>,
    writers_before: usize,
    displaced: DisplacedWriter,
}

impl Attempt {
    /// Returns the state of a host that never attached.
    pub(crate) const fn none() -> Self {
        Self { result: None, writers_before: 0, displaced: DisplacedWriter::None }
    }

    /// Begins another attach, after this many writers.
    pub(crate) fn begin(&mut self, writers_before: usize) {
        self.result = None;
        self.writers_before = writers_before;
    }

    pub(crate) fn end(&mut self, result: AttachResult) {
        self.result = Some(result);
    }

    /// Takes the attach's result. Later calls return `None`.
    pub(crate) fn take_result(&mut self) -> Option<AttachResult> {
        self.result.take()
    }

    /// Returns true if no writer was added since the attach began; `writers` is the current number.
    pub(crate) fn has_no_rival(&self, writers: usize) -> bool {
        self.writers_before == writers
    }

    /// Records that the attach's record is in the log, and the writer that it replaced.
    pub(crate) fn note_record(&mut self, displaced: DisplacedWriter) {
        self.displaced = displaced;
    }

    /// Returns the replaced writer, according to the model.
    pub(crate) fn displaced(&self) -> DisplacedWriter {
        self.displaced
    }
}
