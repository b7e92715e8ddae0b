//! The error of a field whose value cannot be used.

/// A field of a resource holds a value that cannot be used. Display names the field, the problem and the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}; {fix}")]
pub struct FieldError {
    /// Path of the field as the user writes it, for example `spec.size`.
    pub field: &'static str,
    /// The fault of the value.
    pub problem: String,
    /// The remedy: a value to write instead.
    pub fix: String,
}

impl FieldError {
    pub(crate) fn new(field: &'static str, problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { field, problem: problem.into(), fix: fix.into() }
    }
}
