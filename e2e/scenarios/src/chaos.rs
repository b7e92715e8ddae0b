//! Many concurrent claims, while the operator and the CSI controller are killed repeatedly.
//!
//! The scenario plays the sidecars: each claim has its own client, which retries until success, like the
//! provisioner.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use holdfast_lab::csi::{Csi, CsiResponse, CsiService, LIMIT, RequestedVolume, Use};
use holdfast_lab::operator::{NAMESPACE, Operator};
use holdfast_lab::report;
use holdfast_lab::s3::S3Server;
use holdfast_lab::world::World;

use super::story::provision_store_at;

const BUCKET: &str = "chaos";
/// Claims that are created, and then deleted, concurrently.
const CLAIMS: usize = 100;
const MIB: i64 = 1 << 20;
/// Interval of kills.
const KILL_INTERVAL: Duration = Duration::from_secs(5);
/// Waves of claims are played until both processes were killed this many times.
const MIN_CYCLES: usize = 6;
/// Pause of a claim's client between a rejection and the next attempt.
const PAUSE: Duration = Duration::from_millis(500);
/// Time limit for creating, or deleting, all claims.
const WAVE_LIMIT: Duration = Duration::from_secs(300);

/// Result of the chaos.
#[derive(Debug, Default)]
pub struct ChaosOutcome {
    /// Number of times that both processes were killed.
    pub cycles: usize,
    /// Number of volumes that were created and deleted.
    pub volumes: usize,
    /// Remains of them that should not exist.
    pub leaks: Vec<String>,
}

pub(super) fn run(world: &World) -> Result<()> {
    let ChaosOutcome { cycles, volumes, leaks } = chaos(world)?;
    report::step(format_args!("{volumes} volumes were created and deleted during {cycles} kills"));
    ensure!(leaks.is_empty(), "left behind: {}", leaks.join(", "));
    Ok(())
}

/// Creates and deletes waves of claims during kills, and checks for remains.
///
/// # Errors
/// If a claim is not created or deleted in time.
pub fn chaos(world: &World) -> Result<ChaosOutcome> {
    let s3 = world.s3()?;
    let operator = world.operator()?;
    provision_store_at(world, &s3, BUCKET, &s3.endpoint())?;
    let controller = world.csi_controller()?;
    let csi = controller.csi();

    let cycles = AtomicUsize::new(0);
    let mut waves = 0;
    thread::scope(|scope| -> Result<()> {
        let (stop, stopped) = channel();
        let killer = scope.spawn(|| kill_until(stopped, &operator, &controller, &cycles));
        while cycles.load(Ordering::Relaxed) < MIN_CYCLES && !killer.is_finished() {
            waves += 1;
            wave(world, &csi, waves)?;
        }
        drop(stop);
        killer.join().map_err(|_panic| anyhow!("the thread that kills failed"))?
    })?;
    let volumes = waves * CLAIMS;
    let leaks = leaks(world, &s3, volumes)?;
    for leak in &leaks {
        report::step(format_args!("left behind: {leak}"));
    }
    operator.stop()?;
    Ok(ChaosOutcome { cycles: cycles.into_inner(), volumes, leaks })
}

/// Creates all claims concurrently, then deletes them concurrently.
fn wave(world: &World, csi: &Csi, number: usize) -> Result<()> {
    report::step(format_args!("wave {number}: create {CLAIMS} claims at once, under kills"));
    run_for_all_claims(|claim, until| create(csi, claim, until))?;
    let phases = world.kubectl(["get", "volumes", "--output=jsonpath={.items[*].status.phase}"])?;
    let ready = phases.split_whitespace().filter(|phase| *phase == "Ready").count();
    ensure!(ready == CLAIMS, "{ready} of {CLAIMS} volumes are Ready: {phases}");
    report::step(format_args!("wave {number}: delete them at once, under kills"));
    run_for_all_claims(|claim, until| delete(csi, claim, until))
}

/// Kills both processes and restarts them, until the other end of the channel is dropped.
fn kill_until(
    stopped: Receiver<()>,
    operator: &Operator,
    controller: &CsiService,
    cycles: &AtomicUsize,
) -> Result<()> {
    let mut pause = KILL_INTERVAL / 5;
    while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let began = Instant::now();
        operator.kill();
        controller.kill();
        operator.restart()?;
        controller.restart()?;
        cycles.fetch_add(1, Ordering::Relaxed);
        pause = KILL_INTERVAL.saturating_sub(began.elapsed());
    }
    Ok(())
}

/// Runs `work` for all claims concurrently, each on a separate thread.
fn run_for_all_claims(work: impl Fn(&str, Instant) -> Result<()> + Sync) -> Result<()> {
    let until = Instant::now() + WAVE_LIMIT;
    thread::scope(|scope| {
        let work = &work;
        let claim = |number| scope.spawn(move || work(&format!("pvc-{number}"), until));
        let all: Vec<_> = (0..CLAIMS).map(claim).collect();
        all.into_iter().try_for_each(|one| one.join().map_err(|_panic| anyhow!("a client failed"))?)
    })
}

fn create(csi: &Csi, claim: &str, until: Instant) -> Result<()> {
    let new = RequestedVolume::new(claim, 16 * MIB, "store").with_use(&Use::block());
    retry_until_granted(&format!("create {claim}"), until, || csi.create(&new, LIMIT))
}

fn delete(csi: &Csi, claim: &str, until: Instant) -> Result<()> {
    retry_until_granted(&format!("delete {claim}"), until, || csi.delete(claim, LIMIT))
}

/// Retries until success. A killed driver does not respond.
fn retry_until_granted<T>(
    what: &str,
    until: Instant,
    ask: impl Fn() -> Result<CsiResponse<T>>,
) -> Result<()> {
    loop {
        let refused = match ask() {
            Ok(Ok(_granted)) => return Ok(()),
            Ok(Err(refused)) => format!("{}: {}", refused.code, refused.message),
            Err(unanswered) => format!("{unanswered:#}"),
        };
        if Instant::now() >= until {
            bail!("{what}: not granted in {} s: {refused}", WAVE_LIMIT.as_secs());
        }
        thread::sleep(PAUSE);
    }
}

/// Returns everything that removed volumes should not leave behind.
fn leaks(world: &World, s3: &S3Server, volumes: usize) -> Result<Vec<String>> {
    let objects = |kinds: &str| world.kubectl(["get", kinds, "--output=name"]);
    let mut leaks: Vec<String> = Vec::new();
    for kinds in ["volumes.storage.holdfast.dev", "volumesnapshots.storage.holdfast.dev"] {
        leaks.extend(objects(kinds)?.lines().map(str::to_owned));
    }
    let named =
        "--output=jsonpath={range .items[*]}{.kind}/{.metadata.name}: {.metadata.finalizers}{\"\\n\"}{end}";
    let all = world.kubectl(["get", "objectstores,storagenodes", named])?;
    leaks.extend(all.lines().filter(|line| line.contains('[')).map(str::to_owned));
    let leases = world.kubectl(["get", "leases", &format!("--namespace={NAMESPACE}"), "--output=name"])?;
    let elects = |lease: &&str| lease.ends_with("/holdfast-operator");
    leaks.extend(leases.lines().filter(|lease| !elects(lease)).map(str::to_owned));
    leaks.extend(unexpected_objects(&s3.keys(BUCKET, "")?, volumes)?);
    Ok(leaks)
}

/// Returns the keys that removed volumes should not leave: the first record of each log, its tombstone and
/// its first truncation marker stay.
fn unexpected_objects(keys: &[String], volumes: usize) -> Result<Vec<String>> {
    let mut unexpected = Vec::new();
    let mut removed: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
    for key in keys {
        let mut parts = key.split('/');
        match (parts.next(), parts.next(), parts.next()) {
            (Some("volumes"), Some(id), Some("log")) => removed.entry(id).or_default()[0] += 1,
            (Some("volumes"), Some(id), Some("truncated")) => removed.entry(id).or_default()[1] += 1,
            _ => unexpected.push(key.clone()),
        }
    }
    let odd = removed.iter().filter(|(_id, kept)| **kept != [2, 1]);
    unexpected.extend(odd.map(|(id, [log, marks])| {
        format!("volumes/{id} with {log} log records and {marks} truncation markers")
    }));
    ensure!(removed.len() >= volumes, "of {volumes} volumes {} left a tombstone", removed.len());
    let more = removed.len().checked_sub(volumes).context("no fewer")?;
    if more > 0 {
        unexpected.push(format!("{more} volumes of no claim"));
    }
    Ok(unexpected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_remains_of_removed_volumes_are_expected() {
        let keys = |more: &[&str]| -> Vec<String> {
            let whole = ["volumes/a/log/1", "volumes/a/log/2", "volumes/a/truncated/2"];
            whole.iter().chain(more).map(|&key| key.to_owned()).collect()
        };
        assert_eq!(unexpected_objects(&keys(&[]), 1).unwrap(), Vec::<String>::new());
        assert_eq!(unexpected_objects(&keys(&["probe/1"]), 1).unwrap(), ["probe/1"]);
        let half = unexpected_objects(&keys(&["volumes/b/log/1"]), 2).unwrap();
        assert_eq!(half, ["volumes/b with 1 log records and 0 truncation markers"]);
        let more = keys(&["volumes/b/log/1", "volumes/b/log/2", "volumes/b/truncated/2"]);
        assert_eq!(unexpected_objects(&more, 1).unwrap(), ["1 volumes of no claim"]);
        assert!(unexpected_objects(&more, 3).is_err());
    }
}
