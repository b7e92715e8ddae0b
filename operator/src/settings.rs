//! The operator's command line; each option can also be set by an environment variable.

use std::net::SocketAddr;

use clap::{Parser, Subcommand};

/// Runs the Holdfast control plane: provisions volumes, grants them to nodes, checks object stores.
#[derive(Debug, Parser)]
#[command(name = "holdfast-operator", version)]
pub(crate) struct Settings {
    /// Address and port of /metrics, /healthz, /readyz and /log-level.
    #[arg(long, env = "HOLDFAST_METRICS_ADDRESS", default_value = "[::]:9180")]
    pub(crate) metrics_address: SocketAddr,

    /// Namespace of the Lease that elects the leader.
    #[arg(long, env = "POD_NAMESPACE", default_value = "holdfast-system")]
    pub(crate) namespace: String,

    /// Name of this instance in the Lease and in events; unique among running instances.
    #[arg(long, env = "POD_NAME")]
    pub(crate) identity: Option<String>,

    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// Command to run instead of the control plane.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Prints the objects that bring a bucket's volumes into this cluster, as YAML for `kubectl apply`.
    /// Writes nothing. Fails if the log of a volume cannot be read; all others are printed.
    Restore {
        /// Name of the ObjectStore that describes the bucket.
        object_store: String,
        /// Prints only the volumes in the trash.
        #[arg(long)]
        deleted: bool,
        /// Prints only Holdfast's volumes and snapshots, for a backup program that restores the claims.
        #[arg(long)]
        without_claims: bool,
    },
}

impl Settings {
    /// Returns the instance's name: as configured, otherwise the process id and a random number.
    pub(crate) fn identity(&self) -> String {
        self.identity
            .clone()
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| format!("holdfast-operator-{}-{:08x}", std::process::id(), fastrand::u32(..)))
    }
}
