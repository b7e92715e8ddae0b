//! The components that create, bind and delete claims and their snapshots, without a node.
//!
//! Owns: controller manager, snapshot controller, the CSI driver's Controller service with its provisioner
//! and snapshotter, all on the host's loopback; the classes of the chart.
//! Does not own: the operator and the ObjectStore, which a scenario creates before. There are no pods.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{controllers, install_snapshot_kinds};
use crate::command::output;
use crate::csi::CsiService;
use crate::operator::NAMESPACE;
use crate::process::LoggedProcess;
use crate::report;
use crate::sidecars::{self, SNAPSHOT_KINDS, Sidecar};
use crate::world::World;

/// The running parts.
#[derive(Debug)]
pub struct ClaimControllers {
    // Dropped before the driver that they call.
    _processes: Vec<LoggedProcess>,
    _driver: CsiService,
}

impl ClaimControllers {
    /// Installs the CRDs of snapshots, a StorageClass and a VolumeSnapshotClass named like the ObjectStore
    /// `store`, the latter with these labels; starts all components. Requires [`World::operator`].
    ///
    /// # Errors
    /// If one cannot be built or does not start.
    pub fn start(world: &World, store: &str, labels: &Value) -> Result<Self> {
        install_snapshot_kinds(world)?;
        let values = install_classes(world, store, labels)?;
        let (toolbox, control_plane) = (world.toolbox(), world.control_plane()?);
        let driver = world.csi_controller()?;
        report::step("start controller manager, snapshot controller, provisioner and snapshotter");
        let mut processes = vec![
            controllers::start_manager(toolbox, &control_plane, &[])?,
            controllers::start_snapshots(toolbox, &control_plane)?,
        ];
        for sidecar in [Sidecar::Provisioner, Sidecar::Snapshotter] {
            processes.push(sidecars::start(world, &driver, sidecar, &values)?);
        }
        Ok(Self { _processes: processes, _driver: driver })
    }
}

/// Installs the chart's objects that name the driver: CSIDriver, StorageClass and VolumeSnapshotClass.
/// Returns the file with the chart's values.
fn install_classes(world: &World, store: &str, labels: &Value) -> Result<PathBuf> {
    let values = world.dir().join("classes.json");
    let classes = json!({
        "storageClasses": [{ "name": store, "objectStore": store }],
        "volumeSnapshotClasses": [{ "name": store, "labels": labels }],
    });
    fs::write(&values, classes.to_string()).context("write the values of classes")?;
    let mut helm = Command::new(world.toolbox().helm()?);
    helm.args(["template", "holdfast"])
        .arg(world.chart())
        .args(["--namespace", NAMESPACE, "--api-versions", SNAPSHOT_KINDS])
        .args(["--show-only", "templates/csi-driver.yaml", "--values"])
        .arg(&values);
    let rendered = world.dir().join("classes.yaml");
    fs::write(&rendered, output(&mut helm)?).context("write the classes")?;
    world.kubectl(["apply", "--server-side", "--filename", &rendered.display().to_string()])?;
    Ok(values)
}
