//! Retries after a failure: by its kind, with jitter.

use std::time::Duration;

use holdfast_objects::ErrorKind;
use holdfast_types::Backoff;

/// Expected duration of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// Another writer was faster: reconcile again at once.
    Soon,
    /// Something is unavailable or busy and will recover by itself.
    Later,
    /// A person must act; look now and then.
    Rarely,
}

impl Retry {
    /// The retry that fits an error of an object store.
    pub(crate) const fn of(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Conflict | ErrorKind::Ambiguous | ErrorKind::Exists => Self::Soon,
            ErrorKind::Throttled | ErrorKind::Unavailable => Self::Later,
            ErrorKind::NotFound | ErrorKind::Denied | ErrorKind::Invalid | ErrorKind::Corrupt => Self::Rarely,
        }
    }

    /// Time to wait. `random` is a number from 0 up to 1.
    pub(crate) fn delay(self, random: f64) -> Duration {
        let mean = match self {
            Self::Soon => Duration::from_secs(1),
            Self::Later => Duration::from_secs(10),
            Self::Rarely => Duration::from_secs(60),
        };
        Backoff::steady(mean).delay(1, random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_stays_within_a_fifth() {
        assert_eq!(Retry::Later.delay(0.0), Duration::from_secs(8));
        assert_eq!(Retry::Later.delay(1.0), Duration::from_secs(12));
    }

    #[test]
    fn a_missing_server_is_retried_sooner_than_a_wrong_key() {
        let unavailable = Retry::of(ErrorKind::Unavailable).delay(0.5);
        assert!(unavailable < Retry::of(ErrorKind::Denied).delay(0.5));
    }
}
