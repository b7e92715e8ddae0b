//! Requests to a distant store, by optimised programs on this host: large uploads of one volume and of eight
//! against a serial upload; through the real client, small commits of 1,000 volumes, and reads of which some
//! are late.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use holdfast_lab::command::output;
use holdfast_lab::report;
use holdfast_lab::setup::BuildProfile;
use holdfast_lab::world::World;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{Bar, Figure, median};

/// Milliseconds of a request, MB/s of a connection, MiB of upload memory.
const STORE: [&str; 3] = ["20", "80", "256"];
/// The daemon's settings of glibc's heap (`node/daemon/src/heap.rs`).
const HEAP: [(&str, &str); 2] = [("MALLOC_MMAP_THRESHOLD_", "524288"), ("MALLOC_TRIM_THRESHOLD_", "1048576")];
/// Number of runs; the figures are the medians.
const ROUNDS: u32 = 3;
/// Seconds of `data.max_dirty_age` for which the oldest dirty data is computed.
const MAX_DIRTY_AGE: f64 = 10.0;

/// A row of the example `uploads`.
#[derive(Debug, Deserialize)]
struct UploadRow {
    row: String,
    mb_per_second: f64,
    vs_serial: f64,
    mb_per_cpu_second: f64,
    cpus: f64,
    sent_per_dirty: f64,
    resident_mib: f64,
}

/// The line of the test `commits_of_a_thousand_volumes`.
#[derive(Debug, Deserialize)]
struct CommitRates {
    commits_per_second: f64,
    longest_of_first_seconds: f64,
    requests_in_flight: u32,
}

/// A line of the test `reads_of_a_store_that_is_sometimes_late`.
#[derive(Debug, Deserialize)]
struct ReadTimes {
    is_hedged: bool,
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    second_requests_percent: f64,
}

pub(super) fn run(world: &World) -> Result<Vec<Figure>> {
    let mut figures = uploads(world)?;
    let client = world.toolbox().test_program("s3", BuildProfile::Release)?;
    figures.extend(commits(&client)?);
    figures.extend(late_reads(&client)?);
    Ok(figures)
}

fn uploads(world: &World) -> Result<Vec<Figure>> {
    let program = world.toolbox().example("holdfast-background", "uploads")?;
    let mut rows = Vec::new();
    for _ in 0..ROUNDS {
        let lines = output(Command::new(&program).args(STORE).envs(HEAP))?;
        for line in lines.lines() {
            report::step(line);
            rows.push(serde_json::from_str::<UploadRow>(line).with_context(|| format!("no row: {line}"))?);
        }
    }
    let of = |row: &str, value: fn(&UploadRow) -> f64| {
        median(rows.iter().filter(|measured| measured.row == row).map(value).collect())
    };
    let figure = |name: &str, value: f64, unit, bar, against: String| Figure {
        name: name.to_owned(),
        value,
        unit,
        against,
        bar,
    };
    let vs_serial = |name: &str, row: &str, bar| {
        let rate = of(row, |row| row.mb_per_second);
        let against = format!("{rate:.0} MB/s with {:.2} processors", of(row, |row| row.cpus));
        figure(name, of(row, |row| row.vs_serial), "ratio", bar, against)
    };
    let peak = rows.iter().map(|row| row.resident_mib).fold(0.0, f64::max);
    Ok(vec![
        vs_serial("upload_vs_serial", "Program of 8", Some(Bar::AtLeast(3.0))),
        vs_serial("upload_one_volume_vs_serial", "Program of 1", None),
        vs_serial("upload_noise_vs_serial", "Noise of 8", Some(Bar::AtLeast(3.0))),
        figure(
            "upload_mb_s_per_core",
            of("Program of 8", |row| row.mb_per_cpu_second),
            "MB/s",
            Some(Bar::AtLeast(240.0)),
            format!(
                "data of a second of a processor, {:.2} after compression",
                of("Program of 8", |row| row.sent_per_dirty)
            ),
        ),
        figure(
            "upload_peak_rss_mib",
            peak,
            "MiB",
            Some(Bar::AtMost(256.0)),
            "growth of resident memory in any row; eight volumes upload 4 GiB".to_owned(),
        ),
    ])
}

/// Runs a test of the client and returns the lines that it prints as JSON.
fn lines_of<T: DeserializeOwned>(client: &Path, test: &str) -> Result<Vec<T>> {
    let lines = output(Command::new(client).args([test, "--ignored", "--nocapture"]))?;
    // The first one may follow the name of the test.
    let objects: Vec<&str> = lines.lines().filter_map(|line| line.find('{').map(|at| &line[at..])).collect();
    objects.iter().for_each(report::step);
    let parsed: Vec<T> = objects.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
    ensure!(!parsed.is_empty(), "no figures in {lines}");
    Ok(parsed)
}

fn commits(client: &Path) -> Result<[Figure; 2]> {
    let mut runs = Vec::new();
    for _ in 0..ROUNDS {
        runs.extend(lines_of::<CommitRates>(client, "commits_of_a_thousand_volumes")?);
    }
    let of = |value: fn(&CommitRates) -> f64| median(runs.iter().map(value).collect());
    let longest = of(|rates| rates.longest_of_first_seconds);
    let in_flight = of(|rates| f64::from(rates.requests_in_flight));
    Ok([
        Figure {
            name: "commits_per_second_1000_volumes".to_owned(),
            value: of(|rates| rates.commits_per_second),
            unit: "commits_per_second",
            against: format!("50 ms a request, at most {in_flight} in flight"),
            bar: Some(Bar::AtLeast(500.0)),
        },
        Figure {
            name: "oldest_dirty_over_age".to_owned(),
            value: (MAX_DIRTY_AGE + longest) / MAX_DIRTY_AGE,
            unit: "ratio",
            against: format!("1,000 commits that begin together end within {longest:.2} s"),
            bar: Some(Bar::AtMost(1.2)),
        },
    ])
}

fn late_reads(client: &Path) -> Result<[Figure; 2]> {
    let rows: Vec<ReadTimes> = lines_of(client, "reads_of_a_store_that_is_sometimes_late")?;
    let row = |is_hedged| rows.iter().find(|row| row.is_hedged == is_hedged).context("a row is missing");
    let (hedged, plain) = (row(true)?, row(false)?);
    Ok([
        Figure {
            name: "late_reads_p999_vs_plain".to_owned(),
            value: hedged.p999_ms / plain.p999_ms,
            unit: "ratio",
            against: format!(
                "{:.0} to {:.0} ms; 99 %: {:.0} to {:.0} ms; median {:.0} and {:.0} ms; one read in 100 takes 1 s",
                hedged.p999_ms, plain.p999_ms, hedged.p99_ms, plain.p99_ms, hedged.p50_ms, plain.p50_ms
            ),
            bar: Some(Bar::AtMost(0.5)),
        },
        Figure {
            name: "late_reads_second_requests_percent".to_owned(),
            value: hedged.second_requests_percent,
            unit: "percent",
            against: "second requests of all reads".to_owned(),
            bar: Some(Bar::AtMost(5.0)),
        },
    ])
}
