//! Meaning of a server's response, or of its absence.
//!
//! Proxies, ingresses and load balancers use the same status codes as the server behind them, so a status
//! alone proves nothing. A response comes from the server if it has an S3 error code or the header
//! `x-amz-request-id`; any other means "not available", and leaves the outcome of a write unknown:
//!
//! - *does not exist* (404) needs the code `NoSuchKey`, or no code and the server's header. If it were wrong,
//!   it would end a log too early, hide a truncation marker or another writer's record, and fail reads of
//!   existing data;
//! - *exists* (412) and *conflict* (409) need the same proof. If it were wrong, 412 would make a writer read
//!   an empty log position;
//! - *done* (2xx) needs the fields that S3 always sends ([`foreign`]). If it were wrong, an unstored commit
//!   would count as stored;
//! - *refused* (401, 403) needs the same proof, or a login page would be reported as a missing right;
//! - a bucket that does not exist is a failover or a configuration error: the server cannot be asked about
//!   objects.
//!
//! A response of the server about its account, quota, key, disks, clock or region is a [`Blocker`]: rights
//! and network are correct, and naming them in a message would mislead the user.

use std::error::Error;
use std::time::Duration;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_s3::{
    config::http::HttpResponse,
    error::{ProvideErrorMetadata, SdkError},
};
use holdfast_objects::{Blocker, ErrorKind, StoreError};

/// Maximum `Retry-After` that is honoured. A known server requests a minute in each response during an
/// overload of one second; callers back off in any case.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(5);

/// A failed request: its meaning, and its possible effect on the server.
#[derive(Debug)]
pub(crate) struct RequestFailure {
    /// Meaning of the failure.
    pub(crate) error: StoreError,
    /// Effect of a write.
    pub(crate) effect: WriteEffect,
    /// Delay that the server requests before the next request; zero if none.
    pub(crate) retry_after: Duration,
}

impl RequestFailure {
    const fn new(error: StoreError, effect: WriteEffect) -> Self {
        Self { error, effect, retry_after: Duration::ZERO }
    }

    /// Returns true if the server answered. A request that was not sent proves nothing about it.
    pub(crate) fn is_answer(&self) -> bool {
        !matches!(self.error.kind(), ErrorKind::Unavailable | ErrorKind::Blocked(Blocker::NoCredentials))
            && !matches!(&self.error, StoreError::Refused { code, .. } if code == NOT_SENT)
    }

    /// Returns true if it counts as a store error: not a response about an existing or missing object.
    pub(crate) fn is_error(&self) -> bool {
        self.effect != WriteEffect::Exists && self.error.kind() != ErrorKind::NotFound
    }
}

/// Without a valid response of the server, the effect is unknown.
impl From<StoreError> for RequestFailure {
    fn from(error: StoreError) -> Self {
        Self::new(error, WriteEffect::Unknown)
    }
}

/// Effect of a failed write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteEffect {
    /// None: the server rejected it, or never received it.
    None,
    /// None, because the key was taken.
    Exists,
    /// Unknown.
    Unknown,
}

/// A response that does not come from the S3 server.
#[derive(Debug, thiserror::Error)]
#[error(
    "HTTP {status} without {lacks}: a proxy or another server answered; check the endpoint and any proxy in front of it"
)]
pub(crate) struct ForeignAnswer {
    pub(crate) status: u16,
    pub(crate) lacks: &'static str,
}

/// A response of the S3 server about an internal failure.
#[derive(Debug, thiserror::Error)]
#[error("the server answered HTTP {status} ({code})")]
pub(crate) struct ServerFault {
    pub(crate) status: u16,
    pub(crate) code: String,
    #[source]
    source: Box<dyn Error + Send + Sync>,
}

/// A response whose body ended or stalled before it was complete.
#[derive(Debug, thiserror::Error)]
#[error("the response ended after {got_bytes} of {want_bytes} bytes")]
pub(crate) struct BrokenAnswer {
    pub(crate) got_bytes: u64,
    pub(crate) want_bytes: u64,
    #[source]
    pub(crate) source: Box<dyn Error + Send + Sync>,
}

/// A request that was not sent, because the source of its credentials did not answer in time.
#[derive(Debug, thiserror::Error)]
#[error("the token service (AWS STS, or the metadata service of the node) provided no credentials in time")]
pub(crate) struct LateCredentials {
    #[source]
    source: Box<dyn Error + Send + Sync>,
}

/// Code of a request that could not be built.
const NOT_SENT: &str = "not sent";

/// Returns the error for a successful response without `lacks`, which S3 always sends with it.
pub(crate) fn foreign(status: u16, lacks: &'static str) -> StoreError {
    StoreError::Unavailable(ForeignAnswer { status, lacks }.into())
}

/// Code that the SDK substitutes for a 404 without a body; the server did not send it.
const SDK_NOT_FOUND: &str = "NotFound";

/// Returns true if the S3 server itself sent this error response.
pub(crate) fn is_from_s3<E: ProvideErrorMetadata>(failure: &SdkError<E, HttpResponse>) -> bool {
    let has_id = |raw: &HttpResponse| raw.headers().get("x-amz-request-id").is_some_and(|id| !id.is_empty());
    failure.code().is_some_and(|code| !matches!(code, "" | SDK_NOT_FOUND))
        || failure.raw_response().is_some_and(has_id)
}

/// Classifies the failure of a request about `key` (empty for a list) in `bucket`.
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
        // An error response with a known code, or at least a status.
        (Some(status), SdkError::ServiceError(_)) => {
            answered(ServerAnswer { status, code, message, from_s3 }, failure.into(), bucket, key)
        }
        // No complete response.
        (_, SdkError::ConstructionFailure(_)) => {
            let error = StoreError::Refused { code: NOT_SENT.to_owned(), source: failure.into() };
            RequestFailure::new(error, WriteEffect::None)
        }
        _ if any_cause(&failure, &is_credentials) => {
            RequestFailure::new(no_credentials(failure.into()), WriteEffect::None)
        }
        // A complete response that does not come from S3, such as a portal's page.
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

/// Returns the delay that a response requests, in seconds: no S3 server sends a date.
fn retry_after(answer: &HttpResponse) -> Duration {
    let seconds = answer.headers().get("retry-after").and_then(|text| text.trim().parse().ok());
    Duration::from_secs(seconds.unwrap_or(0)).min(MAX_RETRY_AFTER)
}

/// Classifies the error `code` of one of several objects in a server's response.
pub(crate) fn classify_code(code: &str, message: Option<&str>, bucket: &str) -> StoreError {
    let message = message.unwrap_or("no message");
    let status = match code {
        "AccessDenied" => 403,
        "InternalError" | "ServiceUnavailable" => 500,
        "NoSuchKey" => 404,
        _ => 400,
    };
    let answer = ServerAnswer { status, code: code.to_owned(), message: message.to_owned(), from_s3: true };
    answered(answer, message.into(), bucket, "one of several").error
}

/// An error response.
struct ServerAnswer {
    status: u16,
    /// Error code, or empty.
    code: String,
    /// Error text of the server, or empty.
    message: String,
    /// True if the response looks like that of an S3 server.
    from_s3: bool,
}

/// Codes: <https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html>.
fn answered(
    answer: ServerAnswer,
    source: Box<dyn Error + Send + Sync>,
    bucket: &str,
    key: &str,
) -> RequestFailure {
    let ServerAnswer { status, code, message, from_s3 } = answer;
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
        (_, "SlowDown" | "SlowDownRead" | "SlowDownWrite" | "KMS.ThrottlingException") | (429, _) => {
            none(StoreError::Throttled(source))
        }
        (_, "RequestTimeout") => unknown(StoreError::Unavailable(source)),
        (501, _) => none(StoreError::Refused { code: code_or_status(code, status), source }),
        _ if !from_s3 => unknown(foreign(status, "an S3 error code")),
        (401 | 403, _) => none(StoreError::Denied { code: code_or_status(code, status), source }),
        (412, _) => RequestFailure::new(StoreError::Refused { code, source }, WriteEffect::Exists),
        (409, _) => unknown(StoreError::Conflict(source)),
        (404, "NoSuchKey" | SDK_NOT_FOUND | "") if !key.is_empty() => {
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

/// Returns the blocker for the codes of Amazon, Ceph, MinIO and versitygw. A provider without a specific code
/// explains it in the text of `AccessDenied` or `InvalidRequest`.
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

/// Returns the error of a request that was not sent for lack of credentials. Only a credentials provider that
/// timed out may succeed later.
fn no_credentials(source: Box<dyn Error + Send + Sync>) -> StoreError {
    let late = |cause: &(dyn Error + 'static)| {
        matches!(cause.downcast_ref(), Some(CredentialsError::ProviderTimedOut(_)))
    };
    if any_cause(source.as_ref(), &late) {
        StoreError::Unavailable(LateCredentials { source }.into())
    } else {
        let blocker = Blocker::NoCredentials;
        StoreError::Blocked { blocker, code: NOT_SENT.to_owned(), source }
    }
}

/// Returns true if the request cannot have been sent: nothing listens at the address.
fn never_connected(failure: &(dyn Error + 'static)) -> bool {
    any_cause(failure, &|cause| {
        let io = cause.downcast_ref::<std::io::Error>();
        io.is_some_and(|io| io.kind() == std::io::ErrorKind::ConnectionRefused)
    })
}

/// Returns true for a broken connection.
fn is_connection(cause: &(dyn Error + 'static)) -> bool {
    cause.is::<std::io::Error>() || cause.is::<hyper::Error>()
}

/// Returns true if `test` holds for the error or one of its causes. An I/O error hides its inner error: its
/// source is that error's source.
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

    /// The kind tells the caller how to react, the effect whether the write may have happened.
    #[test]
    fn answers_are_classified_by_remedy_and_effect() {
        let cases = [
            (404, "NoSuchKey", ErrorKind::NotFound, WriteEffect::None),
            (404, "NoSuchBucket", ErrorKind::Unavailable, WriteEffect::None),
            (404, "NoSuchUpload", ErrorKind::Invalid, WriteEffect::None),
            (412, "PreconditionFailed", ErrorKind::Invalid, WriteEffect::Exists),
            (409, "ConditionalRequestConflict", ErrorKind::Conflict, WriteEffect::Unknown),
            (503, "SlowDown", ErrorKind::Throttled, WriteEffect::None),
            // MinIO's.
            (503, "SlowDownRead", ErrorKind::Throttled, WriteEffect::None),
            (503, "SlowDownWrite", ErrorKind::Throttled, WriteEffect::None),
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
            let answer = ServerAnswer { status, code: code.to_owned(), message: String::new(), from_s3 };
            let failure = answered(answer, "x".into(), "bucket", "key");
            assert_eq!((failure.error.kind(), failure.effect), (kind, effect), "{status} {code}");
        }
    }

    #[test]
    fn a_status_without_an_s3_code_proves_nothing() {
        for status in [302, 307, 400, 401, 403, 404, 405, 408, 409, 411, 412, 413, 421, 425] {
            let answer = ServerAnswer { status, code: String::new(), message: String::new(), from_s3: false };
            let failure = answered(answer, "x".into(), "bucket", "key");
            assert_eq!(
                (failure.error.kind(), failure.effect),
                (ErrorKind::Unavailable, WriteEffect::Unknown)
            );
        }
        let answer = ServerAnswer { status: 404, code: String::new(), message: String::new(), from_s3: true };
        let own = answered(answer, "x".into(), "bucket", "key");
        assert_eq!((own.error.kind(), own.effect), (ErrorKind::NotFound, WriteEffect::None));
    }
}
