//! The chart's alerts and its dashboard, compared with the existing metrics and the runbooks.
//!
//! Each program's own tests keep `docs/metrics.md` equal to its metrics, so this test reads the page instead
//! of the code.

#![allow(clippy::unwrap_used)] // a test fails by panicking, in its helpers too

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

const ALERTS: &str = "charts/holdfast/templates/alerts.yaml";
const DASHBOARD: &str = "charts/holdfast/dashboards/holdfast.json";

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).unwrap()
}

/// Returns the sample names of all metrics, as used in queries.
fn samples() -> BTreeSet<String> {
    let page = read("docs/metrics.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `holdfast_"));
    let kinds: BTreeMap<&str, &str> = rows
        .filter_map(|row| {
            let mut cells = row.split('|').map(str::trim);
            let name = cells.next()?.strip_suffix('`')?;
            let kind = cells.next()?;
            ["gauge", "counter", "histogram"].contains(&kind).then_some((name, kind))
        })
        .collect();
    assert!(kinds.len() > 40, "the tables of docs/metrics.md were not found: {kinds:?}");
    let suffixes = |kind| match kind {
        "gauge" => &[""][..],
        "counter" => &["_total"],
        // The last one is that of a native histogram, which Prometheus converts it to.
        _ => &["_bucket", "_sum", "_count", ""],
    };
    let names = kinds.iter().flat_map(|(name, kind)| {
        suffixes(*kind).iter().map(move |suffix| format!("holdfast_{name}{suffix}"))
    });
    names.collect()
}

/// Returns the names of samples in a text, which may be a query.
fn named(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("holdfast_")).collect()
}

/// Returns the alerts as name and text.
fn alerts(text: &str) -> Vec<(&str, &str)> {
    text.split("- alert: ").skip(1).map(|alert| alert.split_once('\n').unwrap()).collect()
}

/// Collects all strings under these keys, at any depth.
fn strings<'a>(value: &'a Value, keys: &[&str], found: &mut Vec<&'a str>) {
    if let Value::Object(fields) = value {
        found.extend(
            fields.iter().filter(|(key, _)| keys.contains(&key.as_str())).filter_map(|(_, v)| v.as_str()),
        );
    }
    match value {
        Value::Object(fields) => fields.values().for_each(|value| strings(value, keys, found)),
        Value::Array(values) => values.iter().for_each(|value| strings(value, keys, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn alerts_name_existing_metrics() {
    let samples = samples();
    let text = read(ALERTS);
    let alerts = alerts(&text);
    assert!(!alerts.is_empty(), "{ALERTS} has no alert");
    for (name, alert) in alerts {
        let query = alert.lines().find_map(|line| line.trim().strip_prefix("expr: "));
        let query = query.unwrap_or_else(|| panic!("{name} has no expression on one line"));
        let named = named(query);
        // Prometheus itself provides the one of a scrape.
        assert!(!named.is_empty() || query.contains("up{"), "{name} is about no metric: {query}");
        for sample in named {
            assert!(
                samples.contains(sample),
                "{name} asks for {sample}, which docs/metrics.md does not have"
            );
        }
    }
}

/// A label value that no program produces makes an alert that never fires.
#[test]
fn alerts_name_existing_label_values() {
    let programs = ["operator/src/metrics.rs", "csi/src/requests.rs"].map(read);
    let text = read(ALERTS);
    let queries = text.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    let values: Vec<&str> = queries
        .flat_map(|query| query.split("=\"").skip(1))
        .map(|rest| rest.split_once('"').unwrap().0)
        .collect();
    assert!(!values.is_empty(), "{ALERTS} has no query with a label");
    for value in values {
        let variant = format!("{value},");
        let is_there = programs.iter().any(|program| program.lines().any(|line| line.trim() == variant));
        assert!(is_there, "{ALERTS} asks for the label {value}, which no program has");
    }
}

#[test]
fn each_alert_has_its_texts_and_its_runbook() {
    let text = read(ALERTS);
    let page = read("docs/failures.md");
    let alerts = alerts(&text);
    for (name, alert) in &alerts {
        for field in ["labels: {severity: ", "summary: ", "description: "] {
            assert!(alert.contains(field), "{name} lacks `{field}`");
        }
        let runbook = format!("runbook: docs/failures.md#{}", name.to_ascii_lowercase());
        assert!(alert.lines().any(|line| line.trim() == runbook), "{name} lacks `{runbook}`");
        let heading = format!("### {name}");
        assert!(page.lines().any(|line| line == heading), "docs/failures.md lacks `{heading}`");
    }
    for heading in page.lines().filter_map(|line| line.strip_prefix("### Holdfast")) {
        let is_alert = alerts.iter().any(|(name, _)| name.strip_prefix("Holdfast") == Some(heading));
        assert!(is_alert, "docs/failures.md has a runbook for Holdfast{heading}, which is no alert");
    }
}

/// Returns the query of an alert.
fn query_of<'a>(alerts: &[(&str, &'a str)], name: &str) -> &'a str {
    let (_, alert) = alerts.iter().find(|(found, _)| *found == name).unwrap();
    alert.lines().find_map(|line| line.trim().strip_prefix("expr: ")).unwrap()
}

/// Regression, found in review: an alert about an attach that failed and was retried began again with each
/// attempt. A label that changes with each attempt would have the same effect.
#[test]
fn alerts_about_waiting_volumes_outlast_failed_attempts() {
    let text = read(ALERTS);
    let alerts = alerts(&text);
    for name in ["HoldfastVolumeWaiting", "HoldfastDetachWaiting", "HoldfastDeletionWaiting"] {
        let query = query_of(&alerts, name);
        let labels = "max by (volume, name, namespace, persistentvolumeclaim) (";
        assert!(query.starts_with(&format!("{labels}holdfast_operator_volume_waiting{{phase")), "{query}");
    }
}

/// Regression, found in review: a detach with a long final commit fired the alert for Volumes that wait, and
/// a volume that its node did not serve fired two alerts. The metric of the daemon must be 0 as long as the
/// other alert waits: it is 0 during each attempt of a failing attach, which must not restart this alert.
#[test]
fn a_volume_that_waits_fires_one_alert() {
    let text = read(ALERTS);
    let alerts = alerts(&text);
    let (waits, other) =
        query_of(&alerts, "HoldfastVolumeWaiting").split_once(" unless on (volume) ").unwrap();
    assert!(waits.contains(r#"{phase!~"Deleting|Detaching|Failed"}"#), "{waits}");
    assert!(query_of(&alerts, "HoldfastDetachWaiting").contains(r#"{phase="Detaching"}"#));
    let not_served = query_of(&alerts, "HoldfastVolumeNotServed");
    assert!(not_served.ends_with(" unless holdfast_volume_detaching == 1"), "{not_served}");
    assert_eq!(other, format!("count_over_time((max by (volume) ({not_served}))[10m:1m]) >= 10"));
    for (name, time) in [("HoldfastVolumeNotServed", "10m"), ("HoldfastVolumeWaiting", "15m")] {
        let (_, alert) = alerts.iter().find(|(found, _)| *found == name).unwrap();
        assert!(alert.contains(&format!("for: {time}\n")), "{name}");
    }
}

/// Regression, found in review: a memory volume at its limit fired the alert for damaged data, and a driver
/// that did not run fired none.
#[test]
fn alerts_distinguish_full_memory_and_absent_drivers() {
    let text = read(ALERTS);
    let alerts = alerts(&text);
    let full = "increase(holdfast_volume_memory_refused_pages_total[15m]) > 0";
    assert_eq!(query_of(&alerts, "HoldfastMemoryVolumeFull"), full);
    let failed = query_of(&alerts, "HoldfastRequestsFailed");
    assert!(failed.ends_with(&format!(" unless on (volume, node) {full}")), "{failed}");
    // A Controller service on the same node is always ready.
    let not_ready = query_of(&alerts, "HoldfastCsiNotReady");
    let ready = " unless on (node) holdfast_csi_ready{pod=~\"holdfast-csi-node-.+\"} == 1";
    assert!(not_ready.ends_with(ready), "{not_ready}");
    let controller = query_of(&alerts, "HoldfastCsiControllerMissing");
    assert!(
        controller.starts_with("absent(") && controller.contains("holdfast-csi-controller-"),
        "{controller}"
    );
}

#[test]
fn dashboard_shows_existing_metrics() {
    let samples = samples();
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let mut queries = Vec::new();
    strings(&dashboard, &["expr", "definition", "query"], &mut queries);
    // The others are values of variables.
    queries.retain(|query| *query != "prometheus" && query.parse::<f64>().is_err());
    assert!(queries.len() > 20, "{DASHBOARD} has few queries: {queries:?}");
    for query in queries {
        let named = named(query);
        assert!(!named.is_empty(), "{DASHBOARD} has a query about no metric: {query}");
        for sample in named {
            assert!(
                samples.contains(sample),
                "{DASHBOARD} shows {sample}, which docs/metrics.md does not have"
            );
        }
    }
}

/// A native histogram has no samples of buckets: `docs/monitoring.md#native-histograms`.
#[test]
fn queries_of_histograms_work_with_classic_and_native_ones() {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let (text, mut queries) = (read(ALERTS), Vec::new());
    strings(&dashboard, &["expr"], &mut queries);
    queries.extend(text.lines().filter_map(|line| line.trim().strip_prefix("expr: ")));
    let samples = samples();
    let is_histogram = |name: &str| samples.contains(&format!("{name}_bucket"));
    let mut found = 0;
    for query in queries {
        let classic: BTreeSet<&str> = ["_bucket", "_sum", "_count"]
            .into_iter()
            .flat_map(|suffix| named(query).into_iter().filter_map(move |name| name.strip_suffix(suffix)))
            .filter(|name| is_histogram(name))
            .collect();
        let native: BTreeSet<&str> = named(query).into_iter().filter(|name| is_histogram(name)).collect();
        assert_eq!(classic, native, "the query lacks one of both kinds: {query}");
        if let Some(name) = native.first() {
            let quantile = |part: &str| part.trim().starts_with("histogram_quantile(");
            let [first, second] = query.split(" or ").collect::<Vec<_>>()[..] else {
                panic!("the kinds of {name} are not alternatives: {query}");
            };
            assert!(quantile(first) && quantile(second), "{query}");
            // Without the parts that differ, both select and aggregate the same.
            let native = first.replace(", le)", ")").replace("_bucket", "");
            assert_eq!(native, second, "the kinds of {name} are queried differently");
            found += 1;
        }
    }
    assert!(found > 3, "{DASHBOARD} has {found} queries of histograms");
}

#[test]
fn panels_of_the_dashboard_have_unique_ids() {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let mut seen = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(seen.insert(panel["id"].as_u64().unwrap()), "two panels have the id {}", panel["id"]);
    }
}
