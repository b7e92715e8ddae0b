//! Reads: whole, range, suffix. The body is read inside the attempt, so that a stalled one is retried.

use std::ops::Range;
use std::pin::pin;
use std::time::{Instant, SystemTime};

use aws_sdk_s3::operation::get_object::GetObjectOutput;
use bytes::{Bytes, BytesMut};
use futures::future::{Either, select};
use holdfast_objects::{ErrorKind, StoreError, Suffix, Verb};

use crate::{
    classify::{BrokenAnswer, RequestFailure, classify, foreign, is_from_s3},
    request_class::{Lane, RequestClass},
    store::S3Store,
};

/// Prefix of the range header for an object's end.
const SUFFIX: &str = "bytes=-";

/// A GET's response: its body and, for a part, the length of the whole object.
struct FetchedPart {
    bytes: Bytes,
    whole_bytes: Option<u64>,
    /// Time at which the object was stored, by the server's clock, in whole seconds.
    stored: Option<SystemTime>,
}

impl S3Store {
    #[tracing::instrument(skip_all, fields(bucket = %self.config.bucket, key))]
    pub(crate) async fn get_object(&self, key: &str, max_bytes: u64) -> Result<Bytes, StoreError> {
        Ok(self.get_part(key, None, max_bytes).await?.bytes)
    }

    /// Like `get`, with the time at which the object was stored, by the server's clock, in whole seconds.
    pub(crate) async fn get_dated_object(
        &self,
        key: &str,
        max_bytes: u64,
    ) -> Result<(Bytes, Option<SystemTime>), StoreError> {
        let FetchedPart { bytes, stored, whole_bytes: _ } = self.get_part(key, None, max_bytes).await?;
        Ok((bytes, stored))
    }

    #[tracing::instrument(skip_all, fields(bucket = %self.config.bucket, key, ?range))]
    pub(crate) async fn get_object_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        if range.is_empty() {
            return Err(nothing_asked("range", format!("{range:?}")));
        }
        let want_bytes = range.end - range.start;
        let header = format!("bytes={}-{}", range.start, range.end - 1);
        let part = self.get_part(key, Some(&header), want_bytes).await;
        match part {
            Err(StoreError::OutOfRange { key, .. }) => Err(StoreError::OutOfRange { key, end: range.end }),
            Err(error) => Err(error),
            Ok(part) if part.whole_bytes.is_some_and(|whole| whole < range.end) => {
                Err(StoreError::OutOfRange { key: key.to_owned(), end: range.end })
            }
            Ok(part) if part.bytes.len() as u64 != want_bytes => Err(StoreError::WrongLength {
                key: key.to_owned(),
                got_bytes: part.bytes.len() as u64,
                want_bytes,
            }),
            Ok(part) => Ok(part.bytes),
        }
    }

    #[tracing::instrument(skip_all, fields(bucket = %self.config.bucket, key, len))]
    pub(crate) async fn get_object_suffix(&self, key: &str, len: u64) -> Result<Suffix, StoreError> {
        if len == 0 {
            return Err(nothing_asked("suffix length", "0".to_owned()));
        }
        let part = match self.get_part(key, Some(&format!("{SUFFIX}{len}")), len).await {
            // Only an empty object has no last byte.
            Err(StoreError::OutOfRange { .. }) => return Ok(Suffix { bytes: Bytes::new(), size_bytes: 0 }),
            part => part?,
        };
        let got_bytes = part.bytes.len() as u64;
        let size_bytes = part.whole_bytes.unwrap_or(got_bytes);
        let want_bytes = len.min(size_bytes);
        if got_bytes != want_bytes {
            return Err(StoreError::WrongLength { key: key.to_owned(), got_bytes, want_bytes });
        }
        Ok(Suffix { bytes: part.bytes, size_bytes })
    }

    async fn get_part(
        &self,
        key: &str,
        range: Option<&str>,
        max_bytes: u64,
    ) -> Result<FetchedPart, StoreError> {
        let full = self.full_key(key)?;
        let full = full.as_str();
        self.repeat(Verb::Get, self.config.timeouts.attempt_for(max_bytes), || async move {
            // Boxed, because each future that reads would otherwise contain two of these large futures.
            let send = || Box::pin(self.send_get(key, full, range, max_bytes));
            // Guests wait for ranges of segments. No guest waits for whole objects, such as log records.
            let is_hedged = range.is_some_and(|range| !range.starts_with(SUFFIX));
            let answer = if is_hedged { self.hedged(send).await? } else { send().await? };
            // S3 labels each partial response with its range; only the end of an empty object may lack it.
            let is_nothing =
                answer.content_length() == Some(0) && range.is_some_and(|r| r.starts_with(SUFFIX));
            if range.is_some() && answer.content_range().is_none() && !is_nothing {
                return Err(foreign(200, "Content-Range").into());
            }
            let part = read_body(answer, key, max_bytes).await?;
            let moved = part.bytes.len() as u64;
            Ok((part, moved))
        })
        .await
    }

    /// Sends a GET and waits for the start of the response.
    async fn send_get(
        &self,
        key: &str,
        full: &str,
        range: Option<&str>,
        max_bytes: u64,
    ) -> Result<GetObjectOutput, RequestFailure> {
        let get = self.client.get_object().bucket(&self.config.bucket).key(full);
        let get = get.set_range(range.map(str::to_owned)).send();
        // The time to the start of a response does not depend on the object's size.
        let limit = self.config.timeouts.attempt_for(0);
        let after = self.availability.limit(RequestClass::repeated(Verb::Get), limit);
        let failure = match tokio::time::timeout(after, get).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(failure)) => failure,
            Err(_elapsed) => return Err(StoreError::TimedOut { after }.into()),
        };
        let status = failure.raw_response().map(|raw| raw.status().as_u16());
        if status == Some(416) && is_from_s3(&failure) {
            return Err(StoreError::OutOfRange { key: key.to_owned(), end: max_bytes }.into());
        }
        Err(classify(failure, &self.config.bucket, key))
    }

    /// Sends a read, and once more if the response is late. Returns the first success or definitive failure,
    /// otherwise the failure of the request that ended last.
    async fn hedged<T, Fut>(&self, send: impl Fn() -> Fut) -> Result<T, RequestFailure>
    where
        Fut: Future<Output = Result<T, RequestFailure>>,
    {
        let (sent, mut first) = (Instant::now(), pin!(send()));
        let late = self.hedging.begin();
        let answer = match late {
            Some(late) => tokio::time::timeout(late, &mut first).await.ok(),
            None => None,
        };
        if let Some(answer) = answer {
            // A fast failure says nothing about the time of a response.
            if answer.is_ok() {
                self.hedging.learn(sent.elapsed());
            }
            return answer;
        }
        // A second request does not wait for a permit, because other reads need it for their first request,
        // and does not probe an unreachable store.
        let permit = late.filter(|_| !self.availability.is_unreachable());
        let permit = permit.and_then(|_| self.permits.try_acquire_first());
        let Some(permit) = permit.filter(|_| self.hedging.try_spend()) else {
            let answer = first.await;
            // Without a limit, the failure may have been a fast one.
            if late.is_some() || answer.is_ok() {
                self.hedging.learn(sent.elapsed());
            }
            return answer;
        };
        let (metered, resent) = (self.requests.begin(Verb::Get), Instant::now());
        match select(first, pin!(send())).await {
            Either::Left((answer, second)) => {
                self.hedging.learn(sent.elapsed());
                match self.final_answer(sent, answer) {
                    Ok(answer) => answer,
                    Err(_passing) => {
                        let answer = second.await;
                        metered.end(0, answer.as_ref().is_err_and(RequestFailure::is_error));
                        answer
                    }
                }
            }
            Either::Right((answer, first)) => {
                self.hedging.learn(sent.elapsed());
                metered.end(0, answer.as_ref().is_err_and(RequestFailure::is_error));
                drop(permit);
                match self.final_answer(resent, answer) {
                    Ok(answer) => answer,
                    Err(_passing) => first.await,
                }
            }
        }
    }

    /// Returns the answer to one of two equal reads if no other answer can change it.
    ///
    /// # Errors
    /// The failure, if the other request may still succeed.
    fn final_answer<T>(
        &self,
        sent: Instant,
        answer: Result<T, RequestFailure>,
    ) -> Result<Result<T, RequestFailure>, RequestFailure> {
        match answer {
            Err(failure) if failure.error.kind() == ErrorKind::Throttled => {
                self.permits.learn(Lane::First, sent, Err(&failure));
                Err(failure)
            }
            Err(failure) if !failure.is_answer() => Err(failure),
            answer => Ok(answer),
        }
    }
}

fn nothing_asked(what: &'static str, value: String) -> StoreError {
    StoreError::Invalid { what, value, rule: "ask for at least one byte" }
}

/// Collects a body of at most `max_bytes`, and of exactly the length in its header.
async fn read_body(answer: GetObjectOutput, key: &str, max_bytes: u64) -> Result<FetchedPart, StoreError> {
    let whole_bytes = answer.content_range().map(whole_length).transpose()?;
    let want_bytes = answer.content_length().and_then(|length| u64::try_from(length).ok());
    let want_bytes = want_bytes.ok_or_else(|| foreign(200, "Content-Length"))?;
    let stored = answer.last_modified().and_then(|stored| SystemTime::try_from(*stored).ok());
    let too_large = |size_bytes| StoreError::TooLarge { key: key.to_owned(), size_bytes, max_bytes };
    if want_bytes > max_bytes {
        return Err(too_large(want_bytes));
    }
    let mut body = answer.body;
    let mut bytes = BytesMut::with_capacity(want_bytes as usize);
    while let Some(chunk) = body.next().await {
        let got_bytes = bytes.len() as u64;
        let chunk = chunk.map_err(|lost| {
            let source = lost.into();
            StoreError::Unavailable(BrokenAnswer { got_bytes, want_bytes, source }.into())
        })?;
        bytes.extend_from_slice(&chunk);
        if bytes.len() as u64 > want_bytes {
            return Err(too_large(bytes.len() as u64));
        }
    }
    let got_bytes = bytes.len() as u64;
    if got_bytes != want_bytes {
        return Err(StoreError::WrongLength { key: key.to_owned(), got_bytes, want_bytes });
    }
    Ok(FetchedPart { bytes: bytes.freeze(), whole_bytes, stored })
}

/// Returns the length of the whole object from `bytes 0-9/100`.
fn whole_length(content_range: &str) -> Result<u64, StoreError> {
    let whole = content_range.rsplit_once('/').and_then(|(_, whole)| whole.parse().ok());
    whole.ok_or(StoreError::BadAnswer { field: "Content-Range" })
}
