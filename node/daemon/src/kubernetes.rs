//! The Kubernetes side: serves the Volumes granted to this node and reports their status.
//!
//! Owns: the daemon's part of the status of every Volume and VolumeSnapshot, the StorageNode of this node and
//! its heartbeat.
//! Does not own: the choice of the node that serves a volume (the operator), serving itself (the data plane).
//! Runs on: the daemon's tokio runtime.
//! Invariants: the API server is needed for changes only; without it, served volumes stay served.
//! On failure: requests to the API server are retried with jitter; failed operations are shown in the
//! condition `Attached` and retried.

mod conditions;
mod content_lost;
mod draining;
mod event;
mod facts;
mod heartbeat;
mod identity;
mod limits;
mod member;
mod misfit;
pub(crate) mod names;
mod object_store;
mod operations;
mod orphan;
mod own_volumes;
mod plan;
mod retry;
mod snapshot;
mod storage_node;
mod store_renewal;
mod transport;
mod volume;

use std::path::PathBuf;
use std::time::Duration;

use holdfast_service::chain;
use holdfast_service::tasks::Tasks;
use holdfast_types::Backoff;
use kube::Client;
use kube::runtime::reflector;
use tokio::sync::watch;

use self::names::VolumeNames;
use crate::format_permissions::FormatPermissions;
use crate::volumes::Volumes;

/// Pause before the next search for the API server's configuration.
const CONNECT_RETRY: Backoff = Backoff::steady(Duration::from_secs(5));

/// Runs until `stop` ends. Operations in progress are cancelled, not awaited: a detach may wait for its store
/// without limit. All have ended when this returns.
pub(crate) async fn run<V: Volumes>(
    node_name: String,
    state_dir: PathBuf,
    volumes: V,
    permissions: FormatPermissions,
    names: VolumeNames,
    stop: impl Future<Output = ()> + Send,
) {
    let tasks = Tasks::new();
    let work = async {
        let client = connect().await;
        let (object_stores, writer) = reflector::store();
        let drain_state = watch::Sender::default();
        let draining = drain_state.subscribe();
        let node = watch::Sender::default();
        let owner = node.subscribe();
        tokio::join!(
            store_renewal::run(client.clone(), volumes.clone(), writer),
            volume::run(
                client.clone(),
                node_name.clone(),
                volumes.clone(),
                object_stores,
                permissions,
                names,
                tasks.clone(),
            ),
            snapshot::run(client.clone(), node_name.clone(), volumes.clone()),
            heartbeat::run(client.clone(), node_name.clone(), owner),
            draining::run(client.clone(), node_name.clone(), volumes.clone(), drain_state),
            storage_node::run(client, node_name, state_dir, volumes, draining, node),
        );
    };
    tokio::select! {
        () = work => {}
        () = stop => {}
    }
    tasks.stop().await;
}

/// Creates the client of the API server that this process belongs to. Sends nothing yet.
async fn connect() -> Client {
    loop {
        match Client::try_default().await {
            Ok(client) => return client,
            Err(error) => {
                tracing::warn!(
                    error = chain(&error),
                    "no Kubernetes client configuration; recovered volumes stay served; retrying"
                );
                tokio::time::sleep(CONNECT_RETRY.delay(1, fastrand::f64())).await;
            }
        }
    }
}
