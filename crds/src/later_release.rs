//! Values that only a later release knows.
//!
//! Owns: the ways to read them. Programs decode lists as a whole, so one such value must not fail the
//! decoding of its object: after a rollback, all objects of the kind would be missing.
//! Invariants: a value of the spec decodes as `Unknown`, which is never treated as another value and is never
//! written; a value of the status that is only compared or displayed decodes as absent.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use crate::FieldError;

/// Reads a field of a status; `None` if it is absent, or has a value of a later release.
///
/// # Errors
/// The deserializer's.
pub(crate) fn known<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let value = Option::<serde_json::Value>::deserialize(deserializer)?;
    Ok(value.and_then(|value| serde_json::from_value(value).ok()))
}

/// Returns an error that names the field unless its value `is_known`.
pub(crate) fn check(field: &'static str, is_known: bool) -> Result<(), FieldError> {
    if is_known {
        return Ok(());
    }
    let problem = "has a value that only a later release of Holdfast knows";
    Err(FieldError::new(field, problem, "upgrade Holdfast, or write a value that this release knows"))
}
