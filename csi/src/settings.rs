//! The driver's command line; each option can also be set by an environment variable.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand};

/// The CSI driver of Holdfast.
#[derive(Debug, Parser)]
#[command(name = "holdfast-csi", version)]
pub(crate) struct Settings {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Processes of the driver.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serves the cluster: creates, deletes, publishes and expands volumes
    Controller(ClusterSettings),
    /// Serves backup programs of the cluster: lists the blocks of a snapshot, or those changed between two
    /// snapshots. Reads the object stores, with the credentials in their Secrets
    SnapshotMetadata(ClusterSettings),
    /// Serves one node: creates and mounts file systems, and registers with the kubelet
    Node(NodeSettings),
    /// Checks that the process that listens on the endpoint is alive or ready: the probes of its pod
    Probe(Probe),
}

/// A socket of the driver.
#[derive(Debug, Args)]
pub(crate) struct Listen {
    /// Address of the CSI services: unix:// and the absolute path of a socket.
    #[arg(long, env = "CSI_ENDPOINT", default_value = "unix:///csi/csi.sock")]
    pub(crate) endpoint: Endpoint,
}

/// The admin endpoint of a process.
#[derive(Debug, Args)]
pub(crate) struct Admin {
    /// Address and port of /metrics, /healthz, /readyz and /log-level.
    #[arg(long, env = "HOLDFAST_METRICS_ADDRESS", default_value = "[::]:9182")]
    pub(crate) metrics_address: SocketAddr,
}

/// Settings of a cluster service.
#[derive(Debug, Args)]
pub(crate) struct ClusterSettings {
    #[command(flatten)]
    pub(crate) listen: Listen,

    #[command(flatten)]
    pub(crate) admin: Admin,
}

/// Arguments of a probe.
#[derive(Debug, Args)]
pub(crate) struct Probe {
    #[command(flatten)]
    pub(crate) listen: Listen,

    /// The driver must also be ready: on a node, registered with the kubelet.
    #[arg(long)]
    pub(crate) ready: bool,
}

/// Settings of the Node service.
#[derive(Debug, Args)]
pub(crate) struct NodeSettings {
    #[command(flatten)]
    pub(crate) listen: Listen,

    #[command(flatten)]
    pub(crate) admin: Admin,

    /// Address of the socket on which the kubelet finds the driver. Its name must have an @ that is not its
    /// last character: the kubelet sends its path as the authority of its requests, which is valid only then.
    #[arg(
        long,
        env = "HOLDFAST_REGISTRATION",
        default_value = "unix:///registration/csi.holdfast.dev@reg.sock"
    )]
    pub(crate) registration: Endpoint,

    /// Path of the CSI socket as the kubelet sees it.
    #[arg(
        long,
        env = "HOLDFAST_KUBELET_ENDPOINT",
        default_value = "/var/lib/kubelet/plugins/csi.holdfast.dev/csi.sock"
    )]
    pub(crate) kubelet_endpoint: String,

    /// Path of the node daemon's socket.
    #[arg(long, env = "HOLDFAST_DAEMON_SOCKET", default_value = "/run/holdfast/node.sock")]
    pub(crate) daemon_socket: PathBuf,

    /// Directory for state that must outlive the process: locks, and formats in progress.
    #[arg(long, env = "HOLDFAST_DIRECTORY", default_value = "/csi")]
    pub(crate) directory: PathBuf,

    /// Name of the node, as in its StorageNode.
    #[arg(long, env = "HOLDFAST_NODE_NAME")]
    pub(crate) node_name: String,
}

/// A Unix socket, in the notation of CSI sidecars.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// Absolute path of the socket.
    pub(crate) path: PathBuf,
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = text.strip_prefix("unix://").unwrap_or_default();
        if path.starts_with('/') && !path.ends_with('/') {
            Ok(Self { path: path.into() })
        } else {
            Err("write unix:// and an absolute path, for example unix:///csi/csi.sock".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_unix_sockets_are_endpoints() {
        let endpoint: Endpoint = "unix:///csi/csi.sock".parse().expect("an endpoint");
        assert_eq!(endpoint.path, PathBuf::from("/csi/csi.sock"));
        for text in ["", "unix://", "unix://csi.sock", "/csi/csi.sock", "tcp://127.0.0.1:1", "unix:///csi/"] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }
}
