//! Costs of many volumes: threads of the daemon, and the attach of another volume.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use holdfast_lab::node::PROGRAM;
use holdfast_lab::vm::bash;

use crate::daemon::{DEVICE_LIMIT, DaemonBench};
use crate::{Bar, Figure, median};

/// Number of volumes attached at the same time.
const VOLUMES: u32 = 64;
/// Number of attaches per median.
const ATTACHES: u32 = 5;
/// Maximum ratio of the attach time among many volumes to that of a single one.
const MAX_RATIO: f64 = 2.0;

/// Attaches the first volume, then all others, then the last one. All volumes must be detached before.
pub(super) fn measure(bench: &DaemonBench) -> Result<Vec<Figure>> {
    let named = |kind: &str, count: u32| -> Vec<String> {
        (1..=count).map(|number| format!("{kind}-{number}")).collect()
    };
    let (first, others, last) =
        (named("first", ATTACHES), named("other", VOLUMES - 2), named("last", ATTACHES));
    each(bench, &[&first[..], &others, &last].concat(), "create \"$volume\" --size 64Mi --store store")?;
    let alone = attach_in_turn(bench, &first)?;
    let threads_of_one = ring_threads(bench)?;
    each(bench, &others, "attach \"$volume\" --store store")?;
    let among_many = attach_in_turn(bench, &last)?;
    let threads_of_many = ring_threads(bench)?;
    Ok(vec![
        Figure {
            name: "attach_64th_vs_first".to_owned(),
            value: among_many / alone,
            unit: "ratio",
            against: format!(
                "{:.2} ms with {} others, {:.2} ms alone, without S3, median of {ATTACHES}; at most {MAX_RATIO}",
                among_many / 1000.0,
                VOLUMES - 1,
                alone / 1000.0
            ),
            bar: Some(Bar::AtMost(MAX_RATIO)),
        },
        Figure {
            name: "ring_threads_64_vs_1".to_owned(),
            value: threads_of_many as f64 / threads_of_one as f64,
            unit: "ratio",
            against: format!(
                "{threads_of_many} ring threads with {VOLUMES} volumes, {threads_of_one} with one; exactly 1"
            ),
            bar: Some(Bar::Exactly(1.0)),
        },
    ])
}

/// Runs the daemon's command line once per volume, in one script: a round trip to the machine is slow.
fn each(bench: &DaemonBench, volumes: &[String], order: &str) -> Result<()> {
    let volumes = volumes.join(" ");
    bench.vm.exec(&format!("for volume in {volumes}; do holdfast-node {order} > /dev/null; done")).map(drop)
}

/// Attaches and detaches volumes sequentially, and leaves the last one attached. Returns the median in
/// microseconds of the machine's time from the daemon's log, without the time of its requests to the store.
/// The volumes are new: the daemon reads their logs with one request at a time, so the sum of the request
/// times is the time spent waiting.
fn attach_in_turn(bench: &DaemonBench, volumes: &[String]) -> Result<f64> {
    let mut attached: Option<&str> = None;
    for volume in volumes {
        if let Some(before) = attached.replace(volume) {
            bench.detach(before)?;
        }
        bench.attach(volume, &[])?;
    }
    let log = bench.vm.log(PROGRAM)?;
    let times: Vec<f64> = log
        .lines()
        .map(fields)
        .filter(|fields| fields.get("volume").is_some_and(|volume| volumes.iter().any(|one| one == volume)))
        .filter_map(|fields| {
            Some((fields.get("took_us")?.parse().ok()?, fields.get("store_us")?.parse().ok()?))
        })
        .map(|(took, store): (f64, f64)| took - store)
        .collect();
    ensure!(times.len() == volumes.len(), "{volumes:?} were attached, {} are in the log", times.len());
    Ok(median(times))
}

/// Returns the `key=value` words of a log line.
fn fields(line: &str) -> BTreeMap<&str, &str> {
    line.split_whitespace().filter_map(|word| word.split_once('=')).collect()
}

fn ring_threads(bench: &DaemonBench) -> Result<u32> {
    let script = "cat /proc/[0-9]*/task/*/comm | grep -c '^ring-'";
    let done = bench.vm.run(&bash(script), DEVICE_LIMIT)?;
    done.stdout.trim().parse().with_context(|| format!("count ring threads: {done:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_fields_of_a_log_line() {
        let line =
            "2026-11-21T02:00:00Z  INFO node: the device serves volume=many-1 took_us=1500 store_us=400";
        let fields = fields(line);
        assert_eq!(fields.get("volume"), Some(&"many-1"));
        assert_eq!(fields.get("took_us"), Some(&"1500"));
        assert_eq!(fields.get("store_us"), Some(&"400"));
    }
}
