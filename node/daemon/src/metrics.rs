//! The daemon's metrics: one table, read off the data plane whenever somebody asks.
//!
//! Owns: names, units and labels of all metrics; the HTTP endpoint (`/metrics`, `/healthz`).
//! Invariants: asking changes nothing and waits for nothing but a look at the volumes.

mod http;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

pub(crate) use self::http::serve;
use crate::node::{VolumeState, VolumeStatus};
use crate::volumes::Volumes;

/// How a metric moves.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Gauge,
    Counter,
}

/// One metric of a volume; its label is `volume`. It is absent while `value` is.
struct VolumeMetric {
    name: &'static str,
    unit: Option<Unit>,
    kind: Kind,
    help: &'static str,
    value: fn(&VolumeStatus) -> Option<f64>,
}

const fn gauge(
    name: &'static str,
    unit: Option<Unit>,
    help: &'static str,
    value: fn(&VolumeStatus) -> Option<f64>,
) -> VolumeMetric {
    VolumeMetric { name, unit, kind: Kind::Gauge, help, value }
}

const fn counter(
    name: &'static str,
    unit: Option<Unit>,
    help: &'static str,
    value: fn(&VolumeStatus) -> Option<f64>,
) -> VolumeMetric {
    VolumeMetric { name, unit, kind: Kind::Counter, help, value }
}

/// Metrics of each volume, all with the prefix `holdfast_volume_`.
const VOLUME_METRICS: [VolumeMetric; 19] = [
    gauge("attached", None, "1 while the volume's device serves requests, else 0", |v| {
        Some(if v.state == VolumeState::Attached { 1.0 } else { 0.0 })
    }),
    gauge("fenced", None, "1 while another writer owns the volume, else 0", |v| {
        Some(if v.state == VolumeState::Fenced { 1.0 } else { 0.0 })
    }),
    gauge("epoch", None, "The writer's fencing number", |v| Some(v.epoch as f64)),
    gauge("size", Some(Unit::Bytes), "Size of the device", |v| Some(v.bytes as f64)),
    gauge("committed_seq", None, "Last commit in the store", |v| v.committed_seq.map(|seq| seq as f64)),
    gauge("dirty", Some(Unit::Bytes), "Bytes written but not committed", |v| Some(v.dirty_bytes as f64)),
    gauge("oldest_dirty", Some(Unit::Seconds), "Age of the oldest byte not committed, 0 without any", |v| {
        Some(v.oldest_dirty.map_or(0.0, |age| age.as_secs_f64()))
    }),
    counter("read_requests", None, "Reads completed", |v| Some(v.counters.read_requests as f64)),
    counter("read", Some(Unit::Bytes), "Bytes read", |v| Some(v.counters.read_bytes as f64)),
    counter("write_requests", None, "Writes completed", |v| Some(v.counters.write_requests as f64)),
    counter("written", Some(Unit::Bytes), "Bytes written", |v| Some(v.counters.write_bytes as f64)),
    counter("flush_requests", None, "Flushes completed", |v| Some(v.counters.flush_requests as f64)),
    counter("discard_requests", None, "Discards and write-zeroes completed", |v| {
        Some(v.counters.discard_requests as f64)
    }),
    counter("failed_requests", None, "Requests failed", |v| Some(v.counters.failed_requests as f64)),
    counter("s3_gets", None, "GET requests to the store", |v| Some(v.counters.s3_gets as f64)),
    counter("s3_puts", None, "PUT requests to the store", |v| Some(v.counters.s3_puts as f64)),
    counter("s3_lists", None, "LIST requests to the store", |v| Some(v.counters.s3_lists as f64)),
    counter("s3_read", Some(Unit::Bytes), "Bytes read from the store", |v| {
        Some(v.counters.s3_read_bytes as f64)
    }),
    counter("s3_written", Some(Unit::Bytes), "Bytes written to the store", |v| {
        Some(v.counters.s3_written_bytes as f64)
    }),
];

/// Reads the table off the volumes.
#[derive(Debug)]
struct VolumeCollector<V>(V);

impl<V: Volumes + std::fmt::Debug> Collector for VolumeCollector<V> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let volumes = self.0.list();
        for metric in &VOLUME_METRICS {
            let kind = match metric.kind {
                Kind::Gauge => ConstGauge::new(0.0).metric_type(),
                Kind::Counter => ConstCounter::new(0.0).metric_type(),
            };
            let mut family =
                encoder.encode_descriptor(metric.name, metric.help, metric.unit.as_ref(), kind)?;
            for volume in &volumes {
                let Some(value) = (metric.value)(volume) else { continue };
                let labels = [("volume", volume.volume.as_str())];
                let sample = family.encode_family(&labels)?;
                match metric.kind {
                    Kind::Gauge => ConstGauge::new(value).encode(sample)?,
                    Kind::Counter => ConstCounter::new(value).encode(sample)?,
                }
            }
        }
        Ok(())
    }
}

/// The metrics as OpenMetrics text.
fn render<V: Volumes + std::fmt::Debug>(volumes: V) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("holdfast_volume");
    registry.register_collector(Box::new(VolumeCollector(volumes)));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::tests::{Fake, attached};

    #[test]
    fn a_volume_is_told_of_with_units_and_its_label() {
        let fake = Fake::default();
        fake.put(attached("vol-1"));
        let text = render(fake).unwrap();
        for line in [
            "# TYPE holdfast_volume_dirty_bytes gauge",
            "# UNIT holdfast_volume_dirty_bytes bytes",
            "holdfast_volume_attached{volume=\"vol-1\"} 1.0",
            "holdfast_volume_dirty_bytes{volume=\"vol-1\"} 8192.0",
            "holdfast_volume_committed_seq{volume=\"vol-1\"} 7.0",
            "holdfast_volume_s3_puts_total{volume=\"vol-1\"} 2.0",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} is not in\n{text}");
        }
    }
}
