//! Assembles the operator: metrics, election, controllers, and an orderly shutdown.
//!
//! Shutdown order: controllers complete their reconciliations, then the lease is released, so that no two
//! instances ever work at the same time. A running sweep is cancelled. A lost lease ends the process without
//! waiting.

use std::sync::Arc;

use anyhow::Context;
use holdfast_cluster::event::Recorder;
use holdfast_service::admin;
use holdfast_service::log_level::LogLevel;
use holdfast_service::shutdown::Shutdown;
use kube::Client;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::heartbeats::{self, Heartbeats};
use crate::lease::{Election, Pulse};
use crate::metrics::Metrics;
use crate::object_store::{self, connect::Connections, controller::Probes};
use crate::readiness::Readiness;
use crate::requeue::FailureCounts;
use crate::settings::Settings;
use crate::sweep::{self, cluster::ApiServer};
use crate::{group, snapshot, volume};

/// Name of the Lease that elects the leader.
const LEASE: &str = "holdfast-operator";

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// The operator cannot start, or lost its lease.
pub(crate) async fn run(settings: Settings, log_level: LogLevel) -> anyhow::Result<()> {
    let mut shutdown = Shutdown::listen().context("cannot listen for SIGTERM and SIGINT")?;
    let metrics = Arc::new(Metrics::new());
    let pulse = Pulse::default();
    let readiness = Readiness::new(metrics.clone(), pulse.clone());
    let address = settings.metrics_address;
    let listener = admin::listen(address)
        .await
        .with_context(|| format!("--metrics-address: cannot listen on {address}; choose another"))?;
    let endpoint = tokio::spawn(admin::serve(listener, readiness.clone(), log_level));

    let client = Client::try_default().await.context("no cluster: run in a pod, or set KUBECONFIG")?;
    let identity = settings.identity();
    let mut election = Election::new(client.clone(), (&settings.namespace, LEASE), &identity, pulse);
    tracing::info!(%identity, metrics = %address, version = env!("CARGO_PKG_VERSION"), "operator starts");
    let leads = tokio::select! {
        () = election.lead(|| readiness.joins_election()) => true,
        () = shutdown.requested() => false,
    };
    let outcome = if leads {
        metrics.set_leader(true);
        tracing::info!("leading");
        let program = Instance { client, identity, namespace: settings.namespace, metrics: metrics.clone() };
        let outcome = lead(program, &mut election, shutdown.requested()).await;
        metrics.set_leader(false);
        outcome
    } else {
        Ok(())
    };
    endpoint.abort();
    outcome
}

/// This instance.
struct Instance {
    client: Client,
    /// Name in the Lease and in events.
    identity: String,
    namespace: String,
    metrics: Arc<Metrics>,
}

async fn lead(
    program: Instance,
    election: &mut Election,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let (stopping, stopped) = watch::channel(false);
    let mut controllers = spawn_controllers(program, stopped);
    tokio::select! {
        lost = election.keep() => {
            controllers.abort();
            return Err(lost.into());
        }
        ended = &mut controllers => {
            ended.context("a controller failed")?;
            anyhow::bail!("the controllers ended by themselves");
        }
        () = stop => tracing::info!("stopping: finishing work in progress"),
    }
    stopping.send_replace(true);
    tokio::select! {
        lost = election.keep() => {
            controllers.abort();
            return Err(lost.into());
        }
        ended = &mut controllers => ended.context("a controller failed")?,
    }
    election.release().await;
    tracing::info!("stopped");
    Ok(())
}

/// Starts the controllers and the sweep of the leader, on one task that ends with the controllers after
/// `stopped`.
fn spawn_controllers(program: Instance, stopped: watch::Receiver<bool>) -> JoinHandle<()> {
    let Instance { client, identity, namespace, metrics } = program;
    let recorder = Recorder::new(client.clone(), "holdfast-operator", &identity);
    let heartbeats = Heartbeats::new();
    let listening = heartbeats::run(client.clone(), namespace.clone(), heartbeats.clone(), metrics.clone());
    let connections = Arc::new(Connections::default());
    let stores = Arc::new(object_store::controller::StoreDependencies {
        client: client.clone(),
        connections: connections.clone(),
        recorder: recorder.clone(),
        metrics: metrics.clone(),
        probes: Probes::default(),
        failures: FailureCounts::default(),
    });
    let snapshots = Arc::new(snapshot::controller::SnapshotDependencies {
        client: client.clone(),
        connections: connections.clone(),
        recorder: recorder.clone(),
        metrics: metrics.clone(),
        failures: FailureCounts::default(),
    });
    let groups = Arc::new(group::controller::GroupDependencies {
        client: client.clone(),
        connections: connections.clone(),
        recorder: recorder.clone(),
        metrics: metrics.clone(),
        failures: FailureCounts::default(),
    });
    let cluster =
        ApiServer { client: client.clone(), connections: connections.clone(), recorder: recorder.clone() };
    // On its own task, because a sweep processes much data. Dropped with the controllers.
    let mut sweeps = JoinSet::new();
    sweeps.spawn(sweep::run::run(cluster, metrics.clone()));
    let volumes = Arc::new(volume::controller::VolumeDependencies {
        client: client.clone(),
        connections,
        recorder,
        metrics,
        failures: FailureCounts::default(),
        heartbeats,
        namespace,
    });
    tokio::spawn(async move {
        let sweeping = async {
            while let Some(ended) = sweeps.join_next().await {
                ended.expect("sweeps do not panic");
            }
        };
        let work = async {
            tokio::join!(
                object_store::controller::run(stores, stop_requested(stopped.clone())),
                snapshot::controller::run(snapshots, stop_requested(stopped.clone())),
                group::controller::run(groups, stop_requested(stopped.clone())),
                volume::controller::run(volumes, stop_requested(stopped)),
            );
        };
        tokio::select! {
            () = work => {}
            () = listening => {}
            () = sweeping => {}
        }
    })
}

async fn stop_requested(mut stopped: watch::Receiver<bool>) {
    // An error means that the sender was dropped, which is a request to stop, too.
    let _requested = stopped.wait_for(|stopped| *stopped).await;
}
