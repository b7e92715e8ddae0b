//! Permits, which limit the requests of each lane that are in flight at a time.
//!
//! Owns: the limit of each lane, which adapts to a store that throttles; that of bulk uploads also adapts to
//! a slow uplink.
//! Does not own: timeouts, retries, and outages ([`availability`]).
//!
//! A throttled request lowers the limit of its lane by a quarter, once for all requests that were in flight
//! at that time. So does a bulk upload that timed out: fewer of them then share the uplink. As many
//! successes as the limit raise it by one, up to the maximum (additive increase, multiplicative decrease:
//! Chiu and Jain, 1989). Permits in use are withdrawn when their requests end. The lanes share nothing, so
//! reads and log records never wait for segments.
//!
//! [`availability`]: crate::availability

use std::time::Instant;

use holdfast_objects::{ErrorKind, StoreError};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::classify::RequestFailure;
use crate::request_class::Lane;

/// Reads, log records and all other requests get one permit in this many: 48 of the default 96.
const FIRST_SHARE: usize = 2;
/// Small segments get one in this many: 32, with which 1,000 volumes commit 500 times a second to a store
/// that takes 50 ms per request.
const SMALL_SHARE: usize = 3;
/// Bulk segments get one in this many: 16.
const BULK_SHARE: usize = 6;
/// Divisor of the maximum that gives the minimum limit of reads, for which guests wait.
const FIRST_FLOOR_PART: usize = 2;
/// Divisor of the maximum that gives the minimum limit of segments.
const SEGMENT_FLOOR_PART: usize = 4;

/// Permits of one store.
#[derive(Debug)]
pub(crate) struct Permits {
    first: LanePermits,
    small: LanePermits,
    bulk: LanePermits,
}

/// Permits of one lane.
#[derive(Debug)]
struct LanePermits {
    semaphore: Semaphore,
    adaptation: Mutex<LaneAdaptation>,
    max: usize,
    floor: usize,
}

/// The limit of a lane, and its next change.
#[derive(Debug)]
struct LaneAdaptation {
    limit: usize,
    /// Permits in use to withdraw when their requests end.
    surplus: usize,
    /// Successful requests since the limit last changed.
    successes: usize,
    /// Time of the last decrease.
    decreased: Option<Instant>,
}

/// Permits in use, until they are dropped.
#[derive(Debug)]
pub(crate) struct RequestPermits<'a> {
    lane: &'a LanePermits,
    /// `None` once they were returned or withdrawn.
    permits: Option<SemaphorePermit<'a>>,
}

impl Permits {
    /// Creates permits for up to `max` requests. Each lane has at least one.
    pub(crate) fn new(max: usize) -> Self {
        Self {
            first: LanePermits::new(max / FIRST_SHARE, FIRST_FLOOR_PART),
            small: LanePermits::new(max / SMALL_SHARE, SEGMENT_FLOOR_PART),
            bulk: LanePermits::new(max / BULK_SHARE, SEGMENT_FLOOR_PART),
        }
    }

    /// Returns the sum of the limits.
    pub(crate) fn limit(&self) -> usize {
        [&self.first, &self.small, &self.bulk].map(|lane| lane.adaptation.lock().limit).into_iter().sum()
    }

    /// Waits for the permit of a request.
    pub(crate) async fn acquire(&self, lane: Lane) -> RequestPermits<'_> {
        self.of(lane).acquire(1).await
    }

    /// Waits for permits of `count` requests of the first lane, or of as many as its lowest limit allows.
    pub(crate) async fn acquire_first(&self, count: usize) -> RequestPermits<'_> {
        self.first.acquire(count.min(self.first.floor)).await
    }

    /// Returns the permit of a request of the first lane if one is free.
    pub(crate) fn try_acquire_first(&self) -> Option<RequestPermits<'_>> {
        let permit = self.first.semaphore.try_acquire().ok()?;
        Some(RequestPermits { lane: &self.first, permits: Some(permit) })
    }

    /// Returns the number of segment uploads in flight.
    pub(crate) fn uploads_in_flight(&self) -> u32 {
        let in_use = self.small.in_use() + self.bulk.in_use();
        u32::try_from(in_use).unwrap_or(u32::MAX)
    }

    /// Adapts the limit of `lane` to the answer to a request that was sent at `sent`.
    pub(crate) fn learn(&self, lane: Lane, sent: Instant, answer: Result<(), &RequestFailure>) {
        match answer {
            Ok(()) => self.of(lane).raise(),
            Err(failure) if is_overload(lane, &failure.error) => self.of(lane).lower(sent),
            Err(_) => {}
        }
    }

    fn of(&self, lane: Lane) -> &LanePermits {
        match lane {
            Lane::First => &self.first,
            Lane::Small => &self.small,
            Lane::Bulk => &self.bulk,
        }
    }
}

impl LanePermits {
    fn new(max: usize, floor_part: usize) -> Self {
        let max = max.max(1);
        let adaptation = LaneAdaptation { limit: max, surplus: 0, successes: 0, decreased: None };
        let floor = (max / floor_part).max(1);
        Self { semaphore: Semaphore::new(max), adaptation: Mutex::new(adaptation), max, floor }
    }

    async fn acquire(&self, count: usize) -> RequestPermits<'_> {
        let count = u32::try_from(count).expect("a limit fits 32 bits");
        let permits = self.semaphore.acquire_many(count).await.expect("the semaphore is never closed");
        RequestPermits { lane: self, permits: Some(permits) }
    }

    /// Returns the number of permits in use.
    fn in_use(&self) -> usize {
        let adaptation = self.adaptation.lock();
        (adaptation.limit + adaptation.surplus).saturating_sub(self.semaphore.available_permits())
    }

    /// Counts a success, and raises the limit by one after as many as the limit.
    fn raise(&self) {
        let mut adaptation = self.adaptation.lock();
        adaptation.successes += 1;
        if adaptation.successes < adaptation.limit || adaptation.limit == self.max {
            return;
        }
        adaptation.limit += 1;
        match adaptation.surplus.checked_sub(1) {
            Some(surplus) => adaptation.surplus = surplus,
            None => self.semaphore.add_permits(1),
        }
        adaptation.successes = 0;
    }

    /// Lowers the limit by a quarter, unless it was lowered since a request was sent at `sent`.
    fn lower(&self, sent: Instant) {
        let mut adaptation = self.adaptation.lock();
        // Requests sent before the decrease exceeded the earlier limit, not the current one.
        if adaptation.decreased.is_some_and(|decreased| sent <= decreased) {
            return;
        }
        adaptation.decreased = Some(Instant::now());
        let excess = (adaptation.limit / 4).max(1).min(adaptation.limit - self.floor);
        adaptation.limit -= excess;
        adaptation.surplus += excess - self.semaphore.forget_permits(excess);
        adaptation.successes = 0;
    }
}

/// Returns true if fewer requests of `lane` at a time may prevent this failure.
fn is_overload(lane: Lane, error: &StoreError) -> bool {
    let is_late = lane == Lane::Bulk && matches!(error, StoreError::TimedOut { .. });
    is_late || error.kind() == ErrorKind::Throttled
}

impl Drop for RequestPermits<'_> {
    fn drop(&mut self) {
        let Some(mut permits) = self.permits.take() else { return };
        let mut adaptation = self.lane.adaptation.lock();
        while adaptation.surplus > 0
            && let Some(permit) = permits.split(1)
        {
            permit.forget();
            adaptation.surplus -= 1;
        }
        // Freed before the limit changes, because a decrease withdraws free permits first.
        drop(permits);
        drop(adaptation);
    }
}

#[cfg(test)]
mod tests {
    use std::iter::from_fn;
    use std::thread;
    use std::time::Duration;

    use futures::FutureExt;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn throttled() -> RequestFailure {
        StoreError::Throttled("SlowDown".into()).into()
    }

    /// Takes all free permits of a lane.
    fn take(permits: &Permits, lane: Lane) -> Vec<RequestPermits<'_>> {
        from_fn(|| permits.acquire(lane).now_or_never()).collect()
    }

    fn free(permits: &Permits) -> [usize; 3] {
        [Lane::First, Lane::Small, Lane::Bulk].map(|lane| take(permits, lane).len())
    }

    #[test]
    fn lanes_share_no_permit() {
        let permits = Permits::new(96);
        assert_eq!((permits.limit(), free(&permits)), (96, [48, 32, 16]));
        let _segments = [Lane::Small, Lane::Bulk].map(|lane| take(&permits, lane));
        for _ in 0..100 {
            permits.learn(Lane::Bulk, Instant::now() + MS, Err(&throttled()));
        }
        assert_eq!(free(&permits), [48, 0, 0], "reads wait for no segment, with any limit");
        assert_eq!(free(&Permits::new(1)), [1, 1, 1]);
    }

    #[test]
    fn throttling_lowers_the_limit_once_for_requests_in_flight() {
        let permits = Permits::new(96);
        let mut sent = Instant::now();
        for _ in 0..50 {
            permits.learn(Lane::Small, sent, Err(&throttled()));
        }
        assert_eq!((permits.limit(), free(&permits)), (88, [48, 24, 16]));
        for _ in 0..20 {
            sent = Instant::now() + MS;
            for lane in [Lane::First, Lane::Small, Lane::Bulk] {
                permits.learn(lane, sent, Err(&throttled()));
            }
        }
        assert_eq!(free(&permits), [24, 8, 4], "each lane has a lowest limit");
    }

    #[test]
    fn a_round_of_successes_raises_the_limit_by_one() {
        let permits = Permits::new(48);
        permits.learn(Lane::Small, Instant::now(), Err(&throttled()));
        for (limit, successes) in [(12, 12), (13, 13)] {
            for _ in 0..successes {
                assert_eq!(free(&permits)[1], limit);
                permits.learn(Lane::Small, Instant::now(), Ok(()));
            }
        }
        assert_eq!(free(&permits), [24, 14, 8]);
        for _ in 0..1000 {
            permits.learn(Lane::Small, Instant::now(), Ok(()));
        }
        assert_eq!(free(&permits), [24, 16, 8], "never above the maximum");
    }

    #[test]
    fn permits_in_use_are_withdrawn_when_their_requests_end() {
        let permits = Permits::new(40);
        let mut in_use = take(&permits, Lane::First);
        permits.learn(Lane::First, Instant::now(), Err(&throttled()));
        in_use.truncate(17);
        assert_eq!(free(&permits)[0], 0, "17 are in use, and 15 are allowed");
        for _ in 0..15 {
            permits.learn(Lane::First, Instant::now(), Ok(()));
        }
        in_use.truncate(15);
        assert_eq!(free(&permits)[0], 1, "the limit is 16 again");
        drop(in_use);
        assert_eq!(free(&permits)[0], 16);
    }

    #[test]
    fn a_cancelled_wait_takes_no_permit() {
        let permits = Permits::new(24);
        let in_use = take(&permits, Lane::First);
        let mut waiting = Box::pin(permits.acquire_first(4));
        assert!(waiting.as_mut().now_or_never().is_none());
        permits.learn(Lane::First, Instant::now(), Err(&throttled()));
        drop(in_use);
        drop(waiting);
        assert_eq!(free(&permits)[0], 9);
        assert_eq!(Permits::new(1).acquire_first(4).now_or_never().map(drop), Some(()), "one is the lowest");
    }

    #[test]
    fn other_failures_leave_the_limit() {
        let permits = Permits::new(20);
        let late = StoreError::TimedOut { after: Duration::from_secs(5) }.into();
        permits.learn(Lane::First, Instant::now(), Err(&late));
        assert_eq!(free(&permits)[0], 10);
    }

    /// Regression, found in review: as many parts as before shared a slow uplink, and timed out again.
    #[test]
    fn bulk_uploads_that_time_out_lower_their_limit() {
        let permits = Permits::new(96);
        let (sent, late) = (Instant::now(), StoreError::TimedOut { after: Duration::from_secs(13) }.into());
        let parts = take(&permits, Lane::Bulk);
        assert_eq!(permits.uploads_in_flight(), 16);
        for _ in &parts {
            permits.learn(Lane::Bulk, sent, Err(&late));
        }
        permits.learn(Lane::Small, sent, Err(&late));
        assert_eq!(permits.uploads_in_flight(), 16);
        drop(parts);
        assert_eq!((free(&permits), permits.uploads_in_flight()), ([48, 32, 12], 0));
    }

    /// Limits change while other threads take and return permits.
    #[test]
    fn no_permit_is_lost_between_threads() {
        let permits = Permits::new(96);
        thread::scope(|scope| {
            for worker in 0..4 {
                let permits = &permits;
                scope.spawn(move || {
                    for round in 0..2_000_u32 {
                        // More than the lowest limit, so that permits in use are withdrawn.
                        let _held: Vec<_> =
                            from_fn(|| permits.acquire(Lane::Small).now_or_never()).take(12).collect();
                        let is_throttled = (round + worker) % 37 == 0;
                        let answer = throttled();
                        let answer = if is_throttled { Err(&answer) } else { Ok(()) };
                        permits.learn(Lane::Small, Instant::now() + MS, answer);
                    }
                });
            }
        });
        let limit = permits.small.adaptation.lock().limit;
        assert_eq!((free(&permits)[1], permits.small.adaptation.lock().surplus), (limit, 0));
    }
}
