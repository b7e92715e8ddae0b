//! The command line: `cargo e2e <command>`.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::{guest, report, scenario, setup::Toolbox, suite};

/// Holdfast on real parts: a real kernel in test machines, a real Kubernetes API, a real S3 server.
#[derive(Debug, Parser)]
#[command(name = "cargo e2e")]
struct Arguments {
    #[command(subcommand)]
    command: Order,
}

#[derive(Debug, Subcommand)]
enum Order {
    /// Run the workspace's tests and every scenario, or the scenarios whose name contains FILTER
    Test {
        /// Part of a scenario's name
        filter: Option<String>,
    },
    /// Name every scenario and benchmark with its expected time
    List,
    /// Fetch and build everything that runs need, and run nothing
    Setup,
    /// Process 1 of a test machine
    #[command(hide = true)]
    GuestAgent,
}

/// Does what the command line says.
///
/// # Errors
/// When it could not be done; failed scenarios are no error but exit code 1.
pub fn run() -> Result<ExitCode> {
    match Arguments::parse().command {
        Order::Test { filter } => {
            let passed = suite::run(filter.as_deref())?;
            Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Order::List => {
            report::line("host-tests      300 s  cargo test --workspace");
            for scenario in scenario::ALL {
                report::line(format_args!(
                    "{:<15} {:>3} s  {}",
                    scenario.name,
                    scenario.expected.as_secs(),
                    scenario.about
                ));
            }
            Ok(ExitCode::SUCCESS)
        }
        Order::Setup => {
            let toolbox = Toolbox::open()?;
            toolbox.boot_files()?;
            toolbox.etcd()?;
            toolbox.versitygw()?;
            toolbox.kube_apiserver()?;
            Ok(ExitCode::SUCCESS)
        }
        Order::GuestAgent => guest::run().map(|()| ExitCode::SUCCESS),
    }
}
