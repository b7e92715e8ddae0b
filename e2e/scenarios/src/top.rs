//! `kubectl holdfast top` reads the metrics of a real daemon through a real API server. There is no kubelet:
//! the scenario writes the status of the daemons' pods.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::node::{ControlInterface, METRICS_PORT, NodeDaemon};
use holdfast_lab::operator::NAMESPACE;
use holdfast_lab::report;
use holdfast_lab::vm::bash;
use holdfast_lab::vm::machine::{MachineOptions, free_port};
use holdfast_lab::wait::until;
use holdfast_lab::world::World;

use super::plugin::{command, plugin};
use super::provisioning::{apply, expect_removed};
use super::story::{provision_store, serve};

const BUCKET: &str = "volumes";
/// Addresses of the pods, only the first of which is reachable.
const PODS: [(&str, &str); 2] = [("a", "10.244.0.5"), ("b", "10.244.0.6")];
/// Name of the load among the machine's programs.
const LOAD: &str = "load";
const SIGKILL: i32 = 9;
const LIMIT: Duration = Duration::from_secs(120);

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    let operator = world.operator()?;
    provision_store(world, &s3, BUCKET)?;
    for (name, claim) in [("orders", "shop/orders"), ("archive", "shop/archive")] {
        apply(
            world,
            &format!(
                "apiVersion: storage.holdfast.dev/v1alpha1\nkind: Volume\n\
                 metadata: {{name: {name}, annotations: {{holdfast.dev/persistentvolumeclaim: {claim}}}}}\n\
                 spec: {{size: 64Mi, objectStore: store}}\n"
            ),
        )?;
        world.wait_for(&format!("volume/{name}"), "jsonpath={.status.phase}=Ready")?;
    }
    let port = free_port()?;
    let vm = world
        .vm_with("a", || MachineOptions { ports: vec![(port, METRICS_PORT)], ..MachineOptions::node() })?;
    let control = ControlInterface::Kubernetes { kubeconfig: world.node_kubeconfig()? };
    let a = NodeDaemon::start(vm, &control, "auto", "")?;
    let device = serve(world, &a, "orders")?;
    serve(world, &a, "archive")?;
    plugin(world, &["top"], 1, "no pod of a node daemon was found")?;
    pod(world, PODS[0])?;
    let address = format!("{}:{METRICS_PORT}", PODS[0].1);
    world.control_plane()?.route(address.parse().context("an address")?, port);

    report::step("node a serves two volumes, one of them is written");
    let load = format!(
        "while :; do
           dd if=/dev/zero of={device} bs=64k count=64 oflag=direct conv=notrunc status=none
           dd if={device} of=/dev/null bs=4k count=64 iflag=direct status=none
         done"
    );
    a.vm().spawn(LOAD, &bash(&load))?;
    wait_written(world, "shop/orders", "shop/archive")?;
    let named = plugin(world, &["top", "shop/archive", "--seconds=1"], 0, "archive")?;
    ensure!(!named.contains("orders"), "not only the volume that was named: {named}");
    plugin(world, &["top", "none"], 1, "no Volume is called none")?;

    report::step("node b does not answer, and node a is shown");
    pod(world, PODS[1])?;
    let table =
        plugin(world, &["top", "--seconds=1"], 1, "Node b does not answer, and its volumes are missing")?;
    report::step(&table);
    ensure!(table.contains("orders"), "node a is missing: {table}");
    plugin(world, &["top", "orders", "--seconds=1"], 0, "orders")?;

    a.vm().signal(LOAD, SIGKILL)?;
    a.vm().wait(LOAD, LIMIT)?;
    world.kubectl(["delete", "volume", "orders", "archive", "--timeout=300s"])?;
    plugin(world, &["top", "--seconds=1"], 1, "Node b does not answer")?;
    expect_removed(&s3, BUCKET, 2)?;
    a.terminate()?;
    operator.stop()
}

/// Waits until the plugin shows two volumes: writes with their latency to that of the claim `written`, none
/// to that of `idle`.
pub(super) fn wait_written(world: &World, written: &str, idle: &str) -> Result<()> {
    until("the plugin to show the writes", LIMIT, || {
        let out = command(world, &["top", "--seconds=5", "--sort-by=writes"])?.output();
        let out = out.context("start kubectl-holdfast")?;
        let table = String::from_utf8_lossy(&out.stdout);
        report::step(&table);
        let is_complete = out.status.success() && table.lines().count() == 3;
        let rates = [written, idle].map(|claim| writes(&table, claim));
        let is_timed = cell(&table, written, "WRITE-P99").is_some_and(|time| time.ends_with('s'));
        Ok(matches!(rates, [Some(some), Some(0.0)] if is_complete && is_timed && some > 0.0).then_some(()))
    })
}

/// Returns the writes per second to the volume of `claim`, from the plugin's table.
fn writes(table: &str, claim: &str) -> Option<f64> {
    cell(table, claim, "WRITES/S")?.trim_start_matches('<').parse().ok()
}

/// Returns a cell of the line of `claim`.
fn cell<'a>(table: &'a str, claim: &str, title: &str) -> Option<&'a str> {
    let column = table.lines().next()?.split_whitespace().position(|found| found == title)?;
    let line = table.lines().find(|line| line.split_whitespace().nth(1) == Some(claim))?;
    line.split_whitespace().nth(column)
}

/// Creates the pod of a node's daemon, like the chart.
fn pod(world: &World, (node, address): (&str, &str)) -> Result<()> {
    let labels = "app.kubernetes.io/name: holdfast, app.kubernetes.io/component: node";
    apply(
        world,
        &format!(
            "apiVersion: v1\nkind: Pod\n\
             metadata: {{namespace: {NAMESPACE}, name: holdfast-node-{node}, labels: {{{labels}}}}}\n\
             spec:\n  nodeName: {node}\n  serviceAccountName: holdfast-node\n  containers:\n  \
             - {{name: node, image: none, ports: [{{name: metrics, containerPort: {METRICS_PORT}}}]}}\n"
        ),
    )?;
    let status = format!(
        "{{\"status\":{{\"phase\":\"Running\",\"podIP\":\"{address}\",\"podIPs\":[{{\"ip\":\"{address}\"}}]}}}}"
    );
    let pod = format!("pod/holdfast-node-{node}");
    let namespace = format!("--namespace={NAMESPACE}");
    world
        .kubectl(["patch", &pod, &namespace, "--subresource=status", "--type=merge", "--patch", &status])
        .map(drop)
}
