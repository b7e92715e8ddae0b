//! The Volumes that concern this node: those granted to it, and those of which it has a device or files.
//!
//! Owns: the other parts' view of Volumes. A watch delivers those granted to this node; the API server sends
//! no changes of any others. Local volumes without a grant are looked up by id: a volume whose writer was cut
//! off, files left by a past attach. The cache of a volume without a Volume is removed.
//! Runs on: the daemon's tokio runtime.
//! Invariants: a looked-up Volume never replaces one of the watch. It may be stale: the status is written
//! under the resource version that was read.
//! On failure: the watch restarts with a list, a lookup is repeated in the next round; until then the last
//! seen state stays.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt;
use holdfast_cluster::api::{ApiError, call};
use holdfast_crds::Volume;
use holdfast_service::chain;
use holdfast_types::VolumeId;
use kube::api::ListParams;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::{self, Event, watcher};
use kube::runtime::{WatchStreamExt, reflector::Store};
use kube::{Api, Client, ResourceExt};
use tokio::sync::mpsc::Sender;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::identity::identity;
use crate::volumes::Volumes;

/// Interval between checks for local volumes without a grant.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Interval between lookups of a volume with local files only, while it is granted to another node, which is
/// about to attach it.
const MOVED_EVERY: Duration = Duration::from_secs(30);
/// The same while it is not granted to any node.
const KEPT_EVERY: Duration = Duration::from_secs(10 * 60);

/// Shows the Volumes through `writer`, and sends each change to `seen`. Runs until it is dropped.
pub(super) async fn run<V: Volumes>(
    client: Client,
    me: String,
    volumes: V,
    writer: Writer<Volume>,
    seen: Sender<Volume>,
) {
    let api = Api::<Volume>::all(client);
    let granted = watcher::Config::default().fields(&format!("status.assignedNode={me}"));
    let mut events = std::pin::pin!(watcher(api.clone(), granted).default_backoff());
    let mut ticks = interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let store = writer.as_reader();
    let (looked_up, schedule, claims) = (BTreeMap::new(), LookupSchedule::default(), Claims::Unlisted);
    let mut own = OwnVolumes { api, me, volumes, writer, store, seen, looked_up, schedule, claims };
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(Ok(event)) => own.follow(event).await,
                Some(Err(error)) => tracing::warn!(
                    error = chain(&error),
                    "the Volumes of this node are not watched; served volumes stay served. If a field label is \
                     not supported, the CRDs are those of an earlier version"
                ),
                None => return,
            },
            _ = ticks.tick() => own.look().await,
        }
    }
}

/// State of the search for Volumes that this node claims without a grant. An earlier life of this node may
/// have left such a claim, and nothing else.
#[derive(Clone, Copy, PartialEq)]
enum Claims {
    /// Unknown: the watch has not started.
    Unlisted,
    /// Being searched, until none remains.
    Wanted,
    /// None: only this node makes claims, under a grant.
    Cleared,
}

/// Next lookups of volumes with local files only.
struct LookupSchedule {
    next: BTreeMap<VolumeId, Instant>,
    /// True until the first lookups, which are due at once.
    is_new: bool,
}

impl Default for LookupSchedule {
    fn default() -> Self {
        Self { next: BTreeMap::new(), is_new: true }
    }
}

impl LookupSchedule {
    /// Returns the volumes of `kept` that are due for a lookup.
    fn due(&mut self, kept: &BTreeSet<VolumeId>, now: Instant) -> Vec<VolumeId> {
        self.next.retain(|id, _| kept.contains(id));
        let first = if self.is_new { now } else { now + KEPT_EVERY };
        self.is_new = false;
        let is_due = |id: &&VolumeId| *self.next.entry((*id).clone()).or_insert(first) <= now;
        kept.iter().filter(is_due).cloned().collect()
    }

    fn looked_up(&mut self, id: &VolumeId, is_granted: bool, now: Instant) {
        if let Some(next) = self.next.get_mut(id) {
            *next = now + if is_granted { MOVED_EVERY } else { KEPT_EVERY };
        }
    }
}

struct OwnVolumes<V> {
    api: Api<Volume>,
    me: String,
    volumes: V,
    writer: Writer<Volume>,
    store: Store<Volume>,
    seen: Sender<Volume>,
    /// Looked-up Volumes that are shown, by name.
    looked_up: BTreeMap<String, Volume>,
    schedule: LookupSchedule,
    claims: Claims,
}

impl<V: Volumes> OwnVolumes<V> {
    async fn follow(&mut self, event: Event<Volume>) {
        self.writer.apply_watcher_event(&event);
        match event {
            Event::Apply(volume) => {
                self.looked_up.remove(&volume.name_any());
                self.send(volume).await;
            }
            Event::Init | Event::InitApply(_) => {}
            Event::InitDone => {
                for volume in self.store.state() {
                    self.send(volume.as_ref().clone()).await;
                }
                self.looked_up.clear();
                (self.schedule, self.claims) = (LookupSchedule::default(), Claims::Wanted);
                self.look().await;
            }
            // The grant was removed, or the Volume deleted.
            Event::Delete(_) => self.look().await,
        }
    }

    /// Looks up the local volumes without a grant.
    async fn look(&mut self) {
        if self.claims == Claims::Unlisted {
            return;
        }
        let objects = match self.lookup().await {
            Ok(objects) => objects,
            Err(error) => {
                tracing::debug!(
                    error = chain(&error),
                    "Volumes that are not granted to this node were not looked up"
                );
                return;
            }
        };
        let gone: Vec<String> =
            self.looked_up.keys().filter(|name| !objects.contains_key(*name)).cloned().collect();
        for volume in gone.into_iter().filter_map(|name| self.looked_up.remove(&name)) {
            self.writer.apply_watcher_event(&Event::Delete(volume));
        }
        for (name, volume) in objects {
            let is_known = |known: &Volume| known.resource_version() == volume.resource_version();
            if !self.looked_up.get(&name).is_some_and(is_known) {
                self.writer.apply_watcher_event(&Event::Apply(volume.clone()));
                self.looked_up.insert(name, volume.clone());
                self.send(volume).await;
            }
        }
    }

    /// Returns the Volumes to show in addition to those of the watch, by name.
    async fn lookup(&mut self) -> Result<BTreeMap<String, Volume>, ApiError> {
        let watched = self.store.state();
        let watched = watched.iter().filter(|volume| !self.looked_up.contains_key(&volume.name_any()));
        let watched: BTreeSet<VolumeId> = watched.filter_map(|volume| identity(volume)).collect();
        let local: BTreeSet<_> = self.volumes.list().into_iter().map(|local| local.volume).collect();
        let local: BTreeSet<_> = local.difference(&watched).cloned().collect();
        let kept = self.volumes.unserved_volumes().into_iter();
        let kept: BTreeSet<_> = kept.filter(|id| !watched.contains(id) && !local.contains(id)).collect();
        let now = Instant::now();
        let due = self.schedule.due(&kept, now);
        // Files whose lookup is not due keep their last seen state.
        let is_kept =
            |volume: &Volume| identity(volume).is_some_and(|id| kept.contains(&id) && !due.contains(&id));
        let mut shown = self.looked_up.clone();
        shown.retain(|_, volume| is_kept(volume));
        let mut add = |volumes: Vec<Volume>| {
            shown.extend(volumes.into_iter().map(|volume| (volume.name_any(), volume)))
        };
        for id in local.iter().chain(&due) {
            let volumes = self.list(&format!("status.volumeId={id}")).await?;
            self.schedule.looked_up(id, volumes.iter().any(|volume| grant(volume).is_some()), now);
            if volumes.is_empty() && kept.contains(id) {
                self.discard(id).await;
            }
            add(volumes);
        }
        if self.claims == Claims::Wanted {
            let claimed = self.list(&format!("status.node={}", self.me)).await?;
            if claimed.iter().all(|volume| grant(volume) == Some(&self.me)) {
                self.claims = Claims::Cleared;
            }
            add(claimed);
        }
        // The watch has delivered the Volumes granted to this node, or is about to.
        shown.retain(|_, volume| grant(volume) != Some(&self.me));
        Ok(shown)
    }

    /// Removes the cache of a volume without a Volume, once it is a day old. If the Volume returns, it lacks
    /// only its cache.
    async fn discard(&self, id: &VolumeId) {
        match self.volumes.discard_cache(id).await {
            Ok(true) => tracing::info!(volume = %id, "the cache of a deleted volume was removed"),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(volume = %id, error = chain(&error), "the cache of a deleted volume stays");
            }
        }
    }

    async fn list(&self, fields: &str) -> Result<Vec<Volume>, ApiError> {
        Ok(call(self.api.list(&ListParams::default().fields(fields))).await?.items)
    }

    async fn send(&self, volume: Volume) {
        // Fails only if the reconciliation has ended, and with it the process.
        let _ended = self.seen.send(volume).await;
    }
}

/// Returns the node that the volume is granted to.
fn grant(volume: &Volume) -> Option<&str> {
    volume.status.as_ref()?.assigned_node.as_deref().filter(|node| !node.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_looked_up_at_the_start_and_then_rarely() {
        let kept =
            |names: &[&str]| names.iter().map(|name| name.parse().unwrap()).collect::<BTreeSet<VolumeId>>();
        let (start, mut schedule) = (Instant::now(), LookupSchedule::default());
        let due = |schedule: &mut LookupSchedule, names: &[&str], seconds| {
            schedule.due(&kept(names), start + Duration::from_secs(seconds))
        };
        let [a, b]: [VolumeId; 2] = ["a", "b"].map(|name| name.parse().unwrap());
        assert_eq!(due(&mut schedule, &["a", "b"], 0), [a.clone(), b.clone()], "at the start");
        schedule.looked_up(&a, true, start);
        schedule.looked_up(&b, false, start);
        assert_eq!(due(&mut schedule, &["a", "b", "c"], 29), []);
        assert_eq!(due(&mut schedule, &["a", "b", "c"], 30), [a], "another node is about to attach it");
        assert_eq!(due(&mut schedule, &["b", "c"], 600), [b], "one that was detached since is not due yet");
        assert_eq!(due(&mut schedule, &["c"], 629), ["c".parse().unwrap()]);
    }
}
