//! The task that sweeps: selects the next due ObjectStore, sweeps its bucket, reports, and repeats.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_crds::{ObjectStore, READY, is_true};
use holdfast_log::sweep::{SweepMemory, SweepOptions, SweepReport, sweep};
use holdfast_objects::ObjectStore as Bucket;
use holdfast_service::chain;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use tokio::time::{Instant, sleep};

use super::cluster::SweptCluster;
use super::failure::SweepFailed;
use super::looks::Looks;
use super::report;
use super::schedule::Facts;
use super::trash::{TrashReport, count_trash, empty_trash};
use crate::metrics::Metrics;

/// Time between two looks at the ObjectStores.
const EVERY: Duration = Duration::from_secs(60);

/// Time between two checks of a running sweep's ObjectStore.
const CHECK_EVERY: Duration = Duration::from_secs(20);

/// State of the sweeps of one ObjectStore.
#[derive(Default)]
struct SweepState {
    /// Memory of the last sweep, and the connection through which it read.
    remembered: Option<(Arc<dyn Bucket>, SweepMemory)>,
    /// End of this instance's last sweep.
    ended: Option<Instant>,
    /// Time of the last failure since then, and the number of failures.
    failed: Option<(Instant, u32)>,
    /// True if the last sweep could not abort uploads, and an event reported it.
    keeps_uploads: bool,
    random: f64,
}

impl SweepState {
    /// Returns the facts about the ObjectStore; `None` if it must not be swept at all.
    fn facts(&self, store: &ObjectStore, led_since: Instant, now: Timestamp) -> Option<Facts> {
        let status = store.status.as_ref();
        let is_ready = status.is_some_and(|status| is_true(&status.conditions, READY));
        let schedule = &store.spec.sweep;
        if !is_ready || schedule.suspend || store.metadata.deletion_timestamp.is_some() {
            return None;
        }
        // A time in the future comes from a wrong clock.
        let reported = status.and_then(|status| status.sweep.as_ref());
        let reported = reported.and_then(|sweep| Duration::try_from(now.duration_since(sweep.time.0)).ok());
        let ended = self.ended.map(|at| at.elapsed());
        Some(Facts {
            // An interval that cannot be parsed makes the sweep fail.
            interval: schedule.interval().unwrap_or_default(),
            led_for: led_since.elapsed(),
            ended_ago: [ended, reported].into_iter().flatten().min(),
            failed: self.failed.map(|(at, failures)| (at.elapsed(), failures)),
            random: self.random,
        })
    }
}

/// The sweeps of this instance.
struct PeriodicSweeps<'a, C> {
    cluster: &'a C,
    metrics: Arc<Metrics>,
    led_since: Instant,
    /// By the uid of the ObjectStore.
    known: HashMap<String, SweepState>,
    random: fn() -> f64,
}

/// Sweeps until the future is dropped, and looks into the trash meanwhile, because a sweep may take hours.
/// Starts when this instance becomes the leader.
pub(crate) async fn run(cluster: impl SweptCluster, metrics: Arc<Metrics>) {
    let cluster = &cluster;
    let (led_since, known, random) = (Instant::now(), HashMap::new(), fastrand::f64 as fn() -> f64);
    let mut sweeps = PeriodicSweeps { cluster, metrics: metrics.clone(), led_since, known, random };
    let sweeping = async {
        loop {
            if !sweeps.sweep_next().await {
                sleep(EVERY).await;
            }
        }
    };
    let mut looks = Looks::new(cluster, metrics);
    let looking = async {
        loop {
            looks.look_at_all().await;
            sleep(EVERY).await;
        }
    };
    tokio::join!(sweeping, looking);
}

impl<C: SweptCluster> PeriodicSweeps<'_, C> {
    /// Sweeps the ObjectStore that has been due longest. Returns false if none is due.
    async fn sweep_next(&mut self) -> bool {
        let stores = match self.cluster.object_stores().await {
            Ok(stores) => stores,
            Err(error) => {
                tracing::warn!(error = chain(&error), "object stores not read");
                return false;
            }
        };
        self.known.retain(|uid, _| stores.iter().any(|store| store.metadata.uid.as_ref() == Some(uid)));
        let Some(store) = self.due(stores) else { return false };
        let uid = store.metadata.uid.clone().unwrap_or_default();
        let mut state = self.known.remove(&uid).unwrap_or_default();
        let outcome = tokio::select! {
            outcome = self.sweep(&store, &mut state) => Some(outcome),
            () = self.is_outdated(&store) => None,
        };
        state.random = (self.random)();
        match outcome {
            None => {
                tracing::info!(object_store = %store.name_any(), "sweep ended: the settings of its ObjectStore changed")
            }
            Some(Ok((swept, trashed))) => {
                (state.ended, state.failed) = (Some(Instant::now()), None);
                let is_known = std::mem::replace(&mut state.keeps_uploads, swept.uploads.failed.is_some());
                self.finish(&store, &swept, &trashed).await;
                if let Some(event) = report::unfinished(&swept).filter(|_| !is_known) {
                    tracing::warn!(object_store = %store.name_any(), note = event.note, "uploads not aborted");
                    self.cluster.publish(&store, event).await;
                }
            }
            Some(Err(error)) => {
                let failures = state.failed.map_or(0, |(_, failures)| failures).saturating_add(1);
                state.failed = Some((Instant::now(), failures));
                self.metrics.count_failed_sweep(&store.name_any());
                tracing::warn!(object_store = %store.name_any(), error = chain(&error), "sweep failed");
                self.cluster.publish(&store, report::failed(&error)).await;
            }
        }
        self.known.insert(uid, state);
        true
    }

    /// Waits until a running sweep of the ObjectStore must end: its bucket or the settings of its sweeps
    /// changed, or it is being deleted.
    async fn is_outdated(&self, swept: &ObjectStore) {
        loop {
            sleep(CHECK_EVERY).await;
            let Ok(stores) = self.cluster.object_stores().await else { continue };
            let is_current = |store: &ObjectStore| {
                let (now, begun) = (&store.spec, &swept.spec);
                store.metadata.uid == swept.metadata.uid
                    && store.metadata.deletion_timestamp.is_none()
                    && (&now.sweep, &now.keep_deleted) == (&begun.sweep, &begun.keep_deleted)
                    && (&now.bucket, &now.prefix) == (&begun.bucket, &begun.prefix)
            };
            if !stores.iter().any(is_current) {
                return;
            }
        }
    }

    /// Returns the due ObjectStore that has waited longest.
    fn due(&mut self, stores: Vec<ObjectStore>) -> Option<ObjectStore> {
        let now = self.cluster.now();
        let mut due = Vec::new();
        for store in stores {
            let known = known(&mut self.known, self.random, &store);
            if let Some(facts) = known.facts(&store, self.led_since, now)
                && facts.is_due()
            {
                // A failed one comes after those that were not tried since.
                let waits = facts.failed.map(|(ago, _)| ago).or(facts.ended_ago).unwrap_or(Duration::MAX);
                due.push((waits, store));
            }
        }
        due.into_iter().max_by_key(|(waits, _)| *waits).map(|(_, store)| store)
    }

    /// Empties the trash of a bucket, and sweeps it.
    async fn sweep(
        &self,
        store: &ObjectStore,
        known: &mut SweepState,
    ) -> Result<(SweepReport, TrashReport), SweepFailed> {
        let schedule = &store.spec.sweep;
        schedule.interval()?;
        let grace = schedule.grace()?;
        let bucket = self.cluster.open(&store.name_any()).await?;
        let remembered = known.remembered.take().filter(|(read, _)| Arc::ptr_eq(read, &bucket));
        let (_, memory) =
            known.remembered.insert(remembered.unwrap_or_else(|| (bucket.clone(), SweepMemory::default())));
        let trashed = if schedule.dry_run {
            count_trash(&*bucket).await?
        } else {
            empty_trash(self.cluster, store, &*bucket).await?
        };
        let most = schedule.max_objects.unwrap_or(u64::MAX);
        let options = SweepOptions { grace, dry_run: schedule.dry_run, most };
        Ok((sweep(&*bucket, memory, options).await?, trashed))
    }

    async fn finish(&self, store: &ObjectStore, swept: &SweepReport, trash: &TrashReport) {
        let name = store.name_any();
        let trashed = trash.volumes.len() as u64;
        let status = report::status(swept, trashed, self.cluster.now());
        tracing::info!(
            object_store = %name,
            volumes = swept.volumes,
            trashed_volumes = trashed,
            garbage_bytes = swept.garbage.bytes,
            deleted_objects = swept.deleted.objects,
            deleted_bytes = swept.deleted.bytes,
            skipped = swept.skipped.len(),
            aborted_uploads = swept.uploads.aborted,
            "object store swept"
        );
        self.metrics.count_sweep(&name, swept);
        if let Err(error) = self.cluster.report(store, &status).await {
            tracing::warn!(object_store = %name, error = chain(&error), "result of the sweep not written");
        }
        if let Err(error) = self.cluster.report_snapshots(store, &swept.snapshots).await {
            tracing::warn!(object_store = %name, error = chain(&error), "space of snapshots not written");
        }
        let events = [
            report::skipped(swept),
            report::used(trash),
            report::stuck(&name, trash),
            report::undated(trash),
        ];
        for event in events.into_iter().flatten() {
            self.cluster.publish(store, event).await;
        }
    }
}

/// Returns the state of an ObjectStore's sweeps, creating it if absent.
fn known<'a>(
    all: &'a mut HashMap<String, SweepState>,
    random: fn() -> f64,
    store: &ObjectStore,
) -> &'a mut SweepState {
    let known = all.entry(store.metadata.uid.clone().unwrap_or_default());
    known.or_insert_with(|| SweepState { random: random(), ..SweepState::default() })
}

#[cfg(test)]
mod tests;
