//! The CSI Node service on real devices. The scenario plays the sidecars and the kubelet: claims are created,
//! published, staged, used by pods, moved to another node and deleted, while processes are killed.

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::csi::{Csi, LIMIT, RequestedVolume, Use, expect_granted, expect_refused};
use holdfast_lab::csi_node::{CsiNode, PublishedVolume};
use holdfast_lab::node::{NodeDaemon, SIGKILL};
use holdfast_lab::report;
use holdfast_lab::vm::bash;
use holdfast_lab::wait::until;
use holdfast_lab::world::World;

use super::provisioning::expect_removed;
use super::story::provision_store;

const BUCKET: &str = "csi";
const GIB: i64 = 1 << 30;
/// Time limit of a request that must be rejected immediately, regardless of its device.
const AT_ONCE: Duration = Duration::from_secs(20);

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    let operator = world.operator()?;
    provision_store(world, &s3, BUCKET)?;
    let controller = world.csi_controller()?;
    let csi = controller.csi();
    let a = world.node("a", "auto", "")?;
    let on_a = CsiNode::start(world.vm("a")?)?;
    register(&on_a)?;

    let data = claim(&csi, "pvc-data", "a", &Use::mounted("ext4"))?;
    ext4(&csi, &on_a, &data, world.kernel().is_at_least(6, 16))?;
    check_requests_without_daemon(&a, &on_a, &data)?;
    until("the daemon to report the settings of the claim again", LIMIT, || {
        let path = "--output=jsonpath={.status.durability} {.status.maxDirtyAge}";
        Ok((world.kubectl(["get", "volume/pvc-data", path])? == "object 2s").then_some(()))
    })?;
    kill_while_staging(&csi, &on_a)?;
    raw(world, &csi, &on_a)?;

    report::step("move the claim to node b, larger than before");
    expect_granted("withdraw", csi.unpublish(&data.volume, "a", LIMIT)?)?;
    expect_granted("expand", csi.expand(&data.volume, 3 * GIB)?)?;
    let b = world.node("b", "auto", "")?;
    let on_b = CsiNode::start(world.vm("b")?)?;
    let moved = PublishedVolume { context: publish(&csi, &data.volume, "b")?, ..data };
    expect_granted("stage", on_b.stage(&moved, LIMIT)?)?;
    expect_granted("publish", on_b.publish(&moved, "pod", false)?)?;
    let target = moved.target("pod");
    on_b.vm().exec(&format!("grep -qx kept {target}/file"))?;
    let grown = expect_granted("expand", on_b.expand(&moved, "pod", 3 * GIB)?)?;
    let total = expect_granted("stats", on_b.total(&moved, "pod")?)?;
    ensure!(grown == 3 * GIB && total > 3 * GIB * 9 / 10, "{grown} bytes, a file system of {total}");
    release(&on_b, &moved, "pod")?;

    report::step("delete the claims");
    for (volume, node) in [("pvc-data", "b"), ("pvc-killed", "a"), ("pvc-raw", "a")] {
        expect_granted("withdraw", csi.unpublish(volume, node, LIMIT)?)?;
        expect_granted("delete", csi.delete(volume, LIMIT)?)?;
    }
    expect_removed(&s3, BUCKET, 3)?;
    for node in [&a, &b] {
        node.vm().exec("! ls /dev/ublkb* 2>/dev/null")?;
        node.terminate()?;
    }
    operator.stop()
}

fn register(node: &CsiNode) -> Result<()> {
    report::step("register the driver as the kubelet would");
    ensure!(!node.is_ready()?, "ready before the kubelet took the driver");
    let info = node.register()?;
    ensure!(node.is_ready()?, "not ready although the kubelet took the driver");
    ensure!(info.r#type == "CSIPlugin" && info.name == "csi.holdfast.dev", "{info:?}");
    ensure!(info.endpoint.ends_with("/csi.sock"), "{info:?}");
    let info = expect_granted("info", node.info()?)?;
    let topology = info.accessible_topology.unwrap_or_default().segments;
    ensure!(
        info.node_id == "a" && info.max_volumes_per_node == 3274,
        "{} {}",
        info.node_id,
        info.max_volumes_per_node
    );
    ensure!(
        topology.get("topology.holdfast.dev/served").is_some_and(|value| value == "true"),
        "{topology:?}"
    );
    Ok(())
}

/// Creates a claim of 1 GiB in the ObjectStore `store`, and publishes it on a node.
///
/// # Errors
/// If the driver rejects it.
pub fn claim(csi: &Csi, name: &str, node: &str, usage: &Use) -> Result<PublishedVolume> {
    expect_granted("create", csi.create(&RequestedVolume::new(name, GIB, "store").with_use(usage), LIMIT)?)?;
    let context = publish(csi, name, node)?;
    Ok(PublishedVolume { volume: name.to_owned(), context, usage: usage.clone() })
}

/// Publishes a volume on a node, once the node has registered.
///
/// # Errors
/// If the driver rejects it.
pub fn publish(csi: &Csi, volume: &str, node: &str) -> Result<HashMap<String, String>> {
    let published = until("the node to be known", LIMIT, || match csi.publish(volume, node, LIMIT)? {
        Err(unknown) if unknown.code == "NotFound" => Ok(None),
        answer => Ok(Some(answer)),
    })?;
    expect_granted("publish", published)
}

/// Expands a claim under load, including its file system, if the kernel can resize a served device; changes
/// its settings.
fn grow(csi: &Csi, node: &CsiNode, data: &PublishedVolume, resizes: bool) -> Result<()> {
    report::step("expand and modify the claim in use");
    let (vm, first) = (node.vm(), data.target("first"));
    let load = format!(
        "n=0; while n=$((n + 1)) && echo $n > {first}/load.new && sync {first}/load.new && mv {first}/load.new {first}/load; \
         do :; done"
    );
    vm.spawn("load", &bash(&load))?;
    let rounds = || -> Result<u64> {
        let rounds = vm.exec(&format!("cat {first}/load 2>/dev/null || echo 0"))?;
        rounds.trim().parse().context("the load counts")
    };
    until("the load to begin", LIMIT, || Ok((rounds()? > 0).then_some(())))?;
    let expanded = csi.expand(&data.volume, 2 * GIB)?;
    if resizes {
        let grown = expect_granted("expand", expanded)?;
        ensure!(grown == 2 * GIB, "grown to {grown} bytes");
        for _ in 0..2 {
            let grown = expect_granted("expand its file system", node.expand(data, "first", 2 * GIB)?)?;
            ensure!(grown == 2 * GIB, "a device of {grown} bytes");
        }
        let total = expect_granted("stats", node.total(data, "first")?)?;
        ensure!(total > 2 * GIB * 9 / 10 && total <= 2 * GIB, "a file system of {total} bytes");
    } else {
        // The resizer repeats the request, which succeeds once the volume is attached again.
        expect_refused("expand in use", expanded, "FailedPrecondition", "it grows at its next attach")?;
    }
    let settings = [("durability", "object"), ("maxDirtyAge", "2s")];
    expect_granted("modify", csi.modify(&data.volume, &settings, LIMIT)?)?;
    expect_granted("modify again", csi.modify(&data.volume, &settings, LIMIT)?)?;
    // The response comes once the node reports them.
    let limits = [("maxIops", "5000"), ("maxThroughput", "500Mi")];
    expect_granted("limit", csi.modify(&data.volume, &limits, LIMIT)?)?;
    let none = [("maxIops", "none"), ("maxThroughput", "none")];
    expect_granted("remove the limits", csi.modify(&data.volume, &none, LIMIT)?)?;
    let before = rounds()?;
    until("the load to continue", LIMIT, || Ok((rounds()? > before).then_some(())))?;
    vm.signal("load", SIGKILL)?;
    vm.wait("load", LIMIT)?;
    vm.exec(&format!("rm -f {first}/load*")).map(drop)
}

fn ext4(csi: &Csi, node: &CsiNode, data: &PublishedVolume, resizes: bool) -> Result<()> {
    report::step("stage, publish and use a file system, each twice");
    for _ in 0..2 {
        expect_granted("stage", node.stage(data, LIMIT)?)?;
    }
    for _ in 0..2 {
        expect_granted("publish", node.publish(data, "first", false)?)?;
        expect_granted("publish for reading", node.publish(data, "second", true)?)?;
    }
    let (first, second) = (data.target("first"), data.target("second"));
    node.vm().exec(&format!(
        "echo kept > {first}/file; grep -qx kept {second}/file; if touch {second}/file 2>/dev/null; then exit 1; fi; sync -f {first}"
    ))?;
    let single_pod = PublishedVolume { usage: Use::mounted_by_one("ext4"), ..data.clone() };
    let third = node.publish(&single_pod, "third", false)?;
    expect_refused("a second pod of a claim for one", third, "FailedPrecondition", "one pod at a time")?;
    let total = expect_granted("stats", node.total(data, "first")?)?;
    ensure!(total > GIB * 9 / 10 && total <= GIB, "a file system of {total} bytes");
    expect_refused("stats of nothing", node.total(data, "none")?, "NotFound", "no volume is published")?;
    let larger = node.expand(data, "first", 2 * GIB)?;
    expect_refused("a device that is too small", larger, "Unavailable", "not 2147483648 yet")?;
    grow(csi, node, data, resizes)?;
    let other = PublishedVolume { usage: Use::mounted("xfs"), ..data.clone() };
    expect_granted("unpublish", node.unpublish(data, "second")?)?;
    expect_granted("unpublish again", node.unpublish(data, "second")?)?;
    release(node, data, "first")?;
    expect_refused(
        "another file system",
        node.stage(&other, LIMIT)?,
        "FailedPrecondition",
        "csi.storage.k8s.io/fstype is ext4",
    )?;
    expect_granted("stage again", node.stage(data, LIMIT)?)
}

/// Checks that a request is rejected without touching any device while no daemon serves them.
fn check_requests_without_daemon(daemon: &NodeDaemon, node: &CsiNode, data: &PublishedVolume) -> Result<()> {
    report::step("kill the node daemon: requests are rejected at once, and succeed again after its return");
    daemon.kill()?;
    expect_refused("unstage", node.unstage(data, AT_ONCE)?, "Unavailable", "the node daemon did not answer")?;
    expect_refused("stage", node.stage(data, AT_ONCE)?, "Unavailable", "the node daemon did not answer")?;
    daemon.restart()?;
    expect_granted("publish", node.publish(data, "pod", false)?)?;
    node.vm().exec(&format!("grep -qx kept {}/file", data.target("pod")))?;
    release(node, data, "pod")
}

/// The driver dies repeatedly while it stages a claim.
fn kill_while_staging(csi: &Csi, node: &CsiNode) -> Result<()> {
    report::step("kill the driver while it formats and mounts");
    let killed = claim(csi, "pvc-killed", "a", &Use::mounted_with("xfs", &["noatime"]))?;
    for after in [0, 300, 1500] {
        let (driver, staged) = (node.clone(), killed.clone());
        let waiting = thread::spawn(move || driver.stage(&staged, LIMIT));
        thread::sleep(Duration::from_millis(after));
        node.kill()?;
        drop(waiting.join().ok().context("the request ends")?);
        node.restart()?;
    }
    let staged = until("the claim to be staged", LIMIT, || {
        // A program started by the killed driver may still be working on the device.
        match node.stage(&killed, LIMIT)? {
            Err(again) if again.code == "Aborted" => Ok(None),
            answer => Ok(Some(answer)),
        }
    })?;
    expect_granted("stage after the kills", staged)?;
    expect_granted("publish", node.publish(&killed, "pod", false)?)?;
    let target = killed.target("pod");
    node.vm().exec(&format!(
        "echo kept > {target}/file; findmnt -no FSTYPE,OPTIONS {target} | grep -q 'xfs.*noatime'"
    ))?;
    node.kill()?;
    node.restart()?;
    node.vm().exec(&format!("grep -qx kept {target}/file"))?;
    unfinished(node, &killed)
}

/// Gives an xfs the superblock that an interrupted mkfs.xfs leaves.
fn unfinished(node: &CsiNode, killed: &PublishedVolume) -> Result<()> {
    report::step("stage an xfs that mkfs did not complete");
    let device = node.vm().exec(&format!("findmnt -no SOURCE {}", killed.staging()))?;
    let device = device.trim();
    release(node, killed, "pod")?;
    node.vm().exec(&format!(
        "dd if={device} of=/run/superblock bs=4096 count=1 status=none
        xfs_db -x -c 'sb 0' -c 'write inprogress 1' {device}; sync {device}"
    ))?;
    let refused = node.stage(killed, LIMIT)?;
    expect_refused("an unfinished xfs", refused, "FailedPrecondition", "that mkfs did not complete")?;
    node.vm().exec(&format!("dd if=/run/superblock of={device} bs=4096 conv=fsync status=none"))?;
    expect_granted("stage", node.stage(killed, LIMIT)?)?;
    expect_granted("publish", node.publish(killed, "pod", false)?)?;
    node.vm().exec(&format!("grep -qx kept {}/file", killed.target("pod")))?;
    release(node, killed, "pod")
}

/// Data without a signature is never formatted, unless the user requests it.
fn raw(world: &World, csi: &Csi, node: &CsiNode) -> Result<()> {
    report::step("write to a raw device; then ask for a file system on it");
    let raw = claim(csi, "pvc-raw", "a", &Use::block())?;
    expect_granted("stage", node.stage(&raw, LIMIT)?)?;
    for _ in 0..2 {
        expect_granted("publish", node.publish(&raw, "pod", false)?)?;
    }
    let target = raw.target("pod");
    node.vm().exec(&format!(
        "test -b {target}; echo precious | dd of={target} bs=4096 seek=1000 conv=sync,fsync oflag=direct status=none"
    ))?;
    let total = expect_granted("stats", node.total(&raw, "pod")?)?;
    ensure!(total == GIB, "a device of {total} bytes");
    release(node, &raw, "pod")?;

    let mounted = PublishedVolume { usage: Use::mounted("btrfs"), ..raw };
    expect_refused("unknown data", node.stage(&mounted, LIMIT)?, "FailedPrecondition", "was not formatted")?;
    let epoch: u64 = mounted.context.get("epoch").context("an epoch")?.parse()?;
    let allow = |epoch: u64| {
        let permission = format!("holdfast.dev/format-unknown-content={epoch}");
        world.kubectl(["annotate", "--overwrite", "volume/pvc-raw", &permission])
    };
    allow(epoch + 1)?;
    expect_refused(
        "another attach",
        node.stage(&mounted, LIMIT)?,
        "FailedPrecondition",
        "was not formatted",
    )?;
    allow(epoch)?;
    let staged =
        until("the daemon to hear of the permission", LIMIT, || match node.stage(&mounted, LIMIT)? {
            Err(again) if again.code == "FailedPrecondition" => Ok(None),
            answer => Ok(Some(answer)),
        })?;
    expect_granted("stage", staged)?;
    expect_granted("publish", node.publish(&mounted, "pod", false)?)?;
    let target = mounted.target("pod");
    node.vm().exec(&format!("findmnt -no FSTYPE {target} | grep -qx btrfs; echo new > {target}/file"))?;
    release(node, &mounted, "pod")
}

/// Removes a claim from the path of a pod and from its node.
///
/// # Errors
/// If the driver rejects it, or leaves something behind.
pub fn release(node: &CsiNode, claim: &PublishedVolume, pod: &str) -> Result<()> {
    expect_granted("unpublish", node.unpublish(claim, pod)?)?;
    expect_granted("unstage", node.unstage(claim, LIMIT)?)?;
    expect_granted("unstage again", node.unstage(claim, LIMIT)?)?;
    let (target, staging) = (claim.target(pod), claim.staging());
    node.vm().exec(&format!("test ! -e {target}; if mountpoint -q {staging}; then exit 1; fi")).map(drop)
}
