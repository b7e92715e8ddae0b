//! The server's clock: the time in each response, and its difference to this host's clock.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_sdk_s3::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_s3::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_s3::error::BoxError;
use aws_sdk_s3::primitives::{DateTime, DateTimeFormat};
use parking_lot::Mutex;

/// Resolution of an object's time at the server.
const RESOLUTION: Duration = Duration::from_secs(1);

/// Time of a response by the server's clock: the header `Date`, which every server with a clock sends (RFC
/// 9110, 6.6.1). Clones share the value.
#[derive(Debug, Clone, Default)]
pub(crate) struct AnswerDate(Arc<Mutex<Option<SystemTime>>>);

impl AnswerDate {
    /// Returns the time of the last response; `None` if it had no valid date.
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

/// The server's clock, as observed in one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerClock {
    /// The server did not return the object's time.
    Unknown,
    /// No difference is visible.
    Agrees,
    /// At least this far ahead of this host's clock.
    Ahead(Duration),
    /// At least this far behind this host's clock.
    Behind(Duration),
}

impl ServerClock {
    /// Compares the server's time `stored` of an object with the two times of this host around its upload.
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

    /// Returns the difference, if one is visible.
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
            // Truncated to the whole second.
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
