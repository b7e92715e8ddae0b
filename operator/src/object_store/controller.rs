//! Runs the ObjectStore controller: probe, report.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use holdfast_cluster::api::{ApiError, call};
use holdfast_cluster::event::Recorder;
use holdfast_crds::{OPERATOR_FIELD_MANAGER, ObjectStore, ObjectStoreStatus, Time};
use holdfast_s3::{ProbeFailure, S3Store};
use holdfast_service::chain;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::watcher;
use kube::{Client, Resource, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;

use super::connect::Connections;
use super::health::{self, Health, PROBE_INTERVAL};
use crate::event::changes;
use crate::metrics::{Metrics, ObjectKind};
use crate::requeue::{FailureCounts, MAX_AT_A_TIME, Requeue};
use crate::watch_failure;

/// Shortest time between two probes of an unchanged ObjectStore.
const MIN_PROBE_GAP: Duration = Duration::from_secs(5);

/// Time after a full probe during which only a reachability check is made. A full probe writes and deletes a
/// key, and a versioned bucket keeps those versions.
const PROVEN_FOR: Duration = Duration::from_secs(3600);

/// Dependencies of every reconciliation.
pub(crate) struct StoreDependencies {
    pub(crate) client: Client,
    pub(crate) connections: Arc<Connections>,
    pub(crate) recorder: Recorder,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) probes: Probes,
    pub(crate) failures: FailureCounts,
}

/// Uid and generation of the probed spec.
type ProbedSpec = (Option<String>, Option<i64>);

/// Probes of each ObjectStore, by name.
#[derive(Default)]
pub(crate) struct Probes {
    /// Time of the last probe. Our own report wakes the controller and must not cause the next probe.
    last: Mutex<HashMap<String, (ProbedSpec, Instant)>>,
    /// The connection through which the bucket was found fit, and the time of that probe.
    proven: Mutex<HashMap<String, (Arc<S3Store>, Instant)>>,
}

impl Probes {
    /// Records the start of a probe, or returns the time until one may start. A new spec never waits.
    fn begin(&self, store: &ObjectStore, now: Instant) -> Result<(), Duration> {
        let mut last = self.last.lock();
        let spec = (store.metadata.uid.clone(), store.metadata.generation);
        if let Some((probed, at)) = last.get(&store.name_any())
            && *probed == spec
            && let Some(wait) = MIN_PROBE_GAP.checked_sub(now.duration_since(*at))
            && !wait.is_zero()
        {
            return Err(wait);
        }
        last.insert(store.name_any(), (spec, now));
        Ok(())
    }

    /// Runs a full probe of the bucket, or only a reachability check if a recent probe with the same settings
    /// and credentials succeeded.
    async fn probe(&self, name: &str, connection: &Arc<S3Store>) -> Result<(), ProbeFailure> {
        let proven = match self.take_proven(name, connection, Instant::now()) {
            Some(since) => {
                connection.ping().await?;
                since
            }
            None => {
                connection.probe().await?;
                Instant::now()
            }
        };
        self.proven.lock().insert(name.to_owned(), (connection.clone(), proven));
        Ok(())
    }

    /// Removes the record of the last successful probe, and returns its time if it used the same connection
    /// and is recent.
    fn take_proven(&self, name: &str, connection: &Arc<S3Store>, now: Instant) -> Option<Instant> {
        let (through, since) = self.proven.lock().remove(name)?;
        let is_recent = now.saturating_duration_since(since) < PROVEN_FOR;
        (is_recent && Arc::ptr_eq(&through, connection)).then_some(since)
    }
}

/// Runs until `stop` ends; completes reconciliations in progress.
pub(crate) async fn run(
    context: Arc<StoreDependencies>,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let stores = Api::<ObjectStore>::all(context.client.clone());
    let controller = Controller::new(stores, watcher::Config::default());
    context.metrics.watch_object_stores(controller.store());
    controller
        .with_config(Config::default().concurrency(MAX_AT_A_TIME))
        .graceful_shutdown_on(stop)
        .run(reconcile, retry, context)
        .for_each(|outcome| async move {
            if let Err(error) = outcome {
                watch_failure::log("ObjectStore", &error);
            }
        })
        .await;
}

#[tracing::instrument(name = "reconcile_object_store", skip_all, fields(object_store = %store.name_any()))]
async fn reconcile(store: Arc<ObjectStore>, context: Arc<StoreDependencies>) -> Result<Action, ApiError> {
    if let Err(wait) = context.probes.begin(&store, Instant::now()) {
        return Ok(Action::requeue(wait));
    }
    let timer = context.metrics.start(ObjectKind::ObjectStore);
    let health = probe(&store, &context).await;
    let outcome = report(&store, &health, &context).await;
    let retry = health.as_ref().err().map(health::Unfit::retry);
    timer.finish(if outcome.is_err() { Some(Requeue::Later) } else { retry });
    outcome?;
    Ok(Action::requeue(match retry {
        None => {
            context.failures.end(&store.name_any());
            PROBE_INTERVAL
        }
        Some(retry) => context.failures.delay(&store.name_any(), retry, fastrand::f64()),
    }))
}

async fn probe(store: &ObjectStore, context: &StoreDependencies) -> Health {
    let name = store.name_any();
    let connection = context.connections.open(context.client.clone(), &name).await?;
    Ok(context.probes.probe(&name, &connection).await?)
}

async fn report(store: &ObjectStore, health: &Health, context: &StoreDependencies) -> Result<(), ApiError> {
    let api: Api<ObjectStore> = Api::all(context.client.clone());
    // The stream has only new generations; the last report may be newer than the object it holds.
    let Some(current) = call(api.get_opt(&store.name_any())).await? else { return Ok(()) };
    let previous = current.status.as_ref();
    let before = previous.map(|status| status.conditions.clone()).unwrap_or_default();
    let status = ObjectStoreStatus {
        // If a Secret cannot be read now, the versions of the last connection stay.
        credentials_version: context
            .connections
            .credentials_version(&store.name_any())
            .await
            .or_else(|| previous.and_then(|status| status.credentials_version.clone())),
        ..health::status(&before, store.metadata.generation, health, &Time(Timestamp::now()))
    };
    if !health::worth_writing(previous, &status) {
        return Ok(());
    }
    if let Err(unfit) = health {
        tracing::warn!(object_store = %store.name_any(), error = %chain(unfit), "object store is not fit for volumes");
    }
    let patch = json!({
        "apiVersion": ObjectStore::api_version(&()),
        "kind": ObjectStore::kind(&()),
        "metadata": { "name": store.name_any() },
        "status": status,
    });
    let params = PatchParams::apply(OPERATOR_FIELD_MANAGER).force();
    call(api.patch_status(&store.name_any(), &params, &Patch::Apply(patch))).await?;
    context.recorder.publish(changes(&before, &status.conditions), &store.object_ref(&())).await;
    Ok(())
}

fn retry(store: Arc<ObjectStore>, error: &ApiError, context: Arc<StoreDependencies>) -> Action {
    tracing::warn!(object_store = %store.name_any(), error = %chain(error), "object store not reconciled");
    Action::requeue(context.failures.delay(&store.name_any(), Requeue::Later, fastrand::f64()))
}

#[cfg(test)]
mod tests {
    use holdfast_s3::{S3Config, S3Credentials};

    use super::*;

    async fn connection() -> Arc<S3Store> {
        let credentials = S3Credentials::Static {
            access_key_id: "id".to_owned(),
            secret_access_key: "secret".to_owned(),
            session_token: None,
        };
        // The discard port: no process listens there.
        let endpoint = Some("http://127.0.0.1:9".to_owned());
        let config = S3Config {
            endpoint,
            path_style: true,
            max_concurrency: 1,
            ..S3Config::new("bucket", "us-east-1", credentials)
        };
        Arc::new(S3Store::connect(config).await.expect("sends nothing"))
    }

    /// Regression: each minute a probe left two versions of a key in a versioned bucket.
    #[tokio::test]
    async fn a_bucket_is_proven_for_an_hour_and_one_connection() {
        let (probes, one, renewed) = (Probes::default(), connection().await, connection().await);
        let then = Instant::now();
        let prove = || probes.proven.lock().insert("main".to_owned(), (one.clone(), then));
        assert_eq!(probes.take_proven("main", &one, then), None, "it was never probed");
        let soon = then + PROVEN_FOR - Duration::from_secs(1);
        prove();
        assert_eq!(probes.take_proven("main", &one, soon), Some(then));
        assert_eq!(probes.take_proven("main", &one, soon), None, "a request that fails leaves it unproven");
        prove();
        assert_eq!(probes.take_proven("main", &renewed, soon), None, "its settings changed");
        prove();
        assert_eq!(probes.take_proven("main", &one, then + PROVEN_FOR), None);
        prove();
        assert!(probes.probe("main", &one).await.is_err());
        assert!(probes.proven.lock().is_empty());
    }
}
