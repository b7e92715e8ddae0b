//! The CSI project's external-provisioner on the host, with the flags that the chart gives it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::command::output;
use crate::csi::CsiService;
use crate::operator::NAMESPACE;
use crate::process::Process;
use crate::world::World;

/// Flags of the chart that name its pod or its place in it.
const OF_THE_POD: [&str; 3] = ["--csi-address=", "--leader-election", "--capacity-ownerref-level="];

/// Starts the provisioner beside the CSI controller, with the rights that the chart gives both. `values` is
/// a file with values of the chart.
///
/// # Errors
/// If the chart cannot be rendered, or the program cannot be built.
pub fn start(world: &World, controller: &CsiService, values: &Path) -> Result<Process> {
    let config = world.dir().join("provisioner.kubeconfig");
    fs::write(&config, world.csi_kubeconfig("127.0.0.1")?).context("write the provisioner's kubeconfig")?;
    let mut command = Command::new(world.toolbox().sidecar("csi-provisioner")?);
    command
        .env("NAMESPACE", NAMESPACE)
        .arg(format!("--kubeconfig={}", config.display()))
        .arg(format!("--csi-address={}", controller.socket().display()))
        // The objects that it writes belong to no Deployment here.
        .arg("--capacity-ownerref-level=-1")
        .args(flags(world, values)?);
    Process::spawn("csi-provisioner", &command, &world.dir().join("csi/provisioner.log"))
}

/// The flags that the chart gives it.
fn flags(world: &World, values: &Path) -> Result<Vec<String>> {
    let mut helm = Command::new(world.toolbox().helm()?);
    helm.args(["template", "holdfast"]).arg(world.chart()).args(["--namespace", NAMESPACE]);
    // One instance has no budget, so that what is rendered is one object.
    helm.args(["--set", "csi.controller.replicas=1", "--show-only", "templates/csi-controller.yaml"]);
    helm.arg("--values").arg(values);
    let file = world.dir().join("csi-controller.yaml");
    fs::write(&file, output(&mut helm)?).context("write the rendered Deployment")?;
    let file = file.display().to_string();
    let object = world.kubectl(["create", "--dry-run=client", "--output=json", "--filename", &file])?;
    let object: Value = serde_json::from_str(&object).context("read the rendered Deployment")?;
    let containers = object.pointer("/spec/template/spec/containers").and_then(Value::as_array);
    let provisioner = containers.into_iter().flatten().find(|one| one["name"] == "provisioner");
    let flags = provisioner.and_then(|one| one["args"].as_array()).context("the chart has no provisioner")?;
    let flags = flags.iter().filter_map(Value::as_str).map(str::to_owned);
    Ok(flags.filter(|flag| !OF_THE_POD.iter().any(|begin| flag.starts_with(begin))).collect())
}
