//! Runs the VolumeSnapshot controller: observe, plan, apply.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use holdfast_cluster::api::call;
use holdfast_cluster::event::Recorder;
use holdfast_crds::{Time, Volume, VolumeSnapshot};
use holdfast_service::chain;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};

use super::apply::SnapshotApplier;
use super::facts::{SnapshotFacts, also_of, rival_of};
use super::failure::SnapshotFailure;
use super::plan::plan;
use crate::event::changes;
use crate::group::member::is_member;
use crate::metrics::{Metrics, ObjectKind};
use crate::object_store::connect::Connections;
use crate::requeue::{FailureCounts, MAX_AT_A_TIME, RESYNC};
use crate::watch_failure;

/// Interval at which an object that cannot adopt a snapshot is reconciled until its rival is gone.
const RIVAL_EVERY: Duration = Duration::from_secs(30);

/// Dependencies of every reconciliation.
pub(crate) struct SnapshotDependencies {
    pub(crate) client: Client,
    pub(crate) connections: Arc<Connections>,
    pub(crate) recorder: Recorder,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) failures: FailureCounts,
}

/// Runs until `stop` ends; completes reconciliations in progress.
pub(crate) async fn run(
    context: Arc<SnapshotDependencies>,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let client = context.client.clone();
    let controller = Controller::new(Api::<VolumeSnapshot>::all(client.clone()), watcher::Config::default());
    let (snapshots, all) = (controller.store(), controller.store());
    controller
        .watches(Api::<Volume>::all(client), watcher::Config::default(), move |volume| {
            let name = volume.name_any();
            // Volumes report constantly, but a taken snapshot does not depend on them.
            let of_volume = |snapshot: &Arc<VolumeSnapshot>| {
                (snapshot.spec.volume == name && needs_volume(snapshot))
                    .then(|| ObjectRef::from_obj(snapshot.as_ref()))
            };
            snapshots.state().iter().filter_map(of_volume).collect::<Vec<_>>()
        })
        .with_config(Config::default().concurrency(MAX_AT_A_TIME))
        .graceful_shutdown_on(stop)
        .run(move |snapshot, context| reconcile(snapshot, context, all.clone()), retry, context)
        .for_each(|outcome| async move {
            if let Err(error) = outcome {
                watch_failure::log("VolumeSnapshot", &error);
            }
        })
        .await;
}

/// Returns true if the plan for the snapshot depends on its Volume.
fn needs_volume(snapshot: &VolumeSnapshot) -> bool {
    let is_taken = snapshot.status.as_ref().is_some_and(|status| status.snapshot_id.is_some());
    // The group takes the snapshot.
    let is_left_alone = snapshot.metadata.deletion_timestamp.is_none() && is_member(snapshot);
    !is_taken && !is_left_alone
}

#[tracing::instrument(name = "reconcile_snapshot", skip_all, fields(snapshot = %snapshot.name_any()))]
async fn reconcile(
    snapshot: Arc<VolumeSnapshot>,
    context: Arc<SnapshotDependencies>,
    all: Store<VolumeSnapshot>,
) -> Result<Action, SnapshotFailure> {
    let timer = context.metrics.start(ObjectKind::VolumeSnapshot);
    let outcome = reconcile_once(snapshot.as_ref().clone(), &context, &all).await;
    timer.finish(outcome.as_ref().err().map(SnapshotFailure::retry));
    if outcome.is_ok() {
        context.failures.end(&snapshot.name_any());
    }
    outcome.map(Action::requeue)
}

/// Plans and applies once. Returns the delay until the next reconciliation.
async fn reconcile_once(
    snapshot: VolumeSnapshot,
    context: &SnapshotDependencies,
    all: &Store<VolumeSnapshot>,
) -> Result<Duration, SnapshotFailure> {
    let volumes: Api<Volume> = Api::all(context.client.clone());
    let volume = if needs_volume(&snapshot) {
        call(volumes.get_opt(&snapshot.spec.volume)).await.map_err(SnapshotFailure::Api)?
    } else {
        None
    };
    let mut facts = SnapshotFacts::new(&snapshot, volume.as_ref());
    let others = all.state();
    facts.rival = rival_of(&snapshot, others.iter().map(AsRef::as_ref));
    if facts.deleting {
        facts.also_of = also_of(&snapshot, others.iter().map(AsRef::as_ref));
    }
    if let Some(other) = &facts.also_of {
        tracing::info!(other, "snapshot is kept in the log: another VolumeSnapshot has it");
    }
    let (now, reference) = (Time(Timestamp::now()), snapshot.object_ref(&()));
    let seen = snapshot.resource_version();
    let mut work =
        SnapshotApplier { client: context.client.clone(), connections: &context.connections, snapshot };
    let outcome = work.carry_out(&plan(&facts, &now), &facts, &now).await;
    if let Err(unknown) = work.snapshot.spec.deletion_policy.check_known()
        && work.snapshot.resource_version() != seen
    {
        tracing::warn!(snapshot = %work.snapshot.name_any(), error = %unknown, "snapshot will not be deleted");
    }
    if let Some(after) = &work.snapshot.status {
        context.recorder.publish(changes(&facts.status.conditions, &after.conditions), &reference).await;
    }
    // The deletion of another object does not trigger this one.
    outcome.map(|()| if facts.rival.is_some() { RIVAL_EVERY } else { RESYNC })
}

fn retry(
    snapshot: Arc<VolumeSnapshot>,
    failure: &SnapshotFailure,
    context: Arc<SnapshotDependencies>,
) -> Action {
    let name = snapshot.name_any();
    let delay = context.failures.delay(&name, failure.retry(), fastrand::f64());
    if matches!(failure, SnapshotFailure::Changed) {
        tracing::debug!(snapshot = %name, "changed in the meantime, planning again");
    } else {
        tracing::warn!(snapshot = %name, error = %chain(failure), ?delay, "snapshot not reconciled");
    }
    Action::requeue(delay)
}
