//! One attempt and its retries: permits, timeouts, metering, and updates of the store's availability.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use holdfast_objects::{Decision, ErrorKind, StoreError, Verb};

use crate::{
    availability::Attempted,
    classify::RequestFailure,
    config::AttemptLimit,
    request_class::{Lane, RequestClass},
    store::S3Store,
};

/// Body bytes moved in one attempt.
pub(crate) type BodyBytes = u64;

impl S3Store {
    /// Sends one request with a permit and within its limit, meters it, and updates the store's availability.
    pub(crate) async fn attempt<T>(
        &self,
        class: RequestClass,
        limit: AttemptLimit,
        request: impl Future<Output = Result<(T, BodyBytes), RequestFailure>>,
    ) -> Result<T, RequestFailure> {
        let _permits = self.permits.acquire(class.lane).await;
        self.permitted_attempt(class, limit, request).await
    }

    /// Like [`Self::attempt`], for a caller that already holds the permit.
    pub(crate) async fn permitted_attempt<T>(
        &self,
        class: RequestClass,
        limit: AttemptLimit,
        request: impl Future<Output = Result<(T, BodyBytes), RequestFailure>>,
    ) -> Result<T, RequestFailure> {
        let metered = self.requests.begin(class.verb);
        let (sent, doublings) = (Instant::now(), self.availability.doublings(class));
        let after = limit.doubled(doublings);
        let uploads_at_start = self.permits.uploads_in_flight();
        let answer = match tokio::time::timeout(after, request).await {
            Ok(answer) => answer,
            Err(_elapsed) => Err(StoreError::TimedOut { after }.into()),
        };
        let took = sent.elapsed();
        let (body_bytes, failed) = match &answer {
            Ok((_, body_bytes)) => (*body_bytes, false),
            Err(failure) => (0, failure.is_error()),
        };
        metered.end(body_bytes, failed);
        let moved = AttemptLimit { body: self.config.timeouts.body(body_bytes), ..limit };
        let uploads = [uploads_at_start, self.permits.uploads_in_flight()];
        let attempted = Attempted { class, moved, doublings, sent, took, uploads };
        self.availability.learn(&attempted, answer.as_ref().map(drop));
        self.permits.learn(class.lane, sent, answer.as_ref().map(drop));
        answer.map(|(value, _)| value)
    }

    /// Retries an idempotent request until it succeeds, the retry policy ends it, or the error is permanent.
    pub(crate) async fn repeat<T, Fut>(
        &self,
        verb: Verb,
        limit: AttemptLimit,
        request: impl FnMut() -> Fut,
    ) -> Result<T, StoreError>
    where
        Fut: Future<Output = Result<(T, BodyBytes), RequestFailure>>,
    {
        self.repeat_as(RequestClass::repeated(verb), limit, request).await
    }

    /// Like `repeat`, for a request of this class. After its first timeout an upload is retried even past the
    /// policy's deadline, because one attempt may take longer than that, and the next limit is longer.
    pub(crate) async fn repeat_as<T, Fut>(
        &self,
        class: RequestClass,
        limit: AttemptLimit,
        mut request: impl FnMut() -> Fut,
    ) -> Result<T, StoreError>
    where
        Fut: Future<Output = Result<(T, BodyBytes), RequestFailure>>,
    {
        let (mut begun, mut queued) = (None, Duration::ZERO);
        let (mut attempt, mut has_timed_out) = (1, false);
        loop {
            self.availability.admit(class).await?;
            let sent = Instant::now();
            let permits = self.permits.acquire(class.lane).await;
            // Neither the first wait, which may last as long as an outage, nor time in the queue counts
            // towards the retry policy's deadline.
            let begun: Instant = match begun {
                None => *begun.insert(Instant::now()),
                Some(begun) => {
                    queued += sent.elapsed();
                    begun
                }
            };
            let answer = self.permitted_attempt(class, limit, request()).await;
            drop(permits);
            let failure = match answer {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            let unavailable = failure.error.kind() == ErrorKind::Unavailable;
            if unavailable && self.availability.is_unreachable() {
                return Err(failure.error);
            }
            let is_late = class.lane != Lane::First && matches!(failure.error, StoreError::TimedOut { .. });
            let elapsed = if is_late && !std::mem::replace(&mut has_timed_out, true) {
                Duration::ZERO
            } else {
                begun.elapsed().saturating_sub(queued)
            };
            match self.decide(attempt, elapsed, &failure) {
                Decision::Fail => {
                    if unavailable {
                        self.availability.set_unreachable(sent, Instant::now(), &failure);
                    }
                    return Err(failure.error);
                }
                Decision::RetryAfter(wait) => {
                    let error = &failure.error;
                    tracing::debug!(verb = class.verb.name(), attempt, ?wait, %error, "retrying a request");
                    tokio::time::sleep(wait).await;
                    attempt += 1;
                }
            }
        }
    }

    /// Decides how to proceed after attempt number `attempt`, `elapsed` after the start of the first one.
    pub(crate) fn decide(&self, attempt: u32, elapsed: Duration, failure: &RequestFailure) -> Decision {
        self.retry.decide(attempt, failure.error.kind(), elapsed, failure.retry_after, fastrand::f64())
    }
}
