//! Limits as class parameters: a value, or the word for no limit.

use holdfast_crds::{FieldError, VolumeLimits};
use k8s_openapi::serde::Serialize;
use serde_json::Value;

/// Key of the maximum requests per second.
pub(super) const MAX_IOPS: &str = "maxIops";
/// Key of the maximum bytes per second.
pub(super) const MAX_THROUGHPUT: &str = "maxThroughput";

/// Word for no limit: it removes the limit of another class.
const NONE: &str = "none";

/// A limit requested by a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Limit<T> {
    /// No limit.
    None,
    /// This limit.
    Of(T),
}

impl Limit<i64> {
    /// Parses a number of requests per second.
    ///
    /// # Errors
    /// A [`FieldError`] if it is invalid or out of range.
    pub(super) fn iops(text: &str) -> Result<Self, FieldError> {
        if text == NONE { Ok(Self::None) } else { VolumeLimits::parse_iops(text).map(Self::Of) }
    }
}

impl Limit<String> {
    /// Parses a number of bytes per second.
    ///
    /// # Errors
    /// A [`FieldError`] if it is invalid or out of range.
    pub(super) fn throughput(text: String) -> Result<Self, FieldError> {
        if text == NONE {
            return Ok(Self::None);
        }
        let limits = VolumeLimits { iops: None, throughput: Some(text.clone()) };
        limits.max_bytes_per_second().map(|_valid| Self::Of(text))
    }
}

impl<T: PartialEq + Serialize> Limit<T> {
    /// Returns true if the spec has this limit.
    pub(super) fn is(&self, found: Option<&T>) -> bool {
        match self {
            Self::None => found.is_none(),
            Self::Of(wanted) => found == Some(wanted),
        }
    }

    /// Returns the value for the spec's field; null removes it.
    pub(super) fn field(&self) -> Value {
        match self {
            Self::None => Value::Null,
            Self::Of(limit) => serde_json::json!(limit),
        }
    }
}
