//! The Holdfast CSI driver: the Identity service on a Unix socket.

mod endpoint;
mod identity;
mod settings;

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use crate::settings::Settings;

#[tokio::main]
async fn main() -> ExitCode {
    let settings = Settings::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    match run(settings).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "driver ends");
            ExitCode::FAILURE
        }
    }
}

async fn run(settings: Settings) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let socket = endpoint::listen(&settings.endpoint.path)?;
    tracing::info!(socket = %settings.endpoint.path.display(), name = identity::NAME, "driver listens");
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    socket.serve(stop).await.context("the socket failed")
}
