//! Readiness of the driver, for the probes of its pod.
//!
//! Owns: the reason why it is not ready, which each startup step replaces.

use std::sync::Arc;

use parking_lot::Mutex;

/// Shared between the writers and readers of the reason.
#[derive(Clone, Debug)]
pub(crate) struct Readiness(Arc<Mutex<Option<String>>>);

impl Readiness {
    /// Returns the readiness of a driver that is ready.
    pub(crate) fn ready() -> Self {
        Self(Arc::new(Mutex::new(None)))
    }

    /// Returns the readiness of a driver that is starting; `reason` has state, consequence and action.
    pub(crate) fn not_ready(reason: &str) -> Self {
        Self(Arc::new(Mutex::new(Some(reason.to_owned()))))
    }

    /// Replaces the reason; `None` means ready.
    pub(crate) fn set(&self, reason: Option<String>) {
        *self.0.lock() = reason;
    }

    /// Returns the reason why the driver is not ready; `None` if it is ready.
    pub(crate) fn reason(&self) -> Option<String> {
        self.0.lock().clone()
    }
}
