//! A cluster is lost; another one is pointed at its bucket and gets its volumes back.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::cluster::install_snapshot_kinds;
use holdfast_lab::command::output;
use holdfast_lab::csi::{LIMIT, RequestedVolume, Use, expect_granted};
use holdfast_lab::node::{ControlInterface, NodeDaemon};
use holdfast_lab::report;
use holdfast_lab::s3::S3Server;
use holdfast_lab::wait::until;
use holdfast_lab::world::World;

use super::plugin::plugin;
use super::provisioning::{adopting_volume, apply, condition, count_created_objects, volume};
use super::story::{describe_store, provision_store, serve};

const BUCKET: &str = "volumes";
/// The volume of a claim, and those of a user, with ids such that the keys of the last one sort between the
/// others; the last one stays attached when its node is lost.
const VOLUMES: [&str; 3] = ["pvc-1", "plain", "third"];
/// Our VolumeSnapshot of the claim's volume, and the user's.
const KIND: &str = "volumesnapshots.storage.holdfast.dev";
const SNAPSHOT: &str = "volumesnapshots.storage.holdfast.dev/snapshot-1";
const USERS_SNAPSHOT: &str = "shop/nightly";
const BYTES: u64 = 4 << 20;
/// The same for each of many volumes.
const FEW_BYTES: u64 = 1 << 20;
const WAIT: Duration = Duration::from_secs(300);

pub(super) fn run(world: &World) -> Result<()> {
    play(world).map(drop)
}

/// Loses a cluster, points another one at its bucket, and verifies every volume. Returns the number of
/// VolumeSnapshots that the new cluster adopted; a volume that begins with theirs has the bytes of the lost
/// one.
///
/// # Errors
/// If anything is missing in the new cluster, or differs.
pub fn play(world: &World) -> Result<usize> {
    let s3 = world.s3()?;
    let operator = world.operator()?;
    provision_store(world, &s3, BUCKET)?;
    create(world)?;
    let control = ControlInterface::Kubernetes { kubeconfig: world.node_kubeconfig()? };
    let a = NodeDaemon::start(world.vm("a")?, &control, "auto", "")?;
    let sums = write(world, &a)?;
    report::step("the cluster is lost, and its node with a volume attached");
    a.vm().cut_power();
    operator.kill();

    let other = world.create_sibling("restored")?;
    let operator = other.operator()?;
    describe_store(&other, &s3.endpoint_everywhere(), BUCKET)?;
    install_snapshot_kinds(&other)?;
    let objects = s3.keys(BUCKET, "volumes/")?;
    restore_with_a_damaged_log(&other, &s3)?;
    restore(&other)?;
    ensure!(s3.keys(BUCKET, "volumes/")? == objects, "the restore changed the bucket");
    delete_by_mistake(&other)?;
    ensure!(s3.keys(BUCKET, "volumes/")? == objects, "objects of an attached volume were removed");

    let control = ControlInterface::Kubernetes { kubeconfig: other.node_kubeconfig()? };
    let b = NodeDaemon::start(other.vm("b")?, &control, "auto", "")?;
    for (name, sum) in VOLUMES.iter().zip(&sums) {
        report::step(format_args!("node b serves {name} with the same bytes"));
        if *name == "third" {
            replace_writer(&other)?;
        }
        let device = serve(&other, &b, name)?;
        ensure!(*sum == sum_of(&b, &device)?, "{name} has other bytes");
    }
    let lost = condition(&other, "volume/third", "UnuploadedDataLost")?;
    ensure!(lost.starts_with("NotReported: node a was cut off"), "{lost}");
    let added = new_keys(&s3, &objects)?;
    ensure!(
        added.len() == 3 && added.iter().all(|key| key.contains("/log/")),
        "not three attaches: {added:?}"
    );
    let device = create_from_snapshot(&other, &b)?;
    ensure!(sums[0] == sum_of(&b, &device)?, "a volume that begins with the snapshot has other bytes");
    b.terminate()?;
    operator.stop()?;
    Ok(other.kubectl(["get", KIND, "--output=name"])?.lines().count())
}

/// Volumes that a new cluster found in the bucket of a lost one.
#[derive(Debug)]
pub struct AdoptionOutcome {
    /// Number of those with the bytes written to them.
    pub equal: usize,
    /// PUTs to the bucket's volumes until all were attached, beyond one for each attach.
    pub more_puts: usize,
}

/// Writes to `count` volumes, detaches them, loses the cluster, and points another one at the bucket.
///
/// # Errors
/// If a volume is not served, or is not adopted.
pub fn adopt(world: &World, count: usize) -> Result<AdoptionOutcome> {
    let s3 = world.s3()?;
    let operator = world.operator()?;
    provision_store(world, &s3, BUCKET)?;
    let names: Vec<String> = (0..count).map(|number| format!("disk-{number}")).collect();
    let documents: Vec<String> = names.iter().map(|name| volume(name, "store", "16Mi")).collect();
    apply(world, &documents.join("---\n"))?;
    world.wait_for("volumes", "jsonpath={.status.phase}=Ready")?;
    let a = world.node("a", "auto", "")?;
    report::step(format_args!("write to {count} volumes, and detach them"));
    let mut sums = Vec::new();
    for name in &names {
        let device = serve(world, &a, name)?;
        write_noise(&a, &device, FEW_BYTES)?;
        sums.push(sum_of(&a, &device)?);
        withdraw(world, name)?;
    }
    world.wait_for("volumes", "jsonpath={.status.phase}=Ready")?;
    a.terminate()?;
    operator.kill();

    report::step("another cluster is pointed at the bucket");
    let other = world.create_sibling("adopting")?;
    let operator = other.operator()?;
    describe_store(&other, &s3.endpoint_everywhere(), BUCKET)?;
    let before = count_created_objects(&s3)?;
    apply(&other, &output(&mut restore_command(&other, "store")?)?)?;
    other.wait_for("volumes", "jsonpath={.status.phase}=Ready")?;
    let b = other.node("b", "auto", "")?;
    let mut equal = 0;
    for (name, sum) in names.iter().zip(&sums) {
        let device = serve(&other, &b, name)?;
        equal += usize::from(*sum == sum_of(&b, &device)?);
    }
    let more_puts = (count_created_objects(&s3)? - before).saturating_sub(count);
    b.terminate()?;
    operator.stop()?;
    Ok(AdoptionOutcome { equal, more_puts })
}

fn create(world: &World) -> Result<()> {
    report::step("a claim, and two Volumes with their own ids");
    world.kubectl(["create", "namespace", "shop"])?;
    apply(
        world,
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {namespace: shop, name: data}\n\
         spec: {storageClassName: fast, accessModes: [ReadWriteOnce], resources: {requests: {storage: 512Mi}}}\n",
    )?;
    let controller = world.csi_controller()?;
    let claimed = RequestedVolume::new("pvc-1", 512 << 20, "store")
        .with_use(&Use::mounted("xfs"))
        .parameter("csi.storage.k8s.io/pvc/name", "data")
        .parameter("csi.storage.k8s.io/pvc/namespace", "shop");
    expect_granted("create", controller.csi().create(&claimed, LIMIT)?)?;
    for (name, id) in [("plain", "third"), ("third", "third-2")] {
        let id = format!("{{volumeID: {id}, size");
        apply(world, &volume(name, "store", "64Mi").replace("{size", &id))?;
    }
    world.wait_for("volumes", "jsonpath={.status.phase}=Ready")
}

/// Writes to each volume, detaches all except the last, and returns their sums.
fn write(world: &World, a: &NodeDaemon) -> Result<Vec<String>> {
    report::step("write to all three; detach two of them");
    let mut sums = Vec::new();
    for name in VOLUMES {
        let device = serve(world, a, name)?;
        write_noise(a, &device, BYTES)?;
        sums.push(sum_of(a, &device)?);
    }
    for name in &VOLUMES[..2] {
        withdraw(world, name)?;
        world.wait_for(&format!("volume/{name}"), "jsonpath={.status.phase}=Ready")?;
    }
    apply(
        world,
        &format!(
            "apiVersion: storage.holdfast.dev/v1alpha1\nkind: VolumeSnapshot\n\
             metadata: {{name: snapshot-1, annotations: {{holdfast.dev/csi-volumesnapshot: {USERS_SNAPSHOT}}}}}\n\
             spec: {{volume: pvc-1}}\n"
        ),
    )?;
    world.wait_for(SNAPSHOT, "jsonpath={.status.originStored}=true")?;
    until("the last one to be uploaded", WAIT, || {
        let dirty = a.metric("holdfast_volume_dirty_bytes", "third-2")?;
        Ok((dirty == Some(0.0)).then_some(()))
    })?;
    Ok(sums)
}

/// Returns the command that prints the documents of an `ObjectStore`.
pub(super) fn restore_command(world: &World, store: &str) -> Result<Command> {
    let mut command = Command::new(world.programs()?.join("holdfast-operator"));
    command.env("KUBECONFIG", world.dir().join("operator.kubeconfig")).args(["restore", store]);
    Ok(command)
}

/// An unreadable volume fails the command, which prints the others.
fn restore_with_a_damaged_log(world: &World, s3: &S3Server) -> Result<()> {
    report::step("the command fails while the log of a volume is damaged");
    let at = 0;
    let key =
        s3.keys(BUCKET, "volumes/third-2/log/")?.into_iter().next().context("volume third-2 has no log")?;
    s3.flip_byte(BUCKET, &key, at)?;
    let out = restore_command(world, "store")?.output().context("start holdfast-operator")?;
    s3.flip_byte(BUCKET, &key, at)?;
    let (documents, errors) = (String::from_utf8(out.stdout)?, String::from_utf8(out.stderr)?);
    ensure!(out.status.code() == Some(1), "restore ended with {}: {errors}", out.status);
    ensure!(errors.contains("1 volume of the bucket cannot be read: third-2."), "{errors}");
    ensure!(
        documents.contains("# volume third-2: ") && !documents.contains("volumeID: third-2"),
        "{documents}"
    );
    ensure!(documents.contains("volumeID: third\n"), "the other volumes are not printed: {documents}");
    Ok(())
}

/// Prints the documents using only the bucket, and applies them.
fn restore(world: &World) -> Result<()> {
    report::step("print the documents of the bucket, and apply them to an empty cluster");
    // The operator has no pod here.
    plugin(world, &["restore", "store"], 1, "no pod of the operator was found")?;
    let mut command = restore_command(world, "store")?;
    let documents = output(&mut command)?;
    report::step(&documents);
    world.kubectl(["create", "namespace", "shop"])?;
    apply(world, &documents)?;
    world.wait_for("volumes", "jsonpath={.status.phase}=Ready")?;
    world.wait_for(SNAPSHOT, "condition=Ready")?;
    let bound = "{.spec.volumeName} {.spec.storageClassName} {.spec.resources.requests.storage}";
    let claim = world.kubectl([
        "get",
        "persistentvolumeclaim",
        "data",
        "--namespace=shop",
        &format!("--output=jsonpath={bound}"),
    ])?;
    ensure!(claim == "pvc-1 fast 512Mi", "the claim is {claim}");
    let persistent =
        "{.spec.csi.volumeHandle} {.spec.csi.fsType} {.spec.claimRef.namespace}/{.spec.claimRef.name}";
    let persistent =
        world.kubectl(["get", "persistentvolume", "pvc-1", &format!("--output=jsonpath={persistent}")])?;
    ensure!(persistent == "pvc-1 xfs shop/data", "the PersistentVolume is {persistent}");
    let adopted = condition(world, SNAPSHOT, "Ready")?;
    ensure!(adopted.starts_with("Adopted: "), "the snapshot: {adopted}");
    let content = "{.spec.source.snapshotHandle} {.spec.deletionPolicy} {.spec.volumeSnapshotRef.namespace}/{.spec.volumeSnapshotRef.name}";
    let content = world.kubectl([
        "get",
        "volumesnapshotcontents.snapshot.storage.k8s.io",
        "snapshot-1",
        &format!("--output=jsonpath={content}"),
    ])?;
    ensure!(content == format!("snapshot-1 Retain {USERS_SNAPSHOT}"), "the content is {content}");
    let again = output(&mut command)?;
    ensure!(again.is_empty(), "what the cluster has is printed again: {again}");
    Ok(())
}

/// Creates a Volume from the adopted snapshot; returns its device.
fn create_from_snapshot(world: &World, b: &NodeDaemon) -> Result<String> {
    report::step("a volume is created from the snapshot of the lost cluster");
    let from = "source: {snapshot: {name: snapshot-1}}, size";
    apply(world, &volume("again", "store", "512Mi").replace("size", from))?;
    world.wait_for("volume/again", "jsonpath={.status.phase}=Ready")?;
    serve(world, b, "again")
}

/// A Volume that adopted is deleted with its objects, while another cluster may still write them.
fn delete_by_mistake(world: &World) -> Result<()> {
    report::step("the deletion of a Volume does not remove the volume while node a has it attached");
    let policy = |name: &str| {
        let patch = format!("{{\"spec\":{{\"deletionPolicy\":\"{name}\"}}}}");
        world.kubectl(["patch", "volume", "third", "--type=merge", "--patch", &patch])
    };
    policy("Delete")?;
    world.kubectl(["delete", "volume", "third", "--wait=false"])?;
    let reported = until("the deletion to be blocked", WAIT, || {
        let reported = condition(world, "volume/third", "Provisioned")?;
        Ok(reported.starts_with("DeletionBlocked").then_some(reported))
    })?;
    ensure!(
        reported.contains("spec.deletionPolicy: node a ") && reported.contains("force-detach=a"),
        "{reported}"
    );
    policy("Retain")?;
    world.kubectl(["wait", "volume/third", "--for=delete", "--timeout=60s"])?;
    apply(world, &adopting_volume("third", "third-2", ""))?;
    world.wait_for("volume/third", "jsonpath={.status.phase}=Ready")
}

/// According to the log, node a is still attached: no node replaces it before the user names it.
fn replace_writer(world: &World) -> Result<()> {
    let reported = condition(world, "volume/third", "Provisioned")?;
    ensure!(reported.starts_with("Adopted: ") && reported.contains("force-detach=a"), "{reported}");
    world.kubectl([
        "patch",
        "volume",
        "third",
        "--type=merge",
        "--patch",
        "{\"spec\":{\"nodeName\":\"b\"}}",
    ])?;
    until("node b to be refused", WAIT, || {
        let reported = condition(world, "volume/third", "Attached")?;
        Ok(reported.starts_with("HeldElsewhere").then_some(()))
    })?;
    let command = ["force-detach", "third", "--node", "a", "--yes"];
    plugin(world, &command, 0, "Volume third will be taken from node a.").map(drop)
}

/// Removes the volume from its node.
fn withdraw(world: &World, name: &str) -> Result<()> {
    let patch = "--patch={\"spec\":{\"nodeName\":\"\"}}";
    world.kubectl(["patch", "volume", name, "--type=merge", patch]).map(drop)
}

fn write_noise(node: &NodeDaemon, device: &str, bytes: u64) -> Result<()> {
    let dd = format!("dd of={device} bs=1M iflag=fullblock oflag=direct conv=fsync,notrunc status=none");
    node.vm().exec(&format!("head -c {bytes} /dev/urandom | {dd}")).map(drop)
}

fn sum_of(node: &NodeDaemon, device: &str) -> Result<String> {
    node.vm().exec(&format!("dd if={device} bs=1M iflag=direct status=none | sha256sum"))
}

/// Returns keys that are new since `before`.
fn new_keys(s3: &S3Server, before: &[String]) -> Result<Vec<String>> {
    let now = s3.keys(BUCKET, "volumes/").context("list the bucket")?;
    Ok(now.into_iter().filter(|key| !before.contains(key)).collect())
}
