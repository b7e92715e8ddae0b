//! The daemon's lifecycle: wait for the node's lock, recover this node's devices, then listen until SIGTERM.
//!
//! ```text
//! lock -> recover devices -> gRPC socket, Kubernetes -> SIGTERM, or a successor asks (`handoff.rs`)
//!   -> stop those -> end every task -> leave the devices QUIESCED -> release the lock
//!   -> last traces and log lines
//! a successor took over, under Kubernetes: -> stand by until SIGTERM; wait for the lock again
//! host shutdown: -> stop those -> detach unused volumes -> leave the others -> stop them
//! SIGHUP -> the stores of the configuration file are read again (`store_reload.rs`)
//! the admin endpoint (metrics, readiness, log level) is served from the first moment on
//! ```
//! Owns: the order of start and stop.
//! Invariants: devices are recovered before any other communication; only a detach deletes a device, and only
//! a detach or the host's shutdown stops one; the lock is released only when no thread of this process can
//! touch a device or a local file any more. A planned exit waits until a keeper has the connections of all
//! devices without ublk.
//! On failure: an error during startup ends the process; afterwards only an error of the data plane may.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use holdfast_service::admin;
use holdfast_service::log_level::LogLevel;
use holdfast_service::shutdown::Shutdown;
use holdfast_service::telemetry::{self, TelemetryError};
use holdfast_ublk::become_io_flusher;
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admin::DaemonProgram;
use crate::api::{self, Api, KnownStores};
use crate::config::{Config, Control};
use crate::failure::Failure;
use crate::format_permissions::FormatPermissions;
use crate::handoff::{self, HandoffOwner};
use crate::heap::return_freed_memory;
use crate::host::{self, HostShutdown};
use crate::kubernetes::{self, names::VolumeNames};
use crate::node::{FailureKind, InstanceName, Instances, Node, NodeConfig, NodeError, Owner};
use crate::readiness::Readiness;
use crate::store_reload::StoreReload;

/// Time for the data plane to finish requests on SIGTERM. The kubelet's default grace period is 30 s; the
/// rest is for the last traces. At the process's exit, the kernel quiesces devices with unfinished requests.
const GRACE: Duration = Duration::from_secs(20);
/// Maximum wait at the end for library calls.
const TASKS_END_WITHIN: Duration = Duration::from_millis(200);
/// Time after which a metrics address that cannot be used is logged.
const ADDRESS_FREE_WITHIN: Duration = Duration::from_secs(5);
const ADDRESS_POLL: Duration = Duration::from_millis(250);
/// Time after which an idle thread for blocking calls ends. Calls go round all threads, so that with tokio's
/// 10 seconds a few calls a second keep as many threads as the node ever needed at once.
const KEEP_IDLE_THREAD: Duration = Duration::from_secs(1);
/// Interval of checks for a keeper that has all connections.
const KEPT_POLL: Duration = Duration::from_millis(250);

/// Runs the daemon until SIGTERM or SIGINT. Call it while the process has a single thread.
///
/// # Errors
/// The fault that prevented the start, or the unexpected end of a listener.
pub(crate) fn run(file: PathBuf, config: Config, instance: Option<InstanceName>) -> Result<(), Failure> {
    return_freed_memory();
    // Every thread that is started later inherits this.
    let io_flusher = become_io_flusher();
    let telemetry = telemetry::start("holdfast-node", &[("k8s.node.name", &config.node.node_name)])
        .map_err(not_started)?;
    if let Err(error) = io_flusher {
        tracing::warn!(
            %error,
            "PR_SET_IO_FLUSHER failed; a node that is short of memory may wait for its own devices; grant CAP_SYS_RESOURCE"
        );
    }
    let outcome = serve_to_end(file, config, instance, telemetry.log_level());
    telemetry.finish();
    outcome
}

fn not_started(error: TelemetryError) -> Failure {
    let kind = match error {
        TelemetryError::Invalid { .. } => FailureKind::Invalid,
        TelemetryError::Thread(_) | TelemetryError::Started(_) => FailureKind::Local,
    };
    Failure::new(kind, &error)
}

fn serve_to_end(
    file: PathBuf,
    config: Config,
    instance: Option<InstanceName>,
    log_level: LogLevel,
) -> Result<(), Failure> {
    let runtime = Builder::new_multi_thread().enable_all().thread_keep_alive(KEEP_IDLE_THREAD).build();
    let runtime = runtime.map_err(|error| Failure::new(FailureKind::Local, &error))?;
    let outcome = runtime.block_on(serve(file, config, instance, log_level));
    // The remaining calls touch no file of the node: a name lookup, for example.
    runtime.shutdown_timeout(TASKS_END_WITHIN);
    outcome
}

async fn serve(
    file: PathBuf,
    config: Config,
    instance: Option<InstanceName>,
    log_level: LogLevel,
) -> Result<(), Failure> {
    let shutdown = Shutdown::listen().map_err(|error| Failure::new(FailureKind::Local, &error))?;
    let (mut admin, readiness) = (Edges::new(), Readiness::new());
    if let Some(address) = config.metrics {
        admin.serve_admin(address, readiness.clone(), log_level);
    }
    let mut process = ServingProcess { file, config, instance, shutdown, readiness };
    let outcome = loop {
        match process.serve_node().await {
            Ok(ServingEnd::HandedOver) if matches!(process.config.control, Control::Kubernetes) => {
                tracing::info!("standing by: this daemon serves the node again if the younger instance ends");
            }
            Ok(ServingEnd::HandedOver | ServingEnd::Requested) => break Ok(()),
            Err(failure) => break Err(failure),
        }
    };
    admin.end().await;
    outcome
}

/// Reason why a process ended to serve the node, without a failure.
#[derive(Debug)]
enum ServingEnd {
    /// A signal requested it, or requests did not end in time.
    Requested,
    /// A younger instance has the devices. Under Kubernetes the process then stands by, ready, until its pod
    /// is deleted: the controller of a DaemonSet deletes an old pod that is not ready at once, although the
    /// new one may still fail.
    HandedOver,
}

/// The state that a process keeps while it serves the node, hands it over and serves it again.
struct ServingProcess {
    file: PathBuf,
    config: Config,
    instance: Option<InstanceName>,
    shutdown: Shutdown,
    readiness: Readiness<Node>,
}

impl ServingProcess {
    /// Serves the node from the next time that its lock is free.
    async fn serve_node(&mut self) -> Result<ServingEnd, Failure> {
        let Self { file, config, instance, shutdown, readiness } = self;
        let Config { node: node_config, socket, control, .. } = config;
        let reload =
            StoreReload::listen(file.clone()).map_err(|error| Failure::new(FailureKind::Local, &error))?;
        // One that stands by is older than the owner, which would refuse.
        let asks = instance.as_ref().filter(|_| !readiness.is_standby());
        let Some(owner) = await_lock(node_config, socket, asks, shutdown).await? else {
            return Ok(ServingEnd::Requested);
        };
        let handoff = HandoffOwner::new(Instances::join(&node_config.run_dir, instance.clone()));
        readiness.recovers();
        let node = Node::serve(owner).await.map_err(not_served)?;
        tracing::info!(volumes = node.list().len(), "devices recovered");
        let (mut edges, stores) = (Edges::new(), KnownStores::new(control));
        let started = async {
            let listener = api::bind(socket).map_err(|error| Failure::new(FailureKind::Invalid, &error))?;
            let permissions = FormatPermissions::default();
            edges.serve_api(
                listener,
                Api::new(node.clone(), stores.clone(), permissions.clone(), handoff.clone()),
            );
            edges.reload_stores(reload, node.clone(), stores);
            match control {
                Control::Kubernetes => {
                    let (name, state_dir) = (node_config.node_name.clone(), node_config.state_dir.clone());
                    edges.serve_kubernetes(name, state_dir, node.clone(), permissions, readiness.names());
                }
                // A daemon under Kubernetes may have left this set, and nothing else would reset it.
                Control::Standalone(_) => node.set_draining(false).await,
            }
            readiness.serves(node.clone());
            Ok(())
        };
        let outcome = match started.await {
            Err(failure) => Err(failure),
            Ok(()) => tokio::select! {
                () = shutdown.requested() => Ok(ServingEnd::Requested),
                successor = handoff.agreed() => {
                    tracing::info!(%successor, "leaving the devices to a younger instance");
                    Ok(ServingEnd::HandedOver)
                }
                Some(ended) = edges.tasks.join_next() => Err(unexpected(ended)),
            },
        };
        let host = host_at_end(&node, outcome.is_ok()).await;
        edges.end().await;
        // It holds the node.
        let hands_over = matches!(outcome, Ok(ServingEnd::HandedOver));
        readiness.leaves(hands_over && matches!(control, Control::Kubernetes));
        let is_left = leave_devices(node, host).await;
        outcome.map(|end| if is_left { end } else { ServingEnd::Requested })
    }
}

/// Waits for the node's lock; meanwhile, a named instance asks the holder for it. Returns `None` if the
/// daemon must end first.
async fn await_lock(
    config: &NodeConfig,
    socket: &Path,
    instance: Option<&InstanceName>,
    shutdown: &mut Shutdown,
) -> Result<Option<Owner>, Failure> {
    let ask = async {
        match instance.cloned() {
            Some(instance) => handoff::ask(config.clone(), socket.to_owned(), instance).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        // Skips the request if the lock is free.
        biased;
        owner = Owner::wait(config.clone()) => owner.map(Some).map_err(not_served),
        () = shutdown.requested() => Ok(None),
        () = ask => unreachable!("it asks until the lock is free"),
    }
}

/// Returns the failure of a data plane that could not start.
fn not_served(error: NodeError) -> Failure {
    Failure::new(error.kind(), &error)
}

/// Returns the phase of the host's shutdown; `None` if the host stays up. A planned exit without one waits
/// for a keeper.
async fn host_at_end(node: &Node, is_planned: bool) -> Option<HostShutdown> {
    let mut host = host::shutdown().await;
    if host.is_none() && is_planned {
        host = await_kept(|| node.unkept_devices(), host::shutdown).await;
    }
    if let Some(phase) = host {
        tracing::info!(
            ?phase,
            "stopping, as the host shuts down: volumes are detached or their devices stopped"
        );
    } else {
        tracing::info!("stopping; the devices stay and wait for the next daemon");
    }
    host
}

/// Ends the data plane. Leaves the devices to the next daemon, or detaches and stops them if the host shuts
/// down. Returns true if the next daemon has the lock before this process ends.
async fn leave_devices(node: Node, host: Option<HostShutdown>) -> bool {
    let not_in_time = || {
        tracing::warn!(grace = ?GRACE, "requests did not end in time; the kernel quiesces their devices");
    };
    match host {
        Some(phase) => {
            let devices = node.release_all(phase.unused_within()).await;
            if tokio::time::timeout(GRACE, node.shutdown_with_host()).await.is_err() {
                not_in_time();
            }
            devices.stop().await;
            false
        }
        None => match tokio::time::timeout(GRACE, node.shutdown()).await {
            Ok(owner) => release(owner),
            Err(_elapsed) => {
                not_in_time();
                false
            }
        },
    }
}

/// Waits until a keeper has the connections of all devices without ublk: an earlier exit fails their
/// requests. Returns the phase of the host's shutdown if that begins in the meantime.
async fn await_kept<T, Shutdown: Future<Output = Option<T>>>(
    unkept: impl Fn() -> usize,
    host: impl Fn() -> Shutdown,
) -> Option<T> {
    let devices = unkept();
    if devices == 0 {
        return None;
    }
    tracing::error!(
        devices,
        "stopping waits: no keeper has the connections of devices without ublk, whose requests would fail; start the keeper"
    );
    while unkept() > 0 {
        tokio::time::sleep(KEPT_POLL).await;
        let phase = host().await;
        if phase.is_some() {
            return phase;
        }
    }
    tracing::info!(devices, "a keeper has all connections; stopping");
    None
}

/// Lets the next daemon start. Returns false if it must wait for the end of this process.
fn release(owner: Option<Owner>) -> bool {
    match owner.map(Owner::release) {
        Some(Ok(())) => true,
        None => false,
        Some(Err(error)) => {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the lock was kept to the end of the process"
            );
            false
        }
    }
}

/// The tasks that communicate with other processes, until they are ended together.
struct Edges {
    tasks: JoinSet<EdgeEnd>,
    stop: watch::Sender<bool>,
}

impl Edges {
    fn new() -> Self {
        Self { tasks: JoinSet::new(), stop: watch::Sender::new(false) }
    }

    /// Waits until the tasks must end.
    fn stopped(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut stop = self.stop.subscribe();
        async move {
            // An error means that the sender was dropped: this is a stop, too.
            let _stopped = stop.wait_for(|stop| *stop).await;
        }
    }

    /// Serves the admin endpoint once its address can be used. Devices do not depend on it.
    fn serve_admin(&mut self, address: SocketAddr, readiness: Readiness<Node>, log_level: LogLevel) {
        let stop = self.stopped();
        self.tasks.spawn(async move {
            let answers =
                async { admin::serve(listen(address).await, DaemonProgram(readiness), log_level).await };
            tokio::select! {
                () = answers => {}
                () = stop => {}
            }
            Ok(())
        });
    }

    fn serve_api(&mut self, listener: UnixListener, service: Api<Node>) {
        let stop = self.stopped();
        self.tasks.spawn(async move {
            let served = api::serve(listener, service, stop).await;
            served.map_err(|error| Failure::new(FailureKind::Local, &error))
        });
    }

    fn reload_stores(&mut self, reload: StoreReload, node: Node, stores: KnownStores) {
        let stop = self.stopped();
        self.tasks.spawn(async move {
            reload.run(node, stores, stop).await;
            Ok(())
        });
    }

    fn serve_kubernetes(
        &mut self,
        node_name: String,
        state_dir: PathBuf,
        node: Node,
        permissions: FormatPermissions,
        names: VolumeNames,
    ) {
        let stop = self.stopped();
        self.tasks.spawn(async move {
            kubernetes::run(node_name, state_dir, node, permissions, names, stop).await;
            Ok(())
        });
    }

    /// Ends all tasks.
    async fn end(mut self) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

type EdgeEnd = Result<(), Failure>;

/// Waits until the address can be used: a predecessor on the same network may still have it.
async fn listen(address: SocketAddr) -> TcpListener {
    let (begun, mut known) = (Instant::now(), String::new());
    loop {
        let error = match admin::listen(address).await {
            Ok(listener) => return listener,
            Err(error) => error.to_string(),
        };
        if begun.elapsed() >= ADDRESS_FREE_WITHIN && known != error {
            tracing::warn!(
                %address,
                error,
                "metrics.listen: the address cannot be used, so neither metrics nor readiness are served; free it, or \
                 choose another one"
            );
            known = error;
        }
        tokio::time::sleep(ADDRESS_POLL).await;
    }
}

fn unexpected(ended: Result<EdgeEnd, tokio::task::JoinError>) -> Failure {
    match ended {
        Ok(Err(failure)) => failure,
        Ok(Ok(())) => Failure { kind: FailureKind::Local, message: "a listener ended by itself".to_owned() },
        Err(panicked) => Failure::new(FailureKind::Local, &panicked),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Regression: a restart during a replacement of the keeper closed connections held only by the daemon.
    #[tokio::test]
    async fn a_planned_end_waits_for_the_keeper() {
        let unkept = AtomicUsize::new(2);
        let waits = await_kept(|| unkept.load(Ordering::Relaxed), async || None::<()>);
        tokio::pin!(waits);
        assert!(tokio::time::timeout(2 * KEPT_POLL, &mut waits).await.is_err());
        unkept.store(0, Ordering::Relaxed);
        assert_eq!(waits.await, None);
    }

    /// Found in review: a daemon whose metrics address was taken recovered its devices, ended, and left them
    /// paused.
    #[tokio::test]
    async fn a_taken_metrics_address_is_waited_for() {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = taken.local_addr().unwrap();
        let waits = listen(address);
        tokio::pin!(waits);
        assert!(tokio::time::timeout(2 * ADDRESS_POLL, &mut waits).await.is_err());
        drop(taken);
        assert_eq!(waits.await.local_addr().unwrap(), address);
    }

    /// Regression, found in review: the host was queried once, before the wait.
    #[tokio::test]
    async fn a_host_that_shuts_down_meanwhile_ends_the_wait() {
        assert_eq!(await_kept(|| 1, async || Some("down")).await, Some("down"));
    }
}
