//! Jobs of fio in a test machine, and their results.

use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::vm::{Vm, bash};
use holdfast_lab::wire::Exit;
use serde_json::Value;

/// Time limit of one job on the host.
const LIMIT: Duration = Duration::from_secs(900);

/// Work of one job. Its limit is a number of requests, not a time, so that it is reproducible.
#[derive(Debug, Clone)]
pub struct FioJob<'a> {
    /// The block devices or files, each with its own process.
    pub targets: &'a [&'a str],
    /// `randread`, `randwrite`, `read` or `write`; `write:124k` skips that much after each request.
    pub pattern: &'a str,
    /// Size of each request in bytes.
    pub block_bytes: u32,
    /// Requests in flight per target, sent through io_uring. With `None` requests are sequential, each with
    /// its own system call.
    pub depth: Option<u32>,
    /// Total number of requests.
    pub requests: u32,
    /// The byte range of the target; the whole target if empty.
    pub region: Range<u64>,
    /// True for an fsync after each write.
    pub fsync: bool,
    /// True to use the page cache instead of direct I/O, and to write it back at the end.
    pub buffered: bool,
}

impl<'a> FioJob<'a> {
    /// Makes a job with requests of 4 KiB to the whole targets, 32 in flight.
    pub fn of(targets: &'a [&'a str], pattern: &'a str, requests: u32) -> Self {
        Self {
            targets,
            pattern,
            block_bytes: 4096,
            depth: Some(32),
            requests,
            region: 0..0,
            fsync: false,
            buffered: false,
        }
    }
}

/// Results of a job, in the machine's time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Requests per second.
    pub iops: f64,
    /// 99th percentile of the completion latency in microseconds.
    pub p99_us: f64,
}

/// Runs a job.
///
/// # Errors
/// If fio fails or reports an I/O error.
pub fn run(vm: &Vm, job: &FioJob<'_>) -> Result<Measured> {
    let FioJob { targets, pattern, block_bytes, depth, requests, region, fsync, buffered } = job;
    let region = if region.is_empty() {
        String::new()
    } else {
        format!("--offset={} --size={}", region.start, region.end - region.start)
    };
    let engine = match depth {
        Some(depth) => format!("--ioengine=io_uring --iodepth={depth}"),
        None => "--ioengine=psync".to_owned(),
    };
    let fsync = u8::from(*fsync);
    let cache = if *buffered { "--direct=0 --end_fsync=1" } else { "--direct=1" };
    // In bytes: a number of requests would restart in each pass over a region smaller than their total.
    let each_bytes = u64::from(*requests) * u64::from(*block_bytes) / targets.len() as u64;
    let tests: String = targets.iter().map(|target| format!("test -e {target} && ")).collect();
    let jobs: String = targets.iter().map(|target| format!(" --name={target} --filename={target}")).collect();
    let script = format!(
        "{tests} exec fio {cache} {engine} --fsync={fsync} --rw={pattern} --bs={block_bytes} {region} \
         --io_size={each_bytes} --norandommap --group_reporting --output-format=json {jobs}"
    );
    let done = vm.run(&bash(&script), LIMIT)?;
    ensure!(done.exit == Exit::Code(0), "fio {job:?}: {:?}\n{}{}", done.exit, done.stdout, done.stderr);
    parse(&done.stdout).with_context(|| format!("fio {job:?}:\n{}", done.stdout))
}

fn parse(output: &str) -> Result<Measured> {
    let start = output.find('{').context("fio printed no JSON")?;
    let report: Value = serde_json::from_str(&output[start..]).context("read fio's report")?;
    let job = report.pointer("/jobs/0").context("fio reports no job")?;
    ensure!(job["error"] == 0, "fio saw error {}", job["error"]);
    let busiest = ["read", "write"]
        .into_iter()
        .map(|side| &job[side])
        .max_by_key(|side| side["total_ios"].as_u64())
        .context("fio reports neither reads nor writes")?;
    let number = |pointer: &str| {
        busiest
            .pointer(pointer)
            .and_then(Value::as_f64)
            .with_context(|| format!("no {pointer} in fio's report"))
    };
    Ok(Measured { iops: number("/iops")?, p99_us: number("/clat_ns/percentile/99.000000")? / 1000.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_side_that_did_something() {
        let report = r#"note: both iodepth >= 1
            {"jobs": [{"error": 0,
              "read": {"total_ios": 0, "iops": 0.0},
              "write": {"total_ios": 9, "iops": 1234.5, "clat_ns": {"percentile": {"99.000000": 5000}}}}]}"#;
        let measured = parse(report).unwrap();
        assert!((measured.iops - 1234.5).abs() < 1e-9);
        assert!((measured.p99_us - 5.0).abs() < 1e-9);
        assert!(parse(r#"{"jobs": [{"error": 5}]}"#).is_err());
    }
}
