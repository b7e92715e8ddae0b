//! State of a volume's writer.

/// State of a volume's writer, as the ring thread reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriterState {
    /// The writer is committing data that was dirty when its host was lost, and serves nothing yet.
    Starting,
    /// The writer serves requests.
    Ready,
    /// Another writer holds the volume.
    Fenced,
    /// Another writer holds the volume, and this writer has ended.
    Preserved {
        /// True if the durable map covers all data of the sides.
        complete: bool,
    },
    /// The detach record is in the log.
    Detached,
}

impl WriterState {
    /// Returns true if another writer holds the volume.
    #[must_use]
    pub fn is_fenced(self) -> bool {
        match self {
            Self::Fenced | Self::Preserved { .. } => true,
            Self::Starting | Self::Ready | Self::Detached => false,
        }
    }

    /// Returns the next state, or `None` if the transition is illegal. Every report except `Starting` may
    /// repeat.
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
