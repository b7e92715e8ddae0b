//! What earlier requests taught about the store: how slowly uploads move, and whether it answers at all.
//!
//! An upload that did not end in time would not end in that time when it is sent again: each time-out doubles what the
//! next ones are given, and quick ones halve it again.
//!
//! While a store is known to be away, one request a moment asks whether it is back, whoever wants it; all others fail
//! unsent. Who wants an answer has a patience of its own. So neither a store that is away nor one that comes back is
//! fallen upon, however many volumes and readers wait for it.

use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use holdfast_objects::{ErrorKind, StoreError};

use crate::config::Timeouts;

/// Most doublings: 64 times as long, for a store that takes 16 KiB a second.
const MOST_DOUBLINGS: u32 = 6;

/// How often a store that is away is asked.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// A request that was not sent, because the store did not answer a moment ago.
#[derive(Debug, thiserror::Error)]
#[error("{last} (not asked again so soon)")]
struct NotSent {
    last: String,
}

/// A store that did not answer.
#[derive(Debug)]
struct Away {
    ask_after: Instant,
    /// What the last operation met.
    last: String,
}

/// What is known of a store.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    doublings: AtomicU32,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    away: Option<Away>,
    /// When it answered last.
    answered: Option<Instant>,
}

impl Patience {
    /// How long an attempt may take that may take `limit` of an ordinary store.
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
            Err(StoreError::TimedOut { .. }) if upload => change(|now| (now + 1).min(MOST_DOUBLINGS)),
            Err(error) if error.kind() != ErrorKind::Unavailable => self.answered(),
            Err(_) => {}
        }
    }

    /// Whether a request may be sent.
    ///
    /// # Errors
    /// What to tell whoever wanted to send one to a store that is away.
    pub(crate) fn admit(&self, now: Instant) -> Result<(), StoreError> {
        match &mut self.lock().away {
            Some(Away { ask_after, last }) if now < *ask_after => {
                Err(StoreError::Unavailable(NotSent { last: last.clone() }.into()))
            }
            Some(Away { ask_after, .. }) => {
                *ask_after = now + ASK_EVERY;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// An operation gave up because its last request, sent at `sent`, found the store not there. An answer to any other
    /// request since then says more: a slow upload is no outage for reads that are answered.
    pub(crate) fn gave_up(&self, sent: Instant, now: Instant, error: &StoreError) {
        let mut known = self.lock();
        if known.answered.is_some_and(|answered| answered >= sent) {
            return;
        }
        // What is told of it begins with the same words: the causes are what is new.
        let causes: Vec<String> =
            std::iter::successors(error.source(), |&cause| cause.source()).map(ToString::to_string).collect();
        let last = if causes.is_empty() { error.to_string() } else { causes.join(": ") };
        known.away = Some(Away { ask_after: now + ASK_EVERY, last });
    }

    /// Somebody wants to know: the next request is sent.
    pub(crate) fn forget(&self) {
        self.lock().away = None;
    }

    fn answered(&self) {
        *self.lock() = Known { away: None, answered: Some(Instant::now()) };
    }

    /// Whether nothing was heard since an operation gave up.
    pub(crate) fn is_away(&self) -> bool {
        self.lock().away.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("nothing panics while it holds this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn bodies_that_time_out_are_given_longer_and_quick_ones_shorter() {
        let patience = Patience::default();
        let timeouts = Timeouts::default();
        let limit = timeouts.attempt_for(16 << 20);
        assert_eq!(patience.stretch(limit, &timeouts), 21 * SECOND);
        let late = StoreError::TimedOut { after: limit };
        patience.learn(Err(&late), true, limit, limit);
        assert_eq!(patience.stretch(limit, &timeouts), 37 * SECOND);
        assert_eq!(patience.stretch(timeouts.attempt, &timeouts), timeouts.attempt, "without a body");
        patience.learn(Ok(()), true, 30 * SECOND, 37 * SECOND);
        assert_eq!(patience.stretch(limit, &timeouts), 37 * SECOND, "it needed the time");
        patience.learn(Ok(()), true, 2 * SECOND, 37 * SECOND);
        assert_eq!(patience.stretch(limit, &timeouts), 21 * SECOND);
        for _ in 0..100 {
            patience.learn(Err(&late), true, limit, limit);
        }
        assert_eq!(patience.stretch(limit, &timeouts), (5 + 16 * 64) * SECOND, "there is a limit");
    }

    #[test]
    fn a_store_that_is_away_is_asked_now_and_then_until_it_answers_anything() {
        let patience = Patience::default();
        let begun = Instant::now();
        patience.admit(begun).unwrap();
        patience.gave_up(begun, begun, &StoreError::Unavailable("no route".into()));
        let unsent = patience.admit(begun).unwrap_err();
        assert_eq!(unsent.kind(), ErrorKind::Unavailable);
        assert_eq!(unsent.source().unwrap().to_string(), "no route (not asked again so soon)");
        patience.admit(begun + ASK_EVERY).unwrap();
        patience.admit(begun + ASK_EVERY).expect_err("somebody asks already");
        let late = StoreError::TimedOut { after: SECOND };
        patience.learn(Err(&late), false, SECOND, SECOND);
        assert!(patience.is_away());
        let missing = StoreError::NotFound { key: "log/1".to_owned() };
        patience.learn(Err(&missing), false, SECOND, SECOND);
        assert!(!patience.is_away());
        patience.admit(begun + ASK_EVERY).unwrap();
        patience.gave_up(begun, begun, &late);
        assert!(!patience.is_away(), "it answered another request after that one was sent");
    }
}
