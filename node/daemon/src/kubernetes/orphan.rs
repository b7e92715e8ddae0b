//! Volumes on this node that have no object any more: a finalizer was removed by hand, or the kind itself.
//!
//! Owns: finding them, and detaching them after their last commit, as the deletion of the object would have.
//! Runs on: the daemon's tokio runtime.
//! Invariants: a volume is detached only after its object was missing in two lists in a row, [`APART`] from each other, that the
//! API server answered from its newest state; a device that is in use is never detached.
//! On failure: a list that failed proves nothing, and what was seen before it counts no more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use holdfast_crds::{StorageNode, Volume};
use holdfast_types::VolumeId;
use kube::api::ListParams;
use kube::core::ObjectMeta;
use kube::runtime::events::{Event, EventType};
use kube::runtime::reflector::Store;
use kube::{Api, Client, Resource};

use super::api::call;
use super::event::Recorder;
use super::volume::identity;
use crate::node::{ErrorKind, VolumeState};
use crate::volumes::Volumes;

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// How far two lists without the object are from each other, at least.
const APART: Duration = Duration::from_secs(60);

/// Since when each volume has had no object.
#[derive(Debug, Default)]
struct Absent(BTreeMap<VolumeId, Instant>);

impl Absent {
    /// Takes a list of all objects (nothing if it failed) and returns which of the volumes `here` are orphans.
    fn judge(
        &mut self,
        here: &BTreeSet<VolumeId>,
        listed: Option<&BTreeSet<VolumeId>>,
        now: Instant,
    ) -> Vec<VolumeId> {
        let Some(listed) = listed else {
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

/// Looks for as long as it is not dropped. `known` is what the watch has brought.
pub(super) async fn run<V: Volumes>(
    client: Client,
    me: String,
    volumes: V,
    known: Store<Volume>,
    recorder: Recorder,
) {
    let api: Api<Volume> = Api::all(client.clone());
    let node = StorageNode {
        metadata: ObjectMeta { name: Some(me), ..ObjectMeta::default() },
        ..StorageNode::default()
    };
    let tell = Tell { recorder, node };
    let mut absent = Absent::default();
    let being_detached = Arc::new(Mutex::new(BTreeSet::new()));
    loop {
        tokio::time::sleep(LOOK_EVERY.mul_f64(0.8 + 0.4 * fastrand::f64())).await;
        let here = served(&volumes);
        let watched: BTreeSet<VolumeId> =
            known.state().iter().filter_map(|volume| identity(volume)).collect();
        if here.is_subset(&watched) {
            absent = Absent::default();
            continue;
        }
        // The watch may be old: a list without a resource version is answered from the newest state.
        let listed = call(api.list(&ListParams::default())).await;
        let listed = listed.map(|list| list.items.iter().filter_map(identity).collect());
        if let Err(error) = &listed {
            tracing::debug!(
                error = crate::failure::chain(error),
                "volumes without an object were not looked for"
            );
        }
        for volume in absent.judge(&here, listed.ok().as_ref(), Instant::now()) {
            let is_new = being_detached.lock().unwrap_or_else(PoisonError::into_inner).insert(volume.clone());
            if is_new {
                let (volumes, tell, being_detached) =
                    (volumes.clone(), tell.clone(), Arc::clone(&being_detached));
                // For as long as its last commit takes.
                tokio::spawn(async move {
                    detach(&volumes, &volume, &tell).await;
                    being_detached.lock().unwrap_or_else(PoisonError::into_inner).remove(&volume);
                });
            }
        }
    }
}

/// The volumes of this node that nothing is being done with.
fn served<V: Volumes>(volumes: &V) -> BTreeSet<VolumeId> {
    let is_idle = |state| match state {
        VolumeState::Attached | VolumeState::Fenced => true,
        VolumeState::Attaching | VolumeState::Detaching | VolumeState::Quiesced => false,
    };
    volumes.list().into_iter().filter(|here| is_idle(here.state)).map(|here| here.volume).collect()
}

async fn detach<V: Volumes>(volumes: &V, volume: &VolumeId, tell: &Tell) {
    tracing::warn!(%volume, "the Volume object was gone; the volume is detached after its last commit");
    let (type_, reason, message) = match volumes.detach(volume).await {
        Ok(()) => (
            EventType::Normal,
            "OrphanDetached",
            format!(
                "volume {volume} had no Volume object any more. It was committed and detached; its data stays in the store"
            ),
        ),
        Err(failure) if failure.kind == ErrorKind::Fenced => (
            EventType::Warning,
            "OrphanDetached",
            format!("volume {volume} had no Volume object any more. {failure}"),
        ),
        Err(failure) => (
            EventType::Warning,
            "OrphanInUse",
            format!("volume {volume} has no Volume object any more and is still served here. {failure}"),
        ),
    };
    tracing::warn!(%volume, reason, message);
    tell.event(Event {
        type_,
        reason: reason.to_owned(),
        note: Some(message),
        action: reason.to_owned(),
        secondary: None,
    })
    .await;
}

/// Where orphans are told of: at the node, for they have no object.
#[derive(Clone)]
struct Tell {
    recorder: Recorder,
    node: StorageNode,
}

impl Tell {
    async fn event(&self, event: Event) {
        self.recorder.publish(&event, &self.node.object_ref(&())).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(names: &[&str]) -> BTreeSet<VolumeId> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    /// A device whose object was gone stayed until the host restarted: a controller is never called for an object that is gone.
    #[test]
    fn an_object_that_is_missing_twice_makes_an_orphan() {
        let (start, mut absent) = (Instant::now(), Absent::default());
        let here = ids(&["a", "b"]);
        let mut judge = |listed: Option<&[&str]>, seconds| {
            let listed = listed.map(ids);
            absent.judge(&here, listed.as_ref(), start + Duration::from_secs(seconds))
        };
        let none: Vec<VolumeId> = Vec::new();
        let b: Vec<VolumeId> = ids(&["b"]).into_iter().collect();
        assert_eq!(judge(Some(&["a"]), 0), none, "seen once");
        assert_eq!(judge(Some(&["a"]), 30), none, "too soon");
        assert_eq!(judge(Some(&["a"]), 60), b);
        assert_eq!(judge(Some(&["a"]), 90), b, "until it is gone");
        assert_eq!(judge(None, 91), none, "a list that failed proves nothing");
        assert_eq!(judge(Some(&["a"]), 92), none, "and what was seen before it counts no more");
        assert_eq!(judge(Some(&["a", "b"]), 150), none, "it came back");
        assert_eq!(judge(Some(&["a"]), 160), none);
        assert_eq!(judge(Some(&["a"]), 220), b);
        assert_eq!(judge(Some(&[]), 230), b, "a is missing for the first time");
    }

    #[test]
    fn what_is_being_attached_or_recovered_is_no_orphan() {
        use crate::volumes::tests::{Fake, attached};
        let fake = Fake::default();
        for (name, state) in [
            ("attached", VolumeState::Attached),
            ("attaching", VolumeState::Attaching),
            ("detaching", VolumeState::Detaching),
            ("fenced", VolumeState::Fenced),
            ("quiesced", VolumeState::Quiesced),
        ] {
            fake.put(crate::node::VolumeStatus { state, ..attached(name) });
        }
        assert_eq!(served(&fake), ids(&["attached", "fenced"]));
    }
}
