//! Figures of one daemon's volumes: the values of one read of its metrics, and the rates between two.
//!
//! Invariants: a counter lower than before was reset and yields no figure.

use std::collections::BTreeMap;
use std::time::Instant;

use super::samples::samples;

/// Kind of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FigureKind {
    /// A counter: its increase per second.
    Rate,
    /// A gauge: its last value.
    Value,
    /// A histogram, of the samples with this label `operation`: the 99th percentile, as a bucket bound.
    Slowest(&'static str),
}

/// A figure, and the metric it is calculated from (see docs/metrics.md).
#[derive(Debug)]
pub(super) struct MetricFigure {
    pub(super) metric: &'static str,
    pub(super) kind: FigureKind,
}

/// Number of [`FIGURES`].
pub(super) const COUNT: usize = 12;

const fn rate(metric: &'static str) -> MetricFigure {
    MetricFigure { metric, kind: FigureKind::Rate }
}

const fn value(metric: &'static str) -> MetricFigure {
    MetricFigure { metric, kind: FigureKind::Value }
}

const fn slowest(operation: &'static str) -> MetricFigure {
    MetricFigure { metric: "holdfast_volume_request_seconds", kind: FigureKind::Slowest(operation) }
}

/// All figures of a volume, in the order of the table.
pub(super) const FIGURES: [MetricFigure; COUNT] = [
    rate("holdfast_volume_read_requests"),
    rate("holdfast_volume_write_requests"),
    rate("holdfast_volume_cold_reads"),
    rate("holdfast_volume_read_bytes"),
    rate("holdfast_volume_written_bytes"),
    value("holdfast_volume_waiting_requests"),
    value("holdfast_volume_dirty_bytes"),
    value("holdfast_volume_oldest_dirty_seconds"),
    value("holdfast_volume_cached_bytes"),
    slowest("read"),
    slowest("write"),
    slowest("flush"),
];

/// Metric that is 1 while a volume is attached.
const ATTACHED: &str = "holdfast_volume_attached";
/// Metric whose labels hold a volume's names.
const INFO: &str = "holdfast_volume_info";

/// One read of a daemon's metrics.
#[derive(Debug)]
pub(super) struct Reading {
    /// Time of the read.
    at: Instant,
    /// The attached volumes, by id.
    volumes: BTreeMap<String, VolumeReading>,
}

/// A volume in one read.
#[derive(Debug, Default)]
struct VolumeReading {
    is_attached: bool,
    name: Option<String>,
    claim: Option<String>,
    samples: [Option<f64>; COUNT],
    /// For histogram figures: bound in seconds and cumulative number of requests, ascending.
    buckets: [Vec<(f64, f64)>; COUNT],
}

/// A volume across two reads.
#[derive(Debug, PartialEq)]
pub(super) struct VolumeRow {
    pub(super) id: String,
    /// Name of its Volume, or its id while the daemon does not know the name.
    pub(super) name: String,
    /// Namespace and name of its claim.
    pub(super) claim: Option<String>,
    pub(super) node: String,
    /// In the order of [`FIGURES`].
    pub(super) figures: [Option<f64>; COUNT],
    /// True if the counters of the two reads come from different daemons.
    pub(super) is_new: bool,
}

impl Reading {
    /// Parses `text`, read at the time `at`.
    ///
    /// # Errors
    /// The text is not in a metrics format.
    pub(super) fn new(at: Instant, text: &str) -> Result<Self, String> {
        let mut volumes = BTreeMap::<String, VolumeReading>::new();
        for sample in samples(text)? {
            let Some(id) = sample.label("volume") else { continue };
            let volume = volumes.entry(id.to_owned()).or_default();
            match sample.name {
                ATTACHED => volume.is_attached = sample.value == 1.0,
                INFO => {
                    let label = |name| sample.label(name).filter(|value| !value.is_empty());
                    volume.name = label("name").map(str::to_owned);
                    volume.claim = label("namespace")
                        .zip(label("persistentvolumeclaim"))
                        .map(|(namespace, claim)| format!("{namespace}/{claim}"));
                }
                name => {
                    let operation = sample.label("operation");
                    let Some(at) = FIGURES.iter().position(|figure| figure.is_of(name, operation)) else {
                        continue;
                    };
                    match sample.label("le").map(str::parse) {
                        Some(bound) => {
                            let bound =
                                bound.map_err(|_not_a_number| "its answer has a bucket without a bound")?;
                            volume.buckets[at].push((bound, sample.value));
                        }
                        None => volume.samples[at] = Some(sample.value),
                    }
                }
            }
        }
        volumes.retain(|_, volume| volume.is_attached);
        Ok(Self { at, volumes })
    }

    /// Returns the volumes that `node` serves as of this read, with the rates since `before`.
    pub(super) fn since(self, before: &Self, node: &str) -> Vec<VolumeRow> {
        let seconds = self.at.saturating_duration_since(before.at).as_secs_f64();
        let row = |(id, now): (String, VolumeReading)| {
            let then = before.volumes.get(&id).filter(|then| !now.has_restarted_since(then));
            let figure = |(at, figure): (usize, &MetricFigure)| match figure.kind {
                FigureKind::Value => now.samples[at],
                FigureKind::Rate if seconds > 0.0 => Some((now.samples[at]? - then?.samples[at]?) / seconds),
                FigureKind::Rate => None,
                FigureKind::Slowest(_) => slowest_of(&now.buckets[at], &then?.buckets[at]),
            };
            let mut figures = [None; COUNT];
            FIGURES.iter().enumerate().for_each(|it| figures[it.0] = figure(it));
            let (name, is_new) = (now.name.unwrap_or_else(|| id.clone()), then.is_none());
            VolumeRow { id, name, claim: now.claim, node: node.to_owned(), figures, is_new }
        };
        self.volumes.into_iter().map(row).collect()
    }
}

impl VolumeReading {
    /// Returns true if a counter was reset after `then`.
    fn has_restarted_since(&self, then: &Self) -> bool {
        let both = FIGURES.iter().zip(self.samples.iter().zip(&then.samples));
        both.filter(|(figure, _)| figure.kind == FigureKind::Rate).any(|(_, (now, then))| now < then)
    }
}

impl MetricFigure {
    /// Returns true if the figure uses the samples called `name` of this `operation`.
    fn is_of(&self, name: &str, operation: Option<&str>) -> bool {
        match self.kind {
            FigureKind::Rate => name.strip_suffix("_total") == Some(self.metric),
            FigureKind::Value => name == self.metric,
            FigureKind::Slowest(own) => {
                name.strip_suffix("_bucket") == Some(self.metric) && operation == Some(own)
            }
        }
    }
}

/// Returns the bucket bound, in seconds, of the 99th percentile of the requests between two reads; `None`
/// without requests. A read does not contain histograms without requests.
fn slowest_of(now: &[(f64, f64)], then: &[(f64, f64)]) -> Option<f64> {
    let until = |at: usize| now[at].1 - then.get(at).map_or(0.0, |(_, count)| *count);
    let all = now.len().checked_sub(1).map(until).filter(|&all| all > 0.0)?;
    (0..now.len()).find(|&at| until(at) >= 0.99 * all).map(|at| now[at].0)
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    use super::*;

    /// Metrics of a daemon that serves `id-1`, reduced to little more than the relevant lines.
    pub(in crate::top) const TEXT: &str = r#"# HELP holdfast_ring_full_inbox Messages that found the ring thread's inbox full: the sender waited, or dropped the message.
# TYPE holdfast_ring_full_inbox counter
holdfast_ring_full_inbox_total{ring="0"} 0.0
# HELP holdfast_volume_attached 1 while the volume's device serves requests, else 0.
# TYPE holdfast_volume_attached gauge
holdfast_volume_attached{volume="id-1"} 1.0
holdfast_volume_attached{volume="id-2"} 0.0
# HELP holdfast_volume_dirty_bytes Bytes written but not yet committed to the object store.
# TYPE holdfast_volume_dirty_bytes gauge
# UNIT holdfast_volume_dirty_bytes bytes
holdfast_volume_dirty_bytes{volume="id-1"} 67108864.0
# TYPE holdfast_volume_oldest_dirty_seconds gauge
holdfast_volume_oldest_dirty_seconds{volume="id-1"} 90.4
holdfast_volume_oldest_dirty_seconds{volume="id-2"} 0.0
# TYPE holdfast_volume_waiting_requests gauge
holdfast_volume_waiting_requests{volume="id-1"} 3.0
# TYPE holdfast_volume_cached_bytes gauge
holdfast_volume_cached_bytes{volume="id-1"} 1610612736.0
# TYPE holdfast_volume_read_requests counter
holdfast_volume_read_requests_total{volume="id-1"} 1000.0
holdfast_volume_read_requests_total{volume="id-2"} 5.0
# TYPE holdfast_volume_read_bytes counter
# UNIT holdfast_volume_read_bytes bytes
holdfast_volume_read_bytes_total{volume="id-1"} 4096000.0
# TYPE holdfast_volume_write_requests counter
holdfast_volume_write_requests_total{volume="id-1"} 200.0
# TYPE holdfast_volume_written_bytes counter
# UNIT holdfast_volume_written_bytes bytes
holdfast_volume_written_bytes_total{volume="id-1"} 1048576.0
# TYPE holdfast_volume_cold_reads counter
holdfast_volume_cold_reads_total{volume="id-1"} 0.0
# TYPE holdfast_volume_request_seconds histogram
# UNIT holdfast_volume_request_seconds seconds
holdfast_volume_request_seconds_sum{volume="id-1",operation="read"} 4.5
holdfast_volume_request_seconds_count{volume="id-1",operation="read"} 30
holdfast_volume_request_seconds_bucket{le="0.000064",volume="id-1",operation="read"} 10
holdfast_volume_request_seconds_bucket{le="0.000128",volume="id-1",operation="read"} 20
holdfast_volume_request_seconds_bucket{le="+Inf",volume="id-1",operation="read"} 30
holdfast_volume_request_seconds_sum{volume="id-1",operation="write"} 0.1
holdfast_volume_request_seconds_count{volume="id-1",operation="write"} 1
holdfast_volume_request_seconds_bucket{le="0.000064",volume="id-1",operation="write"} 1
holdfast_volume_request_seconds_bucket{le="0.000128",volume="id-1",operation="write"} 1
holdfast_volume_request_seconds_bucket{le="+Inf",volume="id-1",operation="write"} 1
# HELP holdfast_volume_info Always 1; the labels map the volume's id to its names in the cluster.
# TYPE holdfast_volume_info gauge
holdfast_volume_info{volume="id-1",name="pvc-1",namespace="shop",persistentvolumeclaim="data"} 1.0
# HELP holdfast_log_dropped_lines Log lines dropped because standard error was not read fast enough.
# TYPE holdfast_log_dropped_lines counter
holdfast_log_dropped_lines_total 0.0
# EOF
"#;

    fn line(metric: &str) -> &'static str {
        TEXT.lines().find(|line| line.starts_with(metric)).unwrap()
    }

    /// Returns the rows of two reads, the second taken `later` after the first.
    pub(in crate::top) fn rows(before: &str, after: &str, later: Duration) -> Vec<VolumeRow> {
        let begin = Instant::now();
        let before = Reading::new(begin, before).unwrap();
        Reading::new(begin + later, after).unwrap().since(&before, "a")
    }

    /// Returns [`TEXT`] after two thousand more reads, a hundred more writes and 50 more MiB.
    pub(in crate::top) fn later() -> String {
        TEXT.replace(
            "read_requests_total{volume=\"id-1\"} 1000.0",
            "read_requests_total{volume=\"id-1\"} 3000.0",
        )
        .replace(
            "read_bytes_total{volume=\"id-1\"} 4096000.0",
            "read_bytes_total{volume=\"id-1\"} 12288000.0",
        )
        .replace("write_requests_total{volume=\"id-1\"} 200.0", "write_requests_total{volume=\"id-1\"} 300.0")
        .replace(
            "written_bytes_total{volume=\"id-1\"} 1048576.0",
            "written_bytes_total{volume=\"id-1\"} 53477376.0",
        )
        .replace("64\",volume=\"id-1\",operation=\"read\"} 10", "64\",volume=\"id-1\",operation=\"read\"} 50")
        .replace(
            "128\",volume=\"id-1\",operation=\"read\"} 20",
            "128\",volume=\"id-1\",operation=\"read\"} 119",
        )
        .replace(
            "+Inf\",volume=\"id-1\",operation=\"read\"} 30",
            "+Inf\",volume=\"id-1\",operation=\"read\"} 130",
        )
        .replace(
            "+Inf\",volume=\"id-1\",operation=\"write\"} 1",
            "+Inf\",volume=\"id-1\",operation=\"write\"} 2",
        )
    }

    #[test]
    fn rates_are_of_the_time_that_passed() {
        let found = rows(TEXT, &later(), Duration::from_millis(2500));
        let [row] = &found[..] else { panic!("{found:?}") };
        assert_eq!((row.name.as_str(), row.claim.as_deref()), ("pvc-1", Some("shop/data")));
        assert_eq!((row.id.as_str(), row.node.as_str(), row.is_new), ("id-1", "a", false));
        let expected =
            [800.0, 40.0, 0.0, 3_276_800.0, 20_971_520.0, 3.0, 67_108_864.0, 90.4, 1_610_612_736.0];
        assert_eq!(row.figures[..9], expected.map(Some));
    }

    #[test]
    fn the_slowest_are_those_of_the_time_between_the_reads() {
        let found = rows(TEXT, &later(), Duration::from_secs(2));
        // 100 reads, one of them in the last bucket; the ten earlier slow reads do not count. No flush.
        assert_eq!(found[0].figures[9..], [Some(0.000_128), Some(f64::INFINITY), None]);
        let first = rows(TEXT, TEXT, Duration::from_secs(2));
        assert_eq!(first[0].figures[9..], [None; 3]);
    }

    #[test]
    fn the_first_requests_of_an_operation_are_counted() {
        let buckets = [(0.1, 4.0), (0.2, 5.0)];
        assert_eq!(slowest_of(&buckets, &[]), Some(0.2));
        assert_eq!(slowest_of(&[], &[]), None);
    }

    #[test]
    fn counters_that_began_again_have_no_rate() {
        // The next daemon already had more reads, and fewer writes.
        let restarted = later().replace(
            "write_requests_total{volume=\"id-1\"} 300.0",
            "write_requests_total{volume=\"id-1\"} 7.0",
        );
        let found = rows(TEXT, &restarted, Duration::from_secs(2));
        assert!(found[0].is_new);
        assert_eq!(found[0].figures[..5], [None; 5]);
        assert_eq!(found[0].figures[6], Some(67_108_864.0), "what it says of now is known");
    }

    #[test]
    fn a_volume_that_came_between_the_reads_has_no_rate() {
        let before = TEXT.replace("attached{volume=\"id-1\"} 1.0", "attached{volume=\"id-1\"} 0.0");
        let found = rows(&before, TEXT, Duration::from_secs(2));
        assert!(found[0].is_new && found[0].figures[0].is_none());
        assert!(rows(TEXT, &before, Duration::from_secs(2)).is_empty(), "it was detached");
    }

    #[test]
    fn reads_at_one_time_have_no_rate() {
        assert_eq!(rows(TEXT, TEXT, Duration::ZERO)[0].figures[0], None);
    }

    #[test]
    fn a_missing_metric_leaves_the_others() {
        let mut without = TEXT.to_owned();
        for metric in
            ["holdfast_volume_dirty_bytes{", "holdfast_volume_read_requests_total{", "holdfast_volume_info{"]
        {
            without = without.replace(line(metric), "# nothing");
        }
        let row = &rows(&without, &without, Duration::from_secs(2))[0];
        assert_eq!((row.name.as_str(), row.claim.as_deref()), ("id-1", None));
        assert_eq!(
            row.figures,
            [
                None,
                Some(0.0),
                Some(0.0),
                Some(0.0),
                Some(0.0),
                Some(3.0),
                None,
                Some(90.4),
                Some(1_610_612_736.0),
                None,
                None,
                None
            ]
        );
    }

    #[test]
    fn a_volume_without_a_claim_has_none() {
        let text = TEXT.replace(
            "namespace=\"shop\",persistentvolumeclaim=\"data\"",
            "namespace=\"\",persistentvolumeclaim=\"\"",
        );
        assert_eq!(rows(&text, &text, Duration::from_secs(2))[0].claim, None);
    }

    /// A test of the daemon keeps that page in line with its metrics.
    #[test]
    fn the_daemon_has_the_metrics_that_are_read() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
        let page = fs::read_to_string(page).unwrap();
        let named = |name: &str, kind: &str| page.contains(&format!("| `{name}` | {kind} |"));
        for MetricFigure { metric, kind } in &FIGURES {
            let kind = match kind {
                FigureKind::Rate => "counter",
                FigureKind::Value => "gauge",
                FigureKind::Slowest(_) => "histogram",
            };
            assert!(named(metric, kind), "{metric}");
        }
        assert!(named(ATTACHED, "gauge") && named(INFO, "gauge"));
    }
}
