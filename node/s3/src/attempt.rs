//! One attempt, and its repetition: permits, time-outs, counting.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use holdfast_objects::{Decision, ErrorKind, StoreError, Verb};

use crate::store::S3Store;

/// Bytes of a body that moved in one attempt.
pub(crate) type BodyBytes = u64;

/// The queue that a request waits in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Other requests only: reads, log records, all that is small.
    First,
    /// Other uploads of segments too, which never have more than their share of the permits.
    Bulk,
    /// None: the caller holds the permit.
    Permitted,
}

/// One attempt of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestAttempt {
    pub(crate) verb: Verb,
    pub(crate) lane: Lane,
    /// The longest it may take.
    pub(crate) limit: Duration,
}

impl S3Store {
    /// Sends one request with a permit and within its limit, and counts it.
    ///
    /// The permit is waited for outside the limit: time in the queue is not the server's.
    pub(crate) async fn attempt<T, E>(
        &self,
        attempt: RequestAttempt,
        request: impl Future<Output = Result<(T, BodyBytes), E>>,
        timed_out: impl FnOnce(StoreError) -> E,
        is_failure: impl FnOnce(&E) -> bool,
    ) -> Result<T, E> {
        let RequestAttempt { verb, lane, limit } = attempt;
        let _bulk = match lane {
            Lane::First | Lane::Permitted => None,
            Lane::Bulk => Some(self.bulk.acquire().await.expect("the semaphore is never closed")),
        };
        let _permit = match lane {
            Lane::First | Lane::Bulk => {
                Some(self.permits.acquire().await.expect("the semaphore is never closed"))
            }
            Lane::Permitted => None,
        };
        self.requests.begin(verb);
        let begun = Instant::now();
        let answer = match tokio::time::timeout(limit, request).await {
            Ok(answer) => answer,
            Err(_elapsed) => Err(timed_out(StoreError::TimedOut { after: limit })),
        };
        let (body_bytes, failed) = match &answer {
            Ok((_, body_bytes)) => (*body_bytes, false),
            Err(error) => (0, is_failure(error)),
        };
        self.requests.end(verb, begun.elapsed(), body_bytes, failed);
        answer.map(|(value, _)| value)
    }

    /// Sends a harmless request until it is answered, the retry policy ends it, or the error is permanent.
    pub(crate) async fn repeat<T, Fut>(
        &self,
        verb: Verb,
        limit: Duration,
        mut request: impl FnMut() -> Fut,
    ) -> Result<T, StoreError>
    where
        Fut: Future<Output = Result<(T, BodyBytes), StoreError>>,
    {
        let begun = Instant::now();
        // A create-once PUT is not repeated.
        let upload = matches!(verb, Verb::Put | Verb::UploadPart);
        let lane = if upload { Lane::Bulk } else { Lane::First };
        let mut attempt = 1;
        loop {
            let failed = |error: &StoreError| error.kind() != ErrorKind::NotFound;
            let limit = if upload { self.availability.stretch(limit, &self.config.timeouts) } else { limit };
            let sent = Instant::now();
            self.availability.admit(sent)?;
            let answer =
                self.attempt(RequestAttempt { verb, lane, limit }, request(), |error| error, failed).await;
            self.availability.learn(answer.as_ref().map(drop), upload, sent.elapsed(), limit);
            let error = match answer {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let unavailable = error.kind() == ErrorKind::Unavailable;
            if unavailable && self.availability.is_unreachable() {
                return Err(error);
            }
            match self.retry.decide(attempt, error.kind(), begun.elapsed(), fastrand::f64()) {
                Decision::Fail if unavailable => {
                    self.availability.set_unreachable(sent, Instant::now(), &error);
                    return Err(error);
                }
                Decision::Fail => return Err(error),
                Decision::RetryAfter(wait) => {
                    tracing::debug!(verb = verb.name(), attempt, ?wait, %error, "retrying a request");
                    tokio::time::sleep(wait).await;
                    attempt += 1;
                }
            }
        }
    }
}
