//! Velero backs up the claims of a namespace with CSI snapshots, and restores them: in the same cluster after
//! the namespace was deleted, and in another one after the cluster was lost. Each deletion of a backup
//! removes its snapshots, but nothing that a claim reads.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use holdfast_lab::cluster::claims::ClaimControllers;
use holdfast_lab::command::output;
use holdfast_lab::node::{ControlInterface, NodeDaemon};
use holdfast_lab::report;
use holdfast_lab::s3::S3Server;
use holdfast_lab::velero::{CLASS_LABEL, VELERO_NAMESPACE, Velero};
use holdfast_lab::wait::until;
use holdfast_lab::world::World;
use serde_json::json;

use super::provisioning::{apply, condition};
use super::restore::restore_command;
use super::story::{describe_store, provision_store, serve};

const BUCKET: &str = "volumes";
/// The bucket of Velero.
const BACKUPS: &str = "backups";
/// The claims: one with a file system, and a raw one.
const CLAIMS: [&str; 2] = ["files", "raw"];
/// Their namespace, and another one to which Velero restores them.
const NAMESPACE: &str = "shop";
const OTHER_NAMESPACE: &str = "shop-early";
const MIB: u64 = 1 << 20;
/// Our snapshots.
const SNAPSHOTS: &str = "volumesnapshots.storage.holdfast.dev";
const LIMIT: Duration = Duration::from_secs(300);

/// Sums of the files of one claim and of the other's device.
type ClaimSums = [String; 2];

/// A backup of both claims.
struct Backup {
    name: &'static str,
    /// Names of our snapshots, which are their handles.
    snapshots: Vec<String>,
    content: ClaimSums,
}

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    s3.create_bucket(BACKUPS)?;
    let operator = world.operator()?;
    provision_store(world, &s3, BUCKET)?;
    let claims = ClaimControllers::start(world, "store", &json!({ CLASS_LABEL: "true" }))?;
    let mut velero = Velero::start(world, &s3, BACKUPS)?;
    create(world)?;
    let a = world.node("a", "auto", "")?;
    let old = volumes(world, NAMESPACE)?;
    let [first, second] = create_two_backups(world, &a, &old)?;

    report::step("delete the namespace: its volumes wait for the snapshots of Velero");
    detach(world, &old)?;
    world.kubectl(["delete", "namespace", NAMESPACE, "--timeout=300s"])?;
    for volume in &old {
        wait_for_snapshots(world, volume)?;
    }
    restore(world, &first)?;
    let new = volumes(world, NAMESPACE)?;
    ensure!(new.iter().all(|name| !old.contains(name)), "the claims have their old volumes: {new:?}");
    ensure!(read(world, &a, &new)? == first.content, "the claims do not hold the first backup");
    delete(world, &first)?;
    expect_snapshots(world, &s3, &second.snapshots)?;
    ensure!(read(world, &a, &new)? == first.content, "the deletion of a backup changed the claims");
    velero.check_running()?;

    report::step("the cluster is lost, with the node that has the volumes attached");
    drop((velero, claims));
    a.vm().cut_power();
    operator.kill();
    restore_in_new_cluster(world, &s3, &old, &second)
}

/// Creates two backups while the node serves the claims, with contents that differ from each other and from
/// the final ones.
fn create_two_backups(world: &World, node: &NodeDaemon, volumes: &[String; 2]) -> Result<[Backup; 2]> {
    let [files, raw] = [serve(world, node, &volumes[0])?, serve(world, node, &volumes[1])?];
    report::step("write, back up, write again, back up again, and write once more");
    node.vm().exec(&format!("mkfs.ext4 -q {files}; mkdir -p /mnt/files; mount {files} /mnt/files"))?;
    let mut written = Vec::new();
    for name in ["first", "second"] {
        let content = write(node, &raw, name)?;
        written.push(Backup { name, snapshots: back_up(world, name)?, content });
    }
    let last = write(node, &raw, "last")?;
    node.vm().exec("umount /mnt/files")?;
    let [first, second] = <[Backup; 2]>::try_from(written).ok().context("two backups")?;
    ensure!(
        first.content != second.content && second.content != last && first.content != last,
        "the same was written twice"
    );
    ensure!(!first.snapshots.iter().any(|name| second.snapshots.contains(name)), "a snapshot is of both");
    Ok([first, second])
}

/// Uses the same bucket and ObjectStore in a new cluster, to which Velero restores the backup. The volumes of
/// the backup were called `old`.
fn restore_in_new_cluster(lost: &World, s3: &S3Server, old: &[String; 2], backup: &Backup) -> Result<()> {
    let world = &lost.create_sibling("restored")?;
    let operator = world.operator()?;
    describe_store(world, &s3.endpoint_everywhere(), BUCKET)?;
    let _claims = ClaimControllers::start(world, "store", &json!({ CLASS_LABEL: "true" }))?;
    let mut velero = Velero::start(world, s3, BACKUPS)?;
    until("Velero to find the backup in its bucket", LIMIT, || {
        let phase = object(world, "backups.velero.io", backup.name, "{.status.phase}").ok();
        Ok((phase.as_deref() == Some("Completed")).then_some(()))
    })?;
    report::step("a restore before the adoption waits for it");
    request_restore(world, backup, OTHER_NAMESPACE)?;
    wait_for_errors(world, backup.snapshots.len())?;
    adopt(world, backup)?;
    restore(world, backup)?;
    wait_completed(world, "restores.velero.io", OTHER_NAMESPACE)?;
    let (new, early) = (volumes(world, NAMESPACE)?, volumes(world, OTHER_NAMESPACE)?);
    let b = world.node("b", "auto", "")?;
    for volumes in [&new, &early] {
        ensure!(read(world, &b, volumes)? == backup.content, "{volumes:?} do not hold the second backup");
        detach(world, volumes)?;
    }
    b.terminate()?;

    report::step("delete the backup there, then its volumes, and sweep");
    for handle in &backup.snapshots {
        permit_deletion(world, SNAPSHOTS, handle)?;
    }
    delete(world, backup)?;
    expect_snapshots(world, s3, &[])?;
    velero.check_running()?;
    for volume in old {
        permit_deletion(world, "volume", volume)?;
        world.kubectl(["delete", "volume", volume, "--timeout=300s"])?;
    }
    let c = NodeDaemon::start(world.vm("c")?, &ControlInterface::standalone(s3, BUCKET), "auto", "")?;
    report::step(c.cli_with_retries(&["gc", "--store", "store", "--grace", "0s"])?);
    c.terminate()?;
    report::step("a node without a cache reads the same data from the remaining objects");
    let c = world.node("c", "auto", "")?;
    ensure!(read(world, &c, &new)? == backup.content, "a sweep after the deletions changed the claims");
    c.terminate()?;
    operator.stop()
}

/// Waits until this many VolumeSnapshotContents report that the driver does not know their handle.
fn wait_for_errors(world: &World, count: usize) -> Result<()> {
    let errors = "--output=jsonpath={range .items[*]}{.status.error.message}{\"\\n\"}{end}";
    until("the snapshots to be missed", LIMIT, || {
        let text = world.kubectl(["get", "volumesnapshotcontents.snapshot.storage.k8s.io", errors])?;
        Ok((text.lines().filter(|line| line.contains("can not find snapshot")).count() == count)
            .then_some(()))
    })
}

/// Adopts the volumes and snapshots of the bucket, including those of the backup.
fn adopt(world: &World, backup: &Backup) -> Result<()> {
    report::step("adopt the volumes and snapshots of the bucket, without the claims");
    let documents = output(restore_command(world, "store")?.arg("--without-claims"))?;
    report::step(&documents);
    apply(world, &documents)?;
    world.wait_for("volumes", "jsonpath={.status.phase}=Ready")?;
    world.wait_for(SNAPSHOTS, "condition=Ready")?;
    for handle in &backup.snapshots {
        let adopted = condition(world, &format!("{SNAPSHOTS}/{handle}"), "Ready")?;
        ensure!(adopted.starts_with("Adopted: "), "{handle} is {adopted}");
    }
    Ok(())
}

/// Permits the deletion of an adopted object to delete its volume or snapshot.
fn permit_deletion(world: &World, kind: &str, name: &str) -> Result<()> {
    let policy = "--patch={\"spec\":{\"deletionPolicy\":\"Delete\"}}";
    world.kubectl(["patch", kind, name, "--type=merge", policy]).map(drop)
}

/// Creates a namespace with two claims, and an object that Velero restores with them.
fn create(world: &World) -> Result<()> {
    report::step("a namespace with two claims");
    world.kubectl(["create", "namespace", NAMESPACE])?;
    let settings = format!("--namespace={NAMESPACE}");
    world.kubectl(["create", "configmap", "settings", &settings, "--from-literal=colour=blue"])?;
    let documents: Vec<String> = CLAIMS
        .iter()
        .zip(["Filesystem", "Block"])
        .map(|(name, mode)| {
            format!(
                "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{namespace: {NAMESPACE}, name: {name}}}\n\
                 spec: {{storageClassName: store, volumeMode: {mode}, accessModes: [ReadWriteOnce], \
                 resources: {{requests: {{storage: 256Mi}}}}}}\n"
            )
        })
        .collect();
    apply(world, &documents.join("---\n"))
}

/// Returns the volumes of both claims of a namespace, once they are bound.
fn volumes(world: &World, namespace: &str) -> Result<[String; 2]> {
    let namespace = format!("--namespace={namespace}");
    let mut found = [String::new(), String::new()];
    for (name, found) in CLAIMS.iter().zip(&mut found) {
        until(&format!("claim {name} to be bound"), LIMIT, || {
            let phase = "--output=jsonpath={.status.phase}";
            let phase = world.kubectl(["get", "persistentvolumeclaim", name, &namespace, phase])?;
            Ok((phase == "Bound").then_some(()))
        })?;
        let volume = "--output=jsonpath={.spec.volumeName}";
        let volume = world.kubectl(["get", "persistentvolumeclaim", name, &namespace, volume])?;
        let handle = ["get", "persistentvolume", &volume, "--output=jsonpath={.spec.csi.volumeHandle}"];
        *found = world.kubectl(handle)?;
    }
    Ok(found)
}

/// Writes files to the mounted claim and noise to the device of the other, and returns their sums.
fn write(node: &NodeDaemon, device: &str, name: &str) -> Result<ClaimSums> {
    node.vm().exec(&format!(
        "cd /mnt/files; rm -rf *; mkdir {name}; for number in $(seq 20); do
           head -c 100000 /dev/urandom > {name}/$number
         done; sync -f .
         head -c {} /dev/urandom | dd of={device} bs=1M iflag=fullblock oflag=direct conv=fsync status=none",
        8 * MIB
    ))?;
    sums(node, device)
}

fn sums(node: &NodeDaemon, device: &str) -> Result<ClaimSums> {
    Ok([
        node.vm().exec("cd /mnt/files; find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum")?,
        node.vm().exec(&format!("dd if={device} bs=1M count=8 iflag=direct status=none | sha256sum"))?,
    ])
}

/// Serves both volumes on the node, and returns their sums. The file system is checked before it is mounted.
fn read(world: &World, node: &NodeDaemon, volumes: &[String; 2]) -> Result<ClaimSums> {
    let [files, raw] = [serve(world, node, &volumes[0])?, serve(world, node, &volumes[1])?];
    node.vm().exec(&format!(
        "mkdir -p /mnt/files; e2fsck -p {files} || test $? -eq 1; mount {files} /mnt/files"
    ))?;
    let found = sums(node, &raw)?;
    node.vm().exec("umount /mnt/files")?;
    Ok(found)
}

/// Removes the volumes from their node.
fn detach(world: &World, volumes: &[String]) -> Result<()> {
    for volume in volumes {
        let nowhere = "--patch={\"spec\":{\"nodeName\":null}}";
        world.kubectl(["patch", "volume", volume, "--type=merge", nowhere])?;
        world.wait_for(&format!("volume/{volume}"), "jsonpath={.status.phase}=Ready")?;
    }
    Ok(())
}

/// Waits until a deleted volume reports that it has snapshots.
fn wait_for_snapshots(world: &World, volume: &str) -> Result<()> {
    until("a volume to wait for its snapshots", LIMIT, || {
        let text = condition(world, &format!("volume/{volume}"), "Provisioned")?;
        Ok(text.starts_with("HasSnapshots: ").then_some(()))
    })
}

/// Backs up the namespace; returns the names of its new snapshots.
fn back_up(world: &World, name: &str) -> Result<Vec<String>> {
    report::step(format_args!("Velero makes the backup {name}"));
    let before = snapshots(world)?;
    apply_object(world, "Backup", name, &json!({ "includedNamespaces": [NAMESPACE] }))?;
    wait_completed(world, "backups.velero.io", name)?;
    let count = "{.status.csiVolumeSnapshotsAttempted} {.status.csiVolumeSnapshotsCompleted}";
    let counted = object(world, "backups.velero.io", name, count)?;
    ensure!(counted == "2 2", "the backup counts CSI snapshots {counted}");
    let left = world.kubectl(["get", "volumesnapshots.snapshot.storage.k8s.io", "--all-namespaces"])?;
    ensure!(left.is_empty(), "Velero left VolumeSnapshots: {left}");
    let mut created = snapshots(world)?;
    created.retain(|name| !before.contains(name));
    ensure!(created.len() == 2, "the backup made the snapshots {created:?}");
    Ok(created)
}

fn restore(world: &World, backup: &Backup) -> Result<()> {
    report::step(format_args!("Velero restores the backup {}", backup.name));
    request_restore(world, backup, NAMESPACE)?;
    wait_completed(world, "restores.velero.io", NAMESPACE)?;
    let namespace = format!("--namespace={NAMESPACE}");
    let settings = ["get", "configmap", "settings", &namespace, "--output=jsonpath={.data.colour}"];
    ensure!(world.kubectl(settings)? == "blue", "the ConfigMap was not restored");
    Ok(())
}

/// Requests that Velero restore a backup to this namespace, which also names the Restore.
fn request_restore(world: &World, backup: &Backup, namespace: &str) -> Result<()> {
    let mut spec = json!({ "backupName": backup.name });
    if namespace != NAMESPACE {
        spec["namespaceMapping"] = json!({ NAMESPACE: namespace });
    }
    apply_object(world, "Restore", namespace, &spec)
}

/// Makes Velero delete a backup, and waits until it is gone.
fn delete(world: &World, backup: &Backup) -> Result<()> {
    let name = backup.name;
    report::step(format_args!("Velero deletes the backup {name}"));
    apply_object(world, "DeleteBackupRequest", name, &json!({ "backupName": name }))?;
    let namespace = format!("--namespace={VELERO_NAMESPACE}");
    let gone = format!("backups.velero.io/{name}");
    world.kubectl(["wait", "--for=delete", &gone, &namespace, "--timeout=300s"]).map(drop)
}

/// Waits until the cluster has exactly these snapshots, and the bucket has no others that are not forgotten.
fn expect_snapshots(world: &World, s3: &S3Server, expected: &[String]) -> Result<()> {
    until("the snapshots of the backup to be deleted", LIMIT, || {
        Ok((snapshots(world)? == expected).then_some(()))
    })?;
    let of = |folder: &str| -> Result<usize> {
        let keys = s3.keys(BUCKET, "volumes/")?;
        Ok(keys.iter().filter(|key| key.contains(folder)).count())
    };
    let (all, forgotten) = (of("/snapshots/")?, of("/forgotten/")?);
    ensure!(all == expected.len() + forgotten, "{all} snapshots in the bucket, {forgotten} forgotten");
    Ok(())
}

/// Returns the names of our snapshots, sorted.
fn snapshots(world: &World) -> Result<Vec<String>> {
    let names = "--output=jsonpath={range .items[*]}{.metadata.name}{\"\\n\"}{end}";
    let mut names: Vec<String> =
        world.kubectl(["get", SNAPSHOTS, names])?.lines().map(str::to_owned).collect();
    names.sort();
    Ok(names)
}

/// Applies an object of Velero.
fn apply_object(world: &World, kind: &str, name: &str, spec: &serde_json::Value) -> Result<()> {
    let metadata = json!({ "name": name, "namespace": VELERO_NAMESPACE });
    let object = json!({ "apiVersion": "velero.io/v1", "kind": kind, "metadata": metadata, "spec": spec });
    apply(world, &object.to_string())
}

/// Waits until a backup or restore is Completed; any other final state is an error that shows the object.
fn wait_completed(world: &World, kind: &str, name: &str) -> Result<()> {
    until(&format!("{kind} {name} to be completed"), LIMIT, || {
        match object(world, kind, name, "{.status.phase}")?.as_str() {
            "Completed" => Ok(Some(())),
            "PartiallyFailed" | "Failed" | "FailedValidation" => {
                let namespace = format!("--namespace={VELERO_NAMESPACE}");
                bail!("{}", world.kubectl(["get", kind, name, &namespace, "--output=yaml"])?)
            }
            _ => Ok(None),
        }
    })
}

/// Returns a field of an object of Velero.
fn object(world: &World, kind: &str, name: &str, path: &str) -> Result<String> {
    let namespace = format!("--namespace={VELERO_NAMESPACE}");
    world.kubectl(["get", kind, name, &namespace, &format!("--output=jsonpath={path}")])
}
