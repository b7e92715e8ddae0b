//! A configuration that can never work.

/// A value of [`S3Config`](crate::S3Config) that can never work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {value:?} is not valid: {fix}")]
pub struct InvalidConfig {
    /// The field, in the words of the `ObjectStore` resource.
    pub field: &'static str,
    /// Its value; never a secret.
    pub value: String,
    /// The remedy.
    pub fix: &'static str,
}
