//! The autoscaler removes a node with a written volume: a real daemon there detects the taint.

use anyhow::{Context, Result, ensure};
use holdfast_lab::autoscaler::{Autoscaler, GROUP, NodeGroup, node_without_machine};
use holdfast_lab::node::NodeDaemon;
use holdfast_lab::report;
use holdfast_lab::wait::until;
use holdfast_lab::world::World;
use serde_json::{Value, json};

use super::{LIMIT, MAX_VOLUMES, SERVED, SERVED_CLASS, claim_object, node_of, pod_object, register};
use crate::cordon::{DrainedVolume, check_stays_dirty, wait_drain_status};
use crate::object::apply;

/// The group of the node.
const LEAVING: NodeGroup<'static> = NodeGroup { name: "leaving", labels: &[SERVED] };
/// Name of the node and of its machine.
const NODE: &str = "a";
/// Another node for the pod, which the autoscaler does not manage.
const OTHER_NODE: &str = "other";
/// Label of both.
const PLACE: &str = "example.com/place";
const CLAIM: &str = "leaving-1";
/// Flags with which it removes a node immediately. By default, release 1.36 cordons the node, too.
const FLAGS: [&str; 3] = [
    "--scale-down-unneeded-time=1s",
    "--scale-down-delay-after-add=1s",
    "--cordon-node-before-terminating=false",
];

/// The volume of a pod on a node of the autoscaler is committed when the node is to be removed.
pub(super) fn run(world: &World) -> Result<()> {
    report::step("a node with a daemon, and a pod there whose volume is written");
    apply(world, &node_object(NODE, true))?;
    let node: NodeDaemon = world.node(NODE, "auto", "")?;
    register(world, NODE, MAX_VOLUMES)?;
    apply(world, &claim_object(CLAIM, SERVED_CLASS))?;
    world.wait_for(&format!("pvc/{CLAIM}"), "jsonpath={.status.phase}=Bound")?;
    apply(world, &replica_set())?;
    let pod = until("the pod", LIMIT, || {
        let pod = "--output=jsonpath={.items[*].metadata.name}";
        let pod = world.kubectl(["get", "pods", "--selector=app=leaving", pod])?;
        Ok((!pod.is_empty()).then_some(pod))
    })?;
    ensure!(node_of(world, &pod)? == NODE, "the pod is elsewhere");
    apply(world, &node_object(OTHER_NODE, false))?;
    register(world, OTHER_NODE, MAX_VOLUMES)?;
    let volume = world.kubectl(["get", "pvc", CLAIM, "--output=jsonpath={.spec.volumeName}"])?;
    let patch = "--patch={\"spec\": {\"maxDirtyAge\": \"1h\"}}";
    world.kubectl(["patch", "volume", &volume, "--type=merge", patch])?;
    let served = DrainedVolume::by(world, &node, &volume)?;
    served.write()?;
    check_stays_dirty(&[&served])?;

    report::step("the autoscaler removes the node: the volume is committed, the pod is elsewhere");
    let mut autoscaler = Autoscaler::start(world, &[LEAVING], &FLAGS)?;
    served.wait_committed()?;
    wait_drain_status(world, "True", "Tainted: ")?;
    world.kubectl(["wait", &format!("node/{NODE}"), "--for=delete", "--timeout=180s"])?;
    let pods = "--output=jsonpath={.items[0].metadata.name}";
    let next = world.kubectl(["get", "pods", "--selector=app=leaving", pods])?;
    ensure!(next != pod && node_of(world, &next)? == OTHER_NODE, "pod {next} is not on node {OTHER_NODE}");
    autoscaler.check_running().context("after the removal")?;
    node.terminate()
}

/// Returns a node, which the provider considers its own if it `leaves`.
fn node_object(name: &str, leaves: bool) -> Value {
    let mut node = node_without_machine(name);
    node["metadata"]["labels"] = json!({ PLACE: "here" });
    if leaves {
        node["metadata"]["labels"][GROUP] = json!(LEAVING.name);
        node["metadata"]["annotations"] = json!({
            "cluster-autoscaler.kwok.nodegroup/name": LEAVING.name,
            "kwok.x-k8s.io/node": "fake",
        });
        node["spec"] = json!({ "providerID": format!("kwok:{name}") });
    }
    node
}

/// Returns a pod for both nodes, which is recreated after an eviction.
fn replica_set() -> Value {
    let mut pod = pod_object("leaving", LEAVING.name, &[CLAIM]);
    let mut spec = pod["spec"].take();
    spec["nodeSelector"] = json!({ PLACE: "here" });
    json!({
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": { "name": "leaving" },
        "spec": {
            "replicas": 1,
            "selector": { "matchLabels": { "app": "leaving" } },
            "template": { "metadata": { "labels": { "app": "leaving" } }, "spec": spec },
        },
    })
}
