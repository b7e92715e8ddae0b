//! Logs to standard error, and traces over OTLP where `OTEL_EXPORTER_OTLP_ENDPOINT` says to.
//!
//! Owns: the runtime that sends traces, apart from the daemon's, which has ended when the last ones are sent.
//! `RUST_LOG` chooses what is logged (default `info`). The exporter reads the other `OTEL_*` variables itself.

use std::io::IsTerminal;
use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::runtime::{self, Runtime};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::failure::Failure;
use crate::logs;
use crate::node::ErrorKind;

/// Variable that turns the export of traces on. Source: the OpenTelemetry specification.
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const LOG_FILTER: &str = "RUST_LOG";
/// How long the end of the process waits for its last traces to be sent.
const SEND_WITHIN: Duration = Duration::from_secs(2);

/// What must be finished before the process ends.
#[must_use]
pub(crate) struct Telemetry {
    export: Option<(SdkTracerProvider, Runtime)>,
}

impl Telemetry {
    /// Sends the traces that are still here and writes the last log lines, both within a limit.
    pub(crate) fn finish(self) {
        if let Some((provider, runtime)) = self.export {
            if let Err(error) = provider.shutdown_with_timeout(SEND_WITHIN) {
                tracing::warn!(%error, "the last traces were not sent");
            }
            runtime.shutdown_background();
        }
        logs::flush();
    }
}

/// Starts logs and traces of this process.
///
/// # Errors
/// A variable that cannot be used.
pub(crate) fn start(node_name: &str) -> Result<Telemetry, Failure> {
    let invalid = |variable: &str, problem: &dyn std::fmt::Display, fix: &str| Failure {
        kind: ErrorKind::Invalid,
        message: format!("environment variable {variable}: {problem}; {fix}"),
    };
    let filter = match variable(LOG_FILTER) {
        None => EnvFilter::new("info"),
        Some(text) => EnvFilter::try_new(&text)
            .map_err(|error| invalid(LOG_FILTER, &error, "write for example `info,holdfast_node=debug`"))?,
    };
    let export = match variable(ENDPOINT) {
        None => None,
        Some(_) => {
            let runtime = runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .thread_name("traces")
                .enable_all()
                .build()
                .map_err(|error| Failure::new(ErrorKind::Local, &error))?;
            let _inside = runtime.enter();
            let exporter = opentelemetry_otlp::SpanExporter::builder()
                .with_tonic()
                .build()
                .map_err(|error| invalid(ENDPOINT, &error, "write for example `http://collector:4317`"))?;
            let resource = Resource::builder()
                .with_service_name("holdfast-node")
                .with_attribute(opentelemetry::KeyValue::new("k8s.node.name", node_name.to_owned()))
                .build();
            let provider =
                SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
            Some((provider, runtime))
        }
    };
    let traces = export
        .as_ref()
        .map(|(provider, _)| tracing_opentelemetry::layer().with_tracer(provider.tracer("holdfast-node")));
    tracing_subscriber::registry()
        .with(filter)
        .with(
            tracing_subscriber::fmt::layer()
                .with_writer(logs::start())
                .with_ansi(std::io::stderr().is_terminal()),
        )
        .with(traces)
        .try_init()
        .map_err(|error| Failure::new(ErrorKind::Local, &error))?;
    Ok(Telemetry { export })
}

/// The value of a variable; an empty one counts as absent.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
