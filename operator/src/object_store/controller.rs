//! Runs the ObjectStore controller: probe, report.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use holdfast_cluster::api::{ApiError, call};
use holdfast_cluster::event::Recorder;
use holdfast_crds::{OPERATOR_FIELD_MANAGER, ObjectStore, ObjectStoreStatus, Time};
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

/// Shortest time between two probes of an unchanged ObjectStore.
const MIN_PROBE_GAP: Duration = Duration::from_secs(5);

/// Dependencies of every reconciliation.
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) connections: Arc<Connections>,
    pub(crate) recorder: Recorder,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) probes: Probes,
    pub(crate) failures: FailureCounts,
}

/// Uid and generation of what was probed.
type ProbedSpec = (Option<String>, Option<i64>);

/// Time of the last probe of each ObjectStore, by name. Our own report wakes the controller: it must not
/// cause the next probe.
#[derive(Default)]
pub(crate) struct Probes {
    last: Mutex<HashMap<String, (ProbedSpec, Instant)>>,
}

impl Probes {
    /// Notes a probe that begins now; else how long to wait until one may begin. A new spec never waits.
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
}

/// Runs until `stop` ends; reconciliations in progress are finished.
pub(crate) async fn run(context: Arc<Context>, stop: impl Future<Output = ()> + Send + Sync + 'static) {
    let stores = Api::<ObjectStore>::all(context.client.clone());
    let controller = Controller::new(stores, watcher::Config::default());
    context.metrics.watch_object_stores(controller.store());
    controller
        .with_config(Config::default().concurrency(MAX_AT_A_TIME))
        .graceful_shutdown_on(stop)
        .run(reconcile, retry, context)
        .for_each(|outcome| async move {
            if let Err(error) = outcome {
                tracing::debug!(%error, "object store controller");
            }
        })
        .await;
}

#[tracing::instrument(name = "reconcile_object_store", skip_all, fields(object_store = %store.name_any()))]
async fn reconcile(store: Arc<ObjectStore>, context: Arc<Context>) -> Result<Action, ApiError> {
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

async fn probe(store: &ObjectStore, context: &Context) -> Health {
    let connection = context.connections.open(context.client.clone(), &store.name_any()).await?;
    connection.probe().await?;
    Ok(())
}

async fn report(store: &ObjectStore, health: &Health, context: &Context) -> Result<(), ApiError> {
    let api: Api<ObjectStore> = Api::all(context.client.clone());
    // The stream has only new generations; the last report is newer than what it holds.
    let Some(current) = call(api.get_opt(&store.name_any())).await? else { return Ok(()) };
    let previous = current.status.as_ref();
    let before = previous.map(|status| status.conditions.clone()).unwrap_or_default();
    let status = ObjectStoreStatus {
        // One that could not be read now says nothing new of the others.
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

fn retry(store: Arc<ObjectStore>, error: &ApiError, context: Arc<Context>) -> Action {
    tracing::warn!(object_store = %store.name_any(), error = %chain(error), "object store not reconciled");
    Action::requeue(context.failures.delay(&store.name_any(), Requeue::Later, fastrand::f64()))
}
