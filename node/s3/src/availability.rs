//! Availability of one store, learned from its requests: how slowly uploads move, and whether it answers.
//!
//! An upload that timed out would time out again with the same limit: each time-out doubles the limit of the
//! next uploads, and quick uploads halve it again.
//!
//! While a store is unreachable, one request every 500 ms probes it; all others fail without being sent, and
//! their callers retry on their own schedule. So the load on a store that is unreachable, or has just come
//! back, does not grow with the number of volumes and readers that wait for it.

use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use holdfast_objects::{ErrorKind, StoreError};
use parking_lot::{Mutex, MutexGuard};

use crate::config::Timeouts;

/// Most doublings: 64 times as long, for a store that takes 16 KiB a second.
const MAX_DOUBLINGS: u32 = 6;

/// Interval between requests that probe an unreachable store.
const PROBE_EVERY: Duration = Duration::from_millis(500);

/// A request that was not sent, because the store did not answer a moment ago.
#[derive(Debug, thiserror::Error)]
#[error("{last} (not retried yet)")]
struct NotSent {
    last: String,
}

/// A store that did not answer.
#[derive(Debug)]
struct Unreachable {
    probe_after: Instant,
    /// Error of the last operation.
    last: String,
}

/// Availability of one store; shared by all its requests.
#[derive(Debug, Default)]
pub(crate) struct Availability {
    doublings: AtomicU32,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    unreachable: Option<Unreachable>,
    /// Time of the last answer.
    answered: Option<Instant>,
}

impl Availability {
    /// Time limit of an attempt whose limit is `limit` with an ordinary store.
    pub(crate) fn stretch(&self, limit: Duration, timeouts: &Timeouts) -> Duration {
        let body = limit.saturating_sub(timeouts.attempt);
        limit.saturating_sub(body).saturating_add(body * (1 << self.doublings.load(Ordering::Relaxed)))
    }

    /// Learns from an attempt that took `took` and had `limit`.
    pub(crate) fn learn(
        &self,
        answer: Result<(), &StoreError>,
        upload: bool,
        took: Duration,
        limit: Duration,
    ) {
        let change = |to: fn(u32) -> u32| {
            // The closure always answers, so there is always a new value.
            self.doublings.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| Some(to(now))).ok();
        };
        match answer {
            Ok(()) => {
                self.answered();
                if upload && took < limit / 4 {
                    change(|now| now.saturating_sub(1));
                }
            }
            Err(StoreError::TimedOut { .. }) if upload => change(|now| (now + 1).min(MAX_DOUBLINGS)),
            Err(error) if error.kind() != ErrorKind::Unavailable => self.answered(),
            Err(_) => {}
        }
    }

    /// Admits a request.
    ///
    /// # Errors
    /// `Unavailable` with the last error, while the store is unreachable and a probe is not due.
    pub(crate) fn admit(&self, now: Instant) -> Result<(), StoreError> {
        match &mut self.lock().unreachable {
            Some(Unreachable { probe_after, last }) if now < *probe_after => {
                Err(StoreError::Unavailable(NotSent { last: last.clone() }.into()))
            }
            Some(Unreachable { probe_after, .. }) => {
                *probe_after = now + PROBE_EVERY;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Records that an operation ended without an answer to its last request, sent at `sent`. An answer to
    /// any other request since then counts more: a slow upload is not an outage for reads that are answered.
    pub(crate) fn set_unreachable(&self, sent: Instant, now: Instant, error: &StoreError) {
        let mut known = self.lock();
        if known.answered.is_some_and(|answered| answered >= sent) {
            return;
        }
        // The text around it begins with the same words, so only the causes are kept.
        let causes: Vec<String> =
            std::iter::successors(error.source(), |&cause| cause.source()).map(ToString::to_string).collect();
        let last = if causes.is_empty() { error.to_string() } else { causes.join(": ") };
        known.unreachable = Some(Unreachable { probe_after: now + PROBE_EVERY, last });
    }

    /// Sends the next request in any case: a caller needs a fresh answer.
    pub(crate) fn forget(&self) {
        self.lock().unreachable = None;
    }

    fn answered(&self) {
        *self.lock() = Known { unreachable: None, answered: Some(Instant::now()) };
    }

    /// True if the last operation ended without an answer and no request was answered since.
    pub(crate) fn is_unreachable(&self) -> bool {
        self.lock().unreachable.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn uploads_that_time_out_get_longer_limits() {
        let availability = Availability::default();
        let timeouts = Timeouts::default();
        let limit = timeouts.attempt_for(16 << 20);
        assert_eq!(availability.stretch(limit, &timeouts), 21 * SECOND);
        let late = StoreError::TimedOut { after: limit };
        availability.learn(Err(&late), true, limit, limit);
        assert_eq!(availability.stretch(limit, &timeouts), 37 * SECOND);
        assert_eq!(availability.stretch(timeouts.attempt, &timeouts), timeouts.attempt, "without a body");
        availability.learn(Ok(()), true, 30 * SECOND, 37 * SECOND);
        assert_eq!(availability.stretch(limit, &timeouts), 37 * SECOND, "it needed the time");
        availability.learn(Ok(()), true, 2 * SECOND, 37 * SECOND);
        assert_eq!(availability.stretch(limit, &timeouts), 21 * SECOND);
        for _ in 0..100 {
            availability.learn(Err(&late), true, limit, limit);
        }
        assert_eq!(availability.stretch(limit, &timeouts), (5 + 16 * 64) * SECOND, "there is a limit");
    }

    #[test]
    fn an_unreachable_store_is_probed_until_it_answers_anything() {
        let availability = Availability::default();
        let begun = Instant::now();
        availability.admit(begun).unwrap();
        availability.set_unreachable(begun, begun, &StoreError::Unavailable("no route".into()));
        let unsent = availability.admit(begun).unwrap_err();
        assert_eq!(unsent.kind(), ErrorKind::Unavailable);
        assert_eq!(unsent.source().unwrap().to_string(), "no route (not retried yet)");
        availability.admit(begun + PROBE_EVERY).unwrap();
        availability.admit(begun + PROBE_EVERY).expect_err("another request probes already");
        let late = StoreError::TimedOut { after: SECOND };
        availability.learn(Err(&late), false, SECOND, SECOND);
        assert!(availability.is_unreachable());
        let missing = StoreError::NotFound { key: "log/1".to_owned() };
        availability.learn(Err(&missing), false, SECOND, SECOND);
        assert!(!availability.is_unreachable());
        availability.admit(begun + PROBE_EVERY).unwrap();
        availability.set_unreachable(begun, begun, &late);
        assert!(!availability.is_unreachable(), "it answered another request after that one was sent");
    }
}
