//! Availability of one store, learned from its requests: its latency and reachability.
//!
//! *Timeouts.* A request that timed out would time out again with the same limit: each timeout doubles the
//! limit of the next requests of its class, up to a bound, and a fast response halves it again. Each class
//! learns separately, because a store that lists slowly may read quickly. Uploads share the uplink: one with
//! few others in flight counts as fast only if it would be with as many as when an upload timed out.
//!
//! *Admission.* While a store is unreachable, only one request at a time is sent as a probe, every 500 ms or,
//! with longer limits, less often: at most ten wait for a response. All others wait for the result. Any
//! response admits them; a failed probe fails them all, and their callers retry on their own schedule. The
//! load on an unreachable store thus does not grow with the number of waiting volumes and readers, and the
//! permits bound it once the store is back. No waiting request fails before a probe has failed: otherwise, a
//! caller that joins several requests would drop the probe because of a failed one. Dropping the probe for
//! another reason only delays the next one by an interval.

use std::collections::HashMap;
use std::error::Error;
use std::iter::successors;
use std::pin::pin;
use std::time::{Duration, Instant};

use holdfast_objects::{ErrorKind, StoreError};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::classify::RequestFailure;
use crate::config::{AttemptLimit, MAX_HEAD_DOUBLINGS};
use crate::request_class::{Lane, RequestClass};

/// Maximum doublings for uploads: a body gets 64 times as long, for a store that accepts 16 KiB/s.
const MAX_BULK_DOUBLINGS: u32 = 6;

/// Interval between probes of an unreachable store.
const PROBE_EVERY: Duration = Duration::from_millis(500);

/// Error of a request that was not sent because the store does not answer.
#[derive(Debug, thiserror::Error)]
#[error("{last} (not retried yet)")]
struct NotSent {
    last: String,
}

/// State of an unreachable store.
#[derive(Debug)]
struct Unreachable {
    probe_after: Instant,
    /// Error of the last request.
    last: String,
}

/// An ended attempt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempted {
    pub(crate) class: RequestClass,
    /// Limit for a body of the length that the attempt moved.
    pub(crate) moved: AttemptLimit,
    /// Doublings of the limit that the attempt used.
    pub(crate) doublings: u32,
    pub(crate) sent: Instant,
    pub(crate) took: Duration,
    /// Uploads in flight at its start and at its end; used for uploads only, and then includes itself.
    pub(crate) uploads: [u32; 2],
}

/// Availability of one store; shared by all its requests.
#[derive(Debug, Default)]
pub(crate) struct Availability {
    state: Mutex<AvailabilityState>,
    /// Notifies waiters when an unreachable store responds or another request fails.
    news: Notify,
}

#[derive(Debug, Default)]
struct AvailabilityState {
    /// Doublings of the limits; a class without an entry has none.
    doublings: HashMap<RequestClass, u32>,
    /// Maximum number of uploads in flight when one of a class timed out; none for a class without doublings.
    crowds: HashMap<RequestClass, u32>,
    unreachable: Option<Unreachable>,
    /// Time of the last response.
    answered: Option<Instant>,
    /// Failed requests to an unreachable store so far.
    failures: u64,
}

impl AvailabilityState {
    /// Returns the doublings of the limits of `class`. A create is not retried after a timeout, because its
    /// outcome is then unknown: it uses the highest value of the other small requests.
    fn doublings(&self, class: RequestClass) -> u32 {
        let counts = |other: RequestClass| {
            other == class || (class == RequestClass::CREATE && other.lane == Lane::First)
        };
        self.doublings.iter().filter(|(other, _)| counts(**other)).map(|(_, count)| *count).max().unwrap_or(0)
    }

    /// Returns the time of an attempt; of an upload, as if as many were in flight as when one timed out.
    fn took_in_crowd(&self, attempted: &Attempted) -> Duration {
        let [at_start, at_end] = attempted.uploads;
        let in_flight = at_start.min(at_end).max(1);
        let crowd = self.crowds.get(&attempted.class).copied().unwrap_or(1).max(in_flight);
        attempted.took.saturating_mul(crowd) / in_flight
    }

    /// Admits a request, or returns the time of the next probe.
    ///
    /// # Errors
    /// `Unavailable` with the last error, if a request failed since the count was `failures`.
    fn admit(
        &mut self,
        class: RequestClass,
        now: Instant,
        failures: u64,
    ) -> Result<Option<Instant>, StoreError> {
        let interval = PROBE_EVERY * (1 << self.doublings(class).min(MAX_HEAD_DOUBLINGS));
        let Some(Unreachable { probe_after, last }) = &mut self.unreachable else { return Ok(None) };
        if self.failures != failures {
            return Err(StoreError::Unavailable(NotSent { last: last.clone() }.into()));
        }
        if now < *probe_after {
            return Ok(Some(*probe_after));
        }
        *probe_after = now + interval;
        Ok(None)
    }

    fn was_answered_since(&self, sent: Instant) -> bool {
        self.answered.is_some_and(|answered| answered >= sent)
    }

    /// Records a failed request to an unreachable store; the next probe is not due before `probe_after`.
    fn fail(&mut self, probe_after: Instant, error: &StoreError) {
        // The outer text is the same each time, so only the causes are kept.
        let causes: Vec<String> =
            successors(error.source(), |&cause| cause.source()).map(ToString::to_string).collect();
        let last = if causes.is_empty() { error.to_string() } else { causes.join(": ") };
        self.unreachable = Some(Unreachable { probe_after, last });
        self.failures += 1;
    }
}

impl Availability {
    /// Returns the current doublings of the limits of `class`.
    pub(crate) fn doublings(&self, class: RequestClass) -> u32 {
        self.lock().doublings(class)
    }

    /// Returns the time limit of an attempt of `class` whose limit for a fast store is `limit`.
    pub(crate) fn limit(&self, class: RequestClass, limit: AttemptLimit) -> Duration {
        limit.doubled(self.doublings(class))
    }

    /// Updates the state from an attempt. A failure ends the wait of others, but does not start an outage.
    pub(crate) fn learn(&self, attempted: &Attempted, answer: Result<(), &RequestFailure>) {
        let Attempted { class, moved, doublings, sent, took, uploads } = *attempted;
        let mut state = self.lock();
        let now_doublings = state.doublings(class);
        let failure = match answer {
            Err(failure) if !failure.is_answer() => failure,
            Ok(()) | Err(_) => {
                let is_throttled = answer.is_err_and(|error| error.error.kind() == ErrorKind::Throttled);
                let is_fast = state.took_in_crowd(attempted) < moved.doubled(now_doublings) / 4;
                if is_fast && !is_throttled {
                    let fewer = now_doublings.saturating_sub(1);
                    state.doublings.insert(class, fewer);
                    if fewer == 0 {
                        state.crowds.remove(&class);
                    }
                }
                state.answered = Some(sent + took);
                if state.unreachable.take().is_some() {
                    self.news.notify_waiters();
                }
                return;
            }
        };
        if matches!(failure.error, StoreError::TimedOut { .. }) {
            let most = match class.lane {
                Lane::First => MAX_HEAD_DOUBLINGS,
                Lane::Small | Lane::Bulk => MAX_BULK_DOUBLINGS,
            };
            // Requests with the same limit that time out together double it only once.
            state.doublings.insert(class, now_doublings.max(doublings + 1).min(most));
            if class.lane != Lane::First {
                let crowd = state.crowds.entry(class).or_default();
                *crowd = uploads.into_iter().fold(*crowd, u32::max);
            }
        }
        if let Some(Unreachable { probe_after, .. }) = state.unreachable
            && !state.was_answered_since(sent)
        {
            state.fail(probe_after.max(sent + took + failure.retry_after), &failure.error);
            self.news.notify_waiters();
        }
    }

    /// Waits until a request may be sent.
    ///
    /// # Errors
    /// `Unavailable` with the error of a request to the unreachable store that failed in the meantime.
    pub(crate) async fn admit(&self, class: RequestClass) -> Result<(), StoreError> {
        let failures = self.lock().failures;
        loop {
            let mut news = pin!(self.news.notified());
            news.as_mut().enable();
            let admitted = self.lock().admit(class, Instant::now(), failures)?;
            let Some(due) = admitted else { return Ok(()) };
            tokio::select! {
                () = news => {}
                () = tokio::time::sleep_until(due.into()) => {}
            }
        }
    }

    /// Records that an operation ended without a response to its last request, sent at `sent`. A response to
    /// any other request since then takes precedence: a slow upload is not an outage for successful reads.
    pub(crate) fn set_unreachable(&self, sent: Instant, now: Instant, failure: &RequestFailure) {
        let mut state = self.lock();
        if !state.was_answered_since(sent) {
            state.fail(now + PROBE_EVERY.max(failure.retry_after), &failure.error);
            self.news.notify_waiters();
        }
    }

    /// Admits the next request unconditionally: a caller needs a fresh response.
    pub(crate) fn forget(&self) {
        self.lock().unreachable = None;
        self.news.notify_waiters();
    }

    /// Returns true if the last operation ended without a response and no request was answered since.
    pub(crate) fn is_unreachable(&self) -> bool {
        self.lock().unreachable.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, AvailabilityState> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use holdfast_objects::{Blocker, Verb};

    use super::*;
    use crate::config::Timeouts;

    const SECOND: Duration = Duration::from_secs(1);
    const GET: RequestClass = RequestClass::repeated(Verb::Get);
    const LIST: RequestClass = RequestClass::repeated(Verb::List);
    const UPLOAD: RequestClass = RequestClass::repeated(Verb::UploadPart);

    fn late() -> RequestFailure {
        StoreError::TimedOut { after: SECOND }.into()
    }

    /// A request that was not sent because no credentials could be obtained.
    fn not_sent() -> RequestFailure {
        let source = "no token".into();
        StoreError::Blocked { blocker: Blocker::NoCredentials, code: "not sent".to_owned(), source }.into()
    }

    fn lost() -> RequestFailure {
        StoreError::Unavailable("no route".into()).into()
    }

    /// Attempts of one class that move `body_bytes` each, sent with the current limits.
    struct Sender<'a>(&'a Availability, RequestClass, u64);

    impl Sender<'_> {
        fn limit(&self) -> Duration {
            self.0.limit(self.1, Timeouts::default().attempt_for(self.2))
        }

        fn end(&self, took: Duration, answer: Result<(), &RequestFailure>) {
            self.end_among([1, 1], took, answer);
        }

        /// Ends an attempt with as many uploads in flight at its start and at its end.
        fn end_among(&self, uploads: [u32; 2], took: Duration, answer: Result<(), &RequestFailure>) {
            let Self(availability, class, body_bytes) = *self;
            let moved = Timeouts::default().attempt_for(body_bytes);
            let doublings = availability.doublings(class);
            let attempted = Attempted { class, moved, doublings, sent: Instant::now(), took, uploads };
            availability.learn(&attempted, answer);
        }
    }

    #[test]
    fn uploads_that_time_out_get_longer_limits() {
        let availability = Availability::default();
        let upload = Sender(&availability, UPLOAD, 16 << 20);
        assert_eq!(upload.limit(), 21 * SECOND);
        upload.end(21 * SECOND, Err(&late()));
        assert_eq!(upload.limit(), (10 + 32) * SECOND);
        upload.end(30 * SECOND, Ok(()));
        assert_eq!(upload.limit(), (10 + 32) * SECOND, "it needed the time");
        upload.end(2 * SECOND, Ok(()));
        assert_eq!(upload.limit(), 21 * SECOND);
        for _ in 0..100 {
            upload.end(upload.limit(), Err(&late()));
        }
        assert_eq!(upload.limit(), (20 + 16 * 64) * SECOND, "there is a limit");
    }

    /// Regression, found in review: after a failed upload of eight parts, the first part of the next one was
    /// sent alone, and halved the limit that all parts together needed.
    #[test]
    fn a_lone_upload_does_not_halve_the_limit_of_many() {
        let availability = Availability::default();
        let upload = Sender(&availability, UPLOAD, 8 << 20);
        for limit in [13, 26] {
            assert_eq!(upload.limit(), limit * SECOND);
            upload.end_among([8, 8], upload.limit(), Err(&late()));
        }
        for uploads in [[1, 1], [1, 8], [8, 1]] {
            upload.end_among(uploads, 7 * SECOND, Ok(()));
            assert_eq!(upload.limit(), 52 * SECOND, "{uploads:?}: eight would need 56 s");
        }
        upload.end_among([8, 8], 7 * SECOND, Ok(()));
        assert_eq!(upload.limit(), 26 * SECOND);
        upload.end_among([1, 1], SECOND / 2, Ok(()));
        assert_eq!(upload.limit(), 13 * SECOND, "eight would need 4 s");
    }

    /// Regression: only limits of uploads adapted; a store with slow first bytes could no longer be read.
    #[test]
    fn each_class_of_requests_learns_its_own_limit() {
        let availability = Availability::default();
        let [get, list] = [GET, LIST].map(|class| Sender(&availability, class, 0));
        assert_eq!([get.limit(), list.limit()], [5 * SECOND; 2]);
        list.end(5 * SECOND, Err(&late()));
        assert_eq!([get.limit(), list.limit()], [5 * SECOND, 10 * SECOND]);
        get.end(SECOND, Ok(()));
        list.end(6 * SECOND, Ok(()));
        assert_eq!([get.limit(), list.limit()], [5 * SECOND, 10 * SECOND], "reads are quick, lists are not");
        for _ in 0..100 {
            list.end(list.limit(), Err(&late()));
        }
        assert_eq!(list.limit(), 20 * SECOND, "there is a limit");
        for _ in 0..2 {
            list.end(SECOND, Ok(()));
        }
        assert_eq!(list.limit(), 5 * SECOND);
        // A body takes its time: that is not a slow response.
        let large = Sender(&availability, GET, 64 << 20);
        get.end(5 * SECOND, Err(&late()));
        large.end(10 * SECOND, Ok(()));
        assert_eq!(get.limit(), 5 * SECOND);
    }

    #[test]
    fn requests_that_time_out_together_double_the_limit_once() {
        let availability = Availability::default();
        let sent = Instant::now();
        let moved = Timeouts::default().attempt_for(0);
        let took = 5 * SECOND;
        let attempted = Attempted { class: GET, moved, doublings: 0, sent, took, uploads: [0, 0] };
        for _ in 0..64 {
            availability.learn(&attempted, Err(&late()));
        }
        assert_eq!(availability.doublings(GET), 1);
    }

    /// Returns the response to a request at `now`, which started to wait after `failures` failures.
    fn admit(availability: &Availability, now: Instant, failures: u64) -> Result<Option<Instant>, String> {
        let admitted = availability.lock().admit(GET, now, failures);
        admitted.map_err(|error| error.source().unwrap().to_string())
    }

    #[test]
    fn an_unreachable_store_is_probed_until_it_answers_anything() {
        let availability = Availability::default();
        let begun = Instant::now();
        assert_eq!(admit(&availability, begun, 0), Ok(None));
        availability.set_unreachable(begun, begun, &lost());
        let due = begun + PROBE_EVERY;
        assert_eq!(admit(&availability, begun, 1), Ok(Some(due)), "it waits");
        assert_eq!(admit(&availability, due, 1), Ok(None), "it probes");
        assert_eq!(admit(&availability, due, 1), Ok(Some(due + PROBE_EVERY)), "another probes already");
        let get = Sender(&availability, GET, 0);
        get.end(SECOND, Err(&lost()));
        assert!(availability.is_unreachable());
        assert_eq!(admit(&availability, due, 1), Err("no route (not retried yet)".to_owned()));
        let missing = StoreError::NotFound { key: "log/1".to_owned() };
        get.end(SECOND, Err(&missing.into()));
        assert!(!availability.is_unreachable());
        assert_eq!(admit(&availability, due, 2), Ok(None));
        availability.set_unreachable(begun, begun, &lost());
        assert!(!availability.is_unreachable(), "it answered another request after that one was sent");
    }

    /// Regression: a request that never left the host ended an outage, and all users retried at once.
    #[test]
    fn only_what_the_server_answered_ends_an_outage() {
        let blocked = |blocker| StoreError::Blocked { blocker, code: "x".to_owned(), source: "x".into() };
        let denied = StoreError::Denied { code: "AccessDenied".to_owned(), source: "x".into() };
        let answers: Vec<RequestFailure> = Blocker::ALL
            .into_iter()
            .filter(|blocker| *blocker != Blocker::NoCredentials)
            .map(blocked)
            .chain([denied, StoreError::Throttled("x".into()), StoreError::Conflict("x".into())])
            .map(RequestFailure::from)
            .collect();
        for failure in &answers {
            let availability = Availability::default();
            let begun = Instant::now();
            availability.set_unreachable(begun, begun, &lost());
            Sender(&availability, GET, 0).end(SECOND, Err(failure));
            assert!(!availability.is_unreachable(), "{failure:?}");
        }
        let availability = Availability::default();
        Sender(&availability, GET, 0).end(SECOND, Err(&not_sent()));
        assert!(!availability.is_unreachable(), "it begins none either");
        let begun = Instant::now();
        availability.set_unreachable(begun, begun, &lost());
        Sender(&availability, GET, 0).end(SECOND, Err(&not_sent()));
        assert!(availability.is_unreachable());
        assert_eq!(admit(&availability, begun, 1), Err("no token (not retried yet)".to_owned()));
    }

    #[test]
    fn a_server_that_names_a_time_is_not_probed_before() {
        let availability = Availability::default();
        let begun = Instant::now();
        let asked = RequestFailure { retry_after: 3 * SECOND, ..lost() };
        availability.set_unreachable(begun, begun, &asked);
        assert_eq!(admit(&availability, begun, 1), Ok(Some(begun + 3 * SECOND)));
    }

    /// Regression: with a longer limit, dozens of probes were in flight, each with a permit.
    #[test]
    fn probes_with_longer_limits_are_sent_less_often() {
        let availability = Availability::default();
        let get = Sender(&availability, GET, 0);
        for _ in 0..2 {
            get.end(get.limit(), Err(&late()));
        }
        let begun = Instant::now();
        availability.set_unreachable(begun, begun, &late());
        let due = begun + PROBE_EVERY;
        assert_eq!(admit(&availability, due, 1), Ok(None));
        assert_eq!(admit(&availability, due, 1), Ok(Some(due + 4 * PROBE_EVERY)));
    }

    /// Regression: they failed at once, and a caller that joined them dropped the admitted one.
    #[tokio::test]
    async fn requests_wait_for_the_answer_to_the_one_admitted() {
        let availability = Availability::default();
        for answer in [Ok(()), Err(lost())] {
            let sent = Instant::now();
            availability.set_unreachable(sent, sent - PROBE_EVERY, &lost());
            availability.admit(GET).await.expect("a probe is due");
            let mut waiting = [GET, LIST].map(|class| Box::pin(availability.admit(class)));
            for request in &mut waiting {
                assert!(request.now_or_never().is_none());
            }
            Sender(&availability, GET, 0).end(Duration::ZERO, answer.as_ref().copied());
            for request in waiting {
                assert_eq!(request.await.is_ok(), answer.is_ok());
            }
        }
    }
}
