//! Lifecycle of a volume on this writer.
//!
//! A detach:
//!
//! 1. dirty data is committed (`Clean`);
//! 2. the detach record is created (`DetachWon`);
//! 3. one last round closes the local state cleanly (`Closed`).
//!
//! The names are crash points. After the device of a fenced writer was removed, one last round brings the
//! durable map up to date. If that fails, the local disk is failing, and the report says so.
//!
//! ```text
//!                  Recovered                 Detach           Clean              LastRound          Closed
//! Recovering ──────────────────► Serving ──────────► Detaching ─────► Releasing ──────────► Closing ──────► Detached
//!     │ Detach ─► Recovering, and Recovered leads to Detaching
//!
//! With a device, ─Fenced─► Fenced: Serving ──Detach──► Leaving ──LastRound──► LastRound ──Closed──► Ended.
//! Without one (Detaching, Releasing, Recovering after a Detach) the fence leads to Leaving, from Closing to
//! LastRound; Detached stays.
//! ```

use crate::action::Report;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lifecycle {
    /// After the loss of the host: dirty data is being committed, and no requests are accepted.
    Recovering {
        /// True if the device is already removed.
        detach: bool,
    },
    Serving,
    /// No more requests; dirty data is being committed.
    Detaching,
    /// The detach record is being created.
    Releasing,
    /// The round with this number, the last one, closes the local state.
    Closing(u64),
    Detached,
    /// Another writer holds the volume.
    Fenced(FencedStep),
}

/// Progress of a fenced writer that brings its durable map up to date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FencedStep {
    /// The device exists, and all I/O fails.
    Serving,
    /// The device is removed.
    Leaving,
    /// The round with this number, the last one, is in progress or about to begin.
    LastRound(u64),
    /// That round has ended, with any result.
    Ended {
        /// True if the durable map is up to date.
        complete: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LifecycleEvent {
    /// The device is removed.
    Detach,
    /// The data left dirty by the loss of the host is committed, or the local disk cannot read it, so that
    /// requests may overwrite it.
    Recovered,
    /// No data is dirty any more.
    Clean,
    /// The last round was requested, and has this number.
    LastRound(u64),
    /// The last round ended; for a fenced writer, with any result.
    Closed {
        /// True if it brought the durable map up to date.
        complete: bool,
    },
    /// Another writer's record is in the log.
    Fenced,
}

impl Lifecycle {
    /// # Panics
    /// On an event that cannot happen in this state: a bug of the engine.
    pub(super) fn next(self, event: LifecycleEvent) -> Self {
        use {FencedStep as F, LifecycleEvent as E};
        match (self, event) {
            (Self::Recovering { .. }, E::Detach) => Self::Recovering { detach: true },
            (Self::Recovering { detach: false }, E::Recovered) => Self::Serving,
            (Self::Recovering { detach: true }, E::Recovered) | (Self::Serving, E::Detach) => Self::Detaching,
            (Self::Detaching, E::Clean) => Self::Releasing,
            (Self::Releasing | Self::Closing(_), E::LastRound(number)) => Self::Closing(number),
            (Self::Closing(_), E::Closed { .. }) => Self::Detached,
            (Self::Recovering { detach: false } | Self::Serving, E::Fenced) => Self::Fenced(F::Serving),
            (Self::Recovering { detach: true } | Self::Detaching | Self::Releasing, E::Fenced)
            | (Self::Fenced(F::Serving), E::Detach) => Self::Fenced(F::Leaving),
            (Self::Closing(number), E::Fenced) => Self::Fenced(F::LastRound(number)),
            (Self::Fenced(F::Leaving), E::LastRound(number)) => Self::Fenced(F::LastRound(number)),
            (Self::Fenced(F::Leaving | F::LastRound(_)), E::Closed { complete }) => {
                Self::Fenced(F::Ended { complete })
            }
            // Only the first removal of the device and the first fencing change the state.
            (state @ (Self::Detaching | Self::Releasing | Self::Closing(_) | Self::Detached), E::Detach)
            | (state @ Self::Fenced(F::Leaving | F::LastRound(_) | F::Ended { .. }), E::Detach)
            | (state @ (Self::Detached | Self::Fenced(_)), E::Fenced) => state,
            (state, event) => unreachable!("{event:?} in {state:?}"),
        }
    }

    pub(super) fn is_fenced(self) -> bool {
        matches!(self, Self::Fenced(_))
    }

    pub(super) fn is_recovering(self) -> bool {
        matches!(self, Self::Recovering { .. })
    }

    /// Returns the report that answers a detach, once the volume has ended.
    pub(super) fn end(self) -> Option<Report> {
        match self {
            Self::Detached => Some(Report::Detached),
            Self::Fenced(FencedStep::Ended { complete }) => Some(Report::Preserved { complete }),
            Self::Recovering { .. }
            | Self::Serving
            | Self::Detaching
            | Self::Releasing
            | Self::Closing(_)
            | Self::Fenced(FencedStep::Serving | FencedStep::Leaving | FencedStep::LastRound(_)) => None,
        }
    }

    /// Returns the last round, once it was requested.
    pub(super) fn last_round(self) -> Option<u64> {
        match self {
            Self::Closing(number) | Self::Fenced(FencedStep::LastRound(number)) => Some(number),
            Self::Recovering { .. }
            | Self::Serving
            | Self::Detaching
            | Self::Releasing
            | Self::Detached
            | Self::Fenced(FencedStep::Serving | FencedStep::Leaving | FencedStep::Ended { .. }) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_in_every_state() {
        use Lifecycle::{Closing, Detached, Detaching, Fenced, Recovering, Releasing, Serving};
        use {FencedStep as F, LifecycleEvent as E};
        let events =
            [E::Detach, E::Recovered, E::Clean, E::LastRound(2), E::Closed { complete: true }, E::Fenced];
        let (waiting, leaving) = (Recovering { detach: false }, Recovering { detach: true });
        let kept = Fenced(F::LastRound(2));
        let ended = Fenced(F::Ended { complete: true });
        // In the order of `events`; `None` if the event cannot happen.
        let table = [
            (waiting, [Some(leaving), Some(Serving), None, None, None, Some(Fenced(F::Serving))]),
            (leaving, [Some(leaving), Some(Detaching), None, None, None, Some(Fenced(F::Leaving))]),
            (Serving, [Some(Detaching), None, None, None, None, Some(Fenced(F::Serving))]),
            (Detaching, [Some(Detaching), None, Some(Releasing), None, None, Some(Fenced(F::Leaving))]),
            (Releasing, [Some(Releasing), None, None, Some(Closing(2)), None, Some(Fenced(F::Leaving))]),
            (
                Closing(1),
                [
                    Some(Closing(1)),
                    None,
                    None,
                    Some(Closing(2)),
                    Some(Detached),
                    Some(Fenced(F::LastRound(1))),
                ],
            ),
            (Detached, [Some(Detached), None, None, None, None, Some(Detached)]),
            (
                Fenced(F::Serving),
                [Some(Fenced(F::Leaving)), None, None, None, None, Some(Fenced(F::Serving))],
            ),
            (
                Fenced(F::Leaving),
                [Some(Fenced(F::Leaving)), None, None, Some(kept), Some(ended), Some(Fenced(F::Leaving))],
            ),
            (kept, [Some(kept), None, None, None, Some(ended), Some(kept)]),
            (ended, [Some(ended), None, None, None, None, Some(ended)]),
        ];
        for (state, expected) in table {
            for (event, expected) in events.into_iter().zip(expected) {
                let next = std::panic::catch_unwind(|| state.next(event)).ok();
                assert_eq!(next, expected, "{event:?} in {state:?}");
            }
        }
    }
}
