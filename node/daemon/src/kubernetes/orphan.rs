//! Volumes on this node without an object: its finalizer was removed by hand, or the CRD was deleted.
//!
//! Owns: finding and detaching them after their final commit, like the deletion of the object.
//! Runs on: the daemon's tokio runtime.
//! Invariants: a volume is detached only after its object was missing in two consecutive lists, [`APART`]
//! apart, that the API server served from its newest state; a device in use is never detached. Volumes are
//! distinguished by id, which comes from the object's uid: an object recreated under the same name is another
//! volume.
//! On failure: a failed list proves nothing, and resets earlier observations. A list without any volume
//! proves as little: an API server that lost its state, or is not yet restored from its backup, responds with
//! it. It is reported, and all volumes stay served.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_cluster::api::call;
use holdfast_cluster::event::Recorder;
use holdfast_crds::{StorageNode, Volume};
use holdfast_service::tasks::Tasks;
use holdfast_types::{Backoff, VolumeId};
use kube::api::ListParams;
use kube::core::ObjectMeta;
use kube::runtime::events::{Event, EventType};
use kube::runtime::reflector::Store;
use kube::{Api, Client, Resource};
use parking_lot::Mutex;

use super::identity::identity;
use crate::node::{FailureKind, VolumeState};
use crate::volumes::Volumes;

/// Interval between checks.
const LOOK_EVERY: Backoff = Backoff::steady(Duration::from_secs(30));
/// Minimum time between two lists without the object.
const APART: Duration = Duration::from_secs(60);

/// The time since which each volume has had no object.
#[derive(Debug, Default)]
struct Absent(BTreeMap<VolumeId, Instant>);

impl Absent {
    /// Takes the ids of all objects (`None` if the list failed) and returns the orphans among the volumes
    /// `here`.
    fn judge(
        &mut self,
        here: &BTreeSet<VolumeId>,
        listed: Option<&BTreeSet<VolumeId>>,
        now: Instant,
    ) -> Vec<VolumeId> {
        let Some(listed) = listed.filter(|listed| !listed.is_empty()) else {
            self.0.clear();
            return Vec::new();
        };
        self.0.retain(|volume, _since| here.contains(volume) && !listed.contains(volume));
        let absent = here.difference(listed);
        absent
            .filter(|volume| {
                let since = *self.0.entry((*volume).clone()).or_insert(now);
                now.saturating_duration_since(since) >= APART
            })
            .cloned()
            .collect()
    }
}

/// The detaches in progress, one for each orphan.
pub(super) struct Detaches {
    volumes: Arc<Mutex<BTreeSet<VolumeId>>>,
    tasks: Tasks,
}

impl Detaches {
    /// Creates an empty set; detaches will run as tasks of `tasks`.
    pub(super) fn new(tasks: Tasks) -> Self {
        Self { volumes: Arc::default(), tasks }
    }

    /// Starts to detach a volume, unless that is in progress.
    fn begin(&self, volume: VolumeId, detach: impl Future<Output = ()> + Send + 'static) {
        if !self.volumes.lock().insert(volume.clone()) {
            return;
        }
        let volumes = Arc::clone(&self.volumes);
        // Takes as long as its final commit.
        self.tasks.spawn(async move {
            detach.await;
            volumes.lock().remove(&volume);
        });
    }
}

/// Runs until it is dropped. `known` is the state of the watch.
pub(super) async fn run<V: Volumes>(
    client: Client,
    me: String,
    volumes: V,
    known: Store<Volume>,
    recorder: Recorder,
    detaches: Detaches,
) {
    let api: Api<Volume> = Api::all(client.clone());
    let node = StorageNode {
        metadata: ObjectMeta { name: Some(me), ..ObjectMeta::default() },
        ..StorageNode::default()
    };
    let events = NodeEvents { recorder, node };
    let mut absent = Absent::default();
    let mut is_reported = false;
    loop {
        tokio::time::sleep(LOOK_EVERY.delay(1, fastrand::f64())).await;
        let served_here = served(&volumes);
        let watched = known.state();
        if served_here.is_subset(&ids(watched.iter().map(AsRef::as_ref))) {
            (absent, is_reported) = (Absent::default(), false);
            continue;
        }
        // The watch may be stale: a list without a resource version is served from the newest state.
        let listed = match call(api.list(&ListParams::default())).await {
            Ok(list) => Some(ids(&list.items)),
            Err(error) => {
                tracing::debug!(
                    error = holdfast_service::chain(&error),
                    "the search for volumes without an object failed"
                );
                None
            }
        };
        if !is_reported && listed.as_ref().is_some_and(BTreeSet::is_empty) {
            events.publish(none_listed(&served_here)).await;
            is_reported = true;
        }
        for volume in absent.judge(&served_here, listed.as_ref(), Instant::now()) {
            let (volumes, events) = (volumes.clone(), events.clone());
            detaches.begin(volume.clone(), async move { detach(&volumes, &volume, &events).await });
        }
    }
}

/// Returns the ids of these objects; one that the operator has not seen yet has none.
fn ids<'a>(volumes: impl IntoIterator<Item = &'a Volume>) -> BTreeSet<VolumeId> {
    volumes.into_iter().filter_map(identity).collect()
}

/// Returns this node's volumes without an operation in progress. Volumes attached by a user do not belong to
/// Kubernetes: a detach would drop their content.
fn served<V: Volumes>(volumes: &V) -> BTreeSet<VolumeId> {
    let is_idle = |state| match state {
        VolumeState::Attached | VolumeState::Fenced | VolumeState::Unserved => true,
        VolumeState::Attaching | VolumeState::Detaching | VolumeState::Recovering | VolumeState::Quiesced => {
            false
        }
    };
    volumes
        .list()
        .into_iter()
        .filter(|here| !here.is_attached_by_user())
        .filter(|here| is_idle(here.state))
        .map(|here| here.volume)
        .collect()
}

async fn detach<V: Volumes>(volumes: &V, volume: &VolumeId, events: &NodeEvents) {
    tracing::warn!(%volume, "the Volume object was gone; the volume is detached after its last commit");
    let is_memory = volumes.list().iter().any(|here| here.volume == *volume && here.memory.is_some());
    let (type_, reason, message) = match volumes.detach(volume).await {
        Ok(()) if is_memory => (
            EventType::Normal,
            "OrphanDetached",
            format!(
                "volume {volume} no longer had a Volume object. It was detached, and its content dropped"
            ),
        ),
        Ok(()) => (
            EventType::Normal,
            "OrphanDetached",
            format!(
                "volume {volume} no longer had a Volume object. It was committed and detached; its data stays in the store"
            ),
        ),
        Err(failure) if failure.kind == FailureKind::Fenced => (
            EventType::Warning,
            "OrphanDetached",
            format!("volume {volume} no longer had a Volume object. {failure}"),
        ),
        Err(failure) => (
            EventType::Warning,
            "OrphanInUse",
            format!("volume {volume} no longer has a Volume object, and is still served here. {failure}"),
        ),
    };
    tracing::warn!(%volume, reason, message);
    events.publish(event(type_, reason, message)).await;
}

/// Builds the event for an API server that lists no volume at all.
fn none_listed(here: &BTreeSet<VolumeId>) -> Event {
    let names: Vec<&str> = here.iter().map(VolumeId::as_str).collect();
    let message = format!(
        "the API server has no Volume with an id, and this node serves {}. They stay served. If the API server lost its database, \
         restore that from a backup. Else create any Volume: within three minutes after it has an id, this node detaches each of \
         these volumes whose device is not in use",
        names.join(", ")
    );
    tracing::warn!(message);
    event(EventType::Warning, "NoVolumesListed", message)
}

fn event(type_: EventType, reason: &str, message: String) -> Event {
    Event {
        type_,
        reason: reason.to_owned(),
        note: Some(message),
        action: reason.to_owned(),
        secondary: None,
    }
}

/// Recorder of events about orphans: published for the node, because an orphan has no object.
#[derive(Clone)]
struct NodeEvents {
    recorder: Recorder,
    node: StorageNode,
}

impl NodeEvents {
    async fn publish(&self, event: Event) {
        self.recorder.publish([event], &self.node.object_ref(&())).await;
    }
}

#[cfg(test)]
mod tests {
    use holdfast_crds::VolumeStatus;

    use super::*;

    fn named(names: &[&str]) -> BTreeSet<VolumeId> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    /// Regression: a device whose object was deleted stayed until the host restarted: a controller is never
    /// called for a deleted object.
    #[test]
    fn an_object_that_is_missing_twice_makes_an_orphan() {
        let (start, mut absent) = (Instant::now(), Absent::default());
        let here = named(&["a", "b"]);
        let mut judge = |listed: Option<&[&str]>, seconds| {
            let listed = listed.map(named);
            absent.judge(&here, listed.as_ref(), start + Duration::from_secs(seconds))
        };
        let none: Vec<VolumeId> = Vec::new();
        let b: Vec<VolumeId> = named(&["b"]).into_iter().collect();
        assert_eq!(judge(Some(&["a"]), 0), none, "seen once");
        assert_eq!(judge(Some(&["a"]), 30), none, "too soon");
        assert_eq!(judge(Some(&["a"]), 60), b);
        assert_eq!(judge(Some(&["a"]), 90), b, "until it is gone");
        assert_eq!(judge(None, 91), none, "a list that failed proves nothing");
        assert_eq!(judge(Some(&["a"]), 92), none, "and what was seen before it counts no more");
        assert_eq!(judge(Some(&["a", "b"]), 150), none, "it came back");
        assert_eq!(judge(Some(&["a"]), 160), none);
        assert_eq!(judge(Some(&["a"]), 220), b);
        assert_eq!(judge(Some(&["c"]), 230), b, "a is missing for the first time");
    }

    /// Regression, found in review: an API server that lost its state, or was not yet restored, had every
    /// idle volume detached.
    #[test]
    fn a_list_without_any_volume_makes_no_orphans() {
        let (start, mut absent, here) = (Instant::now(), Absent::default(), named(&["a", "b"]));
        let mut judge = |listed: &[&str], seconds| {
            absent.judge(&here, Some(&named(listed)), start + Duration::from_secs(seconds))
        };
        let none: Vec<VolumeId> = Vec::new();
        for seconds in [0, 60, 600] {
            assert_eq!(judge(&[], seconds), none);
        }
        assert_eq!(judge(&["a"], 601), none, "b is missing since now");
        assert_eq!(judge(&[], 630), none);
        assert_eq!(judge(&["a"], 661), none, "and since now again");
        assert_eq!(judge(&["a"], 721).len(), 1);
        let note = none_listed(&here).note.unwrap();
        for part in ["serves a, b", "stay served", "restore that from a backup", "create any Volume"] {
            assert!(note.contains(part), "{note}");
        }
    }

    #[test]
    fn an_object_created_again_under_its_name_is_another_volume() {
        let object = |id: Option<&str>| {
            let spec = serde_json::json!({ "size": "1Gi", "objectStore": "main" });
            let mut volume = Volume::new("data", serde_json::from_value(spec).unwrap());
            volume.status =
                id.map(|id| VolumeStatus { volume_id: Some(id.to_owned()), ..VolumeStatus::default() });
            volume
        };
        let (start, here) = (Instant::now(), named(&["first"]));
        let other = Volume {
            metadata: ObjectMeta { name: Some("other".to_owned()), ..ObjectMeta::default() },
            ..object(Some("second"))
        };
        for (again, orphans) in [(Some("first"), 0), (Some("third"), 1), (None, 1)] {
            let listed = ids(&[object(again), other.clone()]);
            let mut absent = Absent::default();
            absent.judge(&here, Some(&listed), start);
            assert_eq!(absent.judge(&here, Some(&listed), start + APART).len(), orphans, "{again:?}");
        }
    }

    /// Regression, found in review: each continued to run while the node was being shut down.
    #[tokio::test]
    async fn detaches_of_orphans_end_with_their_owner() {
        let (tasks, held) = (Tasks::new(), Arc::new(()));
        let detaches = Detaches::new(tasks.clone());
        let begin = |held: Arc<()>| {
            detaches.begin("a".parse().unwrap(), async move {
                let _held = held;
                std::future::pending().await
            });
        };
        begin(held.clone());
        begin(held.clone());
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&held), 2, "one at a time");
        tasks.stop().await;
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[test]
    fn what_is_being_attached_or_recovered_is_no_orphan() {
        use crate::node::NodeVolumeStatus;
        use crate::volumes::tests::{Fake, attached, in_memory};
        let fake = Fake::default();
        for (name, state) in [
            ("attached", VolumeState::Attached),
            ("attaching", VolumeState::Attaching),
            ("detaching", VolumeState::Detaching),
            ("fenced", VolumeState::Fenced),
            ("recovering", VolumeState::Recovering),
            ("quiesced", VolumeState::Quiesced),
            ("unserved", VolumeState::Unserved),
        ] {
            fake.put(NodeVolumeStatus { state, ..attached(name) });
        }
        for (name, owner) in [("of-a-volume", Some("uid")), ("of-a-person", None)] {
            fake.put(in_memory(name, owner, 1_800_000_000));
        }
        assert_eq!(served(&fake), named(&["attached", "fenced", "of-a-volume", "unserved"]));
    }
}
