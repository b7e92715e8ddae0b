//! The command line: `cargo e2e <command>`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};
use holdfast_bench::coverage::Coverage;
use holdfast_bench::nvme_target;
use holdfast_lab::inside::GuestCommand;
use holdfast_lab::pins::{KERNELS, KernelPin};
use holdfast_lab::report;
use holdfast_lab::setup::Toolbox;

use crate::{cluster, images, last_runs, shell, suite};

/// Holdfast with real components: a real kernel in test machines, a real Kubernetes API, a real S3 server.
#[derive(Debug, Parser)]
#[command(name = "cargo e2e")]
struct Arguments {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Run the main workflow from scratch until the volumes are deleted, with live output
    Demo,
    /// Run the workspace's tests and all scenarios, or only scenarios whose name contains FILTER; a version
    /// after an @ selects another kernel: kill-rounds@6.12, or one of Ubuntu's: ublk-many@6.8.0-1070-aws
    Test {
        /// Part of a scenario's name
        filter: Option<String>,
    },
    /// Run the benchmarks, or only those whose name contains FILTER, and print their figures
    Bench {
        /// Part of a benchmark's name
        filter: Option<String>,
    },
    /// Print the lines of the engine that the simulation alone executes
    Coverage,
    /// List all scenarios and benchmarks with their expected times
    List,
    /// Download and build all requirements of runs, without running anything
    Setup,
    /// Start a complete Kubernetes cluster with the chart installed, until Ctrl-C
    Cluster,
    /// Build the OCI images of the programs, for this machine's architecture
    Images,
    /// Start everything and open a prompt: kubectl is configured, test machines are reached with vm-a
    Shell {
        /// Kernel of the machine, such as 6.12
        kernel: Option<String>,
    },
    /// Play one scenario in this process, for the suite
    #[command(hide = true)]
    Play {
        /// The scenario's name
        name: String,
    },
    /// Run a command in a test machine, for the shell
    #[command(hide = true)]
    VmExec {
        /// The host port forwarded to the machine's agent
        port: u16,
        /// A bash script
        command: String,
    },
    /// Serve files over NVMe/TCP in a test machine, for the experiment
    #[command(hide = true)]
    NvmeTarget {
        /// Port of the loopback
        port: u16,
        /// One namespace per file
        files: Vec<PathBuf>,
    },
    #[command(flatten)]
    GuestCommand(GuestCommand),
}

/// Runs the command given on the command line.
///
/// # Errors
/// If it could not be run; failed scenarios are not an error but exit code 1.
pub fn run() -> Result<ExitCode> {
    match Arguments::parse().command {
        CliCommand::Test { filter } => Ok(exit_code(suite::run(filter.as_deref())?)),
        CliCommand::Play { name } => Ok(exit_code(suite::play(&name)?)),
        CliCommand::Demo => suite::demo().map(|()| ExitCode::SUCCESS),
        CliCommand::Bench { filter } => holdfast_bench::run(filter.as_deref()).map(|()| ExitCode::SUCCESS),
        CliCommand::Coverage => {
            Coverage::measure(&Toolbox::open()?)?.print();
            Ok(ExitCode::SUCCESS)
        }
        CliCommand::List => {
            list();
            Ok(ExitCode::SUCCESS)
        }
        CliCommand::Setup => {
            suite::prepare(&Toolbox::find()?, "cargo e2e setup", &suite::KERNELS, true)?;
            Ok(ExitCode::SUCCESS)
        }
        CliCommand::Cluster => cluster::run().map(|()| ExitCode::SUCCESS),
        CliCommand::Images => images::run().map(|()| ExitCode::SUCCESS),
        CliCommand::Shell { kernel } => shell::run(kernel.as_deref()).map(|()| ExitCode::SUCCESS),
        CliCommand::VmExec { port, command } => shell::vm_exec(port, &command),
        CliCommand::NvmeTarget { port, files } => nvme_target::run(port, &files).map(|()| ExitCode::SUCCESS),
        CliCommand::GuestCommand(order) => order.run().map(|()| ExitCode::SUCCESS),
    }
}

fn exit_code(passed: bool) -> ExitCode {
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Lists everything that can be run, with its time on two quiet cores.
fn list() {
    report::line("cargo e2e demo");
    entry("demo", holdfast_scenarios::story::EXPECTED, "the main job on two nodes, shown as it goes");
    report::line("cargo e2e test");
    let about = "cargo test --workspace, with the real S3 server; not with a filter";
    entry(suite::HOST_TESTS, suite::HOST_TESTS_EXPECTED, about);
    for lane in holdfast_scenarios::usual_lanes() {
        entry(&lane.to_string(), lane.scenario.expected, lane.scenario.about);
    }
    let series: Vec<&str> = KERNELS.iter().map(KernelPin::name).collect();
    report::line(format_args!(
        "cargo e2e test NAME@KERNEL: a scenario on another kernel ({}), or a release of Ubuntu's (6.8.0-1070-aws)",
        series.join(", ")
    ));
    report::line("cargo e2e test NAME; one of them, but for the last, is in each run of all, by the day");
    for name in holdfast_scenarios::IN_TURN.iter().chain(holdfast_scenarios::WITH_A_PROGRAM) {
        if let Ok(lane) = holdfast_scenarios::lane(name) {
            entry(name, lane.scenario.expected, &with_last_run(name, lane.scenario.about));
        }
    }
    report::line("cargo e2e bench");
    for benchmark in holdfast_bench::ALL {
        entry(benchmark.name, benchmark.expected, benchmark.about);
    }
    report::line("cargo e2e bench NAME, which nothing else runs");
    for benchmark in holdfast_bench::BY_NAME {
        entry(benchmark.name, benchmark.expected, &with_last_run(benchmark.name, benchmark.about));
    }
}

fn with_last_run(name: &str, about: &str) -> String {
    match last_runs::all().find(|run| run.name == name) {
        Some(run) if run.day != "never" => {
            format!("{about} (last passed on {} with {})", run.day, run.commit)
        }
        _ => format!("{about} (never passed as a whole)"),
    }
}

fn entry(name: &str, expected: Duration, about: &str) {
    report::line(format_args!("  {name:<16} {:>4} s  {about}", expected.as_secs()));
}
