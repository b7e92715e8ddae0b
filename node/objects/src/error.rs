//! Errors of a store, and their kinds, which determine the caller's reaction.

use std::{error::Error, time::Duration};

use crate::Blocker;

/// The underlying error of a store, kept for the log.
pub type Cause = Box<dyn Error + Send + Sync>;

/// Kinds of errors, by the caller's reaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The object does not exist, according to the store itself, not to an intermediary.
    NotFound,
    /// The store requests fewer requests: retry with backoff.
    Throttled,
    /// The store is unreachable or failed internally: retry, and keep the data until then.
    Unavailable,
    /// Another request used the same key at the same time: retry.
    Conflict,
    /// The store rejects these credentials: a user must act.
    Denied,
    /// A cause other than missing rights blocks the request: a user must act, after which the same request
    /// succeeds.
    Blocked(Blocker),
    /// The request can never succeed in this form: a configuration or program error.
    Invalid,
    /// The response contradicts the request or the object's own description: never use it.
    Corrupt,
    /// It is unknown whether the write took effect: read the key back.
    Ambiguous,
    /// A create found an existing object.
    Exists,
}

/// Reason why a request to a store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No object has this key. Only a response of the store itself proves that: a proxy's 404 is
    /// [`StoreError::Unavailable`].
    #[error("object {key} does not exist")]
    NotFound {
        /// Key relative to the store's prefix.
        key: String,
    },
    /// The bucket does not exist: a configuration error or a failover, which proves nothing about objects.
    #[error("bucket {bucket} does not exist")]
    NoBucket {
        /// The bucket's name.
        bucket: String,
    },
    /// The store requests fewer requests.
    #[error("the object store throttled the request")]
    Throttled(#[source] Cause),
    /// The store was unreachable, or failed internally.
    #[error("the object store is not available")]
    Unavailable(#[source] Cause),
    /// The store did not answer in time.
    #[error("the object store did not answer within {after:?}")]
    TimedOut {
        /// Time waited.
        after: Duration,
    },
    /// Another request for the same key was in progress.
    #[error("the object store reported a conflicting request for the same key")]
    Conflict(#[source] Cause),
    /// The credentials are unknown, wrong or lack the permission.
    #[error("the object store denied the request ({code})")]
    Denied {
        /// The store's error code, such as `AccessDenied` or `SignatureDoesNotMatch`.
        code: String,
        /// The store's response.
        #[source]
        source: Cause,
    },
    /// A cause other than missing rights blocks the request. Nothing was written.
    #[error("the object store cannot serve the request ({code}): {}; {}", blocker.state(), blocker.fix())]
    Blocked {
        /// The cause.
        blocker: Blocker,
        /// The store's error code, such as `QuotaExceeded`.
        code: String,
        /// The store's response.
        #[source]
        source: Cause,
    },
    /// The store does not support this kind of request, or not with these values.
    #[error("the object store refused the request ({code})")]
    Refused {
        /// The store's error code, such as `NotImplemented` or `PermanentRedirect`.
        code: String,
        /// The store's response.
        #[source]
        source: Cause,
    },
    /// An argument or a configured value that is never valid.
    #[error("{what} {value:?} is not valid: {rule}")]
    Invalid {
        /// The argument's name.
        what: &'static str,
        /// Its value.
        value: String,
        /// The rule it breaks.
        rule: &'static str,
    },
    /// The object is longer than the caller accepts.
    #[error("object {key} has {size_bytes} bytes, more than the {max_bytes} allowed")]
    TooLarge {
        /// Key relative to the store's prefix.
        key: String,
        /// Length of the object.
        size_bytes: u64,
        /// Limit of the caller.
        max_bytes: u64,
    },
    /// The object ends before the requested range.
    #[error("object {key} ends before byte {end}, the end of the requested range")]
    OutOfRange {
        /// Key relative to the store's prefix.
        key: String,
        /// End of the range, exclusive.
        end: u64,
    },
    /// The length of the response differs from the request or its own header.
    #[error("object {key}: the store sent {got_bytes} bytes instead of {want_bytes}")]
    WrongLength {
        /// Key relative to the store's prefix.
        key: String,
        /// Bytes received.
        got_bytes: u64,
        /// Bytes expected.
        want_bytes: u64,
    },
    /// The response lacks a field or contradicts itself.
    #[error("the object store's response has no valid {field}")]
    BadAnswer {
        /// The field that is missing or wrong.
        field: &'static str,
    },
}

impl StoreError {
    /// Returns the kind of the error, which determines the reaction of the caller.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Throttled(_) => ErrorKind::Throttled,
            Self::Unavailable(_) | Self::TimedOut { .. } | Self::NoBucket { .. } => ErrorKind::Unavailable,
            Self::Conflict(_) => ErrorKind::Conflict,
            Self::Denied { .. } => ErrorKind::Denied,
            Self::Blocked { blocker, .. } => ErrorKind::Blocked(*blocker),
            Self::Refused { .. } | Self::Invalid { .. } => ErrorKind::Invalid,
            Self::TooLarge { .. }
            | Self::OutOfRange { .. }
            | Self::WrongLength { .. }
            | Self::BadAnswer { .. } => ErrorKind::Corrupt,
        }
    }

    /// Returns true if a read may have failed because of its object alone, which is missing, damaged,
    /// archived, or encrypted with a key that was disabled.
    pub const fn is_of_object(&self) -> bool {
        match self.kind() {
            ErrorKind::NotFound
            | ErrorKind::Denied
            | ErrorKind::Blocked(Blocker::Archived | Blocker::Key)
            | ErrorKind::Invalid
            | ErrorKind::Corrupt => true,
            ErrorKind::Throttled
            | ErrorKind::Unavailable
            | ErrorKind::Conflict
            | ErrorKind::Blocked(
                Blocker::Quota
                | Blocker::Account
                | Blocker::ServerFull
                | Blocker::Retention
                | Blocker::Region
                | Blocker::Clock
                | Blocker::NoCredentials,
            )
            | ErrorKind::Ambiguous
            | ErrorKind::Exists => false,
        }
    }
}

/// Reason why a create-once PUT was not confirmed.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// An object with this key already existed.
    #[error("object {key} already exists")]
    Exists {
        /// Key relative to the store's prefix.
        key: String,
    },
    /// This request may or may not have written the object: read the key back and compare.
    #[error("it is unknown whether the object was created")]
    Ambiguous(#[source] StoreError),
    /// Nothing was written.
    #[error("the object was not created")]
    Failed(#[source] StoreError),
}

impl CreateError {
    /// Returns the kind of the error, which determines the reaction of the caller.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Exists { .. } => ErrorKind::Exists,
            Self::Ambiguous(_) => ErrorKind::Ambiguous,
            Self::Failed(source) => source.kind(),
        }
    }
}
