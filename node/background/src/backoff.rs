//! Delays between a job's attempts.

use std::time::Duration;

use holdfast_format::safeguard::{Safeguard::RetryFailed, safeguard};
use holdfast_types::Jitter;

use crate::Environment;

/// Delays that double up to a limit, each randomly between half and all of its length. Volumes that started
/// to wait at the same moment, when the store became unreachable, thus do not all retry at the moment when it
/// is back.
pub(crate) struct JobBackoff {
    waits: holdfast_types::Backoff,
    attempts: u32,
}

impl JobBackoff {
    pub(crate) const fn new(first: Duration, last: Duration) -> Self {
        Self { waits: holdfast_types::Backoff { first, last, jitter: Jitter::Half }, attempts: 0 }
    }

    /// Returns the delays for requests that a commit waits for.
    pub(crate) const fn of_commits() -> Self {
        Self::new(Duration::from_millis(200), Duration::from_secs(10))
    }

    /// Returns the delays for requests that a client's read waits for.
    pub(crate) const fn of_reads() -> Self {
        Self::new(Duration::from_millis(100), Duration::from_secs(5))
    }

    pub(crate) async fn wait(&mut self, time: &impl Environment) {
        if !safeguard(RetryFailed) {
            std::future::pending::<()>().await;
        }
        let [chance] = time.random();
        self.attempts = self.attempts.saturating_add(1);
        time.sleep(self.waits.delay(self.attempts, f64::from(chance) / f64::from(u8::MAX))).await;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use futures::FutureExt;
    use parking_lot::Mutex;

    use super::*;

    /// A constant instead of randomness, with a record of the delays.
    struct Fixed(u8, Mutex<Vec<Duration>>);

    impl Environment for Fixed {
        async fn sleep(&self, time: Duration) {
            self.1.lock().push(time);
        }

        fn now_ms(&self) -> u64 {
            0
        }

        fn unix_ms(&self) -> u64 {
            0
        }

        fn random<const N: usize>(&self) -> [u8; N] {
            [self.0; N]
        }
    }

    fn waits(chance: u8) -> Vec<Duration> {
        let time = Fixed(chance, Mutex::default());
        let mut backoff = JobBackoff::of_commits();
        for _ in 0..8 {
            backoff.wait(&time).now_or_never().unwrap();
        }
        time.1.into_inner()
    }

    #[test]
    fn waits_that_began_together_are_spread() {
        let lasts: BTreeSet<Duration> = (0..=u8::MAX).map(|chance| waits(chance)[7]).collect();
        assert_eq!(lasts.len(), 256);
        let seconds = Duration::from_secs;
        assert_eq!((lasts.first(), lasts.last()), (Some(&seconds(5)), Some(&seconds(10))));
        assert!(waits(u8::MAX).is_sorted() && waits(0)[0] == Duration::from_millis(100));
    }
}
