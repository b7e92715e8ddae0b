//! What earlier requests taught about the store: how slowly uploads move, and whether it answers at all.
//!
//! An upload that did not end in time would not end in that time when it is sent again: each time-out doubles what the
//! next ones are given, and quick ones halve it again. While a store is known to be away, each operation
//! asks once: whoever wants the answer has a patience of its own, and a store that comes back is not fallen upon.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use holdfast_objects::{ErrorKind, StoreError};

use crate::config::Timeouts;

/// Most doublings: 64 times as long, for a store that takes 16 KiB a second.
const MOST_DOUBLINGS: u32 = 6;

/// What is known of a store.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    doublings: AtomicU32,
    away: AtomicBool,
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
                self.away.store(false, Ordering::Relaxed);
                if upload && took < limit / 4 {
                    change(|now| now.saturating_sub(1));
                }
            }
            Err(StoreError::TimedOut { .. }) if upload => change(|now| (now + 1).min(MOST_DOUBLINGS)),
            Err(error) if error.kind() != ErrorKind::Unavailable => self.away.store(false, Ordering::Relaxed),
            Err(_) => {}
        }
    }

    /// An operation gave up because the store was not there.
    pub(crate) fn gave_up(&self) {
        self.away.store(true, Ordering::Relaxed);
    }

    /// Whether nothing was heard since an operation gave up.
    pub(crate) fn is_away(&self) -> bool {
        self.away.load(Ordering::Relaxed)
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
    fn a_store_is_away_until_it_answers_anything() {
        let patience = Patience::default();
        patience.gave_up();
        let late = StoreError::TimedOut { after: SECOND };
        patience.learn(Err(&late), false, SECOND, SECOND);
        assert!(patience.is_away());
        let missing = StoreError::NotFound { key: "log/1".to_owned() };
        patience.learn(Err(&missing), false, SECOND, SECOND);
        assert!(!patience.is_away());
    }
}
