//! A Node that is cordoned, or tainted by a program that removes nodes: its volumes commit early, regardless
//! of `maxDirtyAge`, until it is back in service.

use std::time::Duration;

use anyhow::{Result, ensure};
use holdfast_lab::node::{ControlInterface, NodeDaemon};
use holdfast_lab::report;
use holdfast_lab::wait::until;
use holdfast_lab::world::World;

use super::provisioning::{apply, condition};
use super::story::{provision_store, serve};

const LIMIT: Duration = Duration::from_secs(120);
/// Dirty data that is not due for a commit for an hour, in blocks of 4 KiB.
const BLOCKS: usize = 100;
/// A taint of Karpenter.
const TAINT: &str = "karpenter.sh/disrupted";

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    let operator = world.operator()?;
    provision_store(world, &s3, "volumes")?;
    for (name, durability) in [("plain", "local"), ("safe", "object"), ("late", "local")] {
        let spec = format!("{{size: 16Mi, objectStore: store, maxDirtyAge: 1h, durability: {durability}}}");
        let kind = "apiVersion: storage.holdfast.dev/v1alpha1\nkind: Volume";
        apply(world, &format!("{kind}\nmetadata: {{name: {name}}}\nspec: {spec}\n"))?;
        world.wait_for(&format!("volume/{name}"), "jsonpath={.status.phase}=Ready")?;
    }
    // There is no kubelet: the scenario writes the Node's status.
    apply(world, "apiVersion: v1\nkind: Node\nmetadata: {name: a}\n")?;
    let control = ControlInterface::Kubernetes { kubeconfig: world.node_kubeconfig()? };
    let a = NodeDaemon::start(world.vm("a")?, &control, "auto", "")?;
    let plain = DrainedVolume::by(world, &a, "plain")?;
    let safe = DrainedVolume::by(world, &a, "safe")?;
    wait_drain_status(world, "False", "InService: ")?;

    report::step("two volumes are written, and stay dirty until the Node is cordoned");
    for volume in [&plain, &safe] {
        volume.write()?;
    }
    check_stays_dirty(&[&plain, &safe])?;
    world.kubectl(["cordon", "a"])?;
    for volume in [&plain, &safe] {
        volume.wait_committed()?;
    }
    wait_drain_status(world, "True", "Cordoned: ")?;
    for (volume, durability) in [(&plain, "local"), (&safe, "object")] {
        let settings = volume.field("{.status.durability} {.status.maxDirtyAge}")?;
        ensure!(settings == format!("{durability} 1h"), "the settings in effect are {settings:?}");
    }

    report::step(
        "a volume that moves to the cordoned Node commits early, too, even after kill -9 of the daemon",
    );
    let late = DrainedVolume::by(world, &a, "late")?;
    late.write()?;
    late.wait_committed()?;
    a.kill()?;
    a.restart()?;
    for volume in [&plain, &late] {
        volume.write()?;
        volume.wait_committed()?;
    }

    report::step("the Node is in service again: written data stays dirty");
    world.kubectl(["uncordon", "a"])?;
    wait_drain_status(world, "False", "InService: ")?;
    plain.write()?;
    check_stays_dirty(&[&plain])?;
    report::step(format_args!("it gets the taint {TAINT}"));
    world.kubectl(["taint", "node", "a", &format!("{TAINT}:NoSchedule")])?;
    plain.wait_committed()?;
    wait_drain_status(world, "True", "Tainted: ")?;

    report::step("this cost one LIST of the Node for each start of the daemon");
    let requests = world.control_plane()?.requests()?;
    let of_daemon = requests.iter().filter(|request| request.account == "holdfast-node");
    let lists = of_daemon.filter(|request| request.resource == "nodes" && request.verb == "list").count();
    ensure!(lists == 2, "the daemon listed Nodes {lists} times");
    world.kubectl(["delete", "volume", "plain", "safe", "late", "--timeout=300s"])?;
    a.terminate()?;
    operator.stop()
}

/// A volume served by the node.
pub(super) struct DrainedVolume<'a> {
    world: &'a World,
    node: &'a NodeDaemon,
    name: &'a str,
    device: String,
    id: String,
}

impl<'a> DrainedVolume<'a> {
    pub(super) fn by(world: &'a World, node: &'a NodeDaemon, name: &'a str) -> Result<Self> {
        let device = serve(world, node, name)?;
        let mut served = Self { world, node, name, device, id: String::new() };
        served.id = served.field("{.status.volumeId}")?;
        Ok(served)
    }

    fn field(&self, path: &str) -> Result<String> {
        self.world.kubectl(["get", "volume", self.name, &format!("--output=jsonpath={path}")])
    }

    pub(super) fn write(&self) -> Result<()> {
        let device = &self.device;
        let write = format!("dd if=/dev/urandom of={device} bs=4k count={BLOCKS} oflag=direct conv=notrunc");
        self.node.vm().exec(&format!("{write} status=none")).map(drop)
    }

    fn dirty_bytes(&self) -> Result<Option<f64>> {
        self.node.metric("holdfast_volume_dirty_bytes", &self.id)
    }

    pub(super) fn wait_committed(&self) -> Result<()> {
        until("what is dirty to be committed", LIMIT, || Ok((self.dirty_bytes()? == Some(0.0)).then_some(())))
    }
}

/// Checks that none of the written data is committed within three seconds.
pub(super) fn check_stays_dirty(volumes: &[&DrainedVolume<'_>]) -> Result<()> {
    volumes[0].node.vm().exec("sleep 3")?;
    for volume in volumes {
        let dirty = volume.dirty_bytes()?;
        ensure!(dirty == Some((BLOCKS * 4096) as f64), "of {} {dirty:?} bytes are dirty", volume.name);
    }
    Ok(())
}

/// Waits until the StorageNode shows this drain status and reason.
pub(super) fn wait_drain_status(world: &World, status: &str, reason: &str) -> Result<()> {
    world.wait_for("storagenode/a", "create")?;
    world.wait_for("storagenode/a", &format!("condition=Draining={status}"))?;
    let shown = condition(world, "storagenode/a", "Draining")?;
    ensure!(shown.starts_with(reason), "the StorageNode shows {shown:?}");
    Ok(())
}
