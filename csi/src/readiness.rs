//! Progress of the driver towards its work, for the probes of its pod.
//!
//! Owns: the reason why it is not ready, which each step of the start replaces.

use std::sync::Arc;

use parking_lot::Mutex;

/// Shared by those that change it and those that show it.
#[derive(Clone, Debug)]
pub(crate) struct Readiness(Arc<Mutex<Option<String>>>);

impl Readiness {
    /// A driver that does its work.
    pub(crate) fn ready() -> Self {
        Self(Arc::new(Mutex::new(None)))
    }

    /// A driver that does not yet: state, consequence and action.
    pub(crate) fn not_ready(reason: &str) -> Self {
        Self(Arc::new(Mutex::new(Some(reason.to_owned()))))
    }

    /// Replaces the reason; none means that it is ready.
    pub(crate) fn set(&self, reason: Option<String>) {
        *self.0.lock() = reason;
    }

    /// Reason why it is not ready; none while it is.
    pub(crate) fn reason(&self) -> Option<String> {
        self.0.lock().clone()
    }
}
