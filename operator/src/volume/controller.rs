//! Runs the Volume controller: observe, plan, apply.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use holdfast_cluster::api::call;
use holdfast_cluster::event::Recorder;
use holdfast_crds::{
    ObjectStore, PROVISIONED, READERS_OF, READY, StorageNode, TRACEPARENT, Time, Volume, VolumeSnapshot,
    is_true,
};
use holdfast_log::trash::TrashTerms;
use holdfast_service::{chain, trace};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use tracing::Span;

use super::apply::{VolumeApplier, volume_id};
use super::claim;
use super::facts::{ClusterFacts, StoreFact, WriterInLog};
use super::failover::loss;
use super::failure::VolumeFailure;
use super::faults::FalseConditions;
use super::found_in_store::FoundInStore;
use super::identity::{ClusterIdentity, rival_of};
use super::in_use;
use super::owner;
use super::plan::{OperatorStep, plan};
use super::snapshot_fact::SnapshotFact;
use super::source_fact::SourceFact;
use super::source_volume::is_made_for;
use crate::event::{changes, changes_of_data};
use crate::heartbeats::Heartbeats;
use crate::last_writes::LastWrites;
use crate::metrics::{Metrics, ObjectKind};
use crate::object_store::connect::Connections;
use crate::object_store::trash_terms;
use crate::requeue::{FailureCounts, MAX_AT_A_TIME, RESYNC};
use crate::watch_failure;

/// Resync interval of a volume that is not provisioned.
const UNPROVISIONED: Duration = Duration::from_secs(60);

/// Longest time after its creation during which an unprovisioned Volume adds spans to the creation's trace.
const TRACED_FOR: Duration = Duration::from_secs(600);

/// Wait for the watch to show the last write; it triggers the next reconciliation itself.
const UNSEEN: Duration = Duration::from_secs(1);

/// Time between two looks at a node that has yet to release a volume, and at a Volume to be cloned that is
/// not provisioned yet.
const IN_DOUBT: Duration = Duration::from_secs(10);

/// Dependencies of every reconciliation.
pub(crate) struct VolumeDependencies {
    pub(crate) client: Client,
    pub(crate) connections: Arc<Connections>,
    pub(crate) recorder: Recorder,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) failures: FailureCounts,
    pub(crate) heartbeats: Heartbeats,
    /// The release's namespace.
    pub(crate) namespace: String,
}

/// State shared by reconciliations.
struct VolumeReconciliations {
    context: Arc<VolumeDependencies>,
    cluster: ClusterIdentity,
    volumes: Store<Volume>,
    last_writes: LastWrites,
    faults: FalseConditions,
}

/// Runs until `stop` ends; completes reconciliations in progress.
pub(crate) async fn run(
    context: Arc<VolumeDependencies>,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let client = context.client.clone();
    let controller = Controller::new(Api::<Volume>::all(client.clone()), watcher::Config::default());
    let volumes = controller.store();
    context.metrics.watch_volumes(volumes.clone());
    let counting = in_use::run(client.clone(), context.namespace.clone(), volumes.clone());
    let following = owner::run(client.clone(), volumes.clone());
    let by_store = volumes.clone();
    let by_storage_node = volumes.clone();
    let by_node = volumes.clone();
    let by_snapshot = volumes.clone();
    let shared = Arc::new(VolumeReconciliations {
        context,
        cluster: ClusterIdentity::default(),
        volumes,
        last_writes: LastWrites::default(),
        faults: FalseConditions::default(),
    });
    let work = controller
        .watches(Api::<ObjectStore>::all(client.clone()), watcher::Config::default(), move |store| {
            let name = store.name_any();
            matching(&by_store, move |volume| volume.spec.object_store.as_deref() == Some(name.as_str()))
        })
        .watches(Api::<StorageNode>::all(client.clone()), watcher::Config::default(), move |node| {
            let name = node.name_any();
            matching(&by_storage_node, move |volume| {
                volume.spec.desired_node() == Some(name.as_str()) || is_claimed_by(volume, &name)
            })
        })
        .watches(Api::<VolumeSnapshot>::all(client.clone()), watcher::Config::default(), move |snapshot| {
            let name = snapshot.name_any();
            let volume_id = snapshot.status.and_then(|status| status.volume_id);
            matching(&by_snapshot, move |volume| {
                waits_for_snapshots(volume, volume_id.as_deref()) || waits_for_source(volume, &name)
            })
        })
        .watches(Api::<Node>::all(client), watcher::Config::default(), move |node| {
            let name = node.name_any();
            matching(&by_node, move |volume| is_claimed_by(volume, &name))
        })
        .with_config(Config::default().concurrency(MAX_AT_A_TIME))
        .graceful_shutdown_on(stop)
        .run(reconcile, retry, shared)
        .for_each(|outcome| async move {
            if let Err(error) = outcome {
                watch_failure::log("Volume", &error);
            }
        });
    tokio::select! {
        () = work => {}
        () = counting => {}
        () = following => {}
    }
}

/// Returns true if the Volume is being deleted and waits for the end of its snapshots.
fn waits_for_snapshots(volume: &Volume, volume_id: Option<&str>) -> bool {
    let id = volume.status.as_ref().and_then(|status| status.volume_id.as_deref());
    volume.metadata.deletion_timestamp.is_some() && id.is_some() && id == volume_id
}

/// Returns true if the Volume waits for the VolumeSnapshot of this name, to start from its content.
fn waits_for_source(volume: &Volume, snapshot: &str) -> bool {
    let facts = ClusterFacts { store: StoreFact::Ready, ..ClusterFacts::new(volume) };
    let is_clone = facts.source_in_question().is_some();
    facts.snapshot_in_question() == Some(snapshot)
        || (is_clone && facts.clone_snapshot().as_deref() == Some(snapshot))
}

fn is_claimed_by(volume: &Volume, node: &str) -> bool {
    volume.status.as_ref().is_some_and(|status| status.node.as_deref() == Some(node))
}

fn matching(volumes: &Store<Volume>, matches: impl Fn(&Volume) -> bool) -> Vec<ObjectRef<Volume>> {
    volumes
        .state()
        .iter()
        .filter(|volume| matches(volume))
        .map(|volume| ObjectRef::from_obj(volume.as_ref()))
        .collect()
}

#[tracing::instrument(name = "reconcile_volume", skip_all, fields(volume = %volume.name_any()))]
async fn reconcile(volume: Arc<Volume>, shared: Arc<VolumeReconciliations>) -> Result<Action, VolumeFailure> {
    if let Some(creation) = creation(&volume, Timestamp::now()) {
        trace::continue_in(&Span::current(), creation);
    }
    let timer = shared.context.metrics.start(ObjectKind::Volume);
    let outcome = reconcile_once(volume.as_ref().clone(), &shared).await;
    timer.finish(outcome.as_ref().err().map(VolumeFailure::retry));
    if outcome.is_ok() {
        shared.context.failures.end(&volume.name_any());
    }
    outcome.map(Action::requeue)
}

/// Returns the creation's trace, until the volume is provisioned or the time limit has passed.
fn creation(volume: &Volume, now: Timestamp) -> Option<&str> {
    let conditions = volume.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let created = volume.metadata.creation_timestamp.as_ref()?.0;
    let is_new = now.duration_since(created).unsigned_abs() < TRACED_FOR;
    let creation =
        volume.annotations().get(TRACEPARENT).filter(|_| is_new && !is_true(conditions, PROVISIONED));
    creation.map(String::as_str)
}

/// Plans and applies once. Returns the delay until the next reconciliation of an unchanged volume.
async fn reconcile_once(volume: Volume, shared: &VolumeReconciliations) -> Result<Duration, VolumeFailure> {
    let context = &shared.context;
    if shared.last_writes.is_old(&volume) {
        return Ok(UNSEEN);
    }
    let of_node = shared.faults.changes(&volume);
    let mut facts = ClusterFacts::new(&volume);
    let observed = observe(&volume, &mut facts, shared).await;
    let again = if facts.node_in_doubt().is_some() { IN_DOUBT } else { RESYNC };
    let now = Time(Timestamp::now());
    let before = facts.status.clone();
    let reference = volume.object_ref(&());
    let mut work = VolumeApplier {
        client: context.client.clone(),
        connections: &context.connections,
        cluster: &shared.cluster,
        volume,
    };
    let seen = work.volume.resource_version();
    let outcome = carry_out(&mut work, &facts, observed, &now).await;
    if work.volume.resource_version() != seen {
        shared.last_writes.note(&work.volume);
        if let Err(unknown) = work.volume.spec.check_known() {
            tracing::warn!(volume = %work.volume.name_any(), error = %unknown, "volume left as it is");
        }
    }
    if let Some(after) = &work.volume.status {
        // The other conditions give the reason why it is Ready or not.
        let changes = changes(&before.conditions, &after.conditions).into_iter();
        context.recorder.publish(changes.filter(|change| change.action != READY), &reference).await;
        let of_data = changes_of_data(&before.conditions, &after.conditions);
        let of_claim = of_data.into_iter().chain(of_node).collect();
        claim::publish(of_claim, &work.volume, &context.client, &context.recorder).await;
    }
    outcome?;
    let conditions = work.volume.status.as_ref().map_or(&[][..], |status| &status.conditions);
    // The obstacle to provisioning may be in the store or in another Volume.
    Ok(match (is_true(conditions, PROVISIONED), facts.source_in_question()) {
        (true, _) => again,
        (false, Some(_source)) => IN_DOUBT,
        (false, None) => UNPROVISIONED,
    })
}

async fn carry_out(
    work: &mut VolumeApplier<'_>,
    facts: &ClusterFacts,
    observed: Result<(), VolumeFailure>,
    now: &Time,
) -> Result<(), VolumeFailure> {
    let steps = match observed {
        Ok(()) => plan(facts, now),
        Err(failure) if facts.needs_found() || facts.needs_last_writer() => {
            return report(work, facts, failure, now).await;
        }
        Err(failure) => {
            if facts.needs_log_writer()
                && let Some(status) = failure.ungranted(facts, now)
            {
                work.apply(&OperatorStep::Report(Box::new(status))).await?;
            }
            return Err(failure);
        }
    };
    for step in steps {
        if let Err(failure) = work.apply(&step).await {
            return report(work, facts, failure, now).await;
        }
    }
    Ok(())
}

/// Writes a failure into the status and returns it.
async fn report(
    work: &mut VolumeApplier<'_>,
    facts: &ClusterFacts,
    failure: VolumeFailure,
    now: &Time,
) -> Result<(), VolumeFailure> {
    if let Some(mut status) = failure.status(facts, now) {
        // Keeps recorded fields: otherwise each plan would record them again, without end.
        let recorded = work.volume.status.clone().unwrap_or_default();
        (status.volume_id, status.restored_from) = (recorded.volume_id, recorded.restored_from);
        work.apply(&OperatorStep::Report(Box::new(status))).await?;
    }
    Err(failure)
}

/// Queries only the objects that the plan depends on: a daemon's figures change all the time, and must not
/// cost a request each.
async fn observe(
    volume: &Volume,
    facts: &mut ClusterFacts,
    shared: &VolumeReconciliations,
) -> Result<(), VolumeFailure> {
    let context = &shared.context;
    if volume.spec.check_known().is_err() {
        return Ok(());
    }
    if facts.needs_store() {
        facts.identity.rival = rival_of(volume, shared.volumes.state().iter().map(AsRef::as_ref));
        let stores: Api<ObjectStore> = Api::all(context.client.clone());
        facts.store = match volume.spec.object_store.as_deref() {
            None => StoreFact::None,
            Some(name) => {
                let store = call(stores.get_opt(name)).await.map_err(VolumeFailure::Api)?;
                facts.trash = store.as_ref().and_then(|store| terms(volume, store));
                StoreFact::of(store.as_ref())
            }
        };
    }
    if let Some(name) = facts.snapshot_in_question() {
        let snapshots: Api<VolumeSnapshot> = Api::all(context.client.clone());
        let snapshot = call(snapshots.get_opt(name)).await.map_err(VolumeFailure::Api)?;
        facts.content.snapshot = SnapshotFact::of(snapshot.as_ref());
    }
    observe_source(facts, context).await?;
    if let Some(name) = facts.node_in_doubt() {
        let nodes: Api<Node> = Api::all(context.client.clone());
        let node = call(nodes.get_opt(name)).await.map_err(VolumeFailure::Api)?;
        facts.lost = loss(node.as_ref(), context.heartbeats.is_silent(name));
    }
    if facts.needs_found() {
        let store = context.connections.open(context.client.clone(), facts.store_name()).await?;
        facts.content.found = Some(FoundInStore::read(store.as_ref(), &volume_id(volume)).await?);
    }
    if facts.needs_log_writer() || facts.needs_last_writer() {
        let store = context.connections.open(context.client.clone(), facts.store_name()).await?;
        let (objects, id) = (store.as_ref(), volume_id(volume));
        let read = if facts.needs_log_writer() {
            WriterInLog::read(objects, &id).await
        } else {
            WriterInLog::glance(objects, &id).await
        };
        match read {
            Ok(WriterInLog::Attached(writer)) => facts.log_writer = Some(writer),
            Ok(WriterInLog::Released(epoch)) => facts.released_epoch = Some(epoch),
            Err(failure) if failure.is_damage() && facts.is_removed_damaged() => {}
            Err(failure) => return Err(failure.into()),
        }
    }
    if let Some(name) = facts.node_in_question() {
        let nodes: Api<StorageNode> = Api::all(context.client.clone());
        facts.node_known = call(nodes.get_opt(name)).await.map_err(VolumeFailure::Api)?.is_some();
    }
    Ok(())
}

/// Returns the store's retention terms for the deleted volume; `None` if it is not kept. A reader is a fork
/// of retained data, and has no data of its own.
fn terms(volume: &Volume, store: &ObjectStore) -> Option<TrashTerms> {
    let is_reader = volume.labels().contains_key(READERS_OF);
    Some(trash_terms(store)).filter(|terms| !terms.keep.is_zero() && !is_reader)
}

/// Queries the VolumeSnapshot of a clone and, until it exists, the Volume to snapshot.
async fn observe_source(facts: &mut ClusterFacts, context: &VolumeDependencies) -> Result<(), VolumeFailure> {
    let (Some(source), Some(name)) = (facts.source_in_question(), facts.clone_snapshot()) else {
        return Ok(());
    };
    let source = source.to_owned();
    let snapshots: Api<VolumeSnapshot> = Api::all(context.client.clone());
    let found = call(snapshots.get_opt(&name)).await.map_err(VolumeFailure::Api)?;
    facts.content.is_clone_name_taken =
        found.as_ref().is_some_and(|found| !is_made_for(found, &facts.identity.uid));
    facts.content.snapshot =
        SnapshotFact::of(found.as_ref().filter(|_found| !facts.content.is_clone_name_taken));
    if found.is_none() && facts.status.restored_from.is_none() {
        let volumes: Api<Volume> = Api::all(context.client.clone());
        let volume = call(volumes.get_opt(&source)).await.map_err(VolumeFailure::Api)?;
        facts.content.source = SourceFact::of(volume.as_ref());
    }
    Ok(())
}

fn retry(volume: Arc<Volume>, failure: &VolumeFailure, shared: Arc<VolumeReconciliations>) -> Action {
    let delay = shared.context.failures.delay(&volume.name_any(), failure.retry(), fastrand::f64());
    match failure {
        VolumeFailure::Changed => {
            tracing::debug!(volume = %volume.name_any(), "changed in the meantime, planning again")
        }
        VolumeFailure::Api(_) | VolumeFailure::Connect(_) | VolumeFailure::Log(_) => {
            tracing::warn!(volume = %volume.name_any(), error = %chain(failure), ?delay, "volume not reconciled");
        }
    }
    Action::requeue(delay)
}

#[cfg(test)]
mod tests {
    use holdfast_crds::{ConditionBuilder, ConditionStatus};
    use serde_json::json;

    use super::*;

    /// A nightly backup of many claims would otherwise fill the trash.
    #[test]
    fn a_reader_is_not_kept_in_the_trash() {
        let spec = json!({ "bucket": "bucket", "credentials": { "environment": {} }, "keepDeleted": "24h" });
        let store = ObjectStore::new("store", serde_json::from_value(spec).expect("a spec"));
        let spec = json!({ "size": "1Gi", "objectStore": "store" });
        let mut volume = Volume::new("data", serde_json::from_value(spec).expect("a spec"));
        assert_eq!(terms(&volume, &store).map(|terms| terms.keep), Some(Duration::from_hours(24)));
        volume.labels_mut().insert(READERS_OF.to_owned(), "data".to_owned());
        assert_eq!(terms(&volume, &store), None);
    }

    /// Regression: a never provisioned Volume added a span to the trace every ten seconds, without end.
    #[test]
    fn a_volume_is_in_the_trace_of_its_creation_until_it_is_provisioned() {
        let object = json!({
            "apiVersion": "storage.holdfast.dev/v1alpha1",
            "kind": "Volume",
            "metadata": {
                "name": "v",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "annotations": { TRACEPARENT: "of a request" },
            },
            "spec": { "size": "1Gi", "objectStore": "main" },
        });
        let mut volume: Volume = serde_json::from_value(object).expect("a Volume");
        let at = |text: &str| text.parse::<Timestamp>().expect("a time");
        assert_eq!(creation(&volume, at("2026-01-01T00:09:59Z")), Some("of a request"));
        assert_eq!(creation(&volume, at("2026-01-01T00:10:00Z")), None);
        let now = Time(at("2026-01-01T00:00:01Z"));
        let conditions = ConditionBuilder { previous: &[], observed_generation: Some(1), now: &now };
        let provisioned = conditions.build(PROVISIONED, ConditionStatus::True, "Created", "it exists");
        volume.status.get_or_insert_default().conditions = vec![provisioned];
        assert_eq!(creation(&volume, now.0), None);
    }
}
