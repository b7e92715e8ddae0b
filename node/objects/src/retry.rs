//! Retry policy of requests: a pure function of the previous attempts.

use std::time::Duration;

use holdfast_types::{Backoff, Jitter};

use crate::ErrorKind;

/// Limits on a request's attempts and on the delays between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Delay before the second attempt; it doubles for each further one. After a throttled response it starts
    /// at four times this value.
    pub first_delay: Duration,
    /// Maximum delay between two attempts.
    pub max_delay: Duration,
    /// Maximum number of attempts.
    pub max_attempts: u32,
    /// Time after the first attempt from which no further attempt starts.
    pub deadline: Duration,
}

/// Decision after a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Waits this long, then retries.
    RetryAfter(Duration),
    /// Returns the error to the caller.
    Fail,
}

impl RetryPolicy {
    /// Four attempts within twenty seconds: for reads, lists, deletes and segment uploads.
    pub const REPEATABLE: Self = Self {
        first_delay: Duration::from_millis(50),
        max_delay: Duration::from_secs(5),
        max_attempts: 4,
        deadline: Duration::from_secs(20),
    };

    /// Decides how to proceed after attempt number `attempt` (from 1), which failed with `kind`, `elapsed`
    /// after the start of the first attempt. `jitter` is a random number in 0..1: the delay is between half
    /// and all of the backoff, and at least the `retry_after` that the store requested.
    ///
    /// # Panics
    /// If `jitter` is not a number.
    pub fn decide(
        &self,
        attempt: u32,
        kind: ErrorKind,
        elapsed: Duration,
        retry_after: Duration,
        jitter: f64,
    ) -> Decision {
        let scale = match kind {
            ErrorKind::Unavailable | ErrorKind::Conflict => 1,
            ErrorKind::Throttled => 4,
            ErrorKind::NotFound
            | ErrorKind::Denied
            | ErrorKind::Blocked(_)
            | ErrorKind::Invalid
            | ErrorKind::Corrupt
            | ErrorKind::Ambiguous
            | ErrorKind::Exists => return Decision::Fail,
        };
        if attempt >= self.max_attempts {
            return Decision::Fail;
        }
        let first = self.first_delay.saturating_mul(scale);
        let wait = Backoff { first, last: self.max_delay, jitter: Jitter::Half }.delay(attempt, jitter);
        let wait = wait.max(retry_after);
        if elapsed.saturating_add(wait) > self.deadline { Decision::Fail } else { Decision::RetryAfter(wait) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Blocker;

    const POLICY: RetryPolicy = RetryPolicy {
        first_delay: Duration::from_millis(100),
        max_delay: Duration::from_secs(1),
        max_attempts: 8,
        deadline: Duration::from_secs(10),
    };

    fn wait(attempt: u32, kind: ErrorKind, jitter: f64) -> Duration {
        match POLICY.decide(attempt, kind, Duration::ZERO, Duration::ZERO, jitter) {
            Decision::RetryAfter(wait) => wait,
            Decision::Fail => panic!("no retry after attempt {attempt}"),
        }
    }

    #[test]
    fn the_wait_doubles_up_to_its_limit() {
        let waits: Vec<_> =
            (1..7).map(|attempt| wait(attempt, ErrorKind::Unavailable, 1.0).as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1000, 1000]);
    }

    #[test]
    fn throttling_waits_longer_and_jitter_at_most_halves() {
        assert_eq!(wait(1, ErrorKind::Throttled, 1.0), Duration::from_millis(400));
        assert_eq!(wait(1, ErrorKind::Throttled, 0.0), Duration::from_millis(200));
    }

    #[test]
    fn errors_that_cannot_heal_are_not_repeated() {
        for kind in [
            ErrorKind::NotFound,
            ErrorKind::Denied,
            ErrorKind::Blocked(Blocker::Quota),
            ErrorKind::Invalid,
            ErrorKind::Corrupt,
            ErrorKind::Ambiguous,
            ErrorKind::Exists,
        ] {
            assert_eq!(
                POLICY.decide(1, kind, Duration::ZERO, Duration::ZERO, 0.5),
                Decision::Fail,
                "{kind:?}"
            );
        }
    }

    #[test]
    fn attempts_and_time_both_end() {
        let (none, late) = (Duration::ZERO, Duration::from_millis(9_950));
        assert_eq!(POLICY.decide(8, ErrorKind::Unavailable, none, none, 0.5), Decision::Fail);
        assert_eq!(POLICY.decide(1, ErrorKind::Unavailable, late, none, 1.0), Decision::Fail);
        assert_eq!(POLICY.decide(u32::MAX - 1, ErrorKind::Unavailable, none, none, 0.0), Decision::Fail);
    }

    #[test]
    fn a_store_is_not_asked_before_the_time_it_names() {
        let (none, second) = (Duration::ZERO, Duration::from_secs(1));
        let decide =
            |attempt, elapsed, asked| POLICY.decide(attempt, ErrorKind::Throttled, elapsed, asked, 1.0);
        assert_eq!(decide(1, none, 3 * second), Decision::RetryAfter(3 * second));
        assert_eq!(decide(3, none, second / 10), Decision::RetryAfter(second), "its backoff is longer");
        assert_eq!(decide(1, 8 * second, 3 * second), Decision::Fail, "the deadline holds");
    }
}
