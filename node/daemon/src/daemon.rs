//! The daemon's life: recover what this node serves, then listen, until SIGTERM.
//!
//! ```text
//! lock and recover devices -> gRPC socket, metrics, Kubernetes -> SIGTERM -> stop those -> leave the devices QUIESCED
//! ```
//! Owns: the order of start and stop.
//! Invariants: devices are recovered before anything else is spoken to; nothing but a detach deletes a device.
//! On failure: what fails at the start ends the process; later, only the data plane may.

use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::api::{self, Api};
use crate::config::{Config, Control};
use crate::failure::Failure;
use crate::kubernetes;
use crate::metrics;
use crate::node::ErrorKind;
use crate::node::Node;
use crate::telemetry;

/// How long the data plane may take to finish requests on SIGTERM. A kubelet gives 30 s by default; what is left is for
/// the last traces. A device whose requests have not ended by then is quiesced by the kernel when the process ends.
const GRACE: Duration = Duration::from_secs(20);

/// Runs the daemon until SIGTERM or SIGINT.
///
/// # Errors
/// What kept it from starting, or an end of its listeners that nobody asked for.
pub(crate) async fn run(config: Config) -> Result<(), Failure> {
    let tracing = telemetry::start(&config.node.node_name)?;
    let mut stop_signals = Signals::new()?;
    let outcome = serve(config, &mut stop_signals).await;
    tracing.finish();
    outcome
}

async fn serve(config: Config, signals: &mut Signals) -> Result<(), Failure> {
    let Config { node: node_config, socket, metrics, control } = config;
    let (node_name, state_dir) = (node_config.node_name.clone(), node_config.state_dir.clone());
    let node = Node::start(node_config).await.map_err(|error| Failure::new(error.kind(), &error))?;
    tracing::info!(volumes = node.list().len(), "devices recovered");

    let (stop, stopped) = watch::channel(false);
    let mut parts = JoinSet::new();
    let started = start(&mut parts, &node, &socket, metrics, &control, &stopped).await;
    if started.is_ok() && matches!(control, Control::Kubernetes) {
        let (volumes, stop) = (node.clone(), wait(stopped.clone()));
        parts.spawn(async move {
            kubernetes::run(node_name, state_dir, volumes, stop).await;
            Ok(())
        });
    }
    let outcome = match started {
        Err(failure) => Err(failure),
        Ok(()) => tokio::select! {
            () = signals.recv() => Ok(()),
            Some(ended) = parts.join_next() => Err(unexpected(ended)),
        },
    };
    tracing::info!("stopping; the devices stay and wait for the next daemon");
    stop.send_replace(true);
    while parts.join_next().await.is_some() {}
    if tokio::time::timeout(GRACE, node.shutdown()).await.is_err() {
        tracing::warn!(grace = ?GRACE, "requests did not end in time; the kernel quiesces their devices");
    }
    outcome
}

type PartEnd = Result<(), Failure>;

async fn start(
    parts: &mut JoinSet<PartEnd>,
    node: &Node,
    socket: &std::path::Path,
    metrics_address: Option<std::net::SocketAddr>,
    control: &Control,
    stopped: &watch::Receiver<bool>,
) -> Result<(), Failure> {
    let listener = api::bind(socket).map_err(|error| Failure::new(ErrorKind::Invalid, &error))?;
    let service = Api::new(node.clone(), control);
    let stop = wait(stopped.clone());
    parts.spawn(async move {
        api::serve(listener, service, stop).await.map_err(|error| Failure::new(ErrorKind::Local, &error))
    });
    if let Some(address) = metrics_address {
        let listener = TcpListener::bind(address).await.map_err(|error| Failure {
            kind: ErrorKind::Invalid,
            message: format!("metrics.listen: {address} cannot be used ({error}); choose a free address"),
        })?;
        let (volumes, stop) = (node.clone(), wait(stopped.clone()));
        parts.spawn(async move {
            metrics::serve(listener, volumes, stop).await;
            Ok(())
        });
    }
    Ok(())
}

fn unexpected(ended: Result<PartEnd, tokio::task::JoinError>) -> Failure {
    match ended {
        Ok(Err(failure)) => failure,
        Ok(Ok(())) => Failure { kind: ErrorKind::Local, message: "a listener ended by itself".to_owned() },
        Err(panicked) => Failure::new(ErrorKind::Local, &panicked),
    }
}

async fn wait(mut stopped: watch::Receiver<bool>) {
    // An error means that the sender is gone: that is a stop too.
    let _stopped = stopped.wait_for(|stopped| *stopped).await;
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::new(ErrorKind::Local, &error));
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
