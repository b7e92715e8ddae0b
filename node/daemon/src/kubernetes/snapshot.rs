//! Takes the VolumeSnapshots that the operator requests of this node: those of volumes that are served here.
//!
//! Owns: `status.snapshotId`, `status.takenTime`, `status.sizeBytes`, `status.groupProgress` and the
//! condition `Ready` of a VolumeSnapshot whose `status.node` is this node.
//! Does not own: the choice of the node that takes a snapshot, or its deletion (the operator).
//! Invariants: a requested snapshot is taken even if its deletion is requested in the meantime, because an
//! earlier process may have started it; a repeated request returns the same snapshot.
//! On failure: the condition has the reason, and it is retried. Snapshots wait for their own volume only.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use holdfast_cluster::api::{ApiError, call};
use holdfast_cluster::event::{Recorder, changed_conditions, event};
use holdfast_crds::{
    ByteSize, ConditionBuilder, ConditionStatus, GroupProgress, NODE_FIELD_MANAGER, READY, Time,
    VolumeSnapshot, VolumeSnapshotStatus, find_condition,
};
use holdfast_format::snapshot::Snapshot;
use holdfast_service::chain;
use holdfast_types::{Backoff, SECTOR_BYTES, SnapshotUid, VolumeId};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::events::EventType;
use kube::runtime::reflector::Store;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;

use super::member::{self, AGAIN, MemberStep, PreparedCuts, StepOutcome};
use super::retry::OperationFailure;
use crate::node::{CutStep, VolumeInStore};
use crate::volumes::Volumes;

/// Time until a snapshot is examined again after the API server failed.
const API_RETRY: Backoff = Backoff::steady(Duration::from_secs(5));
/// Retry interval while its volume is not here: the operator is about to write the new node.
const NOT_HERE: Duration = Duration::from_secs(10);

/// Time after which failures are forgotten; longer than between two failures of one snapshot.
const FORGOTTEN_AFTER: Duration = Duration::from_hours(1);

/// Context of every reconciliation.
struct SnapshotContext<V> {
    client: Client,
    me: String,
    volumes: V,
    recorder: Recorder,
    /// Consecutive failures of each snapshot, and the time of the last one.
    failures: Mutex<HashMap<SnapshotUid, (u32, Instant)>>,
    /// The VolumeSnapshots whose `status.node` is this node.
    mine: Store<VolumeSnapshot>,
    prepared: PreparedCuts,
}

/// Runs until it is dropped: the next process receives pending requests again.
pub(crate) async fn run<V: Volumes>(client: Client, me: String, volumes: V) {
    let mine = watcher::Config::default().fields(&format!("status.node={me}"));
    let recorder = Recorder::new(client.clone(), "holdfast-node", &me);
    let controller = Controller::new(Api::<VolumeSnapshot>::all(client.clone()), mine);
    let context = SnapshotContext {
        client,
        me,
        volumes,
        recorder,
        failures: Mutex::default(),
        mine: controller.store(),
        prepared: PreparedCuts::default(),
    };
    // As many concurrently as the operator requests: those with an unreachable store do not block the others.
    // A volume rejects those that exceed its limit.
    controller
        .run(reconcile, retry, Arc::new(context))
        .for_each(|outcome| async move {
            if let Err(error) = outcome {
                tracing::debug!(%error, "snapshot controller");
            }
        })
        .await;
}

#[tracing::instrument(name = "reconcile_snapshot", skip_all, fields(snapshot = %snapshot.name_any()))]
async fn reconcile<V: Volumes>(
    snapshot: Arc<VolumeSnapshot>,
    context: Arc<SnapshotContext<V>>,
) -> Result<Action, ApiError> {
    let Some((volume, uid, task)) = asked(&snapshot, &context.me) else { return Ok(Action::await_change()) };
    if !context.volumes.list().iter().any(|here| here.volume == volume) {
        return Ok(Action::requeue(NOT_HERE));
    }
    let volumes = &context.volumes;
    let outcome = match task {
        MemberStep::Take => {
            let at = VolumeInStore { volume: volume.clone(), store: None };
            let taken = volumes.create_snapshot(at, uid).await;
            taken.map_or_else(|failure| StepOutcome::Failed(failure.into()), StepOutcome::Taken)
        }
        MemberStep::Announce => StepOutcome::Reached(GroupProgress::Preparing),
        MemberStep::Cut(CutStep::Prepare) => {
            let is_asked = |uid| context.mine.find(|known| uid_of(known) == Some(uid)).is_some();
            context.prepared.add(volumes, &volume, uid, is_asked).await;
            member::cut(volumes, &volume, uid, CutStep::Prepare).await
        }
        MemberStep::Cut(step @ (CutStep::Hold | CutStep::Release)) => {
            member::cut(volumes, &volume, uid, step).await
        }
        MemberStep::StayPrepared => member::stay_prepared(volumes, &volume, uid).await,
        MemberStep::Await => member::taken(volumes, &volume, uid).await,
    };
    let again = count(&mut context.failures.lock(), uid, &outcome);
    let before = snapshot.status.clone().unwrap_or_default();
    let generation = snapshot.metadata.generation;
    let status = report(&before, generation, &volume, outcome, &Time(Timestamp::now()));
    if says_more(&before, &status) {
        write(&snapshot, &status, &context).await?;
    }
    Ok(again.map_or_else(Action::await_change, Action::requeue))
}

/// Returns the time until the next attempt; `None` once the step is complete.
fn count(
    failures: &mut HashMap<SnapshotUid, (u32, Instant)>,
    uid: SnapshotUid,
    outcome: &StepOutcome,
) -> Option<Duration> {
    let failure = match outcome {
        StepOutcome::Failed(failure) => failure,
        StepOutcome::Taken(_) | StepOutcome::Reached(_) => {
            failures.remove(&uid);
            let ends =
                [GroupProgress::Prepared, GroupProgress::Held].map(StepOutcome::Reached).contains(outcome);
            return ends.then_some(AGAIN);
        }
    };
    let now = Instant::now();
    // A snapshot that was deleted before it was taken is not examined again.
    failures.retain(|_, (_, at)| now.duration_since(*at) < FORGOTTEN_AFTER);
    let (count, at) = failures.entry(uid).or_insert((0, now));
    (*count, *at) = (count.saturating_add(1), now);
    Some(failure.retry.delay(*count, fastrand::f64()))
}

/// Returns volume and uid of the snapshot that node `me` must take, and the next step.
fn asked(snapshot: &VolumeSnapshot, me: &str) -> Option<(VolumeId, SnapshotUid, MemberStep)> {
    let status = snapshot.status.as_ref()?;
    if status.snapshot_id.is_some() || status.node.as_deref() != Some(me) {
        return None;
    }
    let task = if snapshot.spec.group.is_some() { member::next(status)? } else { MemberStep::Take };
    Some((status.volume_id.clone()?.try_into().ok()?, uid_of(snapshot)?, task))
}

fn uid_of(snapshot: &VolumeSnapshot) -> Option<SnapshotUid> {
    snapshot.metadata.uid.as_ref()?.parse().ok()
}

/// Returns the daemon's part of the status.
fn report(
    before: &VolumeSnapshotStatus,
    generation: Option<i64>,
    volume: &VolumeId,
    outcome: StepOutcome,
    now: &Time,
) -> VolumeSnapshotStatus {
    let conditions = ConditionBuilder { previous: &before.conditions, observed_generation: generation, now };
    // Fields that are not written again are removed from the object.
    let group_progress = before.group_progress;
    match outcome {
        StepOutcome::Taken(Snapshot { seq, unix_ms, sectors, uid: _ }) => {
            let at = i64::try_from(unix_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
            let message = "the snapshot holds the volume's content at one point, as after a power cut";
            VolumeSnapshotStatus {
                snapshot_id: Some(format!("{volume}@{seq}")),
                taken_time: at.map(Time),
                size_bytes: Some(sectors * SECTOR_BYTES),
                size: Some(ByteSize(sectors * SECTOR_BYTES).to_string()),
                conditions: vec![conditions.build(READY, ConditionStatus::True, "Taken", message)],
                group_progress,
                ..VolumeSnapshotStatus::default()
            }
        }
        StepOutcome::Reached(progress) => VolumeSnapshotStatus {
            conditions: vec![conditions.build(
                READY,
                ConditionStatus::False,
                "Taking",
                member::message(progress),
            )],
            group_progress: Some(progress),
            ..VolumeSnapshotStatus::default()
        },
        StepOutcome::Failed(OperationFailure { reason, message, retry: _ }) => VolumeSnapshotStatus {
            group_progress,
            conditions: vec![conditions.build(READY, ConditionStatus::False, reason, message)],
            ..VolumeSnapshotStatus::default()
        },
    }
}

/// Returns true if `status` has information that `before` lacks.
fn says_more(before: &VolumeSnapshotStatus, status: &VolumeSnapshotStatus) -> bool {
    let ready = |status: &VolumeSnapshotStatus| find_condition(&status.conditions, READY).cloned();
    status.snapshot_id != before.snapshot_id
        || status.group_progress != before.group_progress
        || ready(status) != ready(before)
}

/// Writes the status. The resource version makes this fail if the operator has asked another node.
async fn write<V>(
    snapshot: &VolumeSnapshot,
    status: &VolumeSnapshotStatus,
    context: &SnapshotContext<V>,
) -> Result<(), ApiError> {
    let name = snapshot.name_any();
    let patch = json!({
        "apiVersion": VolumeSnapshot::api_version(&()),
        "kind": VolumeSnapshot::kind(&()),
        "metadata": { "name": name, "resourceVersion": snapshot.resource_version() },
        "status": status,
    });
    let api: Api<VolumeSnapshot> = Api::all(context.client.clone());
    let params = PatchParams::apply(NODE_FIELD_MANAGER).force();
    let written = call(api.patch_status(&name, &params, &Patch::Apply(patch))).await?;
    let before = snapshot.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let after = written.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let kind = |turned: &str| if turned == "True" { EventType::Normal } else { EventType::Warning };
    let events: Vec<_> = changed_conditions(before, after).map(|new| event(new, kind(&new.status))).collect();
    context.recorder.publish(events, &snapshot.object_ref(&())).await;
    Ok(())
}

fn retry<V>(snapshot: Arc<VolumeSnapshot>, error: &ApiError, _context: Arc<SnapshotContext<V>>) -> Action {
    if error.is_stale() {
        // The watch delivers the change.
        return Action::requeue(Duration::from_secs(1));
    }
    tracing::warn!(snapshot = snapshot.name_any(), error = chain(error), "snapshot not reported");
    Action::requeue(API_RETRY.delay(1, fastrand::f64()))
}

#[cfg(test)]
mod tests {
    use holdfast_types::Seq;

    use super::*;
    use crate::kubernetes::retry::Retry;

    const UID: &str = "0189f7e0-5c2b-7cc3-9d1e-0242ac120002";

    fn snapshot(status: &serde_json::Value) -> VolumeSnapshot {
        let spec = serde_json::from_value(json!({ "volume": "data" })).expect("a spec");
        let mut snapshot = VolumeSnapshot::new("before", spec);
        snapshot.metadata.uid = Some(UID.to_owned());
        snapshot.status = Some(serde_json::from_value(status.clone()).expect("a status"));
        snapshot
    }

    /// This includes one whose deletion is requested: an earlier process may have started it.
    #[test]
    fn a_node_takes_what_it_is_asked_for() {
        let mine = json!({ "volumeId": "v", "objectStore": "main", "node": "a" });
        let mut wanted = snapshot(&mine);
        wanted.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        let expected = ("v".parse().expect("an id"), UID.parse().expect("a uid"), MemberStep::Take);
        assert_eq!(asked(&wanted, "a"), Some(expected));
        assert_eq!(asked(&wanted, "b"), None);
        let mut taken = mine;
        taken["snapshotId"] = json!("v@7");
        assert_eq!(asked(&snapshot(&taken), "a"), None);
        assert_eq!(asked(&snapshot(&json!({ "volumeId": "v" })), "a"), None);
    }

    #[test]
    fn a_report_says_what_was_taken_or_why_not() {
        let (now, volume) = (Time(Timestamp::UNIX_EPOCH), "v".parse().expect("an id"));
        let failure =
            OperationFailure { reason: "Busy", message: "it waits".to_owned(), retry: Retry::Later };
        let before = VolumeSnapshotStatus::default();
        let failed = report(&before, Some(1), &volume, StepOutcome::Failed(failure.clone()), &now);
        assert_eq!((failed.conditions[0].reason.as_str(), &failed.snapshot_id), ("Busy", &None));
        assert!(says_more(&before, &failed));
        assert!(
            !says_more(&failed, &report(&failed, Some(1), &volume, StepOutcome::Failed(failure), &now)),
            "said already"
        );
        let taken = Snapshot { seq: Seq(7), uid: UID.parse().expect("a uid"), unix_ms: 5000, sectors: 16 };
        let status = report(&failed, Some(1), &volume, StepOutcome::Taken(taken), &now);
        assert!(says_more(&failed, &status));
        assert_eq!(status.snapshot_id.as_deref(), Some("v@7"));
        assert_eq!(status.size_bytes, Some(16 * SECTOR_BYTES));
        assert_eq!(status.taken_time, Timestamp::from_second(5).ok().map(Time));
        assert_eq!(status.conditions[0].status, "True");
    }

    #[test]
    fn attempts_become_rarer_until_it_is_taken() {
        let uid = UID.parse().expect("a uid");
        let failure = OperationFailure { reason: "Busy", message: String::new(), retry: Retry::Later };
        let mut failures = HashMap::new();
        let failed = StepOutcome::Failed(failure);
        let first = count(&mut failures, uid, &failed).expect("again");
        let third = (0..2).filter_map(|_| count(&mut failures, uid, &failed)).last();
        assert!(third.is_some_and(|third| third > first));
        let taken = Snapshot { seq: Seq(7), uid, unix_ms: 0, sectors: 8 };
        assert_eq!(count(&mut failures, uid, &StepOutcome::Taken(taken)), None);
        assert!(failures.is_empty());
    }
}
