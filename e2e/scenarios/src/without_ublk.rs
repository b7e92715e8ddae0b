//! A node whose kernel has no ublk serves a volume by FUSE and a loop device: the daemon is killed and
//! restarted under load, also after its keeper was; discards free space; a mounted device is not detached;
//! and a node with ublk reads what was written.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::node::{Control, Node};
use holdfast_lab::vm::Vm;
use holdfast_lab::vm::machine::Options;
use holdfast_lab::wait::until;
use holdfast_lab::world::World;
use serde_json::Value;

use super::load::Load;

const BUCKET: &str = "without-ublk";
/// Volumes that are attached at once.
const PAIR: [&str; 2] = ["first", "second"];
/// Kills under load, and as many restarts by SIGTERM.
const ENDS: usize = 6;
/// Writes that the kernel completes between two of them, at least.
const APART: u64 = 100;
/// Nothing is sealed meanwhile, so that all of the data is in the side that a discard punches.
const DATA: &str = "seal_size = \"512Mi\"\nmax_dirty_age = \"1h\"\nmemory_volumes = \"1Gi\"";
/// Longest run of fio, in seconds of the machine's time: it is ended before.
const LOAD_SECONDS: u32 = 600;
const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let control = Control::standalone(&s3, BUCKET);
    let node = Node::start(world.vm_with("a", Options::without_ublk)?, &control, "auto", DATA)?;
    let vm = node.vm();
    vm.exec("! test -e /dev/ublk-control")?;
    let usable: Value = serde_json::from_str(&node.cli(&["capabilities", "--json"])?)?;
    let usable: Vec<_> = usable["transports"].as_array().context("its transports")?.iter().collect();
    let of = |name: &str| usable.iter().find(|transport| transport["transport"] == name);
    ensure!(of("fuse-loop").is_some_and(|found| found["available"] == true), "{usable:?}");
    ensure!(of("ublk-user-copy").is_some_and(|found| found["available"] == false), "{usable:?}");
    let refused = node.cli(&["attach", "scratch", "--memory", "64Mi"]).err().context("it needs ublk")?;
    ensure!(format!("{refused:#}").contains("load the ublk_drv module"), "{refused:#}");

    begin_together(&node)?;
    node.cli(&["create", "disk", "--size", "1Gi", "--store", "store"])?;
    let device = attach(&node)?;
    ensure!(device.starts_with("/dev/loop"), "attach prints {device:?}");
    let listed: Value = serde_json::from_str(&node.cli(&["list", "--json"])?)?;
    ensure!(listed["volumes"][0]["device"]["transport"] == "fuse-loop", "{listed}");
    is_direct(vm, &device)?;

    let load = Load::start(vm, &device, LOAD_SECONDS)?;
    for end in 0..ENDS {
        node.kill()?;
        node.restart()?;
        load.wait_writes(APART)?;
        node.terminate()?;
        node.restart()?;
        load.wait_writes(APART)?;
        if end == ENDS / 2 {
            replace_keeper(vm)?;
        }
    }
    load.stop()?;
    let refused = node.cli(&["grow", "disk", "2Gi"]).err().context("it grows at its next attach")?;
    ensure!(format!("{refused:#}").contains("it grows at its next attach"), "{refused:#}");

    discard(&node, &device)?;
    let sums = vm.exec(&format!(
        "mkfs.ext4 -q -F {device}; mount {device} /mnt; cp -r /usr/share/perl* /usr/lib/modules/*/kernel/fs /mnt/; \
         cd /mnt; find . -type f | sort | xargs cat | sha256sum"
    ))?;
    let refused = node.cli(&["detach", "disk"]).err().context("it is mounted")?;
    ensure!(format!("{refused:#}").contains("held by a mount at /mnt"), "{refused:#}");
    node.kill()?;
    node.restart()?;
    vm.exec("umount /mnt; ! dmesg | grep -iE 'I/O error|corrupt'")?;
    node.cli(&["detach", "disk"])?;
    let name = device.trim_start_matches("/dev/");
    vm.exec(&format!("! test -e /sys/block/{name}/loop"))?;
    until("the keeper to end with its last device", LIMIT, || Ok((keepers(vm)? == 0).then_some(())))?;

    let other = Node::start(world.vm("b")?, &control, "auto", "")?;
    let device = attach(&other)?;
    ensure!(device.starts_with("/dev/ublkb"), "attach prints {device:?}");
    let read = other.vm().exec(&format!(
        "e2fsck -fn {device} >&2; mount -o ro {device} /mnt; \
         cd /mnt; find . -type f | sort | xargs cat | sha256sum; cd /; umount /mnt"
    ))?;
    ensure!(read == sums, "the node with ublk reads {read}, the other wrote {sums}");
    other.cli(&["detach", "disk"])?;
    let device = attach(&node)?;
    vm.exec(&format!("e2fsck -fn {device} >&2"))?;
    node.cli(&["detach", "disk"]).map(drop)
}

fn attach(node: &Node) -> Result<String> {
    let device = node.cli(&["attach", "disk", "--store", "store"])?.trim().to_owned();
    node.vm().wait_block_device(&device, LIMIT)?;
    Ok(device)
}

/// Two volumes are attached at once while no keeper runs, and outlive a kill; then each is detached while a
/// program that has written to it without a sync closes it, and has all of that afterwards.
fn begin_together(node: &Node) -> Result<()> {
    let vm = node.vm();
    for volume in PAIR {
        node.cli(&["create", volume, "--size", "256Mi", "--store", "store"])?;
    }
    let attach = |volume| format!("holdfast-node attach {volume} --store store >/tmp/{volume}");
    let together = PAIR.map(attach).join(" & ");
    vm.exec(&format!("{together} & wait; cat /tmp/first /tmp/second | grep -c ^/dev/loop | grep -x 2"))?;
    ensure!(keepers(vm)? == 1, "one keeper holds both connections");
    node.kill()?;
    node.restart()?;
    for volume in PAIR {
        vm.exec(&format!(
            "device=$(cat /tmp/{volume}); name=${{device#/dev/}}; \
             test $(cat /sys/block/$name/queue/max_sectors_kb) = 512; \
             dd if=/dev/urandom of=/tmp/data bs=1M count=96 status=none; \
             dd if=/tmp/data of=$device bs=1M conv=notrunc status=none & \
             until ls -l /proc/$!/fd | grep -q $device || ! kill -0 $!; do :; done; \
             until holdfast-node detach {volume} 2>/tmp/refused; do grep -q 'in use\\|held by' /tmp/refused; sleep 0.1; done; \
             wait $!; test $(cat /sys/block/$name/queue/max_sectors_kb) != 512; \
             device=$(holdfast-node attach {volume} --store store); cmp -n $((96 << 20)) /tmp/data $device; \
             holdfast-node detach {volume}; ! dmesg | grep -i 'I/O error'"
        ))?;
    }
    Ok(())
}

/// Requests go past the page cache of the file, in blocks of 4096 bytes.
fn is_direct(vm: &Vm, device: &str) -> Result<()> {
    let shown =
        vm.exec(&format!("losetup --noheadings --output DIO,LOG-SEC {device}; blockdev --getss {device}"))?;
    let words: Vec<&str> = shown.split_whitespace().collect();
    ensure!(words == ["1", "4096", "4096"], "{shown}");
    Ok(())
}

/// The daemon notes the end of its keeper and starts another, which has the connection.
fn replace_keeper(vm: &Vm) -> Result<()> {
    vm.exec("kill -9 $(pgrep -x holdfast-keeper)")?;
    until("another keeper", LIMIT, || {
        let holds = "for pid in $(pgrep -x holdfast-keeper); do ls -l /proc/$pid/fd; done | grep -c /dev/fuse || true";
        Ok((vm.exec(holds)?.trim() == "1").then_some(()))
    })
}

fn keepers(vm: &Vm) -> Result<usize> {
    vm.exec("pgrep -cx holdfast-keeper || true")?.trim().parse().context("a number of processes")
}

/// A discarded range reads as zeros, and its space on the local disk is free.
fn discard(node: &Node, device: &str) -> Result<()> {
    let used = || node.vm().exec("du -sk /state | cut -f1")?.trim().parse::<u64>().context("a size");
    let vm = node.vm();
    vm.exec(&format!(
        "dd if=/dev/urandom of={device} bs=1M count=64 oflag=direct conv=fsync,notrunc status=none"
    ))?;
    let before = used()?;
    vm.exec(&format!("blkdiscard --length 64M {device}"))?;
    until("the space to be free", LIMIT, || Ok((used()? + (48 << 10) < before).then_some(())))?;
    vm.exec(&format!("cmp -n 64M {device} /dev/zero")).map(drop)
}
