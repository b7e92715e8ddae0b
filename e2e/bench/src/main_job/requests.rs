//! S3 requests per step of a volume's life, counted by the server.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use holdfast_lab::s3::S3Request;
use holdfast_lab::wait::until;

use super::HELD_BACK;
use crate::daemon::{BUCKET, COMMIT_LIMIT, DaemonBench};
use crate::fio::{self, FioJob};
use crate::{Bar, Figure};

const VOLUME: &str = "cold";
/// Offset of all writes: the second chunk of the volume. The kernel scans the first and the last sectors of a
/// new device for partitions, and those reads must not fetch anything.
const WRITTEN_AT: u64 = 128 << 20;
/// Amount of noise in the volume; more than the scattered blocks need would only cost upload time.
const NOISE_MIB: u64 = 8;
const WRITES: u32 = 6_000;
/// Dirty blocks of one upload, one sector each.
const SCATTERED: u32 = 500;
const BLOCK_BYTES: u64 = 128 << 10;
/// Maximum wait for a checkpoint, which takes tens of commits.
const CHECKPOINT_LIMIT: Duration = Duration::from_secs(900);
/// Part of the keys of index runs, which only merges and cold reads request.
const RUNS: &str = "/runs/";
/// A due merge begins sooner after an attach, and pauses less between its requests.
const MERGE_PAUSE: Duration = Duration::from_secs(20);
/// One LIST for the checkpoint, and one for the records after it.
const MAX_LISTS: usize = 2;
const MAX_RECORDS: usize = 64;

/// Creates, fills, attaches, writes and flushes one volume. Leaves the daemon with delayed uploads.
pub(super) fn measure(bench: &mut DaemonBench) -> Result<Vec<Figure>> {
    bench.create("store-in-use", "64Mi")?;
    let ((), created) = asked(bench, || bench.create(VOLUME, "512Mi"))?;
    fill(bench)?;
    bench.restart_with("zero-copy", HELD_BACK)?;
    // A daemon probes a bucket before its first use: those requests do not belong to the volume.
    bench.create("store-in-use", "64Mi")?;
    let (device, attached) = asked(bench, || bench.attach(VOLUME, &[]))?;
    let ((), written) = asked(bench, || write_cold(bench, &device))?;
    bench.detach(VOLUME)?;
    let flushed = flush_scattered(bench)?;

    // The commit may trigger a merge of index runs, which begins at once and belongs to several commits.
    let (merges, flushed): (Vec<_>, Vec<_>) =
        flushed.into_iter().partition(|request| request.key.contains(RUNS));
    let uploads = flushed.iter().filter(|request| request.operation != "GetObject").count();
    Ok(vec![
        figure("s3_requests_per_write", written.len() as f64 / f64::from(WRITES), "requests", 0.0)
            .against(format!("exactly 0; {WRITES} writes of 4 KiB to blocks that are in S3 only")),
        figure("s3_puts_per_scattered_flush", uploads as f64, "requests", 2.0).against(format!(
            "exactly 2; {SCATTERED} dirty blocks, {}; beside them, of merges, {} requests of index runs",
            by_operation(&flushed),
            merges.len()
        )),
        figure("s3_requests_per_create", created.len() as f64, "requests", 1.0)
            .against(format!("exactly 1; {}", by_operation(&created))),
        attach_figure(&attached),
    ])
}

fn figure(name: &str, value: f64, unit: &'static str, due: f64) -> Figure {
    Figure { name: name.to_owned(), value, unit, against: String::new(), bar: Some(Bar::Exactly(due)) }
}

impl Figure {
    fn against(self, against: String) -> Self {
        Self { against, ..self }
    }
}

/// Runs `work`. Returns its result and the requests that the server answered meanwhile.
fn asked<T>(bench: &DaemonBench, work: impl FnOnce() -> Result<T>) -> Result<(T, Vec<S3Request>)> {
    let before = bench.s3.requests()?.len();
    let result = work()?;
    let mut requests = bench.s3.requests()?;
    Ok((result, requests.split_off(before)))
}

/// Writes the volume's blocks, then zeros after them until its log has a checkpoint and records after it, and
/// detaches it.
fn fill(bench: &DaemonBench) -> Result<()> {
    let device = bench.attach(VOLUME, &[])?;
    let first = WRITTEN_AT >> 20;
    bench.vm.exec(&format!(
        "dd if=/dev/urandom of={device} bs=1M seek={first} count={NOISE_MIB} oflag=direct status=none"
    ))?;
    let zeros = format!(
        "dd if=/dev/zero of={device} bs=1M seek={} count=1 oflag=direct status=none",
        first + NOISE_MIB
    );
    let (checkpoints, log) = (format!("volumes/{VOLUME}/checkpoints/"), format!("volumes/{VOLUME}/log/"));
    until("the writer to make a checkpoint", CHECKPOINT_LIMIT, || {
        if !bench.s3.keys(BUCKET, &checkpoints)?.is_empty() {
            return Ok(Some(()));
        }
        // Each write is one seal.
        let records = bench.s3.keys(BUCKET, &log)?.len();
        bench.vm.exec(&zeros)?;
        until("the commit of a seal", COMMIT_LIMIT, || {
            Ok((bench.s3.keys(BUCKET, &log)?.len() > records).then_some(()))
        })?;
        Ok(None)
    })?;
    bench.detach(VOLUME)
}

/// Writes sectors into blocks that are not on the node. The daemon must read nothing for them, neither from
/// S3 nor from the disk.
fn write_cold(bench: &DaemonBench, device: &str) -> Result<()> {
    let reads = |bench: &DaemonBench| bench.node.metric("holdfast_volume_read_requests_total", VOLUME);
    let before = reads(bench)?;
    let region = WRITTEN_AT..WRITTEN_AT + (NOISE_MIB << 20);
    fio::run(&bench.vm, &FioJob { region, ..FioJob::of(&[device], "randwrite", WRITES) })?;
    let after = reads(bench)?;
    ensure!(before.is_some() && before == after, "{before:?} reads before the writes, {after:?} after them");
    Ok(())
}

/// Uploads scattered blocks and returns the requests.
fn flush_scattered(bench: &DaemonBench) -> Result<Vec<S3Request>> {
    let device = bench.attach(VOLUME, &["--max-dirty-age", "1s"])?;
    let_merges_end(bench)?;
    let seq = bench.committed_seq(VOLUME)?;
    let ((), flushed) = asked(bench, || {
        let region = WRITTEN_AT..WRITTEN_AT + u64::from(SCATTERED) * BLOCK_BYTES;
        fio::run(&bench.vm, &FioJob { region, ..FioJob::of(&[&device], "write:124k", SCATTERED) })?;
        bench.wait_committed_after(VOLUME, seq)
    })?;
    // The device's own counter shows that the upload contains only those writes.
    until("the count of the writes", COMMIT_LIMIT, || {
        let writes = bench.node.metric("holdfast_volume_write_requests_total", VOLUME)?;
        ensure!(writes <= Some(f64::from(SCATTERED)), "{writes:?} writes of {SCATTERED} scattered sectors");
        Ok((writes == Some(f64::from(SCATTERED))).then_some(()))
    })?;
    bench.detach(VOLUME)?;
    Ok(flushed)
}

/// Waits until the merges of index runs triggered by earlier commits are stored. The next commit names them.
fn let_merges_end(bench: &DaemonBench) -> Result<()> {
    let runs = format!("volumes/{VOLUME}/runs/");
    let requests = || -> Result<usize> {
        Ok(bench.s3.requests()?.iter().filter(|request| request.key.contains(&runs)).count())
    };
    until("the merges of earlier commits", COMMIT_LIMIT, || {
        let before = requests()?;
        thread::sleep(MERGE_PAUSE);
        Ok((requests()? == before).then_some(()))
    })
}

/// Makes the figure of an attach. Its bar is the number of requests within the limits of their kinds.
fn attach_figure(requests: &[S3Request]) -> Figure {
    let count = |operation: &str, part: &str| {
        requests.iter().filter(|request| request.operation == operation && request.key.contains(part)).count()
    };
    let lists = requests.iter().filter(|request| request.operation.starts_with("List")).count();
    let is_record = |request: &&S3Request| request.operation == "PutObject" && request.key.contains("/log/");
    let puts = requests.iter().filter(is_record).count();
    let read_back = requests.iter().find(is_record).map_or(0, |put| count("GetObject", &put.key).min(1));
    let (checkpoints, records) =
        (count("GetObject", "/checkpoints/"), count("GetObject", "/log/") - read_back);
    let markers = count("GetObject", "/truncated/");
    let allowed = lists.min(MAX_LISTS)
        + checkpoints.min(1)
        + records.min(MAX_RECORDS)
        + puts.min(1)
        + markers.min(1)
        + read_back;
    Figure {
        name: "s3_requests_per_attach".to_owned(),
        value: requests.len() as f64,
        unit: "requests",
        against: format!(
            "{lists} LIST (at most {MAX_LISTS}), {checkpoints} GET of a checkpoint (1), {records} GET of records \
             (at most {MAX_RECORDS}), {puts} PUT (1), {markers} GET of a truncation marker (1), {read_back} GET \
             of the record that was put (1)"
        ),
        bar: Some(Bar::AtMost(allowed as f64)),
    }
}

/// Formats counts by operation, such as `2 PutObject`.
fn by_operation(requests: &[S3Request]) -> String {
    let mut counts = std::collections::BTreeMap::<&str, u32>::new();
    for request in requests {
        *counts.entry(&request.operation).or_default() += 1;
    }
    let counts: Vec<String> =
        counts.iter().map(|(operation, count)| format!("{count} {operation}")).collect();
    counts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(operation: &str, key: &str) -> S3Request {
        S3Request {
            operation: operation.to_owned(),
            bucket: BUCKET.to_owned(),
            key: key.to_owned(),
            status: 200,
        }
    }

    #[test]
    fn an_attach_that_asks_too_much_misses_its_bar() {
        let mut requests = vec![
            request("ListObjectsV2", ""),
            request("ListObjectsV2", ""),
            request("GetObject", "volumes/cold/checkpoints/00000000000000000033"),
            request("GetObject", "volumes/cold/log/00000000000000000034"),
            request("PutObject", "volumes/cold/log/00000000000000000035"),
            request("GetObject", "volumes/cold/truncated/00000000000000000064"),
            request("GetObject", "volumes/cold/log/00000000000000000035"),
        ];
        let clears = |requests: &[S3Request]| {
            let figure = attach_figure(requests);
            figure.bar.unwrap().is_cleared(figure.value)
        };
        assert!(clears(&requests));
        requests.push(request("GetObject", "volumes/cold/segments/01"));
        assert!(!clears(&requests));
        requests.pop();
        requests.push(request("ListObjectsV2", ""));
        assert!(!clears(&requests));
    }
}
