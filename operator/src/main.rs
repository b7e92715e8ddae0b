//! The Holdfast control-plane operator.

mod event;
mod group;
mod heartbeats;
mod last_writes;
mod lease;
mod metrics;
mod object_store;
mod readiness;
mod requeue;
mod restore;
mod run;
mod settings;
mod snapshot;
mod sweep;
mod volume;
mod watch_failure;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use holdfast_service::{chain, telemetry};

use crate::settings::{Command, Settings};

fn main() -> ExitCode {
    let mut settings = Settings::parse();
    if let Some(command) = settings.command.take() {
        return carry_out(command);
    }
    let telemetry = match telemetry::start("holdfast-operator", &[]) {
        Ok(telemetry) => telemetry,
        Err(error) => {
            drop(writeln!(io::stderr(), "holdfast-operator: {}", chain(&error)));
            return ExitCode::FAILURE;
        }
    };
    let outcome = tokio::runtime::Runtime::new()
        .context("cannot start")
        .and_then(|runtime| runtime.block_on(run::run(settings, telemetry.log_level())));
    if let Err(error) = &outcome {
        tracing::error!(error = format!("{error:#}"), "operator ends");
    }
    telemetry.finish();
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs a user's command; its output goes to the terminal.
fn carry_out(Command::Restore { object_store, deleted, without_claims }: Command) -> ExitCode {
    let asked = restore::WantedDocuments { deleted, with_claims: !without_claims };
    let outcome = tokio::runtime::Runtime::new()
        .context("cannot start")
        .and_then(|runtime| runtime.block_on(restore::run(&object_store, asked)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(io::stderr(), "holdfast-operator: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
