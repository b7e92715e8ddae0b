//! The parts that make, bind and delete claims and their snapshots, without a node.
//!
//! Owns: controller manager, snapshot controller, the CSI driver's Controller service with its provisioner
//! and snapshotter, all on the host's loopback; the classes of the chart.
//! Does not own: the operator and the ObjectStore, which a scenario has before. There are no pods.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{controllers, install_snapshot_kinds};
use crate::command::output;
use crate::csi::CsiService;
use crate::operator::NAMESPACE;
use crate::process::Process;
use crate::report;
use crate::setup::go::SNAPSHOT_PROGRAMS;
use crate::world::World;

/// The kinds by which the chart knows the snapshot controller.
const SNAPSHOTS: &str = "snapshot.storage.k8s.io/v1";
/// Arguments that the chart gives each sidecar, but the socket and the leases.
const SIDECAR: [&str; 2] = ["--extra-create-metadata", "--timeout=60s"];
const PROVISIONER: [&str; 2] = ["--immediate-topology=false", "--default-fstype=ext4"];

/// The running parts.
#[derive(Debug)]
pub struct ClaimControllers {
    // Dropped before the driver that they ask.
    _processes: Vec<Process>,
    _driver: CsiService,
}

impl ClaimControllers {
    /// Installs the kinds of snapshots, and a StorageClass and a VolumeSnapshotClass named as the ObjectStore
    /// `store`, the latter with these labels; starts all parts. Only after [`World::operator`].
    ///
    /// # Errors
    /// If one cannot be built or does not start.
    pub fn start(world: &World, store: &str, labels: &Value) -> Result<Self> {
        install_snapshot_kinds(world)?;
        install_classes(world, store, labels)?;
        let (toolbox, control_plane) = (world.toolbox(), world.control_plane()?);
        let driver = world.csi_controller()?;
        report::step("start controller manager, snapshot controller, provisioner and snapshotter");
        let mut processes = vec![
            controllers::start_manager(toolbox, &control_plane, &[])?,
            controllers::start_snapshots(toolbox, &control_plane)?,
        ];
        let dir = world.dir().join("csi");
        let kubeconfig = dir.join("sidecars.kubeconfig");
        fs::write(&kubeconfig, world.csi_kubeconfig("127.0.0.1")?)
            .context("write the sidecars' kubeconfig")?;
        let [snapshotter, _] = SNAPSHOT_PROGRAMS;
        for (name, more) in [("csi-provisioner", &PROVISIONER[..]), (snapshotter, &[])] {
            let mut command = Command::new(toolbox.sidecar(name)?);
            command
                .arg(format!("--csi-address={}", driver.socket().display()))
                .arg(format!("--kubeconfig={}", kubeconfig.display()))
                .args(SIDECAR)
                .args(more);
            processes.push(Process::spawn(name, &command, &dir.join(format!("{name}.log")))?);
        }
        Ok(Self { _processes: processes, _driver: driver })
    }
}

/// The objects of the chart that name the driver: CSIDriver, StorageClass and VolumeSnapshotClass.
fn install_classes(world: &World, store: &str, labels: &Value) -> Result<()> {
    let values = world.dir().join("classes.json");
    let classes = json!({
        "storageClasses": [{ "name": store, "objectStore": store }],
        "volumeSnapshotClasses": [{ "name": store, "labels": labels }],
    });
    fs::write(&values, classes.to_string()).context("write the values of classes")?;
    let mut helm = Command::new(world.toolbox().helm()?);
    helm.args(["template", "holdfast"])
        .arg(world.chart())
        .args(["--namespace", NAMESPACE, "--api-versions", SNAPSHOTS])
        .args(["--show-only", "templates/csi-driver.yaml", "--values"])
        .arg(values);
    let rendered = world.dir().join("classes.yaml");
    fs::write(&rendered, output(&mut helm)?).context("write the classes")?;
    world.kubectl(["apply", "--server-side", "--filename", &rendered.display().to_string()]).map(drop)
}
