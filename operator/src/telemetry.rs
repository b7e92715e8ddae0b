//! Logs on standard error; traces to an OTLP collector when `OTEL_EXPORTER_OTLP_ENDPOINT` names one.

use anyhow::Context;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

const SERVICE: &str = "holdfast-operator";
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// The running exporter of traces, if there is one.
#[must_use]
pub(crate) struct Telemetry {
    provider: Option<SdkTracerProvider>,
}

/// Starts logs and traces. `RUST_LOG` sets what is logged.
///
/// # Errors
/// `RUST_LOG` or the collector's address cannot be used.
pub(crate) fn start() -> anyhow::Result<Telemetry> {
    let filter = match std::env::var("RUST_LOG") {
        Ok(text) if !text.is_empty() => EnvFilter::try_new(&text)
            .with_context(|| format!("RUST_LOG: `{text}` is not a filter; try `info`"))?,
        _ => EnvFilter::new("info"),
    };
    let provider = match std::env::var(ENDPOINT) {
        Ok(endpoint) if !endpoint.is_empty() => {
            Some(exporter().with_context(|| format!("{ENDPOINT}: cannot send traces to `{endpoint}`"))?)
        }
        _ => None,
    };
    let traces = provider
        .as_ref()
        .map(|provider| tracing_opentelemetry::layer().with_tracer(provider.tracer(SERVICE)));
    tracing_subscriber::registry()
        .with(filter)
        .with(fmt::layer().with_writer(std::io::stderr).with_ansi(false))
        .with(traces)
        .init();
    Ok(Telemetry { provider })
}

fn exporter() -> anyhow::Result<SdkTracerProvider> {
    let exporter = SpanExporter::builder().with_tonic().build()?;
    let resource = Resource::builder().with_service_name(SERVICE).build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}

impl Telemetry {
    /// Sends what is left.
    pub(crate) async fn stop(self) {
        let Some(provider) = self.provider else { return };
        let stopped = tokio::task::spawn_blocking(move || provider.shutdown()).await;
        if !matches!(stopped, Ok(Ok(()))) {
            tracing::warn!("some traces could not be sent");
        }
    }
}
