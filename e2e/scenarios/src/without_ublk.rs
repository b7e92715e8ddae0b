//! A node whose kernel has no ublk serves a volume over FUSE and a loop device: the daemon is killed and
//! restarted under load, even after its keeper was; keepers replace each other under load, and the volume
//! grows; discards free space; long requests of misaligned memory are served; a mounted device is not
//! detached; and a node with ublk reads the written data.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::node::{ControlInterface, NodeDaemon};
use holdfast_lab::vm::Vm;
use holdfast_lab::vm::machine::MachineOptions;
use holdfast_lab::wait::until;
use holdfast_lab::world::World;
use serde_json::Value;

use super::load::Load;

const BUCKET: &str = "without-ublk";
/// Volumes that are attached concurrently.
const PAIR: [&str; 2] = ["first", "second"];
/// Kills under load, and as many restarts by SIGTERM.
const ENDS: usize = 6;
/// Minimum number of writes that the kernel completes in between.
const MIN_WRITES_BETWEEN_ENDS: u64 = 100;
/// No seals in the meantime, so that all data is in the side in which a discard punches holes.
const DATA: &str = "seal_size = \"512Mi\"\nmax_dirty_age = \"1h\"\nmemory_volumes = \"1Gi\"";
/// Keepers that replace the previous one.
const HAND_OVERS: usize = 10;
/// Maximum run time of fio, in seconds of the machine's time: it is ended before.
const LOAD_SECONDS: u32 = 600;
const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let control = ControlInterface::standalone(&s3, BUCKET);
    let node = NodeDaemon::start(world.vm_with("a", MachineOptions::without_ublk)?, &control, "auto", DATA)?;
    let vm = node.vm();
    vm.exec("! test -e /dev/ublk-control")?;
    check_capabilities(&node)?;

    attach_concurrently(&node)?;
    node.cli(&["create", "disk", "--size", "1Gi", "--store", "store"])?;
    let device = attach(&node)?;
    ensure!(device.starts_with("/dev/loop"), "attach prints {device:?}");
    let listed: Value = serde_json::from_str(&node.cli(&["list", "--json"])?)?;
    ensure!(listed["volumes"][0]["device"]["transport"] == "fuse-loop", "{listed}");
    check_direct_io(vm, &device)?;

    let load = Load::start(vm, &device, LOAD_SECONDS)?;
    for end in 0..ENDS {
        node.kill()?;
        node.restart()?;
        load.wait_writes(MIN_WRITES_BETWEEN_ENDS)?;
        node.terminate()?;
        node.restart()?;
        load.wait_writes(MIN_WRITES_BETWEEN_ENDS)?;
        if end == ENDS / 2 {
            replace_keeper(vm)?;
        }
    }
    hand_over(vm, &load)?;
    node.cli(&["grow", "disk", "2Gi"])?;
    load.wait_writes(MIN_WRITES_BETWEEN_ENDS)?;
    load.stop()?;
    check_growth(&node, &device)?;
    check_long_requests(vm, &device)?;
    check_discard(&node, &device)?;
    let device = check_foreign_detach(&node, &device)?;
    // The journal copies each of these blocks into memory of the slab allocator, because it begins like one
    // of its own.
    let sums = vm.exec(&format!(
        "mkfs.ext4 -q -F {device}; mount -o data=journal {device} /mnt; \
         perl -e 'print pack(q(N), 0xC03B3998), q(x) x 4092 for 1..64' >/mnt/escaped; cp -r /usr/share/perl* /usr/lib/modules/*/kernel/fs /mnt/; \
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
    // The last keeper runs in the foreground: it stays until it is asked to exit.
    ensure!(count_keepers(vm)? == 1, "the last keeper stays");
    vm.exec("kill -TERM $(pgrep -x holdfast-keeper)")?;
    until("the keeper to end with its last device", LIMIT, || Ok((count_keepers(vm)? == 0).then_some(())))?;

    check_node_with_ublk(world, &control, &node, &sums)
}

/// Keepers replace each other ten times, while fio verifies its writes. Returns their number.
///
/// # Errors
/// If a keeper was not replaced, or fio saw an error.
pub fn replace_keepers(world: &World) -> Result<usize> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let vm = world.vm_with("a", MachineOptions::without_ublk)?;
    let node = NodeDaemon::start(vm, &ControlInterface::standalone(&s3, BUCKET), "auto", DATA)?;
    node.cli(&["create", "disk", "--size", "256Mi", "--store", "store"])?;
    let device = attach(&node)?;
    let load = Load::start(node.vm(), &device, LOAD_SECONDS)?;
    hand_over(node.vm(), &load)?;
    // The connections held by the keepers outlive the daemon.
    node.kill()?;
    node.restart()?;
    load.wait_writes(MIN_WRITES_BETWEEN_ENDS)?;
    load.stop()?;
    node.cli(&["detach", "disk"])?;
    Ok(HAND_OVERS)
}

/// The node supports only FUSE and a loop device, and rejects a memory volume.
fn check_capabilities(node: &NodeDaemon) -> Result<()> {
    let usable: Value = serde_json::from_str(&node.cli(&["capabilities", "--json"])?)?;
    let usable: Vec<_> = usable["transports"].as_array().context("its transports")?.iter().collect();
    let of = |name: &str| usable.iter().find(|transport| transport["transport"] == name);
    ensure!(of("fuse-loop").is_some_and(|found| found["available"] == true), "{usable:?}");
    ensure!(of("ublk-user-copy").is_some_and(|found| found["available"] == false), "{usable:?}");
    let refused = node.cli(&["attach", "scratch", "--memory", "64Mi"]).err().context("it needs ublk")?;
    let refused = format!("{refused:#}");
    ensure!(refused.contains("memory volumes need ublk"), "{refused}");
    ensure!(refused.contains("load the ublk_drv module"), "{refused}");
    Ok(())
}

/// A node with ublk reads the volume, whose files have these `sums`; then it is attached to `node` again.
fn check_node_with_ublk(
    world: &World,
    control: &ControlInterface,
    node: &NodeDaemon,
    sums: &str,
) -> Result<()> {
    let other = NodeDaemon::start(world.vm("b")?, control, "auto", "")?;
    let device = attach(&other)?;
    ensure!(device.starts_with("/dev/ublkb"), "attach prints {device:?}");
    let read = other.vm().exec(&format!(
        "e2fsck -fn {device} >&2; mount -o ro {device} /mnt; \
         cd /mnt; find . -type f | sort | xargs cat | sha256sum; cd /; umount /mnt"
    ))?;
    ensure!(read == sums, "the node with ublk reads {read}, the other wrote {sums}");
    other.cli(&["detach", "disk"])?;
    let device = attach(node)?;
    node.vm().exec(&format!("e2fsck -fn {device} >&2"))?;
    node.cli(&["detach", "disk"]).map(drop)
}

fn attach(node: &NodeDaemon) -> Result<String> {
    let device = node.cli(&["attach", "disk", "--store", "store"])?.trim().to_owned();
    node.vm().wait_block_device(&device, LIMIT)?;
    Ok(device)
}

/// Two volumes are attached concurrently while no keeper runs, and survive a kill; then each is detached
/// while a program that wrote to it without a sync closes it, and has all of the data afterwards.
fn attach_concurrently(node: &NodeDaemon) -> Result<()> {
    let vm = node.vm();
    for volume in PAIR {
        node.cli(&["create", volume, "--size", "256Mi", "--store", "store"])?;
    }
    let attach = |volume| format!("holdfast-node attach {volume} --store store >/tmp/{volume}");
    let together = PAIR.map(attach).join(" & ");
    vm.exec(&format!("{together} & wait; cat /tmp/first /tmp/second | grep -c ^/dev/loop | grep -x 2"))?;
    ensure!(count_keepers(vm)? == 1, "one keeper holds both connections");
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
    check_restore_of_free_device(vm)
}

/// A program that is about to bind a free device opens it exclusively: until then, its queue is unchanged.
fn check_restore_of_free_device(vm: &Vm) -> Result<()> {
    let opener = "use Fcntl; sysopen(F, shift, O_RDONLY | O_EXCL) or die $!; system(@ARGV) == 0 or die";
    vm.exec(&format!(
        "free=$(losetup --find); name=${{free#/dev/}}; limit=/sys/block/$name/queue/max_sectors_kb; echo 512 >$limit; \
         restore=\"holdfast-node loop-device restore ${{name#loop}}\"; \
         perl -e '{opener}' $free $restore; test $(cat $limit) = 512; $restore; test $(cat $limit) != 512"
    ))
    .map(drop)
}

/// Checks that requests bypass the page cache of the file, in blocks of 4096 bytes.
fn check_direct_io(vm: &Vm, device: &str) -> Result<()> {
    let shown =
        vm.exec(&format!("losetup --noheadings --output DIO,LOG-SEC {device}; blockdev --getss {device}"))?;
    let words: Vec<&str> = shown.split_whitespace().collect();
    ensure!(words == ["1", "4096", "4096"], "{shown}");
    Ok(())
}

/// The daemon detects the exit of its keeper and starts another one, which has the connection.
fn replace_keeper(vm: &Vm) -> Result<()> {
    vm.exec("kill -9 $(pgrep -x holdfast-keeper)")?;
    until("another keeper", LIMIT, || {
        let holds = "for pid in $(pgrep -x holdfast-keeper); do ls -l /proc/$pid/fd; done | grep -c /dev/fuse || true";
        Ok((vm.exec(holds)?.trim() == "1").then_some(()))
    })
}

/// Keepers in the foreground replace the one started by the daemon and each other, under load; each replaced
/// one stands by until it is asked to exit.
fn hand_over(vm: &Vm, load: &Load<'_>) -> Result<()> {
    for number in 0..HAND_OVERS {
        vm.exec(&format!(
            "old=$(pgrep -x holdfast-keeper); setsid holdfast-node keeper </dev/null >/tmp/keeper{number} 2>&1 & \
             new=$!; for _ in $(seq 600); do ls -l /proc/$new/fd | grep -q /dev/fuse && break; sleep 0.1; done; \
             ls -l /proc/$new/fd | grep /dev/fuse; \
             for pid in $old; do ! ls -l /proc/$pid/fd 2>&1 | grep /dev/fuse || exit 1; kill -TERM $pid || true; done"
        ))?;
        load.wait_writes(MIN_WRITES_BETWEEN_ENDS)?;
        until("one keeper", LIMIT, || Ok((count_keepers(vm)? == 1).then_some(())))?;
    }
    Ok(())
}

/// Data beyond the device's earlier end is available after a restart.
fn check_growth(node: &NodeDaemon, device: &str) -> Result<()> {
    let vm = node.vm();
    vm.exec(&format!(
        "test $(blockdev --getsize64 {device}) = $((2 << 30)); \
         dd if=/dev/urandom of=/tmp/tail bs=1M count=8 status=none; \
         dd if=/tmp/tail of={device} bs=1M seek=2040 oflag=direct conv=fsync,notrunc status=none"
    ))?;
    node.kill()?;
    node.restart()?;
    vm.exec(&format!(
        "test $(blockdev --getsize64 {device}) = $((2 << 30)); \
         dd if={device} bs=1M skip=2040 iflag=direct status=none | cmp - /tmp/tail"
    ))
    .map(drop)
}

/// A user has raised the maximum request size, and memory is aligned to 512 bytes: the kernel splits these
/// requests, and each piece consists of whole sectors.
fn check_long_requests(vm: &Vm, device: &str) -> Result<()> {
    let queue = format!("/sys/block/{}/queue", device.trim_start_matches("/dev/"));
    // The bytes of the string from $o on are aligned to 512, but not to a page.
    let program = "use Fcntl; sysopen(F, $ARGV[0], O_RDWR | O_DIRECT) or die; my $len = 1280 << 10; \
                   my $b = q(x) x (4 << 20); my $o; \
                   sub place { $b .= q(x) x ((4 << 20) - length $b); \
                   $o = (512 - unpack(q(J), pack(q(P), $b))) % 4096; sysseek(F, $_[0] * $len, 0) } \
                   for my $i (0..15) { place($i); substr($b, $o, $len) = chr(65 + $i) x $len; place($i); \
                   (syswrite(F, $b, $len, $o) // -1) == $len or die qq(write $i: $!) } \
                   for my $i (0..15) { place($i); \
                   (sysread(F, $b, $len, $o) // -1) == $len or die qq(read $i: $!); \
                   substr($b, $o, $len) eq chr(65 + $i) x $len or die qq(content $i) }";
    vm.exec(&format!(
        "cat {queue}/max_hw_sectors_kb >{queue}/max_sectors_kb; test $(cat {queue}/max_sectors_kb) -gt 1024; \
         perl -e '{program}' {device}; echo 512 >{queue}/max_sectors_kb; ! dmesg | grep -i 'I/O error'"
    ))
    .map(drop)
}

/// Another program detaches the device. While it is in use, an attach or a recovery cancels that. Afterwards
/// the volume is unserved, and its next device is another one: its number has a file of that program.
fn check_foreign_detach(node: &NodeDaemon, device: &str) -> Result<String> {
    let vm = node.vm();
    let name = device.trim_start_matches("/dev/");
    let pending = format!("losetup --detach {device}; grep -x 1 /sys/block/{name}/loop/autoclear >&2");
    let stays = format!(
        "timeout 60 sh -c 'until grep -x 0 /sys/block/{name}/loop/autoclear; do sleep 0.1; done' >&2"
    );
    vm.exec(&format!("sleep 1000 <{device} >/dev/null 2>&1 & echo $! >/tmp/sleeper; {pending}"))?;
    ensure!(attach(node)? == device, "it is attached already");
    vm.exec(&format!("{stays}; {pending}"))?;
    node.kill()?;
    node.restart()?;
    vm.exec(&format!("{stays}; kill $(cat /tmp/sleeper); cmp -n 64M {device} /dev/zero"))?;

    vm.exec(&format!(
        "losetup --detach {device}; truncate -s 16M /tmp/foreign; \
         timeout 60 sh -c 'until losetup {device} /tmp/foreign; do sleep 0.1; done'"
    ))?;
    let state = || -> Result<String> {
        let listed: Value = serde_json::from_str(&node.cli(&["list", "--json"])?)?;
        Ok(listed["volumes"][0]["state"].as_str().unwrap_or_default().to_owned())
    };
    until("the volume to be unserved", LIMIT, || Ok((state()? == "Unserved").then_some(())))?;
    let refused = node.cli(&["attach", "disk", "--store", "store"]).err().context("no device serves it")?;
    ensure!(format!("{refused:#}").contains("detach it first"), "{refused:#}");
    node.cli(&["detach", "disk"])?;
    let other = attach(node)?;
    ensure!(other != device, "{device} is the device of another program");
    vm.exec(&format!(
        "losetup --noheadings --output BACK-FILE {device} | grep -x /tmp/foreign; losetup --detach {device}"
    ))?;
    Ok(other)
}

fn count_keepers(vm: &Vm) -> Result<usize> {
    vm.exec("pgrep -cx holdfast-keeper || true")?.trim().parse().context("a number of processes")
}

/// A discarded range reads as zeros, and its space on the local disk is free.
fn check_discard(node: &NodeDaemon, device: &str) -> Result<()> {
    let used = || node.vm().exec("du -sk /state | cut -f1")?.trim().parse::<u64>().context("a size");
    let vm = node.vm();
    vm.exec(&format!(
        "dd if=/dev/urandom of={device} bs=1M count=64 oflag=direct conv=fsync,notrunc status=none"
    ))?;
    let before = used()?;
    vm.exec(&format!("blkdiscard --length 64M {device}"))?;
    until("the space to be free", LIMIT, || Ok((used()? + (48 << 10) < before).then_some(())))?;
    vm.exec(&format!("cmp -n 64M {device} /dev/zero"))?;
    // All of it is one request of the kernel, which is served in pieces.
    vm.exec(&format!("blkdiscard {device}; cmp -n 64M {device} /dev/zero; ! dmesg | grep -i 'I/O error'"))
        .map(drop)
}
