//! Logs to standard error, and traces over OTLP if `OTEL_EXPORTER_OTLP_ENDPOINT` is set.
//!
//! Owns: the runtime that sends traces, because the program's own has ended when the last ones are sent.
//! `RUST_LOG` is the filter at the start (default `info`).
//! The exporter reads the other `OTEL_*` variables itself.

use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tokio::runtime::{self, Runtime};
use tracing::Subscriber;
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

use crate::log_level::LogLevel;
use crate::logs::{self, Log};

/// Variable that enables the export of traces. Source: the OpenTelemetry specification.
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const LOG_FILTER: &str = "RUST_LOG";
/// Longest wait for the last traces at process exit.
const SEND_WITHIN: Duration = Duration::from_secs(2);

/// Reason why logs and traces cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// A variable has an invalid value.
    #[error("environment variable {variable}: {problem}; write for example `{example}`")]
    Invalid {
        /// The variable.
        variable: &'static str,
        /// The rule that it violates.
        problem: String,
        /// A valid value.
        example: String,
    },
    /// The thread that sends traces could not be started.
    #[error("the thread that sends traces cannot be started")]
    Thread(#[source] io::Error),
    /// Logging has already been started in this process.
    #[error("logs were started twice")]
    Started(#[source] TryInitError),
}

/// Logs and traces of a process; call `finish` before the process exits.
#[must_use]
pub struct Telemetry {
    level: LogLevel,
    log: Log,
    export: Option<Export>,
}

/// Sends traces.
struct Export {
    provider: SdkTracerProvider,
    runtime: Runtime,
}

impl Telemetry {
    /// Returns the filter of logs and traces.
    pub fn log_level(&self) -> LogLevel {
        self.level.clone()
    }

    /// Sends the remaining traces and writes the last log lines, both within a time limit. Must be called
    /// outside a runtime.
    pub fn finish(self) {
        if let Some(Export { provider, runtime }) = self.export {
            if let Err(error) = provider.shutdown_with_timeout(SEND_WITHIN) {
                tracing::warn!(%error, "the last traces were not sent");
            }
            runtime.shutdown_background();
        }
        self.log.flush();
    }
}

/// Starts logs and traces of the program `service`, whose traces carry `attributes`. Starts threads; must be
/// called outside a runtime.
///
/// # Errors
/// [`TelemetryError`]; nothing was logged yet.
pub fn start(
    service: &'static str,
    attributes: &[(&'static str, &str)],
) -> Result<Telemetry, TelemetryError> {
    let filter = match variable(LOG_FILTER) {
        None => EnvFilter::new("info"),
        Some(text) => EnvFilter::try_new(&text).map_err(|problem| {
            invalid(LOG_FILTER, &problem, format!("info,{}=debug", service.replace('-', "_")))
        })?,
    };
    let export = match variable(ENDPOINT) {
        None => None,
        Some(_) => Some(Export::start(service, attributes)?),
    };
    let traces = export.as_ref().map(|export| layer(export.provider.tracer(service)));
    let (filter, level) = LogLevel::new(filter);
    let log = Log::start(io::stderr());
    tracing_subscriber::registry()
        .with(filter)
        .with(
            tracing_subscriber::fmt::layer().with_writer(log.writer()).with_ansi(io::stderr().is_terminal()),
        )
        .with(traces)
        .with(log.clone())
        .try_init()
        .map_err(TelemetryError::Started)?;
    logs::log_panics();
    Ok(Telemetry { level, log, export })
}

/// Returns a layer that exports spans through `tracer`. A span starts with the first one below it, not when
/// entered: until then it can be attached to another program's trace (`trace::continue_in`).
pub(crate) fn layer<S>(tracer: SdkTracer) -> OpenTelemetryLayer<S, SdkTracer>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    tracing_opentelemetry::layer().with_context_activation(false).with_tracer(tracer)
}

impl Export {
    fn start(service: &'static str, attributes: &[(&'static str, &str)]) -> Result<Self, TelemetryError> {
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("traces")
            .enable_all()
            .build()
            .map_err(TelemetryError::Thread)?;
        let inside = runtime.enter();
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_tonic()
            .build()
            .map_err(|problem| invalid(ENDPOINT, &problem, "http://collector:4317".to_owned()))?;
        let attributes = attributes.iter().map(|&(key, value)| KeyValue::new(key, value.to_owned()));
        let resource = Resource::builder().with_service_name(service).with_attributes(attributes).build();
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
        drop(inside);
        Ok(Self { provider, runtime })
    }
}

fn invalid(variable: &'static str, problem: &dyn Display, example: String) -> TelemetryError {
    TelemetryError::Invalid { variable, problem: problem.to_string(), example }
}

/// Returns the value of a variable; an empty one counts as absent.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
