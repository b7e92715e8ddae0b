//! Kubernetes' own tests of storage drivers, on a cluster with the chart.

use anyhow::{Context, Result};
use holdfast_lab::cluster::{Cluster, ClusterStore, Extras};
use holdfast_lab::external_storage::{self, SpecOutcome, Suite};
use holdfast_lab::report;
use holdfast_lab::world::World;

use super::{Bar, Figure};

/// Name of bucket, ObjectStore, StorageClass and VolumeSnapshotClass.
const STORE: &str = "main";
/// Variable with a regular expression: only specs whose name matches it run.
const SPECS: &str = "HOLDFAST_SPECS";
/// Minimum number of passed specs when all run.
const LEAST_PASSED: f64 = 60.0;

pub(super) fn run(world: &World) -> Result<Vec<Figure>> {
    let chosen = std::env::var(SPECS).ok().filter(|chosen| !chosen.is_empty());
    let toolbox = world.toolbox();
    let s3 = world.s3()?;
    s3.create_bucket(STORE)?;
    let suite = Suite::prepare(toolbox)?;
    let extras = Extras { snapshots: true, images: external_storage::images(toolbox)?, ..Extras::default() };
    let cluster = Cluster::start_with(world, &extras)?;
    cluster.install(&ClusterStore { name: STORE, bucket: STORE, endpoint: &s3.endpoint_in_vm() })?;
    cluster.relax_probes()?;
    let specs = suite.run(world, STORE, chosen.as_deref()).with_context(|| cluster.describe())?;

    let named = |outcome: SpecOutcome| specs.iter().filter(move |spec| spec.outcome == outcome);
    let words =
        [(SpecOutcome::Passed, "passed"), (SpecOutcome::Skipped, "skipped"), (SpecOutcome::Failed, "failed")];
    for (outcome, word) in words {
        for spec in named(outcome) {
            let line = format!("{word}: {} {}", spec.name, spec.reason);
            report::line(line.trim_end());
        }
    }
    let most_failed = Some(Bar::Exactly(0.0));
    let least_passed = chosen.is_none().then_some(Bar::AtLeast(LEAST_PASSED));
    let of = if chosen.is_some() { "those that HOLDFAST_SPECS chooses" } else { "all specs of the suite" };
    let figure = |name: &str, outcome, bar| Figure {
        name: format!("external_storage_{name}"),
        value: f64::from(u32::try_from(named(outcome).count()).unwrap_or(u32::MAX)),
        unit: "specs",
        against: of.to_owned(),
        bar,
    };
    Ok(vec![
        figure("passed", SpecOutcome::Passed, least_passed),
        figure("failed", SpecOutcome::Failed, most_failed),
        figure("skipped", SpecOutcome::Skipped, None),
    ])
}
