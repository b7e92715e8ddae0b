//! Answers of a writer to requests for a snapshot or a cut.

/// Reason why a writer does not take a snapshot. Nothing was registered, unless it was before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SnapshotRefused {
    /// Another writer holds the volume.
    Fenced,
    /// The writer is releasing the volume: it can be taken once it has.
    Released,
    /// As many are registered as can be.
    TooMany,
    /// As many wait as can, or the log is not known yet.
    Busy,
    /// The snapshot was to be of one point, and that is past.
    Missed,
}

/// Answer of a writer to a request for a cut ([`crate::event::Event::PrepareCut`] and those that follow).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CutAnswer {
    /// The cut can be made without delay, for [`crate::limit::PREPARED_MS`].
    Prepared,
    /// Another cut is being made.
    Busy,
    /// Writes wait, and the point of the snapshot is behind all that completed.
    Held,
    /// Writes waited until now.
    Released,
    /// The cut is not prepared, or writes do not wait any more.
    Lapsed,
}
