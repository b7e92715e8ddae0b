//! Time until another node serves a volume, after its node is lost and its Node is tainted as out of service.

use anyhow::{Context, Result};
use holdfast_lab::control_plane::audit::{ApiRequest, unix_us};
use holdfast_lab::node::{NodeDaemon, PROGRAM};
use holdfast_lab::report;
use holdfast_lab::world::World;
use holdfast_scenarios::provisioning::apply;
use holdfast_scenarios::story::serve;

use super::figure;
use crate::Figure;

const VOLUME: &str = "taken-over";
const MOST_DECISION: f64 = 1.0;
const MOST_ATTACHED: f64 = 5.0;
/// Prints the machine's time.
const NOW: &str = "date -u +%FT%T.%6NZ";

/// Loses node `a`, and lets node `b`, whose clock counts instructions, take over its volume.
pub(super) fn measure(world: &World, a: &NodeDaemon, b: &NodeDaemon) -> Result<Vec<Figure>> {
    // No kubelet runs, so the benchmark creates the Nodes.
    for node in [a, b] {
        let name = node.vm().name();
        apply(world, &format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\n"))?;
    }
    apply(
        world,
        &format!(
            "apiVersion: storage.holdfast.dev/v1alpha1\nkind: Volume\nmetadata: {{name: {VOLUME}}}\n\
             spec: {{size: 1Gi, objectStore: store, durability: object}}\n"
        ),
    )?;
    let object = format!("volume/{VOLUME}");
    world.wait_for(&object, "jsonpath={.status.phase}=Ready")?;
    let id = world.kubectl(["get", &object, "--output=jsonpath={.status.volumeId}"])?;
    let device = serve(world, a, VOLUME)?;
    a.vm().exec(&format!(
        "head -c 1M /dev/urandom | dd of={device} bs=1M iflag=fullblock oflag=direct conv=fsync,notrunc status=none"
    ))?;
    report::step("node a is lost; its Node is tainted as out of service");
    a.vm().cut_power();
    let patch = format!("--patch={{\"spec\":{{\"nodeName\":\"{}\"}}}}", b.vm().name());
    world.kubectl(["patch", "volume", VOLUME, "--type=merge", &patch])?;
    world.wait_for(&object, "condition=Assigned=False")?;
    let before = world.control_plane()?.requests()?.len();
    let began = unix_us(b.vm().exec(NOW)?.trim())?;
    world.kubectl(["taint", "node", "a", "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"])?;
    serve(world, b, VOLUME)?;

    let requests = world.control_plane()?.requests()?.split_off(before);
    let decision = decision_seconds(&requests).context("the operator did not grant the volume")?;
    let log = b.vm().log(PROGRAM)?;
    let attached =
        log.lines().find(|line| line.contains("attached") && line.contains(&format!("volume={id} ")));
    let attached = attached.and_then(|line| line.split(' ').next()).context("node b logged no attach")?;
    let attached = (unix_us(attached)? as f64 - began as f64) / 1e6;
    Ok(vec![
        figure(
            "takeover_decision_seconds",
            decision,
            "s",
            "from the taint until the operator grants the volume to another node",
        )
        .at_most(MOST_DECISION),
        figure(
            "takeover_attached_seconds",
            attached,
            "s",
            "from the taint until it is attached there, by the clock of the node, which counts instructions",
        )
        .at_most(MOST_ATTACHED),
    ])
}

/// Returns the time from the taint to the grant: the operator's last status before the new node's first.
fn decision_seconds(requests: &[ApiRequest]) -> Option<f64> {
    let tainted = requests.iter().find(|one| one.resource == "nodes" && one.is_write())?;
    let reports =
        requests.iter().filter(|one| one.name == VOLUME && one.subresource == "status" && one.is_write());
    let before_claim = reports.take_while(|one| one.account != "holdfast-node");
    let grant = before_claim.filter(|one| one.account == "holdfast-operator" && one.status < 300).last()?;
    Some(grant.answered_us.saturating_sub(tainted.received_us) as f64 / 1e6)
}
