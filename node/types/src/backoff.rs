//! Delays between attempts.

use std::time::Duration;

/// Delays that double from `first` up to `last`: a pure function of the attempt and of a random number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Delay after the first attempt, without jitter.
    pub first: Duration,
    /// Longest delay, without jitter.
    pub last: Duration,
    /// Spread of the delays.
    pub jitter: Jitter,
}

/// Random factor of each delay, so that attempts that failed together are not retried together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Jitter {
    /// From 0.5 to 1: no delay is longer than its backoff.
    Half,
    /// From 0.8 to 1.2: the mean of a delay is its backoff.
    Fifth,
}

impl Backoff {
    /// Returns delays of about `mean` after every attempt.
    pub const fn steady(mean: Duration) -> Self {
        Self { first: mean, last: mean, jitter: Jitter::Fifth }
    }

    /// Returns the delay after attempt number `attempt` (from 1). `random` is a number from 0 up to 1.
    ///
    /// # Panics
    /// If `random` is not a number.
    pub fn delay(&self, attempt: u32, random: f64) -> Duration {
        let doubled = 1u32.checked_shl(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
        let backoff = self.first.saturating_mul(doubled).min(self.last);
        let random = random.clamp(0.0, 1.0);
        backoff.mul_f64(match self.jitter {
            Jitter::Half => 0.5 + 0.5 * random,
            Jitter::Fifth => 0.8 + 0.4 * random,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff =
        Backoff { first: Duration::from_secs(1), last: Duration::from_secs(15), jitter: Jitter::Half };

    #[test]
    fn waits_double_up_to_their_limit() {
        let waits = [0, 1, 2, 3, 4, 5, 33, u32::MAX].map(|attempt| BACKOFF.delay(attempt, 1.0).as_secs());
        assert_eq!(waits, [1, 1, 2, 4, 8, 15, 15, 15]);
    }

    #[test]
    fn jitter_stays_within_its_bounds() {
        let fifth = Backoff::steady(Duration::from_secs(10));
        for (backoff, random, millis) in [
            (BACKOFF, 0.0, 500),
            (BACKOFF, 1.0, 1_000),
            (BACKOFF, 7.0, 1_000),
            (fifth, 0.0, 8_000),
            (fifth, 0.5, 10_000),
            (fifth, 1.0, 12_000),
        ] {
            assert_eq!(backoff.delay(1, random).as_millis(), millis, "{backoff:?} {random}");
        }
    }
}
