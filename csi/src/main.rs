//! The Holdfast CSI driver: the Identity service on a Unix socket.

mod endpoint;
mod identity;
mod settings;

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use holdfast_service::shutdown::Shutdown;
use holdfast_service::{chain, telemetry};

use crate::settings::Settings;

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
    let mut shutdown = Shutdown::listen().context("cannot listen for SIGTERM and SIGINT")?;
    let socket = endpoint::listen(&settings.endpoint.path)?;
    tracing::info!(socket = %settings.endpoint.path.display(), name = identity::NAME, "driver listens");
    socket.serve(shutdown.requested()).await.context("the socket failed")
}
