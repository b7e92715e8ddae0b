//! The Kubernetes cluster-autoscaler as a process of the host.
//!
//! Owns: the process, and the ConfigMaps that define its node groups.
//! Does not own: the program, at the path in [`PROGRAM`]; scheduler and controllers, see
//! [`crate::cluster::Controllers`].
//! Invariants: the provider is the autoscaler's own `kwok`: a new node is only an API object that is Ready
//! from the start, without a machine.
//! On failure: `autoscaler-<number>.log` in the world's directory.

use std::env;
use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::pins::CLUSTER_AUTOSCALER;
use crate::process::LoggedProcess;
use crate::vm::machine::free_port;
use crate::wait::until;
use crate::world::World;

/// Variable with the path of the program: it is not on the module proxy, from which the lab builds.
pub const PROGRAM: &str = "HOLDFAST_CLUSTER_AUTOSCALER";
/// Label of the nodes of a group.
pub const GROUP: &str = "example.com/group";

const NAMESPACE: &str = "kube-system";
/// Name of the provider's configuration.
const CONFIGURATION: &str = "kwok-provider-config";
const TEMPLATES: &str = "kwok-provider-templates";
const START_LIMIT: Duration = Duration::from_secs(60);
/// Maximum nodes of a group.
const MAX_NODES: &str = "10";

/// A group of nodes that is initially empty.
#[derive(Debug, Clone, Copy)]
pub struct NodeGroup<'a> {
    /// Its name.
    pub name: &'a str,
    /// Labels of its template in addition to [`GROUP`].
    pub labels: &'a [(&'a str, &'a str)],
}

/// A running autoscaler.
#[derive(Debug)]
pub struct Autoscaler {
    process: LoggedProcess,
}

impl Autoscaler {
    /// Returns the path in [`PROGRAM`].
    ///
    /// # Errors
    /// If the variable is not set.
    pub fn program() -> Result<PathBuf> {
        let named = env::var_os(PROGRAM).filter(|name| !name.is_empty());
        named.map(PathBuf::from).with_context(|| {
            format!(
                "{PROGRAM} is not set. This scenario needs cluster-autoscaler {CLUSTER_AUTOSCALER} with the provider kwok, \
                 which the lab cannot build. Set {PROGRAM} to the path of that program"
            )
        })
    }

    /// Starts the autoscaler with these groups and additional flags, and waits until it listens.
    ///
    /// # Errors
    /// If the program does not exist, its release is wrong, or it does not listen in time.
    pub fn start(world: &World, groups: &[NodeGroup<'_>], flags: &[&str]) -> Result<Self> {
        let program = Self::program()?;
        configure(world, groups)?;
        let kubeconfig = world.control_plane()?.admin_kubeconfig();
        let port = free_port()?;
        let mut command = Command::new(program);
        command
            .env("KWOK_PROVIDER_MODE", "local")
            .env("KUBECONFIG", &kubeconfig)
            .env("POD_NAMESPACE", NAMESPACE)
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--address=127.0.0.1:{port}"))
            .arg(format!("--namespace={NAMESPACE}"))
            .args(["--cloud-provider=kwok", "--leader-elect=false", "--scan-interval=3s", "--v=4"])
            // A repetition of an earlier event is recorded as an event, too.
            .arg("--record-duplicated-events")
            .args(flags);
        let log = world.dir().join(format!("autoscaler-{port}.log"));
        let mut process = LoggedProcess::spawn("cluster-autoscaler", &command, &log)?;
        until("the autoscaler to listen", START_LIMIT, || {
            process.check_running()?;
            Ok(TcpStream::connect(("127.0.0.1", port)).ok())
        })?;
        let text = fs::read_to_string(&log).context("read the autoscaler's log")?;
        let version = format!("Cluster Autoscaler {CLUSTER_AUTOSCALER}\n");
        ensure!(text.contains(&version), "{PROGRAM} is not {version:?}: {}", log.display());
        Ok(Self { process })
    }

    /// Fails, with the end of its log, if it has exited.
    ///
    /// # Errors
    /// If it has exited.
    pub fn check_running(&mut self) -> Result<()> {
        self.process.check_running()
    }
}

/// Writes the ConfigMaps of the provider.
fn configure(world: &World, groups: &[NodeGroup<'_>]) -> Result<()> {
    let list = json!({
        "apiVersion": "v1",
        "kind": "List",
        "metadata": {},
        "items": groups.iter().map(template).collect::<Vec<_>>(),
    });
    let configuration = json!({
        "readNodesFrom": "configmap",
        "nodegroups": { "fromNodeLabelKey": GROUP },
        "nodes": { "skipTaint": true },
        "configmap": { "name": TEMPLATES },
    });
    for (name, key, text) in
        [(CONFIGURATION, "config", configuration.to_string()), (TEMPLATES, "templates", list.to_string())]
    {
        let object = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": name, "namespace": NAMESPACE },
            "data": { key: text },
        });
        let file = world.dir().join(format!("{name}.json"));
        fs::write(&file, object.to_string()).context("write the autoscaler's groups")?;
        world.kubectl(["apply", "--filename", &file.display().to_string()])?;
    }
    Ok(())
}

/// Returns the node from which the provider creates a group's nodes, and which the autoscaler simulates while
/// the group is empty.
fn template(group: &NodeGroup<'_>) -> Value {
    let mut labels = json!({ GROUP: group.name, "kubernetes.io/os": "linux" });
    for (key, value) in group.labels {
        labels[*key] = json!(value);
    }
    let mut node = node_without_machine(group.name);
    node["metadata"]["labels"] = labels;
    node["metadata"]["annotations"] = json!({ "cluster-autoscaler.kwok.nodegroup/max-count": MAX_NODES });
    node
}

/// Returns a Ready node without a machine and without labels.
pub fn node_without_machine(name: &str) -> Value {
    let size = json!({ "cpu": "16", "memory": "64Gi", "pods": "110" });
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": { "name": name },
        "spec": {},
        "status": {
            "capacity": size,
            "allocatable": size,
            "conditions": [{
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "message": "a node without a machine",
                "lastHeartbeatTime": "2026-01-01T00:00:00Z",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        },
    })
}
