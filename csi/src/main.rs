//! The Holdfast CSI driver: the Controller service, once for a cluster, on a Unix socket.

mod capability;
mod controller;
mod deadline;
mod endpoint;
mod identity;
mod outcome;
mod probe;
mod publish_context;
mod settings;
mod topology;

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use holdfast_proto::csi::v1::controller_server::ControllerServer;
use holdfast_proto::csi::v1::identity_server::IdentityServer;
use holdfast_service::shutdown::Shutdown;
use holdfast_service::{chain, telemetry};
use kube::Client;
use tonic::service::Routes;

use crate::controller::Controller;
use crate::identity::Identity;
use crate::settings::{Command, Listen, Settings};

fn main() -> ExitCode {
    let settings = Settings::parse();
    let telemetry = match telemetry::start("holdfast-csi", &[]) {
        Ok(telemetry) => telemetry,
        Err(error) => {
            eprintln!("holdfast-csi: {}", chain(&error));
            return ExitCode::FAILURE;
        }
    };
    let outcome = tokio::runtime::Runtime::new()
        .context("cannot start")
        .and_then(|runtime| runtime.block_on(run(settings)));
    if let Err(error) = &outcome {
        tracing::error!(error = format!("{error:#}"), "driver ends");
    }
    telemetry.finish();
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn run(settings: Settings) -> anyhow::Result<()> {
    match settings.command {
        Command::Controller(listen) => serve_controller(listen).await,
        Command::Probe(Listen { endpoint }) => probe::ask(&endpoint.path).await,
    }
}

async fn serve_controller(Listen { endpoint }: Listen) -> anyhow::Result<()> {
    let mut shutdown = Shutdown::listen().context("cannot listen for SIGTERM and SIGINT")?;
    let client = Client::try_default().await.context("no cluster: run in a pod, or set KUBECONFIG")?;
    let socket = endpoint::listen(&endpoint.path)?;
    let services = Routes::new(IdentityServer::new(Identity))
        .add_service(ControllerServer::new(Controller::new(client)));
    tracing::info!(socket = %endpoint.path.display(), name = identity::NAME, "controller listens");
    socket.serve(services, shutdown.requested()).await.context("the socket failed")
}
