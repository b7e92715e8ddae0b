//! The real cluster-autoscaler, which creates nodes from scratch for pods that wait for claims. Scheduler,
//! controller manager and external-provisioner are real, too, and so are operator and CSI controller. The new
//! nodes are only API objects: the scenario plays the driver that registers there.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::autoscaler::{Autoscaler, GROUP, NodeGroup};
use holdfast_lab::cluster::Controllers;
use holdfast_lab::command::output;
use holdfast_lab::csi::CsiService;
use holdfast_lab::operator::NAMESPACE;
use holdfast_lab::process::LoggedProcess;
use holdfast_lab::report;
use holdfast_lab::sidecars::{self, Sidecar};
use holdfast_lab::wait::until;
use holdfast_lab::world::World;
use serde_json::{Value, json};

use super::object::{apply, file};
use super::provisioning;
use super::story::provision_store;

mod removal;

const BUCKET: &str = "autoscaler";
/// Label of nodes that serve volumes.
const SERVED: (&str, &str) = ("topology.holdfast.dev/served", "true");
/// Each is empty at the start, and has its own pods.
const GROUPS: [NodeGroup<'static>; 9] = [
    NodeGroup { name: "bare", labels: &[] },
    NodeGroup { name: "labelled", labels: &[SERVED] },
    NodeGroup { name: "late", labels: &[] },
    NodeGroup { name: "tracked", labels: &[SERVED] },
    NodeGroup { name: "many", labels: &[SERVED] },
    NodeGroup { name: "counted", labels: &[SERVED] },
    NodeGroup { name: "aware", labels: &[SERVED] },
    NodeGroup { name: "memory", labels: &[SERVED] },
    NodeGroup { name: "later", labels: &[SERVED] },
];
/// A class of the chart with its defaults, which binds claims immediately.
const SERVED_CLASS: &str = "main";
/// The same with `nodes: any`.
const ANY_CLASS: &str = "anywhere";
/// A class of memory volumes.
const MEMORY_CLASS: &str = "scratch";
/// A class outside the chart: its claims wait for a pod.
const WAITING_CLASS: &str = "waiting";
/// Pods with a claim each, and the volume limit of a node.
const MANY: usize = 6;
const MAX_VOLUMES: usize = 2;
/// Reason given by the scheduler's plugins, one of which applies to the template of the pod's group.
const VOLUME_ELSEWHERE: &str = "1 node(s) didn't match PersistentVolume's node affinity";
/// Processor request that leaves too little of a node's 16 for another pod.
const MAX_CPU: &str = "15";
/// Time limit of a decision of the autoscaler.
const LIMIT: Duration = Duration::from_secs(180);
/// Flags of the autoscaler.
const FLAGS: [&str; 1] = ["--scale-down-enabled=false"];
/// The same, with simulation of the CSINode.
const AWARE: [&str; 2] = ["--scale-down-enabled=false", "--enable-csi-node-aware-scheduling"];
/// Nodes without a kubelet renew no lease.
const MANAGER: [&str; 2] = ["--node-monitor-grace-period=24h", "--node-startup-grace-period=24h"];

pub(super) fn run(world: &World) -> Result<()> {
    Autoscaler::program()?;
    let s3 = world.s3()?;
    let operator = world.operator()?;
    provision_store(world, &s3, BUCKET)?;
    let controller = world.csi_controller()?;
    report::step("start controller manager, scheduler and provisioner");
    let _controllers = Controllers::start(world.toolbox(), &*world.control_plane()?, &MANAGER)?;
    let provisioner = install(world, &controller, false)?;
    apply(world, &waiting_class())?;
    until("the account of pods", LIMIT, || {
        Ok(world.kubectl(["get", "serviceaccount/default", "--output=name"]).ok())
    })?;
    report::step("start the cluster-autoscaler");
    let mut autoscaler = Autoscaler::start(world, &GROUPS, &FLAGS)?;
    ensure!(nodes_of(world, None)?.is_empty(), "there are nodes already");

    claims_bound_before_pods(world)?;
    claims_that_wait_for_pods(world)?;
    drop(provisioner);
    let _provisioner = check_tracked_capacity(world, &controller)?;
    check_full_memory_node(world)?;
    check_late_label(world)?;
    first_counted_node(world)?;
    autoscaler.check_running()?;
    drop(autoscaler);
    check_more_claims_than_limit(world)?;
    check_csi_node_simulation(world)?;
    removal::run(world)?;
    operator.stop()
}

/// Claims bound before their pods exist.
fn claims_bound_before_pods(world: &World) -> Result<()> {
    report::step("claims are bound in a cluster without nodes");
    for (claim, class) in [("served-1", SERVED_CLASS), ("served-2", SERVED_CLASS), ("any-1", ANY_CLASS)] {
        apply(world, &claim_object(claim, class))?;
        world.wait_for(&format!("pvc/{claim}"), "jsonpath={.status.phase}=Bound")?;
    }

    report::step("without the label in the template, no node is created");
    apply(world, &pod_object("without-label", "bare", &["served-1"]))?;
    wait_refusal(world, "without-label", VOLUME_ELSEWHERE)?;
    ensure!(nodes_of(world, Some("bare"))?.is_empty(), "a node was made");

    report::step("with the label, a node is created");
    apply(world, &pod_object("with-label", "labelled", &["served-2"]))?;
    expect_pod_on_new_node(world, "with-label", "labelled")?;

    report::step("with `nodes: any`, a node is created without a label");
    apply(world, &pod_object("anywhere", "bare", &["any-1"]))?;
    expect_pod_on_new_node(world, "anywhere", "bare")?;
    world.kubectl(["delete", "pod", "without-label", "--force"]).map(drop)
}

/// A claim that waits for its pod, in a cluster that tracks no capacity.
fn claims_that_wait_for_pods(world: &World) -> Result<()> {
    report::step("for an unbound claim of WaitForFirstConsumer a node is created, with or without the label");
    apply(world, &claim_object("late-1", WAITING_CLASS))?;
    apply(world, &pod_object("late", "late", &["late-1"]))?;
    let node = wait_new_node(world, "late", "late")?;
    register(world, &node, MAX_VOLUMES)?;
    world.wait_for("pvc/late-1", "jsonpath={.status.phase}=Bound")?;
    ensure!(node_of(world, "late")? == node, "the pod runs elsewhere");
    Ok(())
}

/// A claim that waits for its pod, in a cluster that tracks capacity for memory volumes.
fn check_tracked_capacity(world: &World, controller: &CsiService) -> Result<LoggedProcess> {
    report::step("a class of memory volumes: the capacity of nodes is tracked");
    let provisioner = install(world, controller, true)?;
    apply(world, &claim_object("tracked-1", WAITING_CLASS))?;
    apply(world, &pod_object("tracked", "tracked", &["tracked-1"]))?;
    wait_refusal(world, "tracked", "1 node(s) did not have enough free storage")?;
    ensure!(nodes_of(world, Some("tracked"))?.is_empty(), "a node was made");

    report::step("with a capacity for all serving nodes, a node is created");
    apply(world, &capacity_of_class())?;
    let node = wait_new_node(world, "tracked", "tracked")?;
    register(world, &node, MAX_VOLUMES)?;
    world.wait_for("pvc/tracked-1", "jsonpath={.status.phase}=Bound")?;
    ensure!(node_of(world, "tracked")? == node, "the pod runs elsewhere");
    ensure!(nodes_of(world, Some("tracked"))? == [node], "more than one node was made");
    Ok(provisioner)
}

/// A memory volume whose node has no space for its pod: no other node helps.
fn check_full_memory_node(world: &World) -> Result<()> {
    report::step("a memory volume on a full node: no node is created in vain");
    apply(world, &pod_object("first-of-memory", "memory", &[]))?;
    let node = wait_new_node(world, "first-of-memory", "memory")?;
    register(world, &node, MAX_VOLUMES)?;
    report_memory(world, &node)?;
    apply(world, &claim_object("scratch-1", MEMORY_CLASS))?;
    apply(world, &pod_object("scratch", "memory", &["scratch-1"]))?;
    ensure!(node_of(world, "scratch")? == node, "the pod is elsewhere");
    world.kubectl(["delete", "pod", "scratch", "--force"])?;
    let mut filler = pod_object("filler", "memory", &[]);
    set_cpu_request(&mut filler, MAX_CPU);
    apply(world, &filler)?;
    ensure!(node_of(world, "filler")? == node, "the pod is elsewhere");
    let mut again = pod_object("scratch-again", "memory", &["scratch-1"]);
    set_cpu_request(&mut again, "1");
    apply(world, &again)?;
    wait_refusal(world, "scratch-again", VOLUME_ELSEWHERE)?;
    ensure!(nodes_of(world, Some("memory"))? == [node], "a node was made in vain");
    Ok(())
}

/// A group whose template has the label, but whose nodes get it only after the driver has registered.
fn check_late_label(world: &World) -> Result<()> {
    report::step("nodes that get the label later than the template: more are created than needed");
    apply(world, &without_label("later"))?;
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": { "name": "later" },
        "spec": { "policyName": "later" },
    });
    apply(world, &binding)?;
    until("the policy", LIMIT, || {
        let node = json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": { "name": "asked", "labels": { GROUP: "later", SERVED.0: SERVED.1 } },
            "status": { "conditions": [{ "type": "Ready", "status": "False" }] },
        });
        let file = file(world, &node)?;
        let shown = world.kubectl(["create", "--dry-run=server", "--output=json", "--filename", &file])?;
        Ok((!shown.contains(SERVED.0)).then_some(()))
    })?;
    apply(world, &claim_object("later-1", SERVED_CLASS))?;
    world.wait_for("pvc/later-1", "jsonpath={.status.phase}=Bound")?;
    apply(world, &pod_object("later", "later", &["later-1"]))?;
    wait_new_node(world, "later", "later")?;
    until("a second node", LIMIT, || Ok((nodes_of(world, Some("later"))?.len() > 1).then_some(())))?;
    let node = nodes_of(world, Some("later"))?.remove(0);
    register(world, &node, MAX_VOLUMES)?;
    ensure!(node_of(world, "later")? == node, "the pod is elsewhere");
    Ok(())
}

/// The first node of a group, whose volumes the scheduler counts.
fn first_counted_node(world: &World) -> Result<()> {
    apply(world, &pod_object("first", "counted", &[]))?;
    let node = wait_new_node(world, "first", "counted")?;
    register(world, &node, MAX_VOLUMES)
}

/// More claims than a node supports. The pods wait before the autoscaler starts, so that it sees all at once.
fn check_more_claims_than_limit(world: &World) -> Result<()> {
    report::step("more claims than a node supports: the autoscaler counts none of them on new nodes");
    let [many, counted] = ["many", "counted"].map(|group| pods_with_claims(world, group, 1));
    let (many, counted) = (many?, counted?);
    let first = nodes_of(world, Some("counted"))?;
    let mut autoscaler = Autoscaler::start(world, &GROUPS, &FLAGS)?;
    for (pods, scaled) in [(&many, "many 0->1 "), (&counted, "counted 1->2 ")] {
        let message = wait_event(world, pods.last().context("there are pods")?, "TriggeredScaleUp")?;
        ensure!(message.contains(scaled), "{message}");
    }
    report::step("before the driver has registered, the scheduler counts no claims either");
    let node = node_of(world, &many[0])?;
    for pod in &many {
        ensure!(node_of(world, pod)? == node, "pod {pod} is not on node {node}");
    }
    let mut on_first = 0;
    for pod in &counted {
        on_first += usize::from(first.contains(&node_of(world, pod)?));
    }
    ensure!(on_first == MAX_VOLUMES, "{on_first} pods with a claim are on {first:?}");
    for group in ["many", "counted"] {
        ensure!(nodes_of(world, Some(group))?.len() <= 2, "{:?}", nodes_of(world, Some(group))?);
    }
    autoscaler.check_running()
}

/// The same with an autoscaler that simulates the CSINode.
fn check_csi_node_simulation(world: &World) -> Result<()> {
    report::step(
        "an autoscaler that simulates the CSINode counts claims, from the second node of a group on",
    );
    register_all(world)?;
    let [counted, aware] = ["counted", "aware"].map(|group| pods_with_claims(world, group, 2));
    let mut autoscaler = Autoscaler::start(world, &GROUPS, &AWARE)?;
    for (pods, scaled) in [(counted?, "counted 2->5 "), (aware?, "aware 0->1 ")] {
        let pod = pods.last().context("there are pods")?;
        let message = until(&format!("{scaled} for pod {pod}"), LIMIT, || {
            // It does nothing while a node has no CSINode.
            register_all(world)?;
            let message = events(world, pod, "TriggeredScaleUp")?;
            Ok((!message.is_empty()).then_some(message))
        })?;
        ensure!(message.contains(scaled), "{message}");
    }
    autoscaler.check_running()
}

/// Creates [`MANY`] pods for a group, each with a bound claim, and waits until the scheduler has processed
/// all of them.
fn pods_with_claims(world: &World, group: &str, round: u32) -> Result<Vec<String>> {
    let names: Vec<String> = (0..MANY).map(|number| format!("{group}-{round}-{number}")).collect();
    let list = |items: Vec<Value>| json!({ "apiVersion": "v1", "kind": "List", "items": items });
    apply(world, &list(names.iter().map(|name| claim_object(name, SERVED_CLASS)).collect()))?;
    for name in &names {
        world.wait_for(&format!("pvc/{name}"), "jsonpath={.status.phase}=Bound")?;
    }
    apply(world, &list(names.iter().map(|name| pod_object(name, group, &[name])).collect()))?;
    for name in &names {
        let scheduled = "jsonpath={.status.conditions[?(@.type=='PodScheduled')].status}";
        world.wait_for(&format!("pod/{name}"), scheduled)?;
    }
    Ok(names)
}

/// Plays the driver on each node without one.
fn register_all(world: &World) -> Result<()> {
    let known = world.kubectl(["get", "csinodes", "--output=jsonpath={.items[*].metadata.name}"])?;
    let known: Vec<&str> = known.split_whitespace().collect();
    for node in nodes_of(world, None)? {
        if !known.contains(&node.as_str()) {
            register(world, &node, MAX_VOLUMES)?;
        }
    }
    Ok(())
}

/// Plays the daemon of a node with a limit of 4Gi for memory volumes.
fn report_memory(world: &World, node: &str) -> Result<()> {
    let kind = "apiVersion: storage.holdfast.dev/v1alpha1\nkind: StorageNode";
    provisioning::apply(world, &format!("{kind}\nmetadata: {{name: {node}}}\nspec: {{}}\n"))?;
    let status =
        json!({ "status": { "memory": { "limitBytes": 4_i64 << 30, "promisedBytes": 0, "usedBytes": 0 } } });
    let object = format!("storagenode/{node}");
    let patch = format!("--patch={status}");
    world.kubectl(["patch", &object, "--subresource=status", "--type=merge", &patch]).map(drop)
}

/// Removes the label from new nodes of a group, and makes them ready only recently: the autoscaler uses none
/// of them as a template.
fn without_label(group: &str) -> Value {
    let key = SERVED.0.replace('/', "~1");
    let young = "2126-01-01T00:00:00Z";
    let patch = format!(
        "[JSONPatch{{op: 'remove', path: '/metadata/labels/{key}'}}, \
          JSONPatch{{op: 'add', path: '/status/conditions/0/lastTransitionTime', value: '{young}'}}]"
    );
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": { "name": group },
        "spec": {
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "matchConstraints": { "resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nodes"],
            }] },
            "matchConditions": [{
                "name": "group",
                "expression": format!("object.metadata.labels[?'{GROUP}'].orValue('') == '{group}'"),
            }],
            "mutations": [{ "patchType": "JSONPatch", "jsonPatch": { "expression": patch } }],
        },
    })
}

/// Sets the processor request of a pod.
fn set_cpu_request(pod: &mut Value, cpu: &str) {
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!(cpu);
}

/// Installs the CSIDriver and the classes of the chart, and starts the provisioner; with `memory`, adds a
/// class of memory volumes.
fn install(world: &World, controller: &CsiService, memory: bool) -> Result<LoggedProcess> {
    let mut classes = vec![
        json!({ "name": SERVED_CLASS, "objectStore": "store" }),
        json!({ "name": ANY_CLASS, "objectStore": "store", "nodes": "any" }),
    ];
    if memory {
        classes.push(json!({ "name": MEMORY_CLASS, "backend": "memory" }));
    }
    let values = json!({ "node": { "memoryVolumes": "8Gi" }, "storageClasses": classes });
    let values = write(world, "values.json", &values.to_string())?;
    let mut helm = std::process::Command::new(world.toolbox().helm()?);
    helm.args(["template", "holdfast"]).arg(world.chart()).args(["--namespace", NAMESPACE]);
    helm.args(["--show-only", "templates/csi-driver.yaml", "--values"]).arg(&values);
    let driver = write(world, "csi-driver.yaml", &output(&mut helm)?)?;
    world.kubectl(["apply", "--server-side", "--filename", &driver.display().to_string()])?;
    sidecars::start(world, controller, Sidecar::Provisioner, &values)
}

fn write(world: &World, name: &str, text: &str) -> Result<PathBuf> {
    let file = world.dir().join(name);
    fs::write(&file, text).with_context(|| format!("write {name}"))?;
    Ok(file)
}

/// Returns the node of a pod, once the scheduler has chosen it.
fn node_of(world: &World, pod: &str) -> Result<String> {
    until(&format!("a node for pod {pod}"), LIMIT, || {
        let node = world.kubectl(["get", "pod", pod, "--output=jsonpath={.spec.nodeName}"])?;
        Ok((!node.is_empty()).then_some(node))
    })
    .with_context(|| describe(world, pod))
}

/// Returns the nodes of a group, or all.
fn nodes_of(world: &World, group: Option<&str>) -> Result<Vec<String>> {
    let selector = group.map_or(GROUP.to_owned(), |group| format!("{GROUP}={group}"));
    let names = "--output=jsonpath={.items[*].metadata.name}";
    let names = world.kubectl(["get", "nodes", &format!("--selector={selector}"), names])?;
    Ok(names.split_whitespace().map(str::to_owned).collect())
}

/// Waits until the autoscaler creates the first node of a group for this pod.
fn wait_new_node(world: &World, pod: &str, group: &str) -> Result<String> {
    let message = wait_event(world, pod, "TriggeredScaleUp")?;
    ensure!(message.contains(&format!("{group} 0->1")), "pod {pod}: {message}");
    let nodes = until("the node", LIMIT, || {
        let nodes = nodes_of(world, Some(group))?;
        Ok((!nodes.is_empty()).then_some(nodes))
    })?;
    nodes.into_iter().next().context("a node")
}

/// Waits until the autoscaler creates the first node of a group, and checks that the pod is scheduled there.
fn expect_pod_on_new_node(world: &World, pod: &str, group: &str) -> Result<()> {
    let node = wait_new_node(world, pod, group)?;
    ensure!(node_of(world, pod)? == node, "pod {pod} is not on node {node}");
    ensure!(nodes_of(world, Some(group))? == [node], "more than one node was made");
    Ok(())
}

/// Waits until the autoscaler reports that no node would help this pod, for this reason.
fn wait_refusal(world: &World, pod: &str, reason: &str) -> Result<()> {
    let message = wait_event(world, pod, "NotTriggerScaleUp")?;
    ensure!(message.contains(reason), "pod {pod}: {message}");
    Ok(())
}

/// Returns the messages of the events with this reason about a pod, once there is one.
fn wait_event(world: &World, pod: &str, reason: &str) -> Result<String> {
    until(&format!("event {reason} of pod {pod}"), LIMIT, || {
        let message = events(world, pod, reason)?;
        Ok((!message.is_empty()).then_some(message))
    })
    .with_context(|| describe(world, pod))
}

/// Returns the messages of the events with this reason about a pod, without waiting.
fn events(world: &World, pod: &str, reason: &str) -> Result<String> {
    let about = format!("--field-selector=involvedObject.name={pod},reason={reason}");
    world.kubectl(["get", "events", &about, "--output=jsonpath={.items[*].message}"])
}

fn describe(world: &World, pod: &str) -> String {
    world.kubectl(["describe", "pod", pod]).unwrap_or_else(|error| format!("{error:#}"))
}

/// Plays the kubelet for a driver that registers on a node with this maximum of volumes.
fn register(world: &World, node: &str, most_volumes: usize) -> Result<()> {
    let (served, value) = SERVED;
    let of_node = "topology.holdfast.dev/node";
    let labels = [(served, value), (of_node, node), ("kubernetes.io/hostname", node)];
    let labels = labels.map(|(key, value)| format!("{key}={value}"));
    let label = ["label", "node", node, "--overwrite"].into_iter();
    world.kubectl(label.chain(labels.iter().map(String::as_str)))?;
    let object = json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": { "name": node },
        "spec": { "drivers": [{
            "name": "csi.holdfast.dev",
            "nodeID": node,
            "topologyKeys": [served, of_node],
            "allocatable": { "count": most_volumes },
        }] },
    });
    apply(world, &object)
}

fn waiting_class() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": { "name": WAITING_CLASS },
        "provisioner": "csi.holdfast.dev",
        "volumeBindingMode": "WaitForFirstConsumer",
        "parameters": { "objectStore": "store" },
    })
}

fn capacity_of_class() -> Value {
    let (key, value) = SERVED;
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIStorageCapacity",
        "metadata": { "name": WAITING_CLASS, "namespace": NAMESPACE },
        "storageClassName": WAITING_CLASS,
        "nodeTopology": { "matchLabels": { key: value } },
        "capacity": "64Ti",
    })
}

fn claim_object(name: &str, class: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": name },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class,
            "resources": { "requests": { "storage": "1Gi" } },
        },
    })
}

/// Returns a pod for nodes of a group.
fn pod_object(name: &str, group: &str, claims: &[&str]) -> Value {
    let volumes = claims
        .iter()
        .map(|claim| json!({ "name": claim, "persistentVolumeClaim": { "claimName": claim } }))
        .collect::<Vec<_>>();
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name },
        "spec": {
            "nodeSelector": { GROUP: group },
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "main",
                "image": "example.invalid/none",
                "resources": { "requests": { "cpu": "100m", "memory": "64Mi" } },
            }],
            "volumes": volumes,
        },
    })
}
