//! A node loses its network to the API server but keeps running: it writes and uploads until another node
//! takes over its volumes. All acknowledged writes are on the other node, or preserved on this one.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use holdfast_lab::node::{ControlInterface, NodeDaemon};
use holdfast_lab::partition::Partition;
use holdfast_lab::report;
use holdfast_lab::vm::bash;
use holdfast_lab::wait::until;
use holdfast_lab::wire::Exit;
use holdfast_lab::world::World;

use super::provisioning::{apply, condition};
use super::story::{provision_store, serve};

const BUCKET: &str = "volumes";
/// The volume that is written continuously.
const DISK: &str = "volume/disk";
/// Blocks of 4 KiB in the other volume.
const BLOCKS: usize = 64;
/// Minimum time until a node is cut off. It counts as silent 40 s after its last renewal, which is at most
/// 12 s old at the start of the partition.
const EARLIEST: Duration = Duration::from_secs(28);
/// PUTs of probes, which the operator runs for a new ObjectStore.
const PROBES: usize = 15;
const LIMIT: Duration = Duration::from_secs(300);

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    let operator = world.operator()?;
    provision_store(world, &s3, BUCKET)?;
    apply(world, &["disk", "rest"].map(volume).join("---\n"))?;
    for name in ["disk", "rest"] {
        world.wait_for(&format!("volume/{name}"), "jsonpath={.status.phase}=Ready")?;
    }
    // There is no kubelet: the scenario writes the Node's status.
    apply(world, "apiVersion: v1\nkind: Node\nmetadata: {name: a}\n")?;
    write_node_ready(world, "True")?;
    let kubeconfig = world.node_kubeconfig()?;
    let server = world.control_plane()?.port();
    let network = Partition::of(server)?;
    let through = kubeconfig.replace(&format!(":{server}"), &format!(":{}", network.port()));
    let a =
        NodeDaemon::start(world.vm("a")?, &ControlInterface::Kubernetes { kubeconfig: through }, "auto", "")?;
    let b = NodeDaemon::start(world.vm("b")?, &ControlInterface::Kubernetes { kubeconfig }, "auto", "")?;
    let (disk, rest) = (serve(world, &a, "disk")?, serve(world, &a, "rest")?);
    let sum = a.vm().exec(&format!(
        "dd if=/dev/urandom of={rest} bs=4k count={BLOCKS} oflag=direct conv=fsync,notrunc status=none; {}",
        sum_of(&rest)
    ))?;
    wait_committed(&a, &field(world, "volume/rest", "{.status.volumeId}")?)?;
    a.vm().spawn("writer", &bash(&writer_script(&disk)))?;
    let id = field(world, DISK, "{.status.volumeId}")?;
    let before =
        until("the writer to begin", LIMIT, || Ok(Some(acknowledged_blocks(&a)?).filter(|last| *last > 10)))?;

    let device = lose_api_server(world, &network, &a, &b, &id)?;
    check_deleted_node(world, &b, &sum)?;

    report::step("node a is replaced: its writer fails, and acknowledged data is on node b or preserved");
    let exit = a.vm().wait("writer", LIMIT)?;
    ensure!(exit == Exit::Code(1), "the writer ended by {exit:?}");
    let last = acknowledged_blocks(&a)?;
    let found: usize = b.vm().exec(&count_in_order(&device))?.trim().parse().context("a number of blocks")?;
    ensure!(found >= before, "{before} blocks were written before the partition, and {found} are on node b");
    network.end_loss();
    apply(world, "apiVersion: v1\nkind: Node\nmetadata: {name: a}\n")?;
    world.wait_for("storagenode/a", "condition=Ready")?;
    if last > found {
        check_preserved(world, &a, &id, found..last)?;
    }
    report::step(format_args!("{last} blocks were acknowledged: {found} are on node b, the others are kept"));
    until("node a to have no device", LIMIT, || {
        Ok(a.vm().exec("ls /dev/ublkb* 2> /dev/null || true")?.trim().is_empty().then_some(()))
    })?;
    acknowledge_losses(world)?;
    world.kubectl(["delete", "volume", "disk", "rest", "--timeout=300s"])?;
    let written = s3
        .requests()?
        .into_iter()
        .filter(|request| request.key.contains("probe/") && request.operation == "PutObject");
    let written = written.count();
    ensure!(
        written == PROBES,
        "{written} PUTs of probes; a bucket that was probed is only asked if it answers"
    );
    for node in [&a, &b] {
        node.terminate()?;
    }
    operator.stop()
}

/// Node a loses the API server while its Node is not Ready: it uploads until its volume is cut off. Returns
/// the device on node b.
fn lose_api_server(
    world: &World,
    network: &Partition,
    a: &NodeDaemon,
    b: &NodeDaemon,
    id: &str,
) -> Result<String> {
    report::step("node a loses the API server; its Node is not Ready, and the volume is requested on node b");
    network.start_loss();
    let cut = Instant::now();
    write_node_ready(world, "Unknown")?;
    request_on_b(world, "disk")?;
    world.wait_for(DISK, "condition=Assigned=False")?;
    let seq = a.metric("holdfast_volume_committed_seq", id)?;
    until("node a to upload on", LIMIT, || {
        Ok((a.metric("holdfast_volume_committed_seq", id)? > seq).then_some(()))
    })?;
    let device = serve(world, b, "disk")?;
    ensure!(
        cut.elapsed() >= EARLIEST,
        "node b has it {} s after the partition began",
        cut.elapsed().as_secs()
    );
    report::step(format_args!("node b serves it {} s after the partition began", cut.elapsed().as_secs()));
    let cause = field(world, DISK, "{.status.forcedDetach.cause}")?;
    ensure!(cause == "NodeNotReady", "node a was cut off by {cause:?}");
    Ok(device)
}

/// Without its Node, the other volume moves as well, and has all that was committed.
fn check_deleted_node(world: &World, b: &NodeDaemon, sum: &str) -> Result<()> {
    report::step("the Node is deleted: the other volume moves too");
    world.kubectl(["delete", "node", "a"])?;
    request_on_b(world, "rest")?;
    let rest = serve(world, b, "rest")?;
    let cause = field(world, "volume/rest", "{.status.forcedDetach.cause}")?;
    ensure!(cause == "NodeDeleted", "node a was cut off by {cause:?}");
    let restored = b.vm().exec(&sum_of(&rest))?;
    ensure!(restored == sum, "node b has {restored} in place of {sum}");
    Ok(())
}

/// Checks that node a preserves these blocks, which were acknowledged and are not on node b.
fn check_preserved(world: &World, a: &NodeDaemon, id: &str, blocks: Range<usize>) -> Result<()> {
    let preserved = until("node a to say what it keeps", LIMIT, || {
        let path = "{range .status.fenced[*]}{.name}{\"\\n\"}{end}";
        let preserved = field(world, "storagenode/a", path)?;
        Ok(preserved.lines().find(|name| name.starts_with(id)).map(str::to_owned))
    })?;
    a.cli(&["fenced", "export", &preserved, "--output", "/tmp/kept.img"])?;
    let Range { start, end } = blocks;
    let script = format!(
        "for block in $(seq {start} $(({end} - 1))); do
           dd if=/tmp/kept.img bs=4k skip=$block count=1 status=none | cmp - <(printf '%-4096d' $block)
         done"
    );
    a.vm().exec(&script).map(drop)
}

/// Both volumes report the forced detach, until a user acknowledges it.
fn acknowledge_losses(world: &World) -> Result<()> {
    for name in ["disk", "rest"] {
        let object = format!("volume/{name}");
        ensure!(field(world, &object, "{.status.node}")? == "b", "node b does not serve {name} any more");
        let lost = condition(world, &object, "UnuploadedDataLost")?;
        ensure!(lost.contains("node a was cut off"), "{name}: {lost}");
        let epoch = field(world, &object, "{.status.forcedDetach.epoch}")?;
        world.kubectl(["annotate", "volume", name, &format!("holdfast.dev/acknowledge-loss={epoch}")])?;
        until("the condition to go when it was read", LIMIT, || {
            Ok((condition(world, &object, "UnuploadedDataLost")? == ": ").then_some(()))
        })?;
    }
    Ok(())
}

fn volume(name: &str) -> String {
    format!(
        "apiVersion: storage.holdfast.dev/v1alpha1\nkind: Volume\nmetadata: {{name: {name}}}\n\
         spec: {{size: 64Mi, objectStore: store, maxDirtyAge: 2s}}\n"
    )
}

/// Returns a script that writes and flushes blocks sequentially, and prints the number of completed ones,
/// until one fails.
fn writer_script(device: &str) -> String {
    format!(
        "for block in $(seq 0 16383); do
           printf '%-4096d' $block |
             dd of={device} bs=4k seek=$block iflag=fullblock oflag=direct conv=fsync,notrunc status=none || exit 1
           echo $((block + 1)); sleep 0.05
         done"
    )
}

/// Returns the blocks acknowledged to the writer.
fn acknowledged_blocks(node: &NodeDaemon) -> Result<usize> {
    let log = node.vm().log("writer")?;
    let last = log.lines().rev().find_map(|line| line.trim().parse().ok());
    Ok(last.unwrap_or(0))
}

/// Returns a script for the number of existing blocks, which must be the first ones.
fn count_in_order(device: &str) -> String {
    format!(
        "dd if={device} bs=1M iflag=direct status=none | tr '\\0' '\\n' | grep -v '^$' | tr -s ' ' '\\n' |
           awk 'NF {{ if ($1 != n) {{ print \"block \" n \" is \" $1 > \"/dev/stderr\"; exit 1 }} n++ }} END {{ print n + 0 }}'"
    )
}

fn sum_of(device: &str) -> String {
    format!("dd if={device} bs=4k count={BLOCKS} iflag=direct status=none | sha256sum")
}

/// Waits until all of the volume is uploaded.
fn wait_committed(node: &NodeDaemon, id: &str) -> Result<()> {
    until("everything to be committed", LIMIT, || {
        Ok((node.metric("holdfast_volume_dirty_bytes", id)? == Some(0.0)).then_some(()))
    })
}

fn request_on_b(world: &World, name: &str) -> Result<()> {
    let patch = "{\"spec\":{\"nodeName\":\"b\"}}";
    world.kubectl(["patch", "volume", name, "--type=merge", "--patch", patch]).map(drop)
}

/// Writes the condition `Ready` of Node a, like the node lifecycle controller.
fn write_node_ready(world: &World, status: &str) -> Result<()> {
    let patch = format!("{{\"status\":{{\"conditions\":[{{\"type\":\"Ready\",\"status\":\"{status}\"}}]}}}}");
    world.kubectl(["patch", "node", "a", "--subresource=status", "--type=merge", "--patch", &patch]).map(drop)
}

fn field(world: &World, object: &str, path: &str) -> Result<String> {
    world.kubectl(["get", object, &format!("--output=jsonpath={path}")])
}
