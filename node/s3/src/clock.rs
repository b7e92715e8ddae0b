//! The server's clock: its time in each answer, and its difference to this host's.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_sdk_s3::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_s3::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_s3::error::BoxError;
use aws_sdk_s3::primitives::{DateTime, DateTimeFormat};
use parking_lot::Mutex;

/// Resolution of the time that a server says an object has.
const RESOLUTION: Duration = Duration::from_secs(1);

/// The time of the answer to one request, by the server's clock: the header `Date`, which every server that
/// has a clock sends (RFC 9110, 6.6.1). Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct AnswerDate(Arc<Mutex<Option<SystemTime>>>);

impl AnswerDate {
    /// The time of the last answer; none if it had no date that can be read.
    pub(crate) fn get(&self) -> Option<SystemTime> {
        *self.0.lock()
    }
}

impl Intercept for AnswerDate {
    fn name(&self) -> &'static str {
        "AnswerDate"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        *self.0.lock() = context.response().headers().get("date").and_then(read_date);
        Ok(())
    }
}

fn read_date(text: &str) -> Option<SystemTime> {
    let date = DateTime::from_str(text, DateTimeFormat::HttpDate).ok()?;
    SystemTime::try_from(date).ok()
}

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
    fn the_date_of_an_answer_is_read_or_unknown() {
        let read = read_date("Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(read, Some(SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777)));
        for other in ["", "now", "2026-01-01T00:00:00Z"] {
            assert_eq!(read_date(other), None, "{other}");
        }
    }

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
