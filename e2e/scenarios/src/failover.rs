//! A node of a real cluster loses its power, and with it the operator, the CSI controller and the pod of a
//! StatefulSet.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use holdfast_lab::cluster::{Cluster, ClusterStore, Extras, NODES, TOOLS_IMAGE};
use holdfast_lab::report;
use holdfast_lab::wait::until;
use holdfast_lab::world::World;
use serde_json::{Value, json};

use super::object::apply;
use super::provisioning::condition;

const BUCKET: &str = "failover";
/// Name of ObjectStore and StorageClass.
const STORE: &str = "main";
const POD: &str = "journal-0";
/// The claim of that pod.
const CLAIM: &str = "data-journal-0";
/// Prints the number of lines found, which must be those it wrote, then appends lines and prints each flushed
/// one.
const WRITE: &str = "trap 'exit 0' TERM
touch /data/lines; n=$(wc -l < /data/lines); seq 1 $n | cmp - /data/lines; echo found $n
while :; do
  n=$((n + 1)); echo $n | dd of=/data/lines oflag=append conv=notrunc,fsync 2> /dev/null; echo $n; sleep 0.5
done";
/// Time until a pod of a lost node runs again: its Node is detected as silent, its pods are deleted,
/// controllers elect a leader, an emulated kubelet starts containers.
const FAILOVER_LIMIT: Duration = Duration::from_secs(1200);
const LIMIT: Duration = Duration::from_secs(600);

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let cluster = Cluster::start_with(world, &Extras { second_node: true, ..Extras::default() })?;
    let [lost, other] = NODES;
    // Until the last pod that must be on the lost node is running.
    world.kubectl(["cordon", other])?;
    cluster.install(&ClusterStore { name: STORE, bucket: BUCKET, endpoint: &s3.endpoint_in_vm() })?;
    play(world, &cluster, (lost, other)).with_context(|| cluster.describe())
}

fn play(world: &World, cluster: &Cluster, (lost, other): (&str, &str)) -> Result<()> {
    report::step("a StatefulSet writes, and part of it is uploaded");
    apply(world, &stateful_set())?;
    ensure!(wait_pod_running(world, lost)? == 0, "a new volume has lines");
    world.kubectl(["uncordon", other])?;
    let uploaded = until("the pod to write", LIMIT, || Ok(last_line(world)?.filter(|line| *line >= 10)))?;
    let then = cluster.node_named(lost)?.exec("date -u +%Y-%m-%dT%H:%M:%SZ")?;
    until("what it wrote to be durable", LIMIT, || {
        // Both have the same format, so their text order is chronological.
        Ok((volume(world, "{.status.durableThrough}")?.as_str() > then.trim()).then_some(()))
    })?;
    check_figures(world, lost)?;
    let written = last_line(world)?.context("the pod prints lines")?;

    report::step(format_args!("node {lost} loses its power; its operator learns that it is out of service"));
    cluster.node_named(lost)?.cut_power();
    let cut = Instant::now();
    world.kubectl(["wait", &format!("node/{lost}"), "--for=condition=Ready=Unknown", "--timeout=300s"])?;
    let out_of_service = "node.kubernetes.io/out-of-service";
    world.kubectl(["taint", "node", lost, &format!("{out_of_service}=nodeshutdown:NoExecute")])?;
    let tainted = Instant::now();
    let replacement = wait_pod_running(world, other)?;
    report::step(format_args!(
        "the pod runs on node {other}, {} s after the cut and {} s after the taint; it has {replacement} lines: {uploaded} \
         were uploaded, {written} were written at least",
        cut.elapsed().as_secs(),
        tainted.elapsed().as_secs()
    ));
    ensure!(replacement >= uploaded, "{uploaded} lines were uploaded, and {replacement} are there");
    let (node, epoch) = (volume(world, "{.status.node}")?, volume(world, "{.status.forcedDetach.epoch}")?);
    ensure!(node == other && !epoch.is_empty(), "node {node:?} serves, epoch {epoch:?} was cut off");

    report::step(format_args!("node {lost} is back, and serves nothing"));
    cluster.power_on(lost)?;
    world.kubectl(["taint", "node", lost, &format!("{out_of_service}-")])?;
    world.wait_for(&format!("storagenode/{lost}"), "condition=Ready")?;
    cluster.node_named(lost)?.exec("! ls /dev/ublkb* 2> /dev/null")?;
    let before = last_line(world)?;
    until("the pod to write on", LIMIT, || Ok((last_line(world)? > before).then_some(())))?;
    let state =
        "--output=jsonpath={.status.phase} {.status.containerStatuses[0].restartCount} {.spec.nodeName}";
    let state = world.kubectl(["get", "pod", POD, state])?;
    ensure!(state == format!("Running 0 {other}"), "the pod is {state}");

    report::step(format_args!("node {other} is drained: nothing is missing on node {lost}"));
    let written = last_line(world)?.context("the pod prints lines")?;
    world.kubectl([
        "drain",
        other,
        "--ignore-daemonsets",
        "--delete-emptydir-data",
        &format!("--timeout={}s", LIMIT.as_secs()),
    ])?;
    let replacement = wait_pod_running(world, lost)?;
    ensure!(replacement >= written, "{written} lines were written, and {replacement} are there");
    let forced_epoch = volume(world, "{.status.forcedDetach.epoch}")?;
    ensure!(forced_epoch == epoch, "epoch {epoch} was cut off, and after a drain {forced_epoch:?}");

    report::step("the claim reports data that may be missing, until a user acknowledges it");
    let described = world.kubectl(["describe", "pvc", CLAIM])?;
    let reason = format!("node {} was cut off", NODES[0]);
    ensure!(described.contains(&reason), "the claim does not tell of the loss:\n{described}");
    let name = world.kubectl(["get", "pvc", CLAIM, "--output=jsonpath={.spec.volumeName}"])?;
    let lost = condition(world, &format!("volume/{name}"), "UnuploadedDataLost")?;
    ensure!(lost.contains(&format!("node {}", NODES[0])), "the loss was forgotten: {lost}");
    world.kubectl(["annotate", "volume", &name, &format!("holdfast.dev/acknowledge-loss={epoch}")])?;
    until("the condition to go when it was read", LIMIT, || {
        Ok((condition(world, &format!("volume/{name}"), "UnuploadedDataLost")? == ": ").then_some(()))
    })
}

/// Waits until the pod runs on `node`, and returns the number of lines that it found.
fn wait_pod_running(world: &World, node: &str) -> Result<u64> {
    until(&format!("the pod to run on node {node}"), FAILOVER_LIMIT, || {
        let place = "--output=jsonpath={.spec.nodeName} {.status.phase}";
        let place = world.kubectl(["get", "pod", POD, "--ignore-not-found", place])?;
        if place != format!("{node} Running") {
            return Ok(None);
        }
        // Its node may have just received it.
        let printed = world.kubectl(["logs", POD]).unwrap_or_default();
        let found = printed.lines().find_map(|line| line.strip_prefix("found "));
        found.map(|lines| lines.parse().context("a number of lines")).transpose()
    })
}

/// Returns the last line that the pod has flushed.
fn last_line(world: &World) -> Result<Option<u64>> {
    let printed = world.kubectl(["logs", POD, "--tail=1"])?;
    Ok(printed.trim().parse().ok())
}

/// The kubelet, and its consumers, know the usage of the claim's file system.
fn check_figures(world: &World, node: &str) -> Result<()> {
    // The API server does not proxy to loopback addresses, as the node's is; the kubelet accepts its clients.
    let port = "--output=jsonpath={.status.daemonEndpoints.kubeletEndpoint.Port}";
    let port = world.kubectl(["get", &format!("node/{node}"), port])?;
    let kubelet = format!("--server=https://127.0.0.1:{port}");
    until("the kubelet to have figures of the claim", LIMIT, || {
        let summary = world.kubectl([&kubelet, "get", "--raw", "/stats/summary"])?;
        let summary: Value = serde_json::from_str(&summary)?;
        let pods = summary["pods"].as_array().map_or(&[][..], Vec::as_slice);
        let volumes = pods.iter().flat_map(|pod| pod["volume"].as_array().into_iter().flatten());
        let mut figures = volumes.filter(|volume| volume["pvcRef"]["name"] == CLAIM);
        let is_whole = |volume: &Value| {
            ["capacityBytes", "usedBytes", "inodes"].iter().all(|figure| volume[figure].as_u64() > Some(0))
        };
        Ok(figures.any(is_whole).then_some(()))
    })
}

/// Returns a field of the only Volume.
fn volume(world: &World, path: &str) -> Result<String> {
    let name = world.kubectl(["get", "pvc", CLAIM, "--output=jsonpath={.spec.volumeName}"])?;
    world.kubectl(["get", "volume", &name, &format!("--output=jsonpath={path}")])
}

fn stateful_set() -> Value {
    let labels = json!({ "app": "journal" });
    json!({
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": { "name": "journal" },
        "spec": {
            "serviceName": "journal",
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "containers": [{
                        "name": "shell",
                        "image": TOOLS_IMAGE,
                        "command": ["/bin/sh", "-euc", WRITE],
                        "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
                    }],
                },
            },
            "volumeClaimTemplates": [{
                "metadata": { "name": "data" },
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "resources": { "requests": { "storage": "1Gi" } },
                },
            }],
        },
    })
}
