//! Looks into the trash of buckets: takes out volumes that are used here, before another cluster removes
//! them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_crds::{ObjectStore, READY, is_true};
use holdfast_service::chain;
use holdfast_types::{Backoff, Jitter};
use kube::ResourceExt;
use tokio::time::Instant;

use super::cluster::SweptCluster;
use super::trash::take_back_used;
use crate::metrics::Metrics;

/// Time between two looks into one bucket. Another cluster keeps deleted volumes for a day by default, as
/// long as the interval between two sweeps. Costs one LIST.
const LOOK_EVERY: Duration = Duration::from_hours(1);
/// Delays after looks that did not handle all volumes. Each may cost a LIST of all Volumes, too.
const RETRY: Backoff = Backoff { first: Duration::from_mins(1), last: LOOK_EVERY, jitter: Jitter::Half };

/// The next look into one bucket.
struct NextLook {
    due: Instant,
    /// Number of looks since the last one that handled all volumes.
    failures: u32,
}

/// The looks of this instance.
pub(super) struct Looks<'a, C> {
    cluster: &'a C,
    metrics: Arc<Metrics>,
    /// By the uid of the ObjectStore.
    next: HashMap<String, NextLook>,
}

impl<'a, C: SweptCluster> Looks<'a, C> {
    pub(super) fn new(cluster: &'a C, metrics: Arc<Metrics>) -> Self {
        Self { cluster, metrics, next: HashMap::new() }
    }

    /// Looks into the trash of each ObjectStore for which a look is due, and exports the state of all sweeps.
    pub(super) async fn look_at_all(&mut self) {
        let stores = match self.cluster.object_stores().await {
            Ok(stores) => stores,
            Err(error) => return tracing::warn!(error = chain(&error), "object stores not read"),
        };
        self.metrics.show_sweeps(&stores, self.cluster.now());
        self.next.retain(|uid, _| stores.iter().any(|store| store.metadata.uid.as_ref() == Some(uid)));
        for store in &stores {
            self.look(store).await;
        }
    }

    async fn look(&mut self, store: &ObjectStore) {
        let uid = store.metadata.uid.clone().unwrap_or_default();
        let is_ready = store.status.as_ref().is_some_and(|status| is_true(&status.conditions, READY));
        let next = self.next.get(&uid);
        let is_due = next.is_none_or(|next| Instant::now() >= next.due);
        let failures = next.map_or(0, |next| next.failures);
        if !is_due || !is_ready || store.metadata.deletion_timestamp.is_some() {
            return;
        }
        let looked = async {
            let bucket = self.cluster.open(&store.name_any()).await?;
            take_back_used(self.cluster, store, &*bucket).await
        };
        let is_done = looked.await.unwrap_or_else(|error| {
            tracing::warn!(object_store = %store.name_any(), error = chain(&error), "trash not read");
            false
        });
        let failures = if is_done { 0 } else { failures.saturating_add(1) };
        let wait = if is_done { LOOK_EVERY } else { RETRY.delay(failures, fastrand::f64()) };
        self.next.insert(uid, NextLook { due: Instant::now() + wait, failures });
    }
}
