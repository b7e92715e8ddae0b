//! Runs the VolumeGroupSnapshot controller: observe, plan, apply.
//!
//! VolumeSnapshots and Volumes are read from the watch caches, without a request: while writes are blocked,
//! the event of the last node triggers a reconciliation that only sends the writes releasing all nodes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use holdfast_cluster::event::Recorder;
use holdfast_crds::{Time, Volume, VolumeGroupSnapshot, VolumeSnapshot};
use holdfast_service::chain;
use holdfast_types::{Backoff, Jitter};
use k8s_openapi::jiff::Timestamp;
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::apply::GroupApplier;
use super::facts::{GroupCluster, GroupFacts, is_finished};
use super::failure::GroupFailure;
use super::member::is_member;
use super::plan::{GroupPlanStep, plan};
use crate::event::changes;
use crate::last_writes::LastWrites;
use crate::metrics::{Metrics, ObjectKind};
use crate::object_store::connect::Connections;
use crate::requeue::{FailureCounts, MAX_AT_A_TIME, RESYNC};
use crate::watch_failure;

/// Wait for the watches to show the last writes; they trigger the next reconciliation themselves.
const UNSEEN: Duration = Duration::from_secs(1);

/// Longest wait of a reconciliation for the first list of VolumeSnapshots and Volumes.
const FIRST_LIST: Duration = Duration::from_secs(5);

/// Delay between a failed attempt and the next one. The jitter separates two groups with the same volumes.
const NEXT_ATTEMPT: Backoff =
    Backoff { first: Duration::from_secs(2), last: Duration::from_secs(60), jitter: Jitter::Half };

/// Dependencies of every reconciliation.
pub(crate) struct GroupDependencies {
    pub(crate) client: Client,
    pub(crate) connections: Arc<Connections>,
    pub(crate) recorder: Recorder,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) failures: FailureCounts,
}

/// State shared by reconciliations.
struct GroupReconciliations {
    context: Arc<GroupDependencies>,
    watched: Watched,
    last_writes: LastWrites,
    pauses: Pauses,
}

/// Cached objects of the watches.
struct Watched {
    snapshots: Store<VolumeSnapshot>,
    volumes: Store<Volume>,
}

impl GroupCluster for Watched {
    fn snapshot(&self, name: &str) -> Option<Arc<VolumeSnapshot>> {
        self.snapshots.get(&ObjectRef::new(name))
    }

    fn snapshots_of(&self, group: &str) -> Vec<Arc<VolumeSnapshot>> {
        self.snapshots.state_filter(|snapshot| snapshot.spec.group.as_deref() == Some(group))
    }

    fn volume(&self, name: &str) -> Option<Arc<Volume>> {
        self.volumes.get(&ObjectRef::new(name))
    }
}

/// Delayed attempts and their start times, by the uid of their group. After a restart, they start at once.
#[derive(Debug, Default)]
struct Pauses(Mutex<HashMap<String, (i64, Instant)>>);

impl Pauses {
    /// Delays this attempt, the second or a later one. `random` is in 0..1.
    fn begin(&self, uid: &str, attempt: i64, random: f64) {
        let now = Instant::now();
        let failed = u32::try_from(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
        let mut pauses = self.0.lock();
        pauses.retain(|_, (_, until)| *until > now);
        pauses.insert(uid.to_owned(), (attempt, now + NEXT_ATTEMPT.delay(failed, random)));
    }

    /// Returns the time until this attempt may begin; `None` if it may begin now.
    fn left(&self, uid: &str, attempt: Option<i64>) -> Option<Duration> {
        let (paused, until) = self.0.lock().get(uid).copied()?;
        let left = until.saturating_duration_since(Instant::now());
        (Some(paused) == attempt && !left.is_zero()).then_some(left)
    }
}

/// Runs until `stop` ends; completes reconciliations in progress.
pub(crate) async fn run(
    context: Arc<GroupDependencies>,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let client = context.client.clone();
    let groups = Api::<VolumeGroupSnapshot>::all(client.clone());
    let controller = Controller::new(groups, watcher::Config::default());
    let (snapshots, snapshot_writer) = reflector::store();
    let (volumes, volume_writer) = reflector::store();
    let snapshot_events = watcher(Api::<VolumeSnapshot>::all(client.clone()), watcher::Config::default())
        .default_backoff()
        .reflect(snapshot_writer)
        .touched_objects();
    let volume_events = watcher(Api::<Volume>::all(client), watcher::Config::default())
        .default_backoff()
        .reflect(volume_writer)
        .touched_objects();
    let by_volume = controller.store();
    let shared = Arc::new(GroupReconciliations {
        context,
        watched: Watched { snapshots, volumes },
        last_writes: LastWrites::default(),
        pauses: Pauses::default(),
    });
    controller
        .watches_stream(snapshot_events, |snapshot| group_of(&snapshot))
        .watches_stream(volume_events, move |volume| {
            let name = volume.name_any();
            // Volumes report constantly, but a taken group does not depend on them.
            let of_volume = |group: &Arc<VolumeGroupSnapshot>| {
                (needs_volumes(group) && group.spec.volumes.contains(&name))
                    .then(|| ObjectRef::from_obj(group.as_ref()))
            };
            by_volume.state().iter().filter_map(of_volume).collect::<Vec<_>>()
        })
        .with_config(Config::default().concurrency(MAX_AT_A_TIME))
        .graceful_shutdown_on(stop)
        .run(reconcile, retry, shared)
        .for_each(|outcome| async move {
            if let Err(error) = outcome {
                watch_failure::log("VolumeGroupSnapshot", &error);
            }
        })
        .await;
}

/// Returns the group of a VolumeSnapshot, or the one that expects a VolumeSnapshot of this name.
fn group_of(snapshot: &VolumeSnapshot) -> Option<ObjectRef<VolumeGroupSnapshot>> {
    let by_name = || {
        let name = snapshot.name_any();
        let (group, _) = name.rsplit_once('-')?.0.rsplit_once('-')?;
        Some(group.to_owned())
    };
    let named = snapshot.spec.group.clone().filter(|_| is_member(snapshot));
    Some(ObjectRef::new(&named.or_else(by_name)?))
}

/// Returns true if the plan for the group depends on its Volumes.
fn needs_volumes(group: &VolumeGroupSnapshot) -> bool {
    !group.status.as_ref().is_some_and(is_finished)
}

#[tracing::instrument(name = "reconcile_group_snapshot", skip_all, fields(group = %group.name_any()))]
async fn reconcile(
    group: Arc<VolumeGroupSnapshot>,
    shared: Arc<GroupReconciliations>,
) -> Result<Action, GroupFailure> {
    let timer = shared.context.metrics.start(ObjectKind::VolumeGroupSnapshot);
    let outcome = reconcile_once(group.as_ref().clone(), &shared).await;
    timer.finish(outcome.as_ref().err().map(GroupFailure::retry));
    if outcome.is_ok() {
        shared.context.failures.end(&group.name_any());
    }
    outcome.map(Action::requeue)
}

/// Plans and applies once. Returns the delay until the next reconciliation of an unchanged group.
async fn reconcile_once(
    group: VolumeGroupSnapshot,
    shared: &GroupReconciliations,
) -> Result<Duration, GroupFailure> {
    let (context, watched) = (&shared.context, &shared.watched);
    let listed =
        async { watched.snapshots.wait_until_ready().await.and(watched.volumes.wait_until_ready().await) };
    if !matches!(timeout(FIRST_LIST, listed).await, Ok(Ok(()))) {
        return Err(GroupFailure::Unseen);
    }
    let mut facts = GroupFacts::new(&group, watched);
    let members = facts.members.iter().map(|member| &member.name);
    let names = members.chain(facts.leftovers.iter().map(|left| &left.name));
    let snapshots: BTreeMap<_, _> =
        names.filter_map(|name| Some((name.clone(), watched.snapshot(name)?))).collect();
    // A version older than our last write would only lead to a conflict.
    let is_old = |object: &Arc<VolumeSnapshot>| shared.last_writes.is_old(object.as_ref());
    if shared.last_writes.is_old(&group) || snapshots.values().any(is_old) {
        return Ok(UNSEEN);
    }
    let uid = group.uid().unwrap_or_default();
    facts.is_paused = shared.pauses.left(&uid, facts.status.attempt).is_some();
    let before = snapshots.clone();
    let (now, reference) = (Time(Timestamp::now()), group.object_ref(&()));
    let seen = group.resource_version();
    let client = context.client.clone();
    let connections = &context.connections;
    let mut work = GroupApplier { client, connections, group, snapshots, paused: None };
    let outcome = carry_out(&mut work, &facts, &now).await;
    if work.group.resource_version() != seen {
        shared.last_writes.note(&work.group);
        if let Err(unknown) = work.group.spec.deletion_policy.check_known() {
            tracing::warn!(group = %work.group.name_any(), error = %unknown, "group snapshot left as it is");
        }
    }
    if let Some(attempt) = work.paused {
        shared.pauses.begin(&uid, attempt, fastrand::f64());
    }
    for (name, after) in &work.snapshots {
        let Some(before) = before.get(name).filter(|before| !Arc::ptr_eq(before, after)) else { continue };
        if before.resource_version() != after.resource_version() {
            shared.last_writes.note(after.as_ref());
        }
        let conditions = |snapshot: &VolumeSnapshot| {
            snapshot.status.as_ref().map_or_else(Vec::new, |status| status.conditions.clone())
        };
        let events = changes(&conditions(before), &conditions(after));
        context.recorder.publish(events, &after.object_ref(&())).await;
    }
    if let Some(after) = &work.group.status {
        context.recorder.publish(changes(&facts.status.conditions, &after.conditions), &reference).await;
    }
    outcome?;
    let attempt = work.group.status.as_ref().and_then(|status| status.attempt);
    Ok(shared.pauses.left(&uid, attempt).unwrap_or(RESYNC))
}

async fn carry_out(work: &mut GroupApplier<'_>, facts: &GroupFacts, now: &Time) -> Result<(), GroupFailure> {
    match apply_all(work, plan(facts, now), facts, now).await {
        // The attempt failed; the plan has the next steps.
        Err(GroupFailure::Touched(volumes)) => {
            let facts = GroupFacts { touched: volumes, ..work.refreshed(facts) };
            apply_all(work, plan(&facts, now), &facts, now).await
        }
        Err(failure) => {
            if let Some(status) = failure.status(&work.refreshed(facts), now) {
                work.apply(&GroupPlanStep::Report(Box::new(status)), facts, now).await?;
            }
            Err(failure)
        }
        Ok(()) => Ok(()),
    }
}

async fn apply_all(
    work: &mut GroupApplier<'_>,
    steps: Vec<GroupPlanStep>,
    facts: &GroupFacts,
    now: &Time,
) -> Result<(), GroupFailure> {
    for step in steps {
        work.apply(&step, facts, now).await?;
    }
    Ok(())
}

fn retry(
    group: Arc<VolumeGroupSnapshot>,
    failure: &GroupFailure,
    shared: Arc<GroupReconciliations>,
) -> Action {
    let name = group.name_any();
    let delay = shared.context.failures.delay(&name, failure.retry(), fastrand::f64());
    if matches!(failure, GroupFailure::Changed) {
        tracing::debug!(group = %name, "changed in the meantime, planning again");
    } else {
        tracing::warn!(group = %name, error = %chain(failure), ?delay, "group snapshot not reconciled");
    }
    Action::requeue(delay)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Two groups of the same volumes that fail in step would make each other fail without end.
    #[tokio::test(start_paused = true)]
    async fn attempts_become_rarer_and_do_not_keep_step() {
        let pauses = Pauses::default();
        let left = |attempt, random| {
            pauses.begin("uid", attempt, random);
            pauses.left("uid", Some(attempt)).expect("it is to wait")
        };
        assert_ne!(left(2, 0.1), left(2, 0.9));
        let waits = [2, 3, 4, 40].map(|attempt| left(attempt, 1.0).as_secs());
        assert_eq!(waits, [2, 4, 8, 60]);
        assert_eq!(pauses.left("uid", Some(39)), None, "of another attempt");
        assert_eq!(pauses.left("other", Some(40)), None);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(pauses.left("uid", Some(40)), None);
    }

    #[test]
    fn an_event_of_a_snapshot_looks_at_its_group() {
        let snapshot = |name: &str, group: Option<&str>, owner: Option<&str>| {
            let spec = json!({ "volume": "data", "group": group });
            let mut snapshot = VolumeSnapshot::new(name, serde_json::from_value(spec).expect("a spec"));
            let owner = owner.map(|name| {
                json!({
                    "apiVersion": "storage.holdfast.dev/v1alpha1", "kind": "VolumeGroupSnapshot",
                    "name": name, "uid": "uid", "controller": true,
                })
            });
            let owner = owner.map(|owner| serde_json::from_value(owner).expect("an owner"));
            snapshot.metadata.owner_references = Some(owner.into_iter().collect());
            group_of(&snapshot).map(|group| group.name)
        };
        assert_eq!(snapshot("my-g-1-0", Some("my-g"), Some("my-g")).as_deref(), Some("my-g"));
        // A group may be waiting for that name.
        assert_eq!(snapshot("my-g-1-0", None, None).as_deref(), Some("my-g"));
        assert_eq!(snapshot("my-g-1-0", Some("other"), None).as_deref(), Some("my-g"));
        assert_eq!(snapshot("plain", None, None), None);
    }
}
