//! Velero, a backup program, with its plugin for S3.
//!
//! Owns: the server's process on the host, its CRDs, its namespace and its only BackupStorageLocation.
//! Does not own: backups and restores, which a scenario requests.
//! Invariants: the server has administrator's rights, like in Velero's own installation.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use crate::process::LoggedProcess;
use crate::report;
use crate::s3::{ACCESS_KEY, REGION, S3Server, SECRET_KEY};
use crate::vm::machine::free_port;
use crate::wait::until;
use crate::world::World;

/// The namespace of its objects.
pub const VELERO_NAMESPACE: &str = "velero";
/// Label by which it selects the VolumeSnapshotClass.
pub const CLASS_LABEL: &str = "velero.io/csi-volumesnapshot-class";

/// Maximum wait until it has checked its bucket: it takes 5 s on a quiet machine.
const READY_LIMIT: Duration = Duration::from_secs(120);
/// Flags that make Velero check for other clusters' backups, and for pending operations, more often than by
/// default.
const PERIODS: [&str; 2] = ["--backup-sync-period=2s", "--item-operation-sync-frequency=2s"];

/// A running server.
#[derive(Debug)]
pub struct Velero {
    process: LoggedProcess,
}

impl Velero {
    /// Installs its CRDs, and starts a server with its backups in `bucket`, which must exist.
    ///
    /// # Errors
    /// If it cannot be built, or does not reach the bucket.
    pub fn start(world: &World, s3: &S3Server, bucket: &str) -> Result<Self> {
        install_kinds(world)?;
        install_location(world, s3, bucket)?;
        let toolbox = world.toolbox();
        let (program, plugins) = (toolbox.velero()?.join("velero"), toolbox.velero_plugins()?);
        report::step("start Velero");
        let dir = world.dir().join("velero");
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        let mut command = Command::new(program);
        command
            .arg("server")
            .arg(format!("--kubeconfig={}", world.control_plane()?.admin_kubeconfig().display()))
            .arg(format!("--namespace={VELERO_NAMESPACE}"))
            // Without it, a backup is Completed but has no snapshots of claims.
            .arg("--features=EnableCSI")
            .arg(format!("--plugin-dir={}", plugins.display()))
            .arg(format!("--metrics-address=127.0.0.1:{}", free_port()?))
            .args(PERIODS)
            .env("TMPDIR", &dir)
            .env("HOME", &dir);
        let mut process = LoggedProcess::spawn("velero", &command, &dir.join("velero.log"))?;
        let phase =
            ["get", "backupstoragelocations.velero.io", "default", "--output=jsonpath={.status.phase}"];
        let namespace = format!("--namespace={VELERO_NAMESPACE}");
        until("Velero to reach its bucket", READY_LIMIT, || {
            process.check_running()?;
            Ok((world.kubectl(phase.iter().copied().chain([namespace.as_str()]))? == "Available")
                .then_some(()))
        })?;
        Ok(Self { process })
    }

    /// Checks that the server is still running.
    ///
    /// # Errors
    /// If it has exited; the error has the end of its log.
    pub fn check_running(&mut self) -> Result<()> {
        self.process.check_running()
    }
}

fn install_kinds(world: &World) -> Result<()> {
    report::step("install the kinds of Velero");
    let kinds = world.toolbox().velero_kinds()?;
    let files = |version: &str| -> Result<Vec<PathBuf>> {
        let dir = kinds.join(version).join("bases");
        let entries = fs::read_dir(&dir).with_context(|| format!("list {}", dir.display()))?;
        entries.map(|entry| Ok(entry?.path())).collect()
    };
    let mut all = files("v1")?;
    all.extend(files("v2alpha1")?);
    let files: Vec<String> = all.iter().map(|path: &PathBuf| named(path)).collect();
    let files = || files.iter().map(String::as_str);
    world.kubectl(["apply", "--server-side"].into_iter().chain(files()))?;
    let established = ["wait", "--for=condition=Established", "--timeout=60s"];
    world.kubectl(established.into_iter().chain(files())).map(drop)
}

fn named(path: &Path) -> String {
    format!("--filename={}", path.display())
}

fn install_location(world: &World, s3: &S3Server, bucket: &str) -> Result<()> {
    let metadata = |name: &str| json!({ "name": name, "namespace": VELERO_NAMESPACE });
    let profile = format!("[default]\naws_access_key_id={ACCESS_KEY}\naws_secret_access_key={SECRET_KEY}\n");
    let objects = json!({
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            { "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": VELERO_NAMESPACE } },
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": metadata("cloud-credentials"),
                "stringData": { "cloud": profile },
            },
            // A restore reads the image of its own pods from there. No pod uses it.
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": metadata("velero"),
                "spec": {
                    "replicas": 0,
                    "selector": { "matchLabels": { "deploy": "velero" } },
                    "template": {
                        "metadata": { "labels": { "deploy": "velero" } },
                        "spec": { "containers": [{ "name": "velero", "image": "velero/velero" }] },
                    },
                },
            },
            {
                "apiVersion": "velero.io/v1",
                "kind": "BackupStorageLocation",
                "metadata": metadata("default"),
                "spec": {
                    "provider": "velero.io/aws",
                    "default": true,
                    "objectStorage": { "bucket": bucket },
                    "credential": { "name": "cloud-credentials", "key": "cloud" },
                    "config": { "region": REGION, "s3ForcePathStyle": "true", "s3Url": s3.endpoint() },
                },
            },
        ],
    });
    let file = world.dir().join("velero.json");
    fs::write(&file, objects.to_string()).context("write Velero's objects")?;
    world.kubectl(["apply", "--filename", &file.display().to_string()]).map(drop)
}
