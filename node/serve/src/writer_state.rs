//! State of a volume's writer.

/// State of a volume's writer, as the ring thread reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriterState {
    /// Data that the host's loss left dirty is committed first.
    Starting,
    /// Requests may be served.
    Ready,
    /// Another writer holds the volume.
    Fenced,
    /// Another writer holds the volume, and this one has ended.
    Preserved {
        /// The durable map says what the sides hold.
        complete: bool,
    },
    /// The detach record is in the log.
    Detached,
}

impl WriterState {
    /// True if another writer holds the volume.
    #[must_use]
    pub fn is_fenced(self) -> bool {
        match self {
            Self::Fenced | Self::Preserved { .. } => true,
            Self::Starting | Self::Ready | Self::Detached => false,
        }
    }

    /// The writer after a report; the same report may come twice. `None` where it may not come.
    #[must_use]
    pub fn next(self, reported: Self) -> Option<Self> {
        let may_follow = match self {
            Self::Starting => reported != Self::Starting,
            Self::Ready => reported != Self::Starting,
            Self::Fenced => reported.is_fenced(),
            Self::Preserved { .. } => matches!(reported, Self::Preserved { .. }),
            Self::Detached => reported == Self::Detached,
        };
        may_follow.then_some(reported)
    }
}
