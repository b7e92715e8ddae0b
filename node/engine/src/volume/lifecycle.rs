//! Lifecycle of a volume on this writer.
//!
//! A detach:
//!
//! 1. what is dirty is committed (`Clean`);
//! 2. the detach record is created (`DetachWon`);
//! 3. one last round closes the local state clean (`Closed`).
//!
//! The names are crash points. When the device of a fenced writer is gone, one last round makes the durable
//! map tell what the sides hold. Where that fails, the local disk is failing, and the report says so.
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
    /// After host loss: what was dirty is being committed, no request comes.
    Recovering {
        /// The device is gone already.
        detach: bool,
    },
    Serving,
    /// No requests any more; what is dirty is being committed.
    Detaching,
    /// The detach record is being created.
    Releasing,
    /// The round with this number, the last one, closes the local state.
    Closing(u64),
    Detached,
    /// Another writer holds the volume.
    Fenced(FencedStep),
}

/// Progress of a fenced writer in bringing its durable map up to date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FencedStep {
    /// The device is there, and all I/O fails.
    Serving,
    /// The device is gone.
    Leaving,
    /// The round with this number, the last one, runs or waits to.
    LastRound(u64),
    /// That round is over, however it ended.
    Ended {
        /// The durable map is up to date.
        complete: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LifecycleEvent {
    /// The device is gone.
    Detach,
    /// The data that the loss of the host left dirty is committed, or the local disk cannot read it: then
    /// requests may overwrite it.
    Recovered,
    /// Nothing is dirty any more.
    Clean,
    /// The last round was asked for, and has this number.
    LastRound(u64),
    /// The last round ended, of a fenced writer however it did.
    Closed {
        /// It brought the durable map up to date.
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
            // The device is gone once, and the volume is fenced once.
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

    /// The report that answers a detach, once the volume reached its end.
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

    /// The last round, once it was asked for.
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
        // In the order of `events`; none where the event cannot happen.
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
