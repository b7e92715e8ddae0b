//! The node daemon without Kubernetes, as a user first tries it: its command line and an S3 server.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::node::{ControlInterface, NodeDaemon, SIGKILL};
use holdfast_lab::vm::bash;
use holdfast_lab::wait::until;
use holdfast_lab::world::World;

use super::load::Load;

const BUCKET: &str = "standalone";
/// Maximum run time of fio, in seconds of the machine's time: it is ended before.
const LOAD_SECONDS: u32 = 600;
const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn zero_copy(world: &World) -> Result<()> {
    run(world, "zero-copy")
}

pub(super) fn user_copy(world: &World) -> Result<()> {
    run(world, "user-copy")
}

fn run(world: &World, transport: &str) -> Result<()> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    play(world, &ControlInterface::standalone(&s3, BUCKET), transport)
}

/// Plays the life of a volume on two nodes, in the bucket of any server.
pub(super) fn play(world: &World, control: &ControlInterface, transport: &str) -> Result<()> {
    let first = NodeDaemon::start(world.vm("a")?, control, transport, "")?;
    first.cli(&["create", "disk", "--size", "1Gi", "--store", "store"])?;
    let device = attach(&first, &[])?;

    let load = Load::start(first.vm(), &device, LOAD_SECONDS)?;
    first.kill()?;
    check_held_device(&first, &device)?;
    load.wait_progress()?;
    // Older kernels cannot resize a device in use.
    let grows = world.kernel().is_at_least(6, 16);
    let served_bytes = if grows { 2 << 30 } else { 1 << 30 };
    match first.cli(&["grow", "disk", "2Gi"]) {
        Ok(_) => ensure!(grows, "the kernel has no UPDATE_SIZE"),
        Err(refused) => {
            let refused = format!("{refused:#}");
            ensure!(
                !grows && refused.contains("Detach volume disk: it grows at its next attach"),
                "{refused}"
            );
        }
    }
    check_device_bytes(&first, &device, served_bytes)?;
    load.wait_progress()?;
    first.terminate()?;
    first.restart()?;
    load.wait_progress()?;
    let load = configure(&first, load)?;
    load.stop()?;
    check_flushes(&first, &device)?;
    check_device_bytes(&first, &device, served_bytes)?;
    let smaller = first.cli(&["grow", "disk", "512Mi"]).err().context("a volume cannot shrink")?;
    ensure!(format!("{smaller:#}").contains("cannot shrink"), "{smaller:#}");

    let sums = first.vm().exec(&format!(
        "mkfs.ext4 -q -F {device}; mount {device} /mnt; cp -r /usr/share/perl* /usr/lib/modules/*/kernel/fs /mnt/; \
         cd /mnt; find . -type f | sort | xargs cat | sha256sum; cd /; umount /mnt"
    ))?;
    first.cli(&["detach", "disk"])?;
    first.vm().exec(&format!("! test -e {device}"))?;

    let second = NodeDaemon::start(world.vm("b")?, control, transport, "")?;
    let device = attach(&second, &["--size", "2Gi"])?;
    check_device_bytes(&second, &device, 2 << 30)?;
    check_read_ahead(&second, &device)?;
    check_cache_after_restart(&second, &device)?;
    let read = second.vm().exec(&format!(
        "e2fsck -fn {device} >&2; mount -o ro {device} /mnt; \
         cd /mnt; find . -type f | sort | xargs cat | sha256sum; cd /; umount /mnt"
    ))?;
    ensure!(read == sums, "node b reads {read}, node a wrote {sums}");
    second.cli(&["detach", "disk"])?;
    Ok(())
}

/// A node without any data of the volume reads ahead of a program that reads it sequentially.
fn check_read_ahead(node: &NodeDaemon, device: &str) -> Result<()> {
    node.vm().exec(&format!("dd if={device} of=/dev/null bs=128k count=2048 iflag=direct status=none"))?;
    let metrics = node.metrics()?;
    let used = metrics.lines().find_map(|line| line.strip_prefix("holdfast_read_ahead_used_blocks_total "));
    let used: f64 = used.context("the figure of blocks that were read ahead and used")?.trim().parse()?;
    ensure!(used >= 16.0, "{used} blocks were fetched ahead of a reader of 2,048 and used");
    Ok(())
}

/// Permitted GETs of a daemon while a volume is read from the cache: checks of the end of its log.
const MAX_LOG_CHECKS: f64 = 2.0;

/// Blocks that a node fetched before its daemon was killed cost no request afterwards.
fn check_cache_after_restart(node: &NodeDaemon, device: &str) -> Result<()> {
    let read =
        || node.vm().exec(&format!("dd if={device} bs=128k count=1024 iflag=direct status=none | sha256sum"));
    let gets = || -> Result<f64> {
        let metrics = node.metrics()?;
        let of_gets = "holdfast_store_requests_total{store=\"store\",operation=\"get\"} ";
        let gets = metrics.lines().find_map(|line| line.strip_prefix(of_gets));
        gets.context("the figure of GETs")?.trim().parse().context("the number of GETs")
    };
    let sum = read()?;
    node.kill()?;
    node.restart()?;
    // The first read of remote data waits until the daemon has read the volume's log.
    node.vm().exec(&format!("dd if={device} of=/dev/null bs=128k count=1 iflag=direct status=none"))?;
    let before = gets()?;
    ensure!(read()? == sum, "after a restart the cache has other bytes");
    let fetched = gets()? - before;
    ensure!(fetched <= MAX_LOG_CHECKS, "{fetched} GETs for data that was read before the restart");
    // The daemon has looked up each block once: the ring thread serves the next read of it.
    let count = |name| node.metric(name, "disk")?.with_context(|| format!("no {name}"));
    let counts = || -> Result<[f64; 2]> {
        Ok([count("holdfast_volume_cold_reads_total")?, count("holdfast_volume_cold_read_hits_total")?])
    };
    let [reads_before, hits_before] = counts()?;
    ensure!(read()? == sum, "read again, the cache has other bytes");
    until("the ring thread to have answered all reads", Duration::from_secs(20), || {
        let [reads, hits] = counts()?;
        // The figures are published four times a second.
        Ok((reads > reads_before && hits - hits_before == reads - reads_before).then_some(()))
    })
}

fn check_device_bytes(node: &NodeDaemon, device: &str, bytes: u64) -> Result<()> {
    let found = node.vm().exec(&format!("blockdev --getsize64 {device}"))?;
    ensure!(found.trim() == bytes.to_string(), "{device} has {found} bytes, not {bytes}");
    Ok(())
}

/// The settings change under load, and survive a kill.
fn configure<'a>(node: &NodeDaemon, load: Load<'a>) -> Result<Load<'a>> {
    check_settings(node, "local", "30s")?;
    node.cli(&["configure", "disk", "--durability", "object", "--max-dirty-age", "2s"])?;
    check_settings(node, "object", "2s")?;
    load.wait_progress()?;
    node.cli(&["configure", "disk", "--max-dirty-age", "1h"])?;
    node.kill()?;
    node.restart()?;
    load.wait_progress()?;
    check_settings(node, "object", "1h")?;
    Ok(load)
}

fn check_settings(node: &NodeDaemon, durability: &str, max_age: &str) -> Result<()> {
    let list = node.cli(&["list"])?;
    let words: Vec<&str> = list.split_whitespace().collect();
    ensure!(
        words.windows(2).any(|pair| pair == [durability, max_age]),
        "not {durability}, {max_age}: {list}"
    );
    Ok(())
}

/// With durability `object`, a FLUSH ends once the store has the data that it covers; with `local`, the store
/// has it once its age limit is reached.
fn check_flushes(node: &NodeDaemon, device: &str) -> Result<()> {
    let write =
        format!("dd if=/dev/urandom of={device} bs=64k count=1 oflag=direct conv=fsync,notrunc status=none");
    let dirty = || {
        let list: serde_json::Value = serde_json::from_str(&node.cli(&["list", "--json"])?)?;
        list["volumes"][0]["dirty_bytes"].as_u64().context("its dirty bytes")
    };
    node.vm().exec(&write)?;
    // Nothing else would commit within the hour.
    until("a FLUSH to be committed", LIMIT, || Ok((dirty()? == 0).then_some(())))?;
    node.cli(&["configure", "disk", "--durability", "local"])?;
    node.vm().exec(&write)?;
    until("what a FLUSH left dirty", LIMIT, || Ok((dirty()? > 0).then_some(())))?;
    node.cli(&["configure", "disk", "--max-dirty-age", "1s"])?;
    until("old data to be committed at once", LIMIT, || Ok((dirty()? == 0).then_some(())))
}

/// A daemon that cannot recover the device reports this, gives it to no other volume, and recovers it once it
/// can.
fn check_held_device(node: &NodeDaemon, device: &str) -> Result<()> {
    let queues = device.replace("ublkb", "ublkc");
    node.vm().spawn("holder", &bash(&format!("exec 9<>{queues}; echo held; exec sleep 600")))?;
    node.vm().wait_log("holder", "held", LIMIT)?;
    node.restart_until("still held by another process")?;
    let list = node.cli(&["list"])?;
    ensure!(list.contains("Quiesced") && list.contains("still held by another process"), "{list}");
    ensure!(!list.contains(device), "the device is not served: {list}");
    for refused in [&["attach", "disk", "--store", "store"][..], &["detach", "disk"]] {
        let refused = node.cli(refused).err().context("the device is not served")?;
        ensure!(format!("{refused:#}").contains("recovery after a daemon restart failed"), "{refused:#}");
    }
    node.vm().signal("holder", SIGKILL)?;
    until("the device to be recovered", LIMIT, || Ok(node.cli(&["list"])?.contains("Attached").then_some(())))
}

fn attach(node: &NodeDaemon, more: &[&str]) -> Result<String> {
    let device = node.cli(&[&["attach", "disk", "--store", "store"], more].concat())?.trim().to_owned();
    ensure!(device.starts_with("/dev/ublkb"), "attach prints {device:?}");
    node.vm().wait_block_device(&device, LIMIT)?;
    Ok(device)
}
