//! The command line of `holdfast-node`: the daemon itself (`run`), and requests to its local socket.

mod client;
mod create;
mod dispatch;
mod exit;
mod fenced;
mod gc;
mod limits;
mod output;
mod preflight;
mod scrub;
mod snapshot;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use holdfast_crds::{ByteSize, TimeSpan};
use holdfast_fuse::{LoopCommand, keeper};
use holdfast_service::chain;
use tokio::runtime::Runtime;

use self::limits::{MaxIops, MaxThroughput};
use crate::config::{Config, DEFAULT_RUN_DIR, DEFAULT_SOCKET};
use crate::daemon;
use crate::failure::Failure;
use crate::node::{FLUSH_DEVICE, InstanceName, KEEPER, KEEPER_FOR_DAEMON, LOOP_DEVICE};

/// Block volumes with their home in an object store, served from this node.
#[derive(Debug, Parser)]
#[command(name = "holdfast-node", version, about)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the daemon
    Run {
        /// The configuration file
        #[arg(long, value_name = "FILE", default_value = "/etc/holdfast/node.toml", env = "HOLDFAST_CONFIG")]
        config: PathBuf,
        /// Name of this instance of the daemon, such as its pod's uid. A named daemon asks the one that
        /// serves the node to hand over the devices, unless its own instance served before
        #[arg(long, value_name = "NAME", env = "HOLDFAST_INSTANCE")]
        instance: Option<InstanceName>,
    },
    /// Check that this node meets the requirements of a daemon with this configuration, and suggest fixes;
    /// works without a daemon
    Preflight(preflight::Preflight),
    /// Create a volume in a store, empty or with the content of a snapshot or another volume
    Create(create::Create),
    /// Serve a volume as a block device of this node
    Attach(Attach),
    /// Change settings of a volume that is attached on this node, at once
    Configure(Configure),
    /// Grow a volume that is attached on this node, and its device
    Grow {
        /// Name of the volume
        volume: String,
        /// New size
        size: ByteSize,
        /// Memory limit for the content of a memory volume; unchanged by default
        #[arg(long, value_name = "SIZE")]
        memory_limit: Option<ByteSize>,
        /// Maximum disk space for spilled pages of a memory volume that has a spill file; unchanged by
        /// default
        #[arg(long, value_name = "SIZE")]
        memory_spill: Option<ByteSize>,
        #[command(flatten)]
        target: Target,
    },
    /// Upload pending data and detach a volume
    Detach {
        /// Name of the volume
        volume: String,
        #[command(flatten)]
        target: Target,
    },
    /// Show the volumes of this node
    List {
        #[command(flatten)]
        target: Target,
    },
    /// Show I/O statistics since this daemon attached or recovered the volumes
    Stats {
        /// Only this volume
        volume: Option<String>,
        #[command(flatten)]
        target: Target,
    },
    /// Show which transports this node can use, and why it rejects the others
    Capabilities {
        #[command(flatten)]
        target: Target,
    },
    /// Verify all stored objects of a volume and report damage
    Scrub(Scrub),
    /// Delete the objects of a store that no volume and no snapshot in it needs
    Gc(Gc),
    /// Take, list and delete snapshots of a volume
    Snapshot(snapshot::SnapshotCommand),
    /// List, export or delete data of fenced volumes that was not uploaded; works without a daemon
    Fenced(fenced::Fenced),
    /// Flush a block device; for the daemon's own use, because a device may never respond
    #[command(name = FLUSH_DEVICE, hide = true)]
    FlushDevice {
        /// The device
        device: PathBuf,
    },
    /// Bind or clear a loop device; for the daemon's own use, because a device may never respond
    #[command(name = LOOP_DEVICE, hide = true)]
    LoopDevice {
        /// The command and its arguments
        arguments: Vec<String>,
    },
    /// Hold the connections of devices without ublk while no daemon runs, replacing the current keeper; for a
    /// separate container, next to a daemon under Kubernetes
    #[command(name = KEEPER)]
    Keeper {
        /// The daemon's run directory
        #[arg(long, value_name = "PATH", default_value = DEFAULT_RUN_DIR, env = "HOLDFAST_RUN_DIR")]
        run_dir: PathBuf,
        /// Exit after the last connection is closed; for the daemon's own use
        #[arg(long = KEEPER_FOR_DAEMON, hide = true)]
        for_daemon: bool,
    },
}

/// Arguments of `attach`.
#[derive(Debug, Args)]
struct Attach {
    /// Name of the volume
    volume: String,
    /// Name of a store of the daemon's configuration
    #[arg(long, required_unless_present = "memory")]
    store: Option<String>,
    /// Attach a new memory volume of this size, all zeros, instead of a volume of a store. Its content is
    /// lost when it is detached and when the host restarts
    #[arg(
        long,
        value_name = "SIZE",
        conflicts_with_all = ["store", "size", "take_over", "max_dirty_age", "durability", "max_iops", "max_throughput"]
    )]
    memory: Option<ByteSize>,
    /// Memory limit for the content of a memory volume; enough for any content by default
    #[arg(long, value_name = "SIZE", requires = "memory", conflicts_with = "store")]
    memory_limit: Option<ByteSize>,
    /// Maximum disk space for spilled pages of a memory volume, used if memory is short; none by default
    #[arg(long, value_name = "SIZE", requires = "memory", conflicts_with = "store")]
    memory_spill: Option<ByteSize>,
    /// Codec of the pages of a memory volume
    #[arg(long, value_enum, requires = "memory", conflicts_with = "store")]
    compression: Option<Compression>,
    /// Grow the volume to this size
    #[arg(long)]
    size: Option<ByteSize>,
    /// Replace the writer of this epoch, as named in the rejection. That writer is fenced; the data that it
    /// did not upload is missing from the volume
    #[arg(long, value_name = "EPOCH")]
    take_over: Option<u64>,
    /// Upload data when it reaches this age, such as 30s or 1m30s
    #[arg(long)]
    max_dirty_age: Option<TimeSpan>,
    /// Complete a FLUSH when the data is on the local disk (the default), or when it is committed to the
    /// object store
    #[arg(long, value_enum)]
    durability: Option<Class>,
    /// Limit to this many reads, writes and discards per second, such as 3000; `none`: no limit
    #[arg(long, value_name = "NUMBER")]
    max_iops: Option<MaxIops>,
    /// Limit to this many bytes read and written per second, such as 125Mi; `none`: no limit
    #[arg(long, value_name = "SIZE")]
    max_throughput: Option<MaxThroughput>,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `configure`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("settings").required(true).multiple(true))]
struct Configure {
    /// Name of the volume
    volume: String,
    /// Upload data when it reaches this age, such as 30s or 1m30s
    #[arg(long, group = "settings")]
    max_dirty_age: Option<TimeSpan>,
    /// Complete a FLUSH when the data is on the local disk, or when it is committed to the object store
    #[arg(long, value_enum, group = "settings")]
    durability: Option<Class>,
    /// Limit to this many reads, writes and discards per second, such as 3000; `none`: no limit
    #[arg(long, value_name = "NUMBER", group = "settings")]
    max_iops: Option<MaxIops>,
    /// Limit to this many bytes read and written per second, such as 125Mi; `none`: no limit
    #[arg(long, value_name = "SIZE", group = "settings")]
    max_throughput: Option<MaxThroughput>,
    #[command(flatten)]
    target: Target,
}

/// Codec of the pages of a memory volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Compression {
    /// Fast
    Lz4,
    /// Smaller and slower
    Zstd,
}

/// Point at which a FLUSH is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Class {
    /// Data is safe on this node's disk
    Local,
    /// Data is committed to the object store
    Object,
}

/// Arguments of `scrub`.
#[derive(Debug, Args)]
struct Scrub {
    /// Name of the volume
    volume: String,
    /// Name of a store of the daemon's configuration; only for a volume that is not attached on this node
    #[arg(long)]
    store: Option<String>,
    /// Repair all repairable damage, from the rest of the log and from this node's data of an attached volume
    #[arg(long)]
    repair: bool,
    #[command(flatten)]
    target: Target,
}

/// Arguments of `gc`.
#[derive(Debug, Args)]
struct Gc {
    /// Name of a store of the daemon's configuration; optional if it has only one
    #[arg(long)]
    store: Option<String>,
    /// Delete nothing; only show what would be deleted
    #[arg(long)]
    dry_run: bool,
    /// Do not delete objects younger than this, such as 24h or 1h30m, by the store's clock
    #[arg(long, default_value = "24h")]
    grace: TimeSpan,
    /// Delete at most this many objects
    #[arg(long, value_name = "OBJECTS", value_parser = clap::value_parser!(u64).range(1..))]
    most: Option<u64>,
    #[command(flatten)]
    target: Target,
}

/// The daemon's socket, and the output format.
#[derive(Debug, Args)]
struct Target {
    /// The daemon's socket
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET, env = "HOLDFAST_API_SOCKET")]
    socket: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Cli {
    /// Runs the requested command.
    pub(crate) fn run(self) -> ExitCode {
        match self.command {
            Command::Run { config, instance } => {
                let file = config;
                let config = match Config::load(&file) {
                    Ok(config) => config,
                    Err(error) => return fail(2, &chain(&error)),
                };
                match daemon::run(file, config, instance) {
                    Ok(()) => ExitCode::SUCCESS,
                    Err(failure) => fail(exit::code(failure.kind), &failure.message),
                }
            }
            Command::Preflight(preflight) => preflight.run(),
            Command::Fenced(fenced) => {
                let mut text = String::new();
                let done = fenced.run(&mut text);
                finish(done, &text)
            }
            Command::FlushDevice { device } => match holdfast_ublk::flush_device(&device) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(1, &format!("{} cannot be flushed: {error}", device.display())),
            },
            Command::LoopDevice { arguments } => loop_device(&arguments),
            Command::Keeper { run_dir, for_daemon } => {
                let run = if for_daemon { keeper::run_for_daemon } else { keeper::run };
                match run(&run_dir) {
                    Ok(()) => ExitCode::SUCCESS,
                    Err(error) => fail(1, &format!("{} has no keeper: {error}", run_dir.display())),
                }
            }
            command @ (Command::Create(_)
            | Command::Attach(_)
            | Command::Configure(_)
            | Command::Grow { .. }
            | Command::Detach { .. }
            | Command::List { .. }
            | Command::Stats { .. }
            | Command::Scrub(_)
            | Command::Gc(_)
            | Command::Snapshot(_)
            | Command::Capabilities { .. }) => {
                let runtime = match Runtime::new() {
                    Ok(runtime) => runtime,
                    Err(error) => return fail(1, &format!("threads cannot be created: {error}")),
                };
                let mut text = String::new();
                let asked = runtime.block_on(dispatch::ask(command, &mut text));
                finish(asked, &text)
            }
        }
    }
}

/// Runs a loop device operation for the daemon. `EBUSY` has its own exit code.
fn loop_device(arguments: &[String]) -> ExitCode {
    let done = match LoopCommand::of(arguments) {
        Some(command) => command.run(),
        None => return fail(2, "the arguments of loop-device are invalid"),
    };
    match done {
        Ok(text) => finish(Ok(()), &text),
        Err(error) => {
            let busy = error.raw_os_error() == Some(libc::EBUSY);
            fail(if busy { libc::EBUSY as u8 } else { 1 }, &error.to_string())
        }
    }
}

/// Prints an answer and returns the exit code.
fn finish(outcome: Result<(), Failure>, text: &str) -> ExitCode {
    match (outcome, output::print(text)) {
        (Ok(()), Ok(())) => ExitCode::SUCCESS,
        (Err(failure), _) => fail(exit::code(failure.kind), &failure.message),
        (Ok(()), Err(error)) => fail(1, &format!("the answer cannot be printed: {error}")),
    }
}

/// Prints a note next to the answer, on standard error. If that cannot be written, such as a file on a full
/// disk, only the note is lost.
fn note(message: &str) {
    drop(writeln!(io::stderr(), "holdfast-node: {message}"));
}

/// Prints the reason for the command's failure on standard error.
fn fail(code: u8, message: &str) -> ExitCode {
    note(message);
    ExitCode::from(code)
}

#[cfg(test)]
mod tests;
