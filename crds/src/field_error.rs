//! Error for a field with an invalid value.

/// A field of a resource has an invalid value. Display names the field, the problem and the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}; {fix}")]
pub struct FieldError {
    /// Path of the field as the user writes it, for example `spec.size`.
    pub field: &'static str,
    /// Problem with the value.
    pub problem: String,
    /// Fix: a valid value to write instead.
    pub fix: String,
}

impl FieldError {
    pub(crate) fn new(field: &'static str, problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { field, problem: problem.into(), fix: fix.into() }
    }
}
