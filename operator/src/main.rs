//! The Holdfast control-plane operator.

mod event;
mod http;
mod lease;
mod metrics;
mod object_store;
mod requeue;
mod run;
mod settings;
mod telemetry;
mod volume;

use std::process::ExitCode;

use clap::Parser;

use crate::settings::Settings;

fn main() -> ExitCode {
    let settings = Settings::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("holdfast-operator: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(async {
        let telemetry = match telemetry::start() {
            Ok(telemetry) => telemetry,
            Err(error) => {
                eprintln!("holdfast-operator: {error:#}");
                return ExitCode::FAILURE;
            }
        };
        let outcome = run::run(settings).await;
        if let Err(error) = &outcome {
            tracing::error!(error = format!("{error:#}"), "operator ends");
        }
        telemetry.stop().await;
        if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    })
}
