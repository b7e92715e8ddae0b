//! The server's clock against this host's.

use std::time::{Duration, SystemTime};

/// Resolution of the time that a server says an object has.
const RESOLUTION: Duration = Duration::from_secs(1);

/// The server's clock, as far as one request can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerClock {
    /// The server did not say when it stored the object.
    Unknown,
    /// No difference can be seen.
    Agrees,
    /// At least so much ahead of this host's.
    Ahead(Duration),
    /// At least so much behind this host's.
    Behind(Duration),
}

impl ServerClock {
    /// Of a server that stored an object at `stored` by its clock, between the two times of this host.
    pub(crate) fn of(stored: Option<SystemTime>, begun: SystemTime, ended: SystemTime) -> Self {
        let Some(stored) = stored else { return Self::Unknown };
        if stored > ended + RESOLUTION {
            return Self::Ahead(stored.duration_since(ended).unwrap_or_default());
        }
        if begun > stored + RESOLUTION {
            return Self::Behind(begun.duration_since(stored + RESOLUTION).unwrap_or_default());
        }
        Self::Agrees
    }

    /// The difference, where one can be seen.
    #[must_use]
    pub const fn difference(self) -> Duration {
        match self {
            Self::Unknown | Self::Agrees => Duration::ZERO,
            Self::Ahead(difference) | Self::Behind(difference) => difference,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_seen_beyond_a_second() {
        let at = |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let seconds = Duration::from_secs;
        for (stored, expected) in [
            (None, ServerClock::Unknown),
            (Some(at(1000)), ServerClock::Agrees),
            // Cut to the whole second.
            (Some(at(999)), ServerClock::Agrees),
            (Some(at(1003)), ServerClock::Agrees),
            (Some(at(1900)), ServerClock::Ahead(seconds(898))),
            (Some(at(100)), ServerClock::Behind(seconds(899))),
        ] {
            let found = ServerClock::of(stored, at(1000), at(1002));
            assert_eq!(found, expected, "{stored:?}");
        }
        assert_eq!(ServerClock::Behind(seconds(3)).difference(), seconds(3));
        assert_eq!(ServerClock::Agrees.difference(), Duration::ZERO);
    }
}
