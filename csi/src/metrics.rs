//! The driver's metrics: one table, served as OpenMetrics text; and its admin endpoint.
//!
//! Does not own: the counting (`requests.rs`), the driver's readiness (`readiness.rs`).

use std::fmt;
use std::net::SocketAddr;

use anyhow::Context;
use holdfast_service::admin;
use holdfast_service::log_level::LogLevel;
use holdfast_service::logs::DroppedLines;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use tokio::net::TcpListener;

use crate::readiness::Readiness;
use crate::requests::Requests;

/// The metrics of one driver.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    ready: Gauge,
    readiness: Readiness,
}

impl Metrics {
    /// Creates the metrics of a driver that answers these requests.
    pub(crate) fn new(readiness: Readiness, requests: &Requests) -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(DroppedLines));
        let own = registry.sub_registry_with_prefix("holdfast_csi");
        let ready = Gauge::default();
        own.register("ready", "1 while the driver is ready, else 0", ready.clone());
        own.register("requests", "Completed CSI requests by request type and outcome", requests.counts());
        own.register_with_unit(
            "request_duration",
            "Time from the receipt of a CSI request to its response",
            Unit::Seconds,
            requests.durations(),
        );
        Self { registry, ready, readiness }
    }
}

impl admin::Program for Metrics {
    fn not_ready(&self) -> Vec<String> {
        self.readiness.reason().into_iter().collect()
    }

    fn metrics(&self) -> Result<String, fmt::Error> {
        self.ready.set(i64::from(self.readiness.reason().is_none()));
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// The admin endpoint before it is served.
pub(crate) struct AdminEndpoint(TcpListener);

impl AdminEndpoint {
    /// Listens on an address.
    ///
    /// # Errors
    /// The address is in use, or not one of this host.
    pub(crate) async fn listen(address: SocketAddr) -> anyhow::Result<Self> {
        let listener = admin::listen(address)
            .await
            .with_context(|| format!("--metrics-address: cannot listen on {address}; choose another"))?;
        tracing::info!(metrics = %listener.local_addr().unwrap_or(address), "admin endpoint listens");
        Ok(Self(listener))
    }

    /// Serves requests until the future is dropped.
    pub(crate) async fn serve(self, metrics: Metrics, log_level: LogLevel) {
        admin::serve(self.0, metrics, log_level).await;
    }
}

#[cfg(test)]
mod tests {
    use holdfast_service::admin::Program;
    use tonic::Status;

    use super::*;
    use crate::requests::RequestKind;

    /// Checks that every metric is listed with its kind, unit and meaning.
    #[tokio::test]
    async fn the_list_of_metrics_is_complete() {
        let (readiness, requests) = (Readiness::ready(), Requests::default());
        let metrics = Metrics::new(readiness, &requests);
        requests
            .answer(RequestKind::CreateVolume, "v", async { Ok::<_, Status>(()) })
            .await
            .expect("answered");
        let text = metrics.metrics().expect("renders");
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
        let page = std::fs::read_to_string(page).expect("the page is there");
        let line = |what, name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("# {what} {name} ")));
            line.map(|line| line.trim_end_matches('.').to_owned())
        };
        let names: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        assert_eq!(names.len(), 4, "{text}");
        let rows = names.iter().map(|name| {
            let [kind, unit, help] = ["TYPE", "UNIT", "HELP"].map(|what| line(what, name));
            let [kind, help] = [kind, help].map(|line| line.expect("each has both"));
            format!("| `{name}` | {kind} | {} | {help} |", unit.unwrap_or_else(|| "-".to_owned()))
        });
        let missing: Vec<String> = rows.filter(|row| !page.lines().any(|line| line == row)).collect();
        assert!(missing.is_empty(), "docs/metrics.md lacks\n{}", missing.join("\n"));
        let words = page.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        for word in words.filter(|word| word.starts_with("holdfast_csi_")) {
            assert!(names.contains(&word), "docs/metrics.md names {word}, which is no metric");
        }
    }

    #[test]
    fn a_driver_is_ready_without_a_reason() {
        let readiness = Readiness::not_ready("the kubelet is asked");
        let metrics = Metrics::new(readiness.clone(), &Requests::default());
        assert_eq!(metrics.not_ready(), ["the kubelet is asked"]);
        assert!(metrics.metrics().expect("renders").contains("holdfast_csi_ready 0\n"));
        readiness.set(None);
        assert!(metrics.not_ready().is_empty());
        assert!(metrics.metrics().expect("renders").contains("holdfast_csi_ready 1\n"));
    }

    /// The chart opens the ports that the driver listens on.
    #[test]
    fn the_chart_opens_the_port_of_the_endpoint() {
        for chart in [
            include_str!("../../charts/holdfast/templates/csi-controller.yaml"),
            include_str!("../../charts/holdfast/templates/csi-node.yaml"),
            include_str!("../../charts/holdfast/templates/snapshot-metadata.yaml"),
        ] {
            assert!(chart.contains("--metrics-address=[::]:9182"), "{chart}");
            assert!(chart.contains("- {name: metrics, containerPort: 9182}"), "{chart}");
        }
    }
}
