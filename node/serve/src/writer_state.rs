//! State of a volume's writer.

/// State of a volume's writer, as the ring thread reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriterState {
    /// The writer first commits data that was dirty when the host was lost.
    Starting,
    /// The writer serves requests.
    Ready,
    /// Another writer holds the volume.
    Fenced,
    /// Another writer holds the volume, and this one has ended.
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

    /// Returns the state after a report, which may come twice, or `None` if it must not come in this state.
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
