//! Meaning of an answer of the server, or of its absence.
//!
//! Proxies, ingresses and load balancers answer with the same status codes as the server behind them, so a
//! status alone proves nothing. An answer is the server's own when it has an S3 error code or the header
//! `x-amz-request-id`; anything else means "not available", and leaves a write in doubt:
//!
//! - *does not exist* (404) needs the code `NoSuchKey`, or no code and the server's header. Believed wrongly
//!   it ends a log too early, hides a truncation marker or another writer's record, and fails reads of data
//!   that is there;
//! - *exists* (412) and *conflict* (409) need the server's word too. Believed wrongly, 412 sends a writer to
//!   read a place that holds nothing;
//! - *done* (2xx) needs the fields that S3 always sends ([`foreign`]). Believed wrongly, a commit that was
//!   never stored counts as stored;
//! - *refused* (401, 403) needs the server's word, or a login page would be called a missing right;
//! - a bucket that does not exist is a failover or a configuration error: the server cannot be asked about
//!   objects.
//!
//! An answer of the server about its account, quota, key, disks, clock or region is a [`Blocker`]: rights and
//! the network are in order, and a message that named those would send a person to the wrong place.

use std::error::Error;
use std::time::Duration;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_s3::{
    config::http::HttpResponse,
    error::{ProvideErrorMetadata, SdkError},
};
use holdfast_objects::{Blocker, ErrorKind, StoreError};

/// The longest that a `Retry-After` is honoured. A server in the field asks for a minute in each answer of an
/// overload that lasts a second; callers retry later and later in any case.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(5);

/// A failed request: what it means, and whether the server may have acted on it.
#[derive(Debug)]
pub(crate) struct RequestFailure {
    /// Its meaning.
    pub(crate) error: StoreError,
    /// Its effect, if it was a write.
    pub(crate) effect: WriteEffect,
    /// The time for which the server asks before the next request; zero where it names none.
    pub(crate) retry_after: Duration,
}

impl RequestFailure {
    const fn new(error: StoreError, effect: WriteEffect) -> Self {
        Self { error, effect, retry_after: Duration::ZERO }
    }

    /// True if the server answered. A request that was not sent says nothing about it.
    pub(crate) fn is_answer(&self) -> bool {
        !matches!(self.error.kind(), ErrorKind::Unavailable | ErrorKind::Blocked(Blocker::NoCredentials))
            && !matches!(&self.error, StoreError::Refused { code, .. } if code == NOT_SENT)
    }

    /// True if it counts as an error of the store: not an answer about an object that is there or is not.
    pub(crate) fn is_error(&self) -> bool {
        self.effect != WriteEffect::Exists && self.error.kind() != ErrorKind::NotFound
    }
}

/// Without an answer of the server, or with one that makes no sense, the effect is unknown.
impl From<StoreError> for RequestFailure {
    fn from(error: StoreError) -> Self {
        Self::new(error, WriteEffect::Unknown)
    }
}

/// Effect of a failed write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteEffect {
    /// Nothing: the server refused it, or never heard of it.
    None,
    /// Nothing, because the key was taken.
    Exists,
    /// Unknown.
    Unknown,
}

/// An answer that the S3 server did not give.
#[derive(Debug, thiserror::Error)]
#[error(
    "HTTP {status} without {lacks}: a proxy or another server answered; check the endpoint and what is in front of it"
)]
pub(crate) struct ForeignAnswer {
    pub(crate) status: u16,
    pub(crate) lacks: &'static str,
}

/// An answer of the S3 server that it failed inside.
#[derive(Debug, thiserror::Error)]
#[error("the server answered HTTP {status} ({code})")]
pub(crate) struct ServerFault {
    pub(crate) status: u16,
    pub(crate) code: String,
    #[source]
    source: Box<dyn Error + Send + Sync>,
}

/// An answer whose body ended, or stopped, before all of it was there.
#[derive(Debug, thiserror::Error)]
#[error("the answer broke off after {got_bytes} of {want_bytes} bytes")]
pub(crate) struct BrokenAnswer {
    pub(crate) got_bytes: u64,
    pub(crate) want_bytes: u64,
    #[source]
    pub(crate) source: Box<dyn Error + Send + Sync>,
}

/// The code of a request that was not sent, because it could not be made.
const NOT_SENT: &str = "not sent";

/// The error of a successful answer without `lacks`, which S3 sends with each answer of its kind.
pub(crate) fn foreign(status: u16, lacks: &'static str) -> StoreError {
    StoreError::Unavailable(ForeignAnswer { status, lacks }.into())
}

/// The code that the SDK makes up for a 404 without a body: no server's word.
const MADE_UP: &str = "NotFound";

/// True if the S3 server itself gave this error answer.
pub(crate) fn is_from_s3<E: ProvideErrorMetadata>(failure: &SdkError<E, HttpResponse>) -> bool {
    let has_id = |raw: &HttpResponse| raw.headers().get("x-amz-request-id").is_some_and(|id| !id.is_empty());
    failure.code().is_some_and(|code| !matches!(code, "" | MADE_UP))
        || failure.raw_response().is_some_and(has_id)
}

/// Reads the failure of a request about `key` (empty for a list) in `bucket`.
pub(crate) fn classify<E>(failure: SdkError<E, HttpResponse>, bucket: &str, key: &str) -> RequestFailure
where
    E: Error + ProvideErrorMetadata + Send + Sync + 'static,
{
    let status = failure.raw_response().map(|response| response.status().as_u16());
    let code = failure.code().unwrap_or_default().to_owned();
    let message = failure.message().unwrap_or_default().to_owned();
    let from_s3 = is_from_s3(&failure);
    let retry_after = failure.raw_response().map_or(Duration::ZERO, retry_after);
    let failure = match (status, &failure) {
        // An error answer with a code the protocol knows, or at least a status.
        (Some(status), SdkError::ServiceError(_)) => {
            answered(Answer { status, code, message, from_s3 }, failure.into(), bucket, key)
        }
        // No whole answer.
        (_, SdkError::ConstructionFailure(_)) => {
            let error = StoreError::Refused { code: NOT_SENT.to_owned(), source: failure.into() };
            RequestFailure::new(error, WriteEffect::None)
        }
        _ if any_cause(&failure, &is_credentials) => {
            RequestFailure::new(no_credentials(failure.into()), WriteEffect::None)
        }
        // The whole answer is there, and no answer of S3: the page of a portal, for one.
        (Some(status), SdkError::ResponseError(_)) if !any_cause(&failure, &is_connection) => {
            foreign(status, "the content that S3 sends").into()
        }
        _ => {
            let effect = if never_connected(&failure) { WriteEffect::None } else { WriteEffect::Unknown };
            RequestFailure::new(StoreError::Unavailable(failure.into()), effect)
        }
    };
    RequestFailure { retry_after, ..failure }
}

/// The time for which an answer asks, in seconds: no S3 server names a date.
fn retry_after(answer: &HttpResponse) -> Duration {
    let seconds = answer.headers().get("retry-after").and_then(|text| text.trim().parse().ok());
    Duration::from_secs(seconds.unwrap_or(0)).min(MAX_RETRY_AFTER)
}

/// The meaning of the error `code` that a server's answer names for one of several objects.
pub(crate) fn classify_code(code: &str, message: Option<&str>, bucket: &str) -> StoreError {
    let message = message.unwrap_or("no message");
    let status = match code {
        "AccessDenied" => 403,
        "InternalError" | "ServiceUnavailable" => 500,
        "NoSuchKey" => 404,
        _ => 400,
    };
    let answer = Answer { status, code: code.to_owned(), message: message.to_owned(), from_s3: true };
    answered(answer, message.into(), bucket, "one of several").error
}

/// An error answer.
struct Answer {
    status: u16,
    /// Empty where it has none.
    code: String,
    /// The server's text; empty where it has none.
    message: String,
    /// True if the answer looks like one of an S3 server.
    from_s3: bool,
}

/// Codes: <https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html>.
fn answered(answer: Answer, source: Box<dyn Error + Send + Sync>, bucket: &str, key: &str) -> RequestFailure {
    let Answer { status, code, message, from_s3 } = answer;
    let none = |error| RequestFailure::new(error, WriteEffect::None);
    let unknown = |error| RequestFailure::new(error, WriteEffect::Unknown);
    let moved = (status == 301 && from_s3).then_some(Blocker::Region);
    if let Some(blocker) = blocker(status, &code, &message).or(moved) {
        let effect = if from_s3 { WriteEffect::None } else { WriteEffect::Unknown };
        let code = code_or_status(code, status);
        return RequestFailure::new(StoreError::Blocked { blocker, code, source }, effect);
    }
    match (status, code.as_str()) {
        (_, "NoSuchBucket") => none(StoreError::NoBucket { bucket: bucket.to_owned() }),
        (_, "SlowDown" | "KMS.ThrottlingException") | (429, _) => none(StoreError::Throttled(source)),
        (_, "RequestTimeout") => unknown(StoreError::Unavailable(source)),
        (501, _) => none(StoreError::Refused { code: code_or_status(code, status), source }),
        _ if !from_s3 => unknown(foreign(status, "an S3 error code")),
        (401 | 403, _) => none(StoreError::Denied { code: code_or_status(code, status), source }),
        (412, _) => RequestFailure::new(StoreError::Refused { code, source }, WriteEffect::Exists),
        (409, _) => unknown(StoreError::Conflict(source)),
        (404, "NoSuchKey" | MADE_UP | "") if !key.is_empty() => {
            none(StoreError::NotFound { key: key.to_owned() })
        }
        (400, "ExpiredToken" | "InvalidToken" | "InvalidAccessKeyId") => {
            none(StoreError::Denied { code, source })
        }
        (300..=499, _) => none(StoreError::Refused { code: code_or_status(code, status), source }),
        _ => {
            let code = if code.is_empty() { "no code".to_owned() } else { code };
            unknown(StoreError::Unavailable(ServerFault { status, code, source }.into()))
        }
    }
}

/// The cause for which the server does not serve the request, by the codes of Amazon, Ceph, MinIO and
/// versitygw. A provider that has no code for it says it in the text of `AccessDenied` or `InvalidRequest`.
fn blocker(status: u16, code: &str, message: &str) -> Option<Blocker> {
    let is_final = status < 500;
    Some(match code {
        "InvalidObjectState" => Blocker::Archived,
        "QuotaExceeded" | "XMinioAdminBucketQuotaExceeded" | "ServiceQuotaExceeded" => Blocker::Quota,
        "AccountProblem" | "AllAccessDisabled" | "UserSuspended" | "BucketSuspended" => Blocker::Account,
        "KMS.ThrottlingException" => return None,
        _ if is_final && code.starts_with("KMS") => Blocker::Key,
        "AccessDenied" if message.contains("kms:") => Blocker::Key,
        "AccessDenied" if message.contains("cap exceeded") => Blocker::Quota,
        "XMinioStorageFull" | "InsufficientStorage" | "NotEnoughSpace" => Blocker::ServerFull,
        _ if status == 507 => Blocker::ServerFull,
        "InvalidRequest" if message.contains("Object Lock") => Blocker::Retention,
        "RequestTimeTooSkewed" => Blocker::Clock,
        "PermanentRedirect"
        | "TemporaryRedirect"
        | "AuthorizationHeaderMalformed"
        | "IllegalLocationConstraintException"
        | "IncorrectEndpoint" => Blocker::Region,
        _ => return None,
    })
}

fn code_or_status(code: String, status: u16) -> String {
    if code.is_empty() { format!("HTTP {status}") } else { code }
}

fn is_credentials(cause: &(dyn Error + 'static)) -> bool {
    cause.is::<CredentialsError>()
}

/// A request that was not sent for want of credentials. Only a provider that did not answer in time may do so
/// later.
fn no_credentials(source: Box<dyn Error + Send + Sync>) -> StoreError {
    let late = |cause: &(dyn Error + 'static)| {
        matches!(cause.downcast_ref(), Some(CredentialsError::ProviderTimedOut(_)))
    };
    if any_cause(source.as_ref(), &late) {
        StoreError::Unavailable(source)
    } else {
        let blocker = Blocker::NoCredentials;
        StoreError::Blocked { blocker, code: NOT_SENT.to_owned(), source }
    }
}

/// True if the request cannot have left: nothing listens at the address.
fn never_connected(failure: &(dyn Error + 'static)) -> bool {
    any_cause(failure, &|cause| {
        let io = cause.downcast_ref::<std::io::Error>();
        io.is_some_and(|io| io.kind() == std::io::ErrorKind::ConnectionRefused)
    })
}

/// True for a connection that broke.
fn is_connection(cause: &(dyn Error + 'static)) -> bool {
    cause.is::<std::io::Error>() || cause.is::<hyper::Error>()
}

/// True if `test` holds for the error or one of its causes. An I/O error hides the error it was made from:
/// its source is that error's source.
pub(crate) fn any_cause(
    failure: &(dyn Error + 'static),
    test: &dyn Fn(&(dyn Error + 'static)) -> bool,
) -> bool {
    if test(failure) {
        return true;
    }
    let hidden = failure.downcast_ref::<std::io::Error>().and_then(|io| io.get_ref());
    let next = hidden.map(|hidden| hidden as &(dyn Error + 'static)).or_else(|| failure.source());
    next.is_some_and(|next| any_cause(next, test))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_may_ask_for_a_wait_of_some_seconds() {
        let asked = |text: &str| {
            let mut answer =
                HttpResponse::new(503.try_into().unwrap(), aws_sdk_s3::primitives::SdkBody::empty());
            answer.headers_mut().insert("retry-after", text.to_owned());
            retry_after(&answer).as_secs()
        };
        let cases = [("2", 2), ("60", 5), ("-1", 0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0)];
        assert_eq!(cases.map(|(text, _)| asked(text)), cases.map(|(_, seconds)| seconds));
    }

    /// The kind says what a caller may do, the effect if the write may have happened.
    #[test]
    fn answers_are_classified_by_remedy_and_effect() {
        let cases = [
            (404, "NoSuchKey", ErrorKind::NotFound, WriteEffect::None),
            (404, "NoSuchBucket", ErrorKind::Unavailable, WriteEffect::None),
            (404, "NoSuchUpload", ErrorKind::Invalid, WriteEffect::None),
            (412, "PreconditionFailed", ErrorKind::Invalid, WriteEffect::Exists),
            (409, "ConditionalRequestConflict", ErrorKind::Conflict, WriteEffect::Unknown),
            (503, "SlowDown", ErrorKind::Throttled, WriteEffect::None),
            (429, "", ErrorKind::Throttled, WriteEffect::None),
            (503, "", ErrorKind::Unavailable, WriteEffect::Unknown),
            (500, "InternalError", ErrorKind::Unavailable, WriteEffect::Unknown),
            (400, "RequestTimeout", ErrorKind::Unavailable, WriteEffect::Unknown),
            (403, "SignatureDoesNotMatch", ErrorKind::Denied, WriteEffect::None),
            (403, "", ErrorKind::Unavailable, WriteEffect::Unknown),
            (400, "ExpiredToken", ErrorKind::Denied, WriteEffect::None),
            (301, "PermanentRedirect", ErrorKind::Blocked(Blocker::Region), WriteEffect::None),
            (507, "", ErrorKind::Blocked(Blocker::ServerFull), WriteEffect::Unknown),
            (403, "NotSignedUp", ErrorKind::Denied, WriteEffect::None),
            (503, "KMS.KeyUnavailableException", ErrorKind::Unavailable, WriteEffect::Unknown),
            (400, "KMS.ThrottlingException", ErrorKind::Throttled, WriteEffect::None),
            (501, "NotImplemented", ErrorKind::Invalid, WriteEffect::None),
        ];
        for (status, code, kind, effect) in cases {
            let from_s3 = !code.is_empty();
            let answer = Answer { status, code: code.to_owned(), message: String::new(), from_s3 };
            let failure = answered(answer, "x".into(), "bucket", "key");
            assert_eq!((failure.error.kind(), failure.effect), (kind, effect), "{status} {code}");
        }
    }

    #[test]
    fn a_status_without_an_s3_code_proves_nothing() {
        for status in [302, 307, 400, 401, 403, 404, 405, 408, 409, 411, 412, 413, 421, 425] {
            let answer = Answer { status, code: String::new(), message: String::new(), from_s3: false };
            let failure = answered(answer, "x".into(), "bucket", "key");
            assert_eq!(
                (failure.error.kind(), failure.effect),
                (ErrorKind::Unavailable, WriteEffect::Unknown)
            );
        }
        let answer = Answer { status: 404, code: String::new(), message: String::new(), from_s3: true };
        let own = answered(answer, "x".into(), "bucket", "key");
        assert_eq!((own.error.kind(), own.effect), (ErrorKind::NotFound, WriteEffect::None));
    }
}
