//! Responses of a writer to requests for a snapshot or a cut.

/// Reason why a writer refuses a snapshot. Nothing was registered, unless it already was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SnapshotRefused {
    /// Another writer holds the volume.
    Fenced,
    /// The writer is releasing the volume: a snapshot is possible afterwards.
    Released,
    /// The maximum number of snapshots is registered.
    TooMany,
    /// The maximum number of snapshots is waiting, or the log is not known yet.
    Busy,
    /// The requested point in time has passed.
    Missed,
}

/// Response of a writer to a request for a cut ([`crate::event::Event::PrepareCut`] and those that follow).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CutAnswer {
    /// The cut can be made without delay, for [`crate::limit::PREPARED_MS`].
    Prepared,
    /// Another cut is in progress.
    Busy,
    /// Writes wait, and the point of the snapshot is after all completed ones.
    Held,
    /// Writes waited without interruption until now, and continue.
    Released,
    /// The cut is not prepared, or writes have stopped waiting.
    Lapsed,
}
