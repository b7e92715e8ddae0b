//! Errors of a store and their kinds, which say what a caller may do.

use std::{error::Error, time::Duration};

use crate::Blocker;

/// The underlying error of a store, kept for the log.
pub type Cause = Box<dyn Error + Send + Sync>;

/// Kinds of errors, by what a caller may do about them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The object is not there: the store itself said so, not something in front of it.
    NotFound,
    /// The store asks for fewer requests: try again, later and later.
    Throttled,
    /// The store cannot be reached or failed inside: try again; data in hand stays in hand.
    Unavailable,
    /// Another request touched the same key at the same time: try again.
    Conflict,
    /// The store refuses these credentials: a person must act.
    Denied,
    /// Something other than rights keeps the store from serving this: a person must act, and the same request
    /// succeeds then.
    Blocked(Blocker),
    /// The request can never succeed as it stands: a configuration or program error.
    Invalid,
    /// The answer contradicts the request or the object's own description: never use it.
    Corrupt,
    /// It is unknown if the write took effect: read the key back.
    Ambiguous,
    /// A create met an object that was there before.
    Exists,
}

/// Reasons for which a request to a store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No object has this key. Only an answer of the store itself says so: a proxy's 404 is
    /// [`StoreError::Unavailable`].
    #[error("object {key} does not exist")]
    NotFound {
        /// Key relative to the store's prefix.
        key: String,
    },
    /// The bucket itself is not there: a configuration error or a failover, and no word on any object.
    #[error("bucket {bucket} does not exist")]
    NoBucket {
        /// The bucket's name.
        bucket: String,
    },
    /// The store asks for fewer requests.
    #[error("the object store asks for fewer requests")]
    Throttled(#[source] Cause),
    /// The store could not be reached, or failed inside.
    #[error("the object store is not available")]
    Unavailable(#[source] Cause),
    /// The store did not answer in time.
    #[error("the object store did not answer within {after:?}")]
    TimedOut {
        /// Time waited.
        after: Duration,
    },
    /// Another request for the same key was in progress.
    #[error("the object store met a conflicting request for the same key")]
    Conflict(#[source] Cause),
    /// The credentials are unknown, wrong or not allowed to do this.
    #[error("the object store denied the request ({code})")]
    Denied {
        /// The store's own code, such as `AccessDenied` or `SignatureDoesNotMatch`.
        code: String,
        /// The store's answer.
        #[source]
        source: Cause,
    },
    /// Something other than rights keeps the store from serving the request. Nothing was written.
    #[error("the object store cannot serve the request ({code}): {}; {}", blocker.state(), blocker.fix())]
    Blocked {
        /// The cause.
        blocker: Blocker,
        /// The store's own code, such as `QuotaExceeded`.
        code: String,
        /// The store's answer.
        #[source]
        source: Cause,
    },
    /// The store does not take this kind of request, or not with these values.
    #[error("the object store refused the request ({code})")]
    Refused {
        /// The store's own code, such as `NotImplemented` or `PermanentRedirect`.
        code: String,
        /// The store's answer.
        #[source]
        source: Cause,
    },
    /// An argument or a configured value that can never work.
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
        /// Its length.
        size_bytes: u64,
        /// Limit of the caller.
        max_bytes: u64,
    },
    /// The object ends before the range that was asked for.
    #[error("object {key} ends before byte {end} of the range asked for")]
    OutOfRange {
        /// Key relative to the store's prefix.
        key: String,
        /// End of the range, exclusive.
        end: u64,
    },
    /// The answer has another length than the request or its own header says.
    #[error("object {key}: the store sent {got_bytes} bytes where {want_bytes} were due")]
    WrongLength {
        /// Key relative to the store's prefix.
        key: String,
        /// Bytes received.
        got_bytes: u64,
        /// Bytes expected.
        want_bytes: u64,
    },
    /// The answer lacks a field or makes no sense.
    #[error("the object store's answer has no usable {field}")]
    BadAnswer {
        /// The field that is missing or wrong.
        field: &'static str,
    },
}

impl StoreError {
    /// The kind of the error: says what the caller may do.
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
}

/// Reasons for which a create-once PUT did not answer "created".
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// An object with this key was there.
    #[error("object {key} already exists")]
    Exists {
        /// Key relative to the store's prefix.
        key: String,
    },
    /// The object may or may not have been written by this request: read the key back and compare.
    #[error("whether the object was created is not known")]
    Ambiguous(#[source] StoreError),
    /// Nothing was written.
    #[error("the object was not created")]
    Failed(#[source] StoreError),
}

impl CreateError {
    /// The kind of the error: says what the caller may do.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Exists { .. } => ErrorKind::Exists,
            Self::Ambiguous(_) => ErrorKind::Ambiguous,
            Self::Failed(source) => source.kind(),
        }
    }
}
