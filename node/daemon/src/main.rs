//! The Holdfast node daemon and its command line.

mod admin;
#[cfg(test)]
mod allocated;
mod api;
mod cli;
mod config;
mod daemon;
#[cfg(test)]
mod documented;
mod failure;
mod format_permissions;
mod handoff;
mod heap;
mod host;
mod kubernetes;
mod metrics;
mod node;
mod preflight;
mod readiness;
mod store_reload;
mod volumes;

use clap::Parser;

fn main() -> std::process::ExitCode {
    cli::Cli::parse().run()
}
