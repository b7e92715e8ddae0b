//! State shown by the operator's admin endpoint: metrics, participation in the election, and liveness of the
//! lease loop.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use holdfast_service::admin::Program;

use crate::lease::Pulse;
use crate::metrics::Metrics;

/// Shared between the operator and its admin endpoint.
#[derive(Clone)]
pub(crate) struct Readiness {
    metrics: Arc<Metrics>,
    is_candidate: Arc<AtomicBool>,
    pulse: Pulse,
}

impl Readiness {
    /// Creates the state of an operator that has not read the Lease yet.
    pub(crate) fn new(metrics: Arc<Metrics>, pulse: Pulse) -> Self {
        Self { metrics, is_candidate: Arc::default(), pulse }
    }

    /// Records that the API server answered for the Lease: this instance leads, or stands by.
    pub(crate) fn joins_election(&self) {
        self.is_candidate.store(true, Ordering::Relaxed);
    }
}

impl Program for Readiness {
    fn not_ready(&self) -> Vec<String> {
        if self.is_candidate.load(Ordering::Relaxed) {
            return Vec::new();
        }
        vec![
            "the Lease of the leader election was not read yet; the log has the answer of the API server"
                .to_owned(),
        ]
    }

    fn not_alive(&self) -> Option<String> {
        let stuck =
            "the Lease of the leader election was not looked at for 30 seconds; the process is restarted";
        (!self.pulse.is_alive()).then(|| stuck.to_owned())
    }

    fn metrics(&self) -> Result<String, fmt::Error> {
        self.metrics.render()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_is_ready_when_it_read_the_lease() {
        let readiness = Readiness::new(Arc::new(Metrics::new()), Pulse::default());
        assert!(readiness.not_ready()[0].contains("Lease"));
        readiness.clone().joins_election();
        assert!(readiness.not_ready().is_empty());
    }
}
