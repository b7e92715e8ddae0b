//! Limits as parameters of a class: a value, or the word for no limit.

use holdfast_crds::{FieldError, VolumeLimits};
use k8s_openapi::serde::Serialize;
use serde_json::Value;

/// Key of the most requests in a second.
pub(super) const MAX_IOPS: &str = "maxIops";
/// Key of the most bytes in a second.
pub(super) const MAX_THROUGHPUT: &str = "maxThroughput";

/// Word for no limit: it removes one that another class has set.
const NONE: &str = "none";

/// A limit that a class asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Limit<T> {
    /// No limit.
    None,
    /// This one.
    Of(T),
}

impl Limit<i64> {
    /// Reads a number of requests in a second.
    ///
    /// # Errors
    /// A [`FieldError`] if it is none, or out of range.
    pub(super) fn iops(text: &str) -> Result<Self, FieldError> {
        if text == NONE { Ok(Self::None) } else { VolumeLimits::parse_iops(text).map(Self::Of) }
    }
}

impl Limit<String> {
    /// Reads a number of bytes in a second.
    ///
    /// # Errors
    /// A [`FieldError`] if it is none, or out of range.
    pub(super) fn throughput(text: String) -> Result<Self, FieldError> {
        if text == NONE {
            return Ok(Self::None);
        }
        let limits = VolumeLimits { iops: None, throughput: Some(text.clone()) };
        limits.most_bytes_per_second().map(|_valid| Self::Of(text))
    }
}

impl<T: PartialEq + Serialize> Limit<T> {
    /// True for this limit of a spec.
    pub(super) fn is(&self, found: Option<&T>) -> bool {
        match self {
            Self::None => found.is_none(),
            Self::Of(wanted) => found == Some(wanted),
        }
    }

    /// Value of a field of a spec; null removes it.
    pub(super) fn field(&self) -> Value {
        match self {
            Self::None => Value::Null,
            Self::Of(limit) => serde_json::json!(limit),
        }
    }
}
