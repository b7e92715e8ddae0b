//! A node is lost with un-uploaded data: another one continues with a prefix, the missing data is reported,
//! and the node, once it returns, serves nothing and preserves that data. One volume is moved by a user, one
//! by the taint of the Node.

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::node::{ControlInterface, NodeDaemon, PROGRAM};
use holdfast_lab::operator::NAMESPACE;
use holdfast_lab::report;
use holdfast_lab::vm::machine::MachineOptions;
use holdfast_lab::wait::until;
use holdfast_lab::world::World;

use super::plugin::plugin;
use super::provisioning::{apply, condition, volume};
use super::story::{provision_store, serve};

const BUCKET: &str = "volumes";
const VOLUME: &str = "volume/disk";
/// The claim of that volume; no controller binds it.
const CLAIM: &str = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {namespace: shop, name: data}\n\
                     spec: {volumeName: disk, accessModes: [ReadWriteOnce], resources: {requests: {storage: 64Mi}}}\n";
/// Data is uploaded only when a side is full: everything after the last seal stays on the node.
const DATA: &str = "seal_size = \"1Mi\"";
/// Blocks of 4 KiB written sequentially, each containing its number.
const BLOCKS: usize = 700;
const MAKE_BLOCKS: &str = "awk 'BEGIN { for (i = 0; i < 700; i++) printf \"%-4095d\\n\", i }' > /tmp/blocks";
/// Blocks of the volume whose flushes wait for the store: fewer than are uploaded without a flush.
const FLUSHED: usize = 100;
/// Changes whose events are counted.
pub const CHANGES: usize = 20;
/// The physical blocks of node b's disk.
const TEARING_BYTES: u32 = 512;
const LIMIT: Duration = Duration::from_secs(300);

/// The state of the volume [`VOLUME`] that node a reports before it is lost.
struct UploadState {
    /// Bytes of data that it has not uploaded.
    dirty: String,
    /// Time up to which all writes are in the store.
    durable_through: String,
}

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    let operator = world.operator()?;
    provision_store(world, &s3, BUCKET)?;
    create_volumes(world)?;
    // There is no kubelet: the scenario writes the Node's status.
    apply(world, "apiVersion: v1\nkind: Node\nmetadata: {name: a}\n")?;
    let control = ControlInterface::Kubernetes { kubeconfig: world.node_kubeconfig()? };
    let a = NodeDaemon::start(world.vm("a")?, &control, "auto", DATA)?;
    let tearing = || MachineOptions { state_block_bytes: TEARING_BYTES, ..MachineOptions::node() };
    let b = NodeDaemon::start(world.vm_with("b", tearing)?, &control, "auto", DATA)?;
    check_state_disks(world, &b)?;
    check_heartbeat(world)?;

    let reported = write_on_node_a(world, &a)?;
    check_event_recipients(world)?;
    plugin(world, &["force-detach", "disk", "--node", "a"], 1, "node a is Ready")?;

    let device = move_from_lost_node(world, &a, &b, &reported.dirty)?;
    check_out_of_service(world, &b)?;
    let remote_size = check_prefix(world, &b, &device, &reported)?;
    b.vm().exec(&format!(
        "echo of-b | dd of={device} bs=4k seek=1000 conv=sync,fsync,notrunc oflag=direct status=none"
    ))?;
    check_silence(world)?;
    check_return(world, &a, &reported.dirty, remote_size)?;
    b.vm()
        .exec(&format!("dd if={device} bs=4k skip=1000 count=1 iflag=direct status=none | grep -aqx of-b"))?;
    ensure!(field(world, "{.status.node}")? == "b", "node b does not serve any more");

    world.kubectl(["annotate", "volume", "disk", "holdfast.dev/force-detach-"])?;
    until("the condition to go with the annotation", LIMIT, || {
        Ok((condition(world, VOLUME, "UnuploadedDataLost")? == ": ").then_some(()))
    })?;
    world.kubectl(["delete", "volume", "disk", "safe", "--timeout=300s"])?;
    for node in [&a, &b] {
        node.terminate()?;
    }
    operator.stop()
}

/// Creates the namespace, the claim and both volumes.
fn create_volumes(world: &World) -> Result<()> {
    world.kubectl(["create", "namespace", "shop"])?;
    apply(world, CLAIM)?;
    apply(
        world,
        "apiVersion: storage.holdfast.dev/v1alpha1\nkind: Volume\n\
         metadata: {name: disk, annotations: {holdfast.dev/persistentvolumeclaim: shop/data}}\n\
         spec: {size: 64Mi, objectStore: store, maxDirtyAge: 1h, failoverPolicy: Manual}\n",
    )?;
    apply(
        world,
        "apiVersion: storage.holdfast.dev/v1alpha1\nkind: Volume\nmetadata: {name: safe}\n\
         spec: {size: 16Mi, objectStore: store, maxDirtyAge: 1h, durability: object}\n",
    )?;
    for volume in [VOLUME, "volume/safe"] {
        world.wait_for(volume, "jsonpath={.status.phase}=Ready")?;
    }
    Ok(())
}

/// Serves both volumes on node a and writes them. Returns the state of the one that is not uploaded whole.
fn write_on_node_a(world: &World, a: &NodeDaemon) -> Result<UploadState> {
    report::step("node a writes and flushes; part of it is uploaded, part of it is not");
    let device = serve(world, a, "disk")?;
    a.vm().exec(&format!(
        "{MAKE_BLOCKS}; dd if=/tmp/blocks of={device} bs=4k oflag=direct conv=fsync,notrunc status=none"
    ))?;
    let id = field(world, "{.status.volumeId}")?;
    let dirty = until("part of it to be committed, and the rest to be reported", LIMIT, || {
        let here = a.metric("holdfast_volume_dirty_bytes", &id)?.map(|bytes| bytes.to_string());
        let reported = field(world, "{.status.dirtyBytes}")?;
        let committed = reported.parse().is_ok_and(|dirty: usize| dirty > 0 && dirty <= 1 << 20);
        Ok((committed && here.as_ref() == Some(&reported)).then_some(reported))
    })?;
    let durable_through = field(world, "{.status.durableThrough}")?;
    ensure!(!durable_through.is_empty(), "no daemon reports what is durable");

    report::step("node a flushes a volume whose flushes wait for the store");
    let safe = serve(world, a, "safe")?;
    world.wait_for("volume/safe", "jsonpath={.status.durability}=object")?;
    a.vm().exec(&format!(
        "dd if=/tmp/blocks of={safe} bs=4k count={FLUSHED} oflag=direct conv=fsync,notrunc status=none"
    ))?;
    Ok(UploadState { dirty, durable_through })
}

/// Node a loses its power, and its volume is requested on node b. Returns the device there.
fn move_from_lost_node(world: &World, a: &NodeDaemon, b: &NodeDaemon, dirty: &str) -> Result<String> {
    report::step(format_args!("node a is lost with {dirty} bytes; the volume is requested on node b"));
    a.vm().cut_power();
    world.kubectl([
        "patch",
        "volume",
        "disk",
        "--type=merge",
        "--patch",
        "{\"spec\":{\"nodeName\":\"b\"}}",
    ])?;
    world.wait_for(VOLUME, "condition=Assigned=False")?;
    let assigned = condition(world, VOLUME, "Assigned")?;
    ensure!(assigned.contains("holdfast.dev/force-detach=a"), "the fix is not named: {assigned}");
    force_detach_by_plugin(world)?;
    serve(world, b, "disk")
}

/// Without a person, the other volume moves as well, and has all that was flushed to the store.
fn check_out_of_service(world: &World, b: &NodeDaemon) -> Result<()> {
    report::step(
        "the Node is out of service: without a person, nothing that was flushed to the store is missing",
    );
    world.kubectl(["taint", "node", "a", "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"])?;
    let safe = serve(world, b, "safe")?;
    let cut_off = world.kubectl(["get", "volume/safe", "--output=jsonpath={.status.forcedDetach.cause}"])?;
    ensure!(cut_off == "OutOfService", "node a was cut off by {cut_off:?}");
    let reported = condition(world, "volume/safe", "UnuploadedDataLost")?;
    ensure!(reported.contains("(its Node is out of service)"), "{reported}");
    b.vm().exec(&format!(
        "{MAKE_BLOCKS}; dd if={safe} bs=4k count={FLUSHED} iflag=direct status=none | cmp -n $(({FLUSHED} * 4096)) - /tmp/blocks"
    ))?;
    Ok(())
}

/// Checks the content on node b and the reported loss. Returns the size of the prefix, in bytes.
fn check_prefix(world: &World, b: &NodeDaemon, device: &str, reported: &UploadState) -> Result<usize> {
    let UploadState { dirty, durable_through } = reported;
    report::step("node b has a prefix, and the Volume reports the missing data");
    let remote_size = b.vm().exec(&format!(
        "{MAKE_BLOCKS}; dd if={device} bs=4k count={BLOCKS} iflag=direct status=none | tr -d '\\0' > /tmp/found; \
         cmp -n $(stat -c %s /tmp/found) /tmp/found /tmp/blocks >&2; stat -c %s /tmp/found"
    ))?;
    let remote_size: usize = remote_size.trim().parse().context("a size")?;
    let missing = BLOCKS * 4096 - remote_size;
    ensure!(missing.to_string() == *dirty, "{missing} bytes are missing, {dirty} were reported");
    let lost = condition(world, VOLUME, "UnuploadedDataLost")?;
    for part in ["ForceDetached: node a ", durable_through, &format!("at least {dirty} bytes")] {
        ensure!(lost.contains(part), "{part} is not in {lost}");
    }
    check_claim(world, dirty)?;
    Ok(remote_size)
}

/// The StorageNode of the lost node reports its silence. A user acknowledges the loss of the other volume.
fn check_silence(world: &World) -> Result<()> {
    report::step("node a is silent, and its StorageNode reports this");
    world.wait_for("storagenode/a", "condition=Ready=Unknown")?;
    ensure!(condition(world, "storagenode/b", "Ready")?.starts_with("Serving"), "node b is not Ready");
    let epoch = world.kubectl(["get", "volume/safe", "--output=jsonpath={.status.forcedDetach.epoch}"])?;
    world.kubectl(["annotate", "volume", "safe", &format!("holdfast.dev/acknowledge-loss={epoch}")])?;
    until("the condition to go when it was read", LIMIT, || {
        Ok((condition(world, "volume/safe", "UnuploadedDataLost")? == ": ").then_some(()))
    })
}

/// Node a serves nothing once it is back, and exports the blocks that are missing on node b.
fn check_return(world: &World, a: &NodeDaemon, dirty: &str, remote_size: usize) -> Result<()> {
    report::step("node a is back: it serves nothing, and preserves the data that it had not uploaded");
    a.vm().boot()?;
    a.restart()?;
    let preserved = until("node a to say what it keeps", LIMIT, || {
        let preserved = world.kubectl([
            "get",
            "storagenode",
            "a",
            "--output=jsonpath={range .status.fenced[*]}{.name} {.bytes}{\"\\n\"}{end}",
        ])?;
        Ok(preserved
            .lines()
            .find_map(|preserved| preserved.strip_suffix(&format!(" {dirty}")))
            .map(str::to_owned))
    })?;
    world.wait_for("storagenode/a", "condition=Ready")?;
    let list = a.cli(&["fenced", "list"])?;
    ensure!(list.contains(&preserved), "{preserved} is not in\n{list}");
    a.cli(&["fenced", "export", &preserved, "--output", "/tmp/kept.img"])?;
    a.vm().exec(&format!(
        "! ls /dev/ublkb* 2>/dev/null; {MAKE_BLOCKS}; cmp -i {remote_size} -n {dirty} /tmp/kept.img /tmp/blocks"
    ))?;
    Ok(())
}

/// The owner of the claim, without access to Volumes and the namespace `default`, sees the loss on the claim.
fn check_claim(world: &World, dirty: &str) -> Result<()> {
    let missing = format!("at least {dirty} bytes");
    until("the claim to have the events", LIMIT, || {
        let description = world.kubectl(["describe", "persistentvolumeclaim", "data", "--namespace=shop"])?;
        let words = ["Warning", "ForceDetached", &missing, "Granted", "node b may serve the volume"];
        Ok(words.iter().all(|word| description.contains(word)).then_some(()))
    })?;
    let events = ["get", "events", "--namespace=shop", "--output=jsonpath={.items[*].reason}"];
    let reasons = world.kubectl(events)?;
    ensure!(!reasons.contains("Created"), "the claim has events of the ordinary course: {reasons}");
    Ok(())
}

/// The node stopped a moment ago: it may still count as Ready.
fn force_detach_by_plugin(world: &World) -> Result<()> {
    plugin(world, &["status"], 1, "Volume disk (claim shop/data): Assigned is False since ")?;
    plugin(world, &["why", "disk"], 0, "Detaching: spec.nodeName names node b, and node a has the grant.")?;
    let mut command = vec!["force-detach", "disk", "--although-ready", "--node", "b"];
    plugin(world, &command, 1, "is not served by node b, but by node a")?;
    command[4] = "a";
    plugin(world, &command, 1, "nothing was changed")?;
    let annotated = field(world, "{.metadata.annotations}")?;
    ensure!(!annotated.contains("force-detach"), "it was annotated: {annotated}");
    command.push("--yes");
    plugin(world, &command, 0, "Data that the node did not upload will be missing: ").map(drop)
}

/// Node a renews its Lease, which its Node owns, like its StorageNode.
fn check_heartbeat(world: &World) -> Result<()> {
    let lease = ["--namespace", NAMESPACE, "get", "lease", "node-a", "--output=jsonpath={.spec.renewTime}"];
    let first = until("node a to renew its Lease", LIMIT, || Ok(world.kubectl(lease).ok()))?;
    until("node a to renew it again", LIMIT, || Ok((world.kubectl(lease)? != first).then_some(())))?;
    let node = world.kubectl(["get", "node", "a", "--output=jsonpath={.metadata.uid}"])?;
    let of_node = format!("--for=jsonpath={{.metadata.ownerReferences[0].uid}}={node}");
    for object in ["storagenode/a", "lease/node-a"] {
        world.kubectl(["--namespace", NAMESPACE, "wait", object, &of_node, "--timeout=60s"])?;
    }
    Ok(())
}

/// Changes of a Volume are sent only to the node that it is granted to.
fn check_event_recipients(world: &World) -> Result<()> {
    report::step("changes of a Volume of node a are sent to node a only");
    apply(world, &volume("idle", "store", "1Mi"))?;
    world.wait_for("volume/idle", "jsonpath={.status.phase}=Ready")?;
    let of_none = events_of_changes(world, "idle")?;
    let of_a = events_of_changes(world, "disk")?;
    let more = of_a.checked_sub(of_none).context("node a was sent fewer events than the others")?;
    // About one per change, neither zero nor two: a report of node a or of the operator may come in between.
    ensure!(
        (CHANGES / 2..CHANGES + CHANGES / 2).contains(&more),
        "{CHANGES} changes: {of_none} events of a Volume of no node, {of_a} of one of node a"
    );
    world.kubectl(["delete", "volume", "idle", "--timeout=60s"])?;
    Ok(())
}

/// Changes a Volume [`CHANGES`] times, and returns the number of events about Volumes that the API server
/// sent in the meantime.
///
/// # Errors
/// If the API server rejects a change, or sends fewer than one event per change.
pub fn events_of_changes(world: &World, name: &str) -> Result<usize> {
    let before = volume_events(world)?;
    for change in 0..CHANGES {
        world.kubectl([
            "annotate",
            "--overwrite",
            "volume",
            name,
            &format!("test.holdfast.dev/n={change}"),
        ])?;
    }
    // The operator and the nodes read events immediately.
    let settled = Cell::new(before);
    until("the events to be sent", LIMIT, || {
        let now = volume_events(world)?;
        let is_settled = settled.replace(now) == now;
        Ok((is_settled && now - before >= CHANGES).then_some(now - before))
    })
}

/// Returns the number of events about Volumes that the API server has sent to all watchers.
fn volume_events(world: &World) -> Result<usize> {
    let metrics = world.kubectl(["get", "--raw", "/metrics"])?;
    let of_volumes = |line: &&str| {
        line.starts_with("apiserver_watch_events_total{")
            && line.contains("group=\"storage.holdfast.dev\"")
            && line.contains("=\"volumes\"")
    };
    let counts = metrics.lines().filter(of_volumes).filter_map(|line| line.rsplit(' ').next()?.parse().ok());
    Ok(counts.map(|count: f64| count as usize).sum())
}

/// Node b's disk may tear a sector when the power fails: the StorageNode and an event report this.
fn check_state_disks(world: &World, b: &NodeDaemon) -> Result<()> {
    for (node, holds, why) in [("a", "True", "PhysicalBlocks: vd"), ("b", "False", "SmallPhysicalBlocks: vd")]
    {
        let object = format!("storagenode/{node}");
        world.wait_for(&object, "create")?;
        world.wait_for(&object, &format!("condition=SectorsAtomic={holds}"))?;
        let reported = condition(world, &object, "SectorsAtomic")?;
        ensure!(reported.starts_with(why), "SectorsAtomic of node {node} is {reported:?}");
    }
    let capabilities = b.cli(&["capabilities"])?;
    ensure!(capabilities.contains("physical blocks of 512 bytes: a power cut may tear"), "{capabilities}");
    let log = b.vm().log(PROGRAM)?;
    let warning = log.lines().find(|line| line.contains("WARN") && line.contains("node.state_dir"));
    ensure!(
        warning.is_some_and(|line| line.contains("physical_block_bytes=512")),
        "no warning of the disk in\n{log}"
    );
    Ok(())
}

fn field(world: &World, path: &str) -> Result<String> {
    world.kubectl(["get", VOLUME, &format!("--output=jsonpath={path}")])
}
