//! The Holdfast CSI driver on Unix sockets: the Controller and GroupController services, once per cluster;
//! the Node service, once per node; and the SnapshotMetadata service, for clusters whose backups use it.

mod capability;
mod controller;
mod deadline;
mod endpoint;
mod group_controller;
mod identity;
mod metrics;
mod node;
mod probe;
mod publish_context;
mod readiness;
mod registration;
mod requests;
mod settings;
mod snapshot_metadata;
mod topology;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use holdfast_proto::csi::v1::controller_server::ControllerServer;
use holdfast_proto::csi::v1::group_controller_server::GroupControllerServer;
use holdfast_proto::csi::v1::identity_server::IdentityServer;
use holdfast_proto::csi::v1::node_server::NodeServer;
use holdfast_proto::csi::v1::snapshot_metadata_server::SnapshotMetadataServer;
use holdfast_proto::pluginregistration::v1::registration_server::RegistrationServer;
use holdfast_service::log_level::LogLevel;
use holdfast_service::shutdown::Shutdown;
use holdfast_service::{chain, telemetry};
use kube::Client;
use tonic::service::Routes;

use crate::controller::Controller;
use crate::group_controller::GroupController;
use crate::identity::Identity;
use crate::metrics::{AdminEndpoint, Metrics};
use crate::node::{DaemonClient, NodeService};
use crate::readiness::Readiness;
use crate::registration::Registration;
use crate::requests::Requests;
use crate::settings::{Admin, ClusterSettings, Command, Listen, NodeSettings, Probe, Settings};
use crate::snapshot_metadata::SnapshotMetadata;

/// Longest wait at shutdown for programs that still work on a device. In a pod, this process is PID 1 of its
/// PID namespace, and the kernel kills them with it.
const PROGRAMS_END_WITHIN: Duration = Duration::from_secs(2);
/// Time between two attempts to find a node daemon that can serve volumes.
const DAEMON_RETRY: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    match Settings::parse().command {
        Command::Controller(settings) => serve(|log_level| serve_controller(settings, log_level)),
        Command::SnapshotMetadata(settings) => {
            serve(|log_level| serve_snapshot_metadata(settings, log_level))
        }
        Command::Node(settings) => serve(|log_level| serve_node(settings, log_level)),
        Command::Probe(Probe { listen, ready }) => ask(&listen.endpoint.path, ready),
    }
}

/// Queries a driver once. The answer goes to the terminal or the kubelet, regardless of the log filter.
fn ask(socket: &Path, ready: bool) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome =
        runtime.context("cannot start").and_then(|runtime| runtime.block_on(probe::ask(socket, ready)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(io::stderr(), "holdfast-csi: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Runs a service of the driver until it ends.
fn serve<F: Future<Output = anyhow::Result<()>>>(service: impl FnOnce(LogLevel) -> F) -> ExitCode {
    let telemetry = match telemetry::start("holdfast-csi", &[]) {
        Ok(telemetry) => telemetry,
        Err(error) => {
            drop(writeln!(io::stderr(), "holdfast-csi: {}", chain(&error)));
            return ExitCode::FAILURE;
        }
    };
    let outcome = tokio::runtime::Runtime::new().context("cannot start").and_then(|runtime| {
        let outcome = runtime.block_on(service(telemetry.log_level()));
        runtime.shutdown_timeout(PROGRAMS_END_WITHIN);
        outcome
    });
    if let Err(error) = &outcome {
        tracing::error!(error = format!("{error:#}"), "driver ends");
    }
    telemetry.finish();
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn serve_controller(settings: ClusterSettings, log_level: LogLevel) -> anyhow::Result<()> {
    let mut shutdown = Shutdown::listen().context("cannot listen for SIGTERM and SIGINT")?;
    let (readiness, requests) = (Readiness::ready(), Requests::default());
    let service = ClusterService::start(settings, &readiness, &requests).await?;
    let groups = GroupController::new(service.client.clone(), requests.clone());
    let services = Routes::new(IdentityServer::new(Identity::new(readiness)))
        .add_service(ControllerServer::new(Controller::new(service.client, requests)))
        .add_service(GroupControllerServer::new(groups));
    tracing::info!(name = identity::NAME, "controller listens");
    tokio::select! {
        ended = service.socket.serve(services, shutdown.requested()) => ended.context("the socket failed"),
        () = service.admin.serve(service.metrics, log_level) => anyhow::bail!("the admin endpoint ended by itself"),
    }
}

/// Does not wait at shutdown for responses in progress, which take minutes: a client resumes where one broke
/// off.
async fn serve_snapshot_metadata(settings: ClusterSettings, log_level: LogLevel) -> anyhow::Result<()> {
    let mut shutdown = Shutdown::listen().context("cannot listen for SIGTERM and SIGINT")?;
    let (readiness, requests) = (Readiness::ready(), Requests::default());
    let service = ClusterService::start(settings, &readiness, &requests).await?;
    let identity = IdentityServer::new(Identity::with_snapshot_metadata(readiness));
    let services = Routes::new(identity)
        .add_service(SnapshotMetadataServer::new(SnapshotMetadata::new(service.client, requests)));
    tracing::info!(name = identity::NAME, "snapshot metadata service listens");
    tokio::select! {
        ended = service.socket.serve(services, std::future::pending()) => ended.context("the socket failed"),
        () = service.admin.serve(service.metrics, log_level) => anyhow::bail!("the admin endpoint ended by itself"),
        () = shutdown.requested() => Ok(()),
    }
}

/// Common parts of the cluster services.
struct ClusterService {
    client: Client,
    admin: AdminEndpoint,
    metrics: Metrics,
    socket: endpoint::Socket,
}

impl ClusterService {
    async fn start(
        settings: ClusterSettings,
        readiness: &Readiness,
        requests: &Requests,
    ) -> anyhow::Result<Self> {
        let ClusterSettings { listen: Listen { endpoint }, admin: Admin { metrics_address } } = settings;
        let client = Client::try_default().await.context("no cluster: run in a pod, or set KUBECONFIG")?;
        let admin = AdminEndpoint::listen(metrics_address).await?;
        let socket = endpoint::listen(&endpoint.path)?;
        tracing::info!(socket = %endpoint.path.display(), "socket listens");
        Ok(Self { client, admin, metrics: Metrics::new(readiness.clone(), requests), socket })
    }
}

/// Serves the CSI socket before the registration socket exists: the kubelet connects at once.
async fn serve_node(settings: NodeSettings, log_level: LogLevel) -> anyhow::Result<()> {
    let NodeSettings { listen, admin, registration, kubelet_endpoint, daemon_socket, directory, node_name } =
        settings;
    let mut shutdown = Shutdown::listen().context("cannot listen for SIGTERM and SIGINT")?;
    let daemon = DaemonClient::new(daemon_socket);
    let readiness = Readiness::not_ready("the node daemon has not answered yet; it is asked once a second");
    let requests = Requests::default();
    let admin = AdminEndpoint::listen(admin.metrics_address).await?;
    let socket = endpoint::listen(&listen.endpoint.path)?;
    let metrics = Metrics::new(readiness.clone(), &requests);
    let node = NodeService::new(node_name, daemon.clone(), directory, requests);
    let identity = IdentityServer::new(Identity::new(readiness.clone()));
    let services = Routes::new(identity).add_service(NodeServer::new(node.clone()));
    let serve = socket.serve(services, std::future::pending());
    let registration_service = Registration::new(kubelet_endpoint, readiness.clone());
    let register = register(&daemon, &registration.path, registration_service, &readiness);
    let outcome = tokio::select! {
        ended = serve => ended.context("the socket failed"),
        ended = register => ended,
        () = admin.serve(metrics, log_level) => Err(anyhow::anyhow!("the admin endpoint ended by itself")),
        () = shutdown.requested() => Ok(()),
    };
    node.stop().await;
    outcome
}

/// Registers the driver with the kubelet once the node can serve volumes.
async fn register(
    daemon: &DaemonClient,
    path: &Path,
    registration: Registration,
    readiness: &Readiness,
) -> anyhow::Result<()> {
    let mut said = String::new();
    while let Err(status) = daemon.usable().await {
        if said != status.message() {
            status.message().clone_into(&mut said);
            readiness.set(Some(said.clone()));
            tracing::warn!(message = said, "driver not registered yet");
        }
        tokio::time::sleep(DAEMON_RETRY).await;
    }
    let socket = endpoint::listen(path)?;
    readiness.set(Some(format!(
        "the kubelet has not registered the driver yet. No pod of this node gets a volume. If that lasts, see the \
         log of the kubelet, which looks for {}",
        path.display()
    )));
    let services = Routes::new(RegistrationServer::new(registration.clone()));
    tracing::info!(socket = %path.display(), name = identity::NAME, "kubelet can register the driver");
    tokio::select! {
        ended = socket.serve(services, std::future::pending()) => ended.context("the registration socket failed"),
        why = registration.refused() => anyhow::bail!("the kubelet refused the driver: {why}"),
    }
}
