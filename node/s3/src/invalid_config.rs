//! A configuration that is never valid.

/// A value of [`S3Config`](crate::S3Config) that is never valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {value:?} is not valid: {fix}")]
pub struct InvalidConfig {
    /// The field, as named in the `ObjectStore` resource.
    pub field: &'static str,
    /// Its value; never a secret.
    pub value: String,
    /// The remedy.
    pub fix: &'static str,
}
