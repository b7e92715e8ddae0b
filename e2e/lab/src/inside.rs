//! The commands of the program in a test machine.

use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;

use crate::stamp::write;
use crate::{churn, guest, report, rpc};

/// A command in a test machine, hidden on the host's command line.
#[derive(Debug, Subcommand)]
pub enum GuestCommand {
    /// Process 1 of a test machine
    #[command(hide = true)]
    GuestAgent,
    /// Write stamped sectors in a test machine, and report each flush
    #[command(hide = true)]
    StampWrite {
        /// The device
        device: PathBuf,
        /// Number of lanes
        lanes: u32,
        /// Seed of the stamps
        seed: u64,
        /// Address to report to
        report_to: String,
    },
    /// Read stamped sectors in a test machine
    #[command(hide = true)]
    StampRead {
        /// The device
        device: PathBuf,
        /// Number of lanes
        lanes: u32,
        /// Seed of the stamps
        seed: u64,
    },
    /// Write, flush, rename and delete files in a test machine, and print durable ones
    #[command(hide = true)]
    Churn {
        /// Directory of the files
        directory: PathBuf,
        /// Number of threads
        workers: u64,
    },
    /// Send a gRPC request to a socket in a test machine, and print the answer
    #[command(hide = true)]
    Rpc {
        /// The socket
        socket: PathBuf,
        /// Its method, as /package.Service/Method
        method: String,
        /// Time limit in milliseconds
        limit_ms: u64,
    },
    /// Check the files of that load in a test machine
    #[command(hide = true)]
    ChurnCheck {
        /// Directory of the files
        directory: PathBuf,
    },
}

impl GuestCommand {
    /// Runs the command.
    ///
    /// # Errors
    /// If it fails.
    pub fn run(self) -> Result<()> {
        match self {
            Self::GuestAgent => guest::run(),
            Self::StampWrite { device, lanes, seed, report_to } => {
                write::run(&device, lanes, seed, &report_to)
            }
            Self::StampRead { device, lanes, seed } => {
                report::line(write::read(&device, lanes, seed)?.trim_end());
                Ok(())
            }
            Self::Rpc { socket, method, limit_ms } => rpc::print(&socket, &method, limit_ms),
            Self::Churn { directory, workers } => churn::run(&directory, workers),
            Self::ChurnCheck { directory } => churn::check(&directory),
        }
    }
}
