//! Objects left in the bucket by volumes with snapshots and forks, after all of them were deleted with
//! `keepDeleted: 0s` and swept without a grace period.
//!
//! The source of the forks is deleted first, while they read its objects, so the sweep must delete those. A
//! removed volume keeps its first record, tombstone, truncation markers and markers of forgotten snapshots.

use anyhow::{Context, Result, ensure};
use holdfast_lab::node::{ControlInterface, NodeDaemon};
use holdfast_lab::report;
use holdfast_lab::s3::S3Server;
use holdfast_lab::wait::until;
use holdfast_lab::world::World;
use holdfast_scenarios::provisioning::{apply, volume};
use holdfast_scenarios::story::{provision_store, serve};
use holdfast_scenarios::volume_snapshots::{from_snapshot, from_volume, snapshot};
use serde_json::Value;

use super::{BUCKET, DATA, SETTLE_LIMIT, figure};
use crate::{Bar, Figure};

const ORIGIN: &str = "origin";
/// Number of its snapshots; each has one fork.
const SNAPSHOTS: u32 = 3;
/// Written between two snapshots, and to each fork, in as many seals, with merges and checkpoints.
const WRITTEN_MIB: u32 = 24;
/// Total number of volumes, with a fork of a fork and a clone.
const VOLUMES: usize = SNAPSHOTS as usize + 3;

pub(super) fn measure(world: &World) -> Result<Vec<Figure>> {
    let s3 = world.s3()?;
    let operator = world.operator()?;
    provision_store(world, &s3, BUCKET)?;
    let node = world.node("a", "auto", DATA)?;
    fill(world, &node)?;
    let stored = s3.keys(BUCKET, "volumes/")?;
    let of = |kind: &str| stored.iter().filter(|key| key.contains(kind)).count();
    let (segments, runs, roots) = (of("/segments/"), of("/runs/"), of("/snapshots/"));
    ensure!(segments > 0 && runs > 0 && roots > 0, "{segments} segments, {runs} runs, {roots} roots");

    report::step("delete everything, the source of the forks first");
    let of_origin = (0..SNAPSHOTS).map(|nth| format!("{ORIGIN}-{nth}")).collect::<Vec<_>>();
    let mut delete = vec!["delete", "volumesnapshot", "--timeout=300s"];
    delete.extend(of_origin.iter().map(String::as_str));
    world.kubectl(delete)?;
    let id = world.kubectl(["get", "volume", ORIGIN, "--output=jsonpath={.status.volumeId}"])?;
    world.kubectl(["delete", "volume", ORIGIN, "--timeout=300s"])?;
    let read_by_forks = s3.keys(BUCKET, &format!("volumes/{id}/segments/"))?;
    ensure!(!read_by_forks.is_empty(), "the forks read nothing of volume {id}");
    world.kubectl(["delete", "volumesnapshots", "--all", "--timeout=300s"])?;
    world.kubectl(["delete", "volumes", "--all", "--timeout=300s"])?;
    node.terminate()?;
    operator.stop()?;
    sweep(world, &s3)?;

    let left = s3.keys(BUCKET, "")?;
    let unneeded = left.iter().filter(|key| !stays(key, &left)).collect::<Vec<_>>();
    report::step(format_args!("{} objects stay; beyond what is to stay: {unneeded:?}", left.len()));
    let of = |kind: &str| left.iter().filter(|key| key.contains(kind)).count();
    let (records, truncated, forgotten) = (of("/log/"), of("/truncated/"), of("/forgotten/"));
    Ok(vec![
        figure(
            "bucket_objects_after_all_deleted",
            unneeded.len() as f64,
            "objects",
            Bar::Exactly(0.0),
            format!(
                "beyond tombstones and marks, of {} objects: {VOLUMES} volumes with {segments} segments, {runs} runs \
                 and {roots} roots of snapshots",
                stored.len()
            ),
        ),
        Figure {
            name: "bucket_tombstones_and_marks".to_owned(),
            value: left.len() as f64,
            unit: "objects",
            against: format!(
                "{records} first and last records, {truncated} truncation markers, {forgotten} marks of forgotten \
                 snapshots, of {VOLUMES} volumes"
            ),
            bar: None,
        },
    ])
}

/// Creates the volumes, most with their own writes.
fn fill(world: &World, node: &NodeDaemon) -> Result<()> {
    report::step("a volume with snapshots, forks of them, a fork of a fork, and a clone");
    apply(world, &volume(ORIGIN, "store", "64Mi"))?;
    world.wait_for("volumes", "jsonpath={.status.phase}=Ready")?;
    let device = serve(world, node, ORIGIN)?;
    for nth in 0..SNAPSHOTS {
        write(node, &device, nth)?;
        take(world, &format!("{ORIGIN}-{nth}"), ORIGIN)?;
    }
    for nth in 0..SNAPSHOTS {
        let fork = format!("fork-{nth}");
        make(world, &fork, &from_snapshot(&fork, &format!("{ORIGIN}-{nth}")))?;
        write(node, &serve(world, node, &fork)?, nth)?;
    }
    take(world, "of-a-fork", "fork-0")?;
    make(world, "deep", &from_snapshot("deep", "of-a-fork"))?;
    write(node, &serve(world, node, "deep")?, 1)?;
    make(world, "clone", &from_volume("clone", ORIGIN))
}

fn make(world: &World, name: &str, document: &str) -> Result<()> {
    apply(world, document)?;
    world.wait_for(&format!("volume/{name}"), "jsonpath={.status.phase}=Ready")
}

fn take(world: &World, name: &str, volume: &str) -> Result<()> {
    apply(world, &snapshot(name, volume, "Delete"))?;
    world.wait_for(&format!("volumesnapshot/{name}"), "condition=Ready")
}

/// Writes noise, partly over earlier data.
fn write(node: &NodeDaemon, device: &str, nth: u32) -> Result<()> {
    let seek = nth * WRITTEN_MIB / 2;
    let dd = format!(
        "dd if=/dev/urandom of={device} bs=1M count={WRITTEN_MIB} seek={seek} oflag=direct conv=fsync"
    );
    node.vm().exec(&format!("{dd} status=none")).map(drop)
}

/// Sweeps until a sweep finds nothing to delete: the machine's clock may be behind the server's.
fn sweep(world: &World, s3: &S3Server) -> Result<()> {
    report::step("sweep");
    let node = NodeDaemon::start(world.vm("a")?, &ControlInterface::standalone(s3, BUCKET), "auto", DATA)?;
    until("a sweep that finds nothing", SETTLE_LIMIT, || {
        let said = node.cli_with_retries(&["gc", "--store", "store", "--grace", "0s", "--json"])?;
        let said: Value = serde_json::from_str(&said).with_context(|| said.clone())?;
        let garbage = said["garbage"]["objects"].as_u64().with_context(|| format!("no garbage in {said}"))?;
        report::step(format_args!("{garbage} objects were garbage"));
        Ok((garbage == 0).then_some(()))
    })?;
    node.terminate()
}

/// Returns true if an object of a removed volume must stay. `all` contains all keys, sorted.
fn stays(key: &str, all: &[String]) -> bool {
    if key.contains("/truncated/") || key.contains("/forgotten/") {
        return true;
    }
    let Some((log, seq)) = key.rsplit_once('/').filter(|(log, _)| log.ends_with("/log")) else {
        return false;
    };
    let last = all.iter().rfind(|other| other.starts_with(&format!("{log}/")));
    seq.trim_start_matches('0') == "1" || last.is_some_and(|last| last == key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tombstones_and_marks_stay() {
        let keys = [
            "trash/v",
            "volumes/v/forgotten/00000000000000000007",
            "volumes/v/log/00000000000000000001",
            "volumes/v/log/00000000000000000008",
            "volumes/v/log/00000000000000000009",
            "volumes/v/segments/00000000000000000003-01ARZ3NDEKTSV4RRFFQ69G5FAV",
            "volumes/v/truncated/00000000000000000064",
        ]
        .map(str::to_owned);
        let left: Vec<&str> = keys.iter().map(String::as_str).filter(|key| !stays(key, &keys)).collect();
        assert_eq!(left, [keys[0].as_str(), keys[3].as_str(), keys[5].as_str()]);
    }
}
