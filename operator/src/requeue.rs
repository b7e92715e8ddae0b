//! Retries after a failure, depending on its kind, with backoff and jitter.

use std::collections::HashMap;
use std::time::Duration;

use holdfast_objects::ErrorKind;
use holdfast_types::{Backoff, Jitter};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum parallel reconciliations of one kind of objects: a new leader reconciles all of them.
pub(crate) const MAX_AT_A_TIME: u16 = 16;

/// Time between two reconciliations of an unchanged object.
pub(crate) const RESYNC: Duration = Duration::from_secs(600);

/// Longest wait in seconds for a change that triggers no reconciliation, so that a user's fix is seen within
/// half a minute, including jitter.
const LONGEST_SECONDS: u64 = 25;

/// Expected duration of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requeue {
    /// Another writer was faster: reconciles again at once.
    Soon,
    /// A dependency is unavailable or busy and will recover by itself.
    Later,
    /// A user must act: the first retry comes later.
    Rarely,
    /// An object must change that triggers the next reconciliation itself: a retry costs requests, and only
    /// finds changes that no object shows.
    OnChange,
}

impl Requeue {
    /// Returns the retry policy for an error of an object store.
    pub(crate) const fn of(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Conflict | ErrorKind::Ambiguous | ErrorKind::Exists => Self::Soon,
            ErrorKind::Throttled | ErrorKind::Unavailable => Self::Later,
            ErrorKind::NotFound
            | ErrorKind::Denied
            | ErrorKind::Blocked(_)
            | ErrorKind::Invalid
            | ErrorKind::Corrupt => Self::Rarely,
        }
    }

    /// Returns the delay after `failures` consecutive failures. `random` is in 0..1.
    fn delay(self, failures: u32, random: f64) -> Duration {
        let (first, last) = match self {
            Self::Soon => (1, 1),
            Self::Later => (2, LONGEST_SECONDS),
            Self::Rarely => (10, LONGEST_SECONDS),
            Self::OnChange => (RESYNC.as_secs(), RESYNC.as_secs()),
        };
        let (first, last) = (Duration::from_secs(first), Duration::from_secs(last));
        Backoff { first, last, jitter: Jitter::Fifth }.delay(failures, random)
    }
}

/// Time after which a failure no longer counts: the object was deleted, or its name was reused.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10 * 60);

/// Consecutive failures of each object, by name, with the time of the last one.
#[derive(Debug, Default)]
pub(crate) struct FailureCounts(Mutex<HashMap<String, (u32, Instant)>>);

impl FailureCounts {
    /// Counts a failure, and returns the delay. `random` is in 0..1.
    pub(crate) fn delay(&self, name: &str, retry: Requeue, random: f64) -> Duration {
        let (mut counts, now) = (self.0.lock(), Instant::now());
        counts.retain(|_, (_, at)| now.duration_since(*at) < FORGOTTEN_AFTER);
        let (failures, at) = counts.entry(name.to_owned()).or_insert((0, now));
        (*failures, *at) = (failures.saturating_add(1), now);
        retry.delay(*failures, random)
    }

    /// Resets the count after a successful reconciliation.
    pub(crate) fn end(&self, name: &str) {
        self.0.lock().remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_become_rarer_until_one_succeeds() {
        let failures = FailureCounts::default();
        let delay = |name| failures.delay(name, Requeue::Later, 0.5).as_secs();
        let delays: Vec<u64> = (0..6).map(|_| delay("a")).collect();
        assert_eq!(delays, [2, 4, 8, 16, 25, 25]);
        assert_eq!(delay("b"), 2, "each object has its own");
        failures.end("a");
        assert_eq!(delay("a"), 2);
    }

    /// Regression: the operator kept a count for each object that was deleted before it was ever reconciled.
    #[tokio::test(start_paused = true)]
    async fn failures_of_objects_that_are_gone_are_forgotten() {
        let failures = FailureCounts::default();
        for number in 0..1000 {
            failures.delay(&format!("gone-{number}"), Requeue::Later, 0.5);
        }
        tokio::time::advance(FORGOTTEN_AFTER).await;
        assert_eq!(failures.delay("gone-1", Requeue::Later, 0.5).as_secs(), 2, "a new one of that name");
        assert_eq!(failures.0.lock().len(), 1);
    }

    #[test]
    fn what_was_corrected_is_seen_within_half_a_minute() {
        for retry in [Requeue::Soon, Requeue::Later, Requeue::Rarely] {
            assert!(retry.delay(100, 1.0) <= Duration::from_secs(30), "{retry:?}");
        }
    }

    #[test]
    fn an_event_is_waited_for_as_long_as_a_resync() {
        let failures = FailureCounts::default();
        for _ in 0..3 {
            assert_eq!(failures.delay("a", Requeue::OnChange, 0.5), RESYNC);
        }
    }

    #[test]
    fn a_missing_server_is_retried_sooner_than_a_wrong_key() {
        let unavailable = Requeue::of(ErrorKind::Unavailable).delay(1, 0.5);
        assert!(unavailable < Requeue::of(ErrorKind::Denied).delay(1, 0.5));
    }
}
