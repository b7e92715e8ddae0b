//! The API server stops responding, and later refuses connections: served volumes stay served.

use std::time::Duration;

use anyhow::{Result, ensure};
use holdfast_lab::node::{ControlInterface, NodeDaemon};
use holdfast_lab::operator::Operator;
use holdfast_lab::report;
use holdfast_lab::wait::until;
use holdfast_lab::world::World;

use super::provisioning::{apply, condition, volume};
use super::story::{provision_store, serve};

const BUCKET: &str = "volumes";
const VOLUME: &str = "volume/disk";
/// Age at which a write is uploaded.
const DIRTY_AGE: &str = "2s";
/// A leader that cannot renew its Lease has exited long before.
const OPERATOR_LIMIT: Duration = Duration::from_secs(120);
const LIMIT: Duration = Duration::from_secs(300);

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    let operator = world.operator()?;
    let control_plane = world.control_plane()?;
    provision_store(world, &s3, BUCKET)?;
    apply(
        world,
        &format!(
            "apiVersion: storage.holdfast.dev/v1alpha1\nkind: Volume\nmetadata: {{name: disk}}\n\
             spec: {{size: 64Mi, objectStore: store, maxDirtyAge: {DIRTY_AGE}}}\n"
        ),
    )?;
    world.wait_for(VOLUME, "jsonpath={.status.phase}=Ready")?;
    let control = ControlInterface::Kubernetes { kubeconfig: world.node_kubeconfig()? };
    let a = NodeDaemon::start(world.vm("a")?, &control, "auto", "")?;
    let device = serve(world, &a, "disk")?;
    let disk =
        OutageVolume { node: &a, device, id: field(world, "{.status.volumeId}")?, epoch: epoch(world)? };
    disk.write(1)?;

    report::step("the API server is unresponsive: writes are flushed and uploaded, a killed daemon recovers");
    control_plane.freeze()?;
    disk.write(2)?;
    operator.wait_end(OPERATOR_LIMIT)?;
    a.kill()?;
    a.restart()?;
    disk.check_blocks(2)?;
    disk.write(3)?;
    control_plane.thaw()?;
    check_recovery(world, &operator, &disk, "after-silence")?;

    report::step("the API server is gone: the same");
    control_plane.kill();
    disk.write(4)?;
    operator.wait_end(OPERATOR_LIMIT)?;
    a.hand_over()?;
    disk.check_blocks(4)?;
    disk.write(5)?;
    control_plane.restart()?;
    check_recovery(world, &operator, &disk, "after-absence")?;
    disk.check_blocks(5)?;

    world.kubectl(["delete", "volume", "--all", "--timeout=300s"])?;
    a.terminate()?;
    operator.stop()
}

/// A served volume.
struct OutageVolume<'a> {
    node: &'a NodeDaemon,
    device: String,
    id: String,
    epoch: String,
}

impl OutageVolume<'_> {
    /// Writes and flushes a block, and waits until it is uploaded.
    fn write(&self, block: u32) -> Result<()> {
        let metric = "holdfast_volume_committed_seq";
        let before = self.node.metric(metric, &self.id)?;
        self.node.vm().exec(&format!(
            "printf '%-4096d' {block} | dd of={} bs=4k seek={block} oflag=direct conv=fsync,notrunc status=none",
            self.device
        ))?;
        until("what was written to be uploaded", LIMIT, || {
            Ok((self.node.metric(metric, &self.id)? > before).then_some(()))
        })
    }

    /// Checks all blocks up to this one.
    fn check_blocks(&self, last: u32) -> Result<()> {
        let device = &self.device;
        let check = format!(
            "for block in $(seq 1 {last}); do
               dd if={device} bs=4k skip=$block count=1 iflag=direct status=none | cmp - <(printf '%-4096d' $block)
             done"
        );
        self.node.vm().exec(&check).map(drop)
    }
}

/// The API server responds again: the operator leads, has cut nothing off, and creates a new volume; the node
/// serves that volume and all earlier ones.
fn check_recovery(world: &World, operator: &Operator, disk: &OutageVolume<'_>, name: &str) -> Result<()> {
    operator.restart()?;
    apply(world, &volume(name, "store", "1Mi"))?;
    world.wait_for(&format!("volume/{name}"), "jsonpath={.status.phase}=Ready")?;
    serve(world, disk.node, name)?;
    world.wait_for(VOLUME, "condition=Attached")?;
    world.wait_for("storagenode/a", "condition=Ready")?;
    ensure!(epoch(world)? == disk.epoch, "the volume was attached again");
    ensure!(field(world, "{.status.devicePath}")? == disk.device, "the volume has another device");
    ensure!(field(world, "{.status.forcedDetach}")?.is_empty(), "the node was cut off");
    let lost = condition(world, VOLUME, "UnuploadedDataLost")?;
    ensure!(lost == ": ", "data is said to be lost: {lost}");
    Ok(())
}

fn epoch(world: &World) -> Result<String> {
    field(world, "{.status.epoch}")
}

fn field(world: &World, path: &str) -> Result<String> {
    world.kubectl(["get", VOLUME, &format!("--output=jsonpath={path}")])
}
