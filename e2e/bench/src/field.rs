//! Conditions of the field: distribution kernels, a host whose daemons scan all block devices, stores with
//! their own dialects of S3, a completely written volume, file systems that refuse writes, clocks that are a
//! day off.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use holdfast_lab::pins::{KERNEL, LTS_KERNEL};
use holdfast_lab::report;
use holdfast_lab::world::World;
use holdfast_scenarios::{host_daemons, kill_rounds, restore, store_dialects};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{Bar, Figure, play, play_on};

/// Ends of the daemon per kernel: 20 kills, 20 SIGTERMs, 20 handoffs.
const KILL_ROUNDS: usize = 60;
/// Detaches and attaches, and ends of our daemon, while the host's daemons run.
const ATTACHES: usize = 200;
const ENDS: usize = 30;
/// Maximum memory of an attach, in MiB.
const MAX_ATTACH_MIB: f64 = 32.0;
/// The daemon's test that prints it.
const ATTACH_TEST: [&str; 4] = ["--bin", "holdfast-node", "--", "an_attach_of_a_touched_tebibyte"];
/// Minimum number of writes that [`REFUSED_TEST`] refuses: 7,740 when it was written.
const REFUSED_WRITES: f64 = 7_500.0;
/// The simulation's test that refuses each local write in each way.
const REFUSED_TEST: [&str; 4] = ["--test", "refused_writes", "--", "every_write_fails_once_and_permanently"];
/// The operator's test in which each party has its own clock.
const CLOCKS_TEST: [&str; 4] =
    ["--bin", "holdfast-operator", "--", "clocks_a_day_off_delete_nothing_before_its_time"];

/// The log's test that plays two clusters on one bucket, and its number of pairs.
const PAIRS_TEST: [&str; 4] = ["--test", "cluster_pairs", "--", "two_clusters_on_one_bucket_lose_nothing"];
const PAIRS: usize = 25;
const DIALECTS: usize = 27;

/// Figures of [`PAIRS_TEST`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterPairs {
    cluster_pairs_total: usize,
    cluster_pairs_lost: usize,
}

/// Figure of [`ATTACH_TEST`], printed on one line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AttachPeak {
    attach_1tib_peak_mib: f64,
}

/// Figures of [`REFUSED_TEST`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RefusedWrites {
    full_disk_steps: usize,
    full_disk_stuck: usize,
}

/// Figure of [`CLOCKS_TEST`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClockSkew {
    clock_skew_early_deletions: usize,
}

pub(super) fn run_simulated(world: &World) -> Result<Vec<Figure>> {
    let AttachPeak { attach_1tib_peak_mib } = test_figure(world, ATTACH_TEST)?;
    let refused: RefusedWrites = test_figure(world, REFUSED_TEST)?;
    let clocks: ClockSkew = test_figure(world, CLOCKS_TEST)?;
    let pairs: ClusterPairs = test_figure(world, PAIRS_TEST)?;
    Ok(vec![
        Figure {
            name: "attach_1tib_peak_mib".to_owned(),
            value: attach_1tib_peak_mib,
            unit: "MiB",
            against: "the heap of an attach of a volume of 1 TiB of which all was touched".to_owned(),
            bar: Some(Bar::AtMost(MAX_ATTACH_MIB)),
        },
        Figure {
            name: "full_disk_steps".to_owned(),
            value: refused.full_disk_steps as f64,
            unit: "count",
            against: "each local write of the scenarios, with ENOSPC, EIO and EROFS, once and lasting"
                .to_owned(),
            bar: Some(Bar::AtLeast(REFUSED_WRITES)),
        },
        count("full_disk_stuck", refused.full_disk_stuck, "none", 0),
        count("clock_skew_early_deletions", clocks.clock_skew_early_deletions, "none", 0),
        count("cluster_pairs_total", pairs.cluster_pairs_total, "what two clusters do at once", PAIRS),
        count("cluster_pairs_lost", pairs.cluster_pairs_lost, "none", 0),
    ])
}

pub(super) fn run_stores(world: &World) -> Result<Vec<Figure>> {
    let said = play(world, "store-dialects", store_dialects::play)?;
    said.wrong.iter().chain(&said.lost).for_each(report::step);
    let (lookers, found) = said.not_atomic;
    let restored = play(world, "restore", restore::play)?;
    Ok(vec![
        count("dialects_total", said.dialects, "answers that stores give in their own way", DIALECTS),
        count("dialects_passed", said.dialects.saturating_sub(said.wrong.len()), "all", DIALECTS),
        count("dialect_objects_lost", said.lost.len(), "none", 0),
        count("snapshots_restored_in_new_cluster", restored, "the snapshot of a lost cluster", 1),
        Figure {
            name: "probe_found_nonatomic".to_owned(),
            value: found as f64,
            unit: "count",
            against: "all servers whose create-once is not atomic".to_owned(),
            bar: Some(Bar::Exactly(lookers as f64)),
        },
    ])
}

pub(super) fn run_kernels(world: &World) -> Result<Vec<Figure>> {
    let (mut figures, mut tested) = (Vec::new(), 0);
    for kernel in [LTS_KERNEL, KERNEL] {
        let rounds = |world: &World| kill_rounds::rounds(world, "user-copy", KILL_ROUNDS);
        let outcome = play_on(world, kernel, "kill-rounds-user-copy", rounds)?;
        outcome.errors.iter().for_each(report::step);
        let series = kernel.series().replace('.', "");
        let under = "ends of the daemon under three file systems and forced writes, user copy";
        figures.extend([
            count(&format!("kernel{series}_rounds"), outcome.rounds, under, KILL_ROUNDS),
            count(&format!("kernel{series}_errors"), outcome.errors.len(), "none", 0),
        ]);
        tested += 1;
    }
    figures.push(count("kernels_tested", tested, "kernels of these rounds", 2));
    Ok(figures)
}

pub(super) fn run_host(world: &World) -> Result<Vec<Figure>> {
    let host = play(world, "host-daemons", |world| host_daemons::rounds(world, ATTACHES, ENDS))?;
    host.foreign.iter().chain(&host.hung).for_each(report::step);
    Ok(vec![
        count("udev_attach_rounds", host.attaches, "while udev, LVM, md, multipath and btrfs run", ATTACHES),
        count("udev_kills", host.ends, "ends of the daemon meanwhile", ENDS),
        count("udev_hung_tasks", host.hung.len(), "none", 0),
        count("udev_foreign_activations", host.foreign.len(), "none", 0),
    ])
}

/// Makes the figure of a count with its exact bar.
fn count(name: &str, value: usize, against: &str, due: usize) -> Figure {
    Figure {
        name: name.to_owned(),
        value: value as f64,
        unit: "count",
        against: against.to_owned(),
        bar: Some(Bar::Exactly(due as f64)),
    }
}

/// Runs a test and returns the figures that it prints on one line.
fn test_figure<T: DeserializeOwned>(world: &World, test: [&str; 4]) -> Result<T> {
    let mut command: Command = world.toolbox().cargo("test");
    command.arg("--workspace").args(test).args(["--nocapture", "--test-threads=2"]);
    let done = command.output().context("run a test")?;
    let said = String::from_utf8_lossy(&done.stdout);
    ensure!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
    let figures = said.lines().find_map(|line| serde_json::from_str(line).ok());
    figures.with_context(|| format!("no figure in {said}"))
}
