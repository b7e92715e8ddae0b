//! The CSI project's sidecars of the Controller service, on the host, with the flags of the chart.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::command::output;
use crate::csi::CsiService;
use crate::operator::NAMESPACE;
use crate::process::LoggedProcess;
use crate::world::World;

/// The API by which the chart detects the snapshot controller.
pub(crate) const SNAPSHOT_KINDS: &str = "snapshot.storage.k8s.io/v1";
/// Flags of the chart that refer to its pod or paths in it.
const OF_THE_POD: [&str; 3] = ["--csi-address=", "--leader-election", "--capacity-ownerref-level="];

/// A sidecar, by the name of its container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sidecar {
    /// Creates and deletes volumes.
    Provisioner,
    /// Takes and deletes snapshots.
    Snapshotter,
}

impl Sidecar {
    const fn container(self) -> &'static str {
        match self {
            Self::Provisioner => "provisioner",
            Self::Snapshotter => "snapshotter",
        }
    }
}

/// Starts a sidecar for the CSI controller, with the rights that the chart grants both. `values` is a file
/// with values of the chart.
///
/// # Errors
/// If the chart cannot be rendered, or the program cannot be built.
pub fn start(
    world: &World,
    controller: &CsiService,
    sidecar: Sidecar,
    values: &Path,
) -> Result<LoggedProcess> {
    let program = format!("csi-{}", sidecar.container());
    let config = world.dir().join(format!("{program}.kubeconfig"));
    fs::write(&config, world.csi_kubeconfig("127.0.0.1")?).context("write the kubeconfig of a sidecar")?;
    let mut command = Command::new(world.toolbox().sidecar(&program)?);
    command
        .env("NAMESPACE", NAMESPACE)
        .arg(format!("--kubeconfig={}", config.display()))
        .arg(format!("--csi-address={}", controller.socket().display()))
        .args(flags(world, sidecar, values)?);
    if sidecar == Sidecar::Provisioner {
        // Its objects belong to no Deployment here.
        command.arg("--capacity-ownerref-level=-1");
    }
    LoggedProcess::spawn(&program, &command, &world.dir().join(format!("csi/{program}.log")))
}

/// Returns its flags in the chart.
fn flags(world: &World, sidecar: Sidecar, values: &Path) -> Result<Vec<String>> {
    let mut helm = Command::new(world.toolbox().helm()?);
    helm.args(["template", "holdfast"]).arg(world.chart()).args(["--namespace", NAMESPACE]);
    // A single instance has no PodDisruptionBudget, so only one object is rendered.
    helm.args(["--set", "csi.controller.replicas=1", "--show-only", "templates/csi-controller.yaml"]);
    helm.args(["--api-versions", SNAPSHOT_KINDS, "--values"]).arg(values);
    let file = world.dir().join("csi-controller.yaml");
    fs::write(&file, output(&mut helm)?).context("write the rendered Deployment")?;
    let file = file.display().to_string();
    let object = world.kubectl(["create", "--dry-run=client", "--output=json", "--filename", &file])?;
    let object: Value = serde_json::from_str(&object).context("read the rendered Deployment")?;
    let containers = object.pointer("/spec/template/spec/containers").and_then(Value::as_array);
    let found = containers.into_iter().flatten().find(|one| one["name"] == sidecar.container());
    let flags = found.and_then(|one| one["args"].as_array());
    let flags = flags.with_context(|| format!("the chart has no {}", sidecar.container()))?;
    let flags = flags.iter().filter_map(Value::as_str).map(str::to_owned);
    Ok(flags.filter(|flag| !OF_THE_POD.iter().any(|begin| flag.starts_with(begin))).collect())
}
