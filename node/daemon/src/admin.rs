//! Process state shown by the admin endpoint at `/readyz` and `/metrics`.

use std::fmt;

use holdfast_service::admin::Program;

use crate::metrics;
use crate::readiness::Readiness;
use crate::volumes::Volumes;

/// State shown by the admin endpoint.
pub(crate) struct DaemonProgram<V>(pub(crate) Readiness<V>);

impl<V: Volumes> Program for DaemonProgram<V> {
    fn not_ready(&self) -> Vec<String> {
        self.0.not_ready()
    }

    fn metrics(&self) -> Result<String, fmt::Error> {
        metrics::render(self.0.clone())
    }
}
