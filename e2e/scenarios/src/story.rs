//! The main workflow: a user applies Volumes, and real block devices backed by S3 appear on a node. They
//! survive failures of nodes, and their data is available on another node.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::node::{ControlInterface, NodeDaemon};
use holdfast_lab::operator::NAMESPACE;
use holdfast_lab::report;
use holdfast_lab::s3::{ACCESS_KEY, S3Server, SECRET_KEY};
use holdfast_lab::vm::Vm;
use holdfast_lab::vm::machine::MachineOptions;
use holdfast_lab::wait::until;
use holdfast_lab::world::World;

use super::keeper::start_keeper;
use super::load::Load;
use super::provisioning::{apply, expect_removed, object_store, volume};

/// Expected time on two quiet cores, without the setup of the host.
pub const EXPECTED: Duration = Duration::from_secs(100);

const BUCKET: &str = "volumes";
/// The transport without ublk.
const FUSE: &str = "fuse";
const ATTACH_LIMIT: Duration = Duration::from_secs(300);
const DEVICE_LIMIT: Duration = Duration::from_secs(60);
/// Maximum run time of fio, in seconds of the machine's time.
const LOAD_SECONDS: u32 = 600;
/// A real tree to copy: kernel modules and a language's library.
const TREE: &str = "/usr/lib/modules/*/kernel/fs /usr/share/perl*";
/// Prints one sum over the names and contents of everything below the current directory.
const SUM: &str = "find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum";

pub(super) fn zero_copy(world: &World) -> Result<()> {
    run(world, "zero-copy")
}

pub(super) fn user_copy(world: &World) -> Result<()> {
    run(world, "user-copy")
}

/// Runs on nodes without ublk.
pub(super) fn fuse(world: &World) -> Result<()> {
    for name in ["a", "b"] {
        start_keeper(&*world.vm_with(name, MachineOptions::without_ublk)?, "keeper", false)?;
    }
    run(world, FUSE)
}

/// Plays the story with this transport.
///
/// # Errors
/// If a user would have noticed anything.
pub fn run(world: &World, transport: &str) -> Result<()> {
    let s3 = world.s3()?;
    let operator = world.operator()?;
    provision(world, &s3)?;

    let control = ControlInterface::Kubernetes { kubeconfig: world.node_kubeconfig()? };
    let a = NodeDaemon::start(world.vm("a")?, &control, transport, "")?;
    report::step("ask node a to serve both volumes");
    let small = serve(world, &a, "small")?;
    let large = serve(world, &a, "large")?;
    print_volumes(world)?;

    report::step(format_args!("mkfs.ext4 {small}, mount it, copy a real tree"));
    let sum = a.vm().exec(&format!(
        "mkfs.ext4 -q {small}; mount {small} /mnt; cp -r {TREE} /mnt/; sync -f /mnt; cd /mnt; {SUM}"
    ))?;
    report::step(format_args!("fio writes and verifies on {large}; kill -9 of the daemon"));
    let load = Load::start(a.vm(), &large, LOAD_SECONDS)?;
    a.kill()?;
    a.restart()?;
    load.wait_progress()?;
    report::step("SIGTERM to the daemon");
    a.terminate()?;
    a.restart()?;
    load.wait_progress()?;
    load.stop()?;
    report::step("fio saw a pause and no error");
    check_sum(
        &sum,
        &a.vm().exec(&format!("mountpoint -q /mnt; echo 3 > /proc/sys/vm/drop_caches; cd /mnt; {SUM}"))?,
    )?;
    let small = check_reset(world, &a, transport, &sum)?;

    report::step("move the volume to node b, which has an empty cache");
    let b = NodeDaemon::start(world.vm("b")?, &control, transport, "")?;
    let moved = serve(world, &b, "small")?;
    print_volumes(world)?;
    expect_no_device(a.vm(), &small)?;
    let read = b.vm().exec(&format!(
        "e2fsck -fn {moved} >&2; mount -o ro {moved} /mnt; cd /mnt; {SUM}; cd /; umount /mnt"
    ))?;
    check_sum(&sum, &read)?;
    report::step("node b reads the same tree from S3");

    report::step("delete both volumes");
    for name in ["small", "large"] {
        world.kubectl(["delete", "volume", name, "--timeout=300s"])?;
    }
    for node in [&a, &b] {
        node.vm().exec("! ls /dev/ublkb* 2>/dev/null")?;
        node.vm().exec("! ls /sys/block/loop*/loop/backing_file 2>/dev/null")?;
    }
    expect_removed(&s3, BUCKET, 2)?;
    report::step("devices and data are gone; of each log two records and a marker stay");
    for node in [&a, &b] {
        node.terminate()?;
    }
    operator.stop()
}

/// Resets the machine of node a, which then has all fsynced data. Returns the device of the small volume.
fn check_reset(world: &World, a: &NodeDaemon, transport: &str, sum: &str) -> Result<String> {
    report::step("write, fsync, and reset the machine at once");
    a.vm().exec("echo kept > /mnt/flushed; sync /mnt/flushed")?;
    let before = [epoch_of(world, "small")?, epoch_of(world, "large")?];
    a.vm().reset()?;
    if transport == FUSE {
        start_keeper(a.vm(), "keeper-after-reset", false)?;
    }
    a.restart()?;
    // The devices are lost with the machine's memory: the objects are correct again from the next epoch on.
    until("node a to attach its volumes again", ATTACH_LIMIT, || {
        let now = [epoch_of(world, "small")?, epoch_of(world, "large")?];
        Ok((now[0] > before[0] && now[1] > before[1]).then_some(()))
    })?;
    let small = device_of(world, a, "small")?;
    a.vm().exec(&format!("mount {small} /mnt; grep -qx kept /mnt/flushed; rm /mnt/flushed"))?;
    check_sum(sum, &a.vm().exec(&format!("cd /mnt; {SUM}"))?)?;
    a.vm().exec(&format!("umount /mnt; e2fsck -fn {small}"))?;
    report::step("fsynced data exists, and fsck finds no error");
    Ok(small)
}

fn provision(world: &World, s3: &Arc<S3Server>) -> Result<()> {
    report::step("apply an ObjectStore and two Volumes, of 1 GiB and 64 GiB");
    provision_store(world, s3, BUCKET)?;
    for (name, size) in [("small", "1Gi"), ("large", "64Gi")] {
        apply(world, &volume(name, "store", size))?;
        world.wait_for(&format!("volume/{name}"), "jsonpath={.status.phase}=Ready")?;
    }
    print_volumes(world)
}

/// Applies the ObjectStore `store` with a new bucket of `s3`, and waits until it is Ready.
///
/// # Errors
/// If it does not become Ready.
pub fn provision_store(world: &World, s3: &Arc<S3Server>, bucket: &str) -> Result<()> {
    provision_store_at(world, s3, bucket, &s3.endpoint_everywhere())
}

/// Applies the ObjectStore `store` with a new bucket of `s3` and this endpoint, and waits until it is Ready.
pub(super) fn provision_store_at(
    world: &World,
    s3: &Arc<S3Server>,
    bucket: &str,
    endpoint: &str,
) -> Result<()> {
    s3.create_bucket(bucket)?;
    describe_store(world, endpoint, bucket)
}

/// Applies the ObjectStore `store` with an existing bucket, and waits until it is Ready.
pub(super) fn describe_store(world: &World, endpoint: &str, bucket: &str) -> Result<()> {
    world.kubectl([
        "create",
        "secret",
        "generic",
        "store",
        &format!("--namespace={NAMESPACE}"),
        &format!("--from-literal=accessKeyId={ACCESS_KEY}"),
        &format!("--from-literal=secretAccessKey={SECRET_KEY}"),
    ])?;
    // The operator runs on the S3 server's host, the daemons in machines: both use one endpoint.
    apply(world, &object_store("store", bucket, "store", endpoint))?;
    world.wait_for("objectstore/store", "condition=Ready")
}

/// Makes `node` serve a volume and returns its device.
///
/// # Errors
/// If it does not.
pub fn serve(world: &World, node: &NodeDaemon, name: &str) -> Result<String> {
    let patch = format!("{{\"spec\":{{\"nodeName\":\"{}\"}}}}", node.vm().name());
    world.kubectl(["patch", "volume", name, "--type=merge", "--patch", &patch])?;
    device_of(world, node, name)
}

/// Waits until `node` serves the volume and returns its device.
fn device_of(world: &World, node: &NodeDaemon, name: &str) -> Result<String> {
    let object = format!("volume/{name}");
    let on_node = format!("jsonpath={{.status.node}}={}", node.vm().name());
    for what in [&on_node, "condition=Attached", "jsonpath={.status.phase}=Attached"] {
        world.wait_for(&object, what)?;
    }
    let device = world.kubectl(["get", &object, "--output=jsonpath={.status.devicePath}"])?;
    node.vm().wait_block_device(&device, DEVICE_LIMIT)?;
    Ok(device)
}

/// Checks that the device of a volume is gone, or is an unbound loop device.
fn expect_no_device(vm: &Vm, device: &str) -> Result<()> {
    let name = device.trim_start_matches("/dev/");
    vm.exec(&format!(
        "case {name} in loop*) ! test -e /sys/block/{name}/loop ;; *) ! test -e {device} ;; esac"
    ))
    .map(drop)
}

fn epoch_of(world: &World, name: &str) -> Result<u64> {
    let epoch = world.kubectl(["get", &format!("volume/{name}"), "--output=jsonpath={.status.epoch}"])?;
    Ok(if epoch.is_empty() { 0 } else { epoch.parse().with_context(|| format!("epoch {epoch:?}"))? })
}

fn print_volumes(world: &World) -> Result<()> {
    report::step(format_args!("kubectl get volumes\n{}", world.kubectl(["get", "volumes"])?));
    Ok(())
}

fn check_sum(expected: &str, found: &str) -> Result<()> {
    ensure!(expected == found, "the tree's sum was {expected} and is {found}");
    Ok(())
}
