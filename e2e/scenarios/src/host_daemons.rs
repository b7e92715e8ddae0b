//! A node with a common setup. Systemd, udev, LVM, md, multipath and btrfs run together with the daemon, an
//! agent that copies the host's mounts, and the programs that scan all block devices.
//!
//! Tested faults: the host reads a table or signature written by a tenant and acts on it (partitions, logical
//! volumes, arrays, links by UUID); this also prevents a detach of the volume. A program of the host waits
//! indefinitely for a device that is served again. A detach is rejected without a reason.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::node::{ControlInterface, NodeDaemon, SIGKILL};
use holdfast_lab::report;
use holdfast_lab::vm::machine::MachineOptions;
use holdfast_lab::vm::{Vm, bash};
use holdfast_lab::world::World;

const BUCKET: &str = "host";
/// Number of times that a volume is detached and attached again.
const ROUNDS: usize = 12;
/// Number of daemon exits: one of each type.
const ENDS: usize = 3;
const LIMIT: Duration = Duration::from_secs(60);

/// Functions for the scripts below.
const SHELL: &str = r#"
attach() { holdfast-node attach $1 --store store | tee /run/device-$1; }
device() { cat /run/device-$1; }
# Detaches; a refusal names who uses the device, and passes.
detach() {
  local said
  until said=$(holdfast-node detach $1 2>&1); do
    grep -qE 'held by (a mount at|the device|process)' <<< "$said" || { echo "$said"; return 1; }
    sleep 0.2
  done
}
properties() { udevadm info --query=property $1; }
"#;

/// Writes data like a tenant's programs: a table, signatures, a file system.
const SIGNATURES: &str = r#"
for name in gpt pv md btrfs data; do
  holdfast-node create $name --size 128Mi --store store; attach $name
done > /dev/null
printf 'label: gpt\n,16M\n,16M\n' | sfdisk --quiet --no-reread --no-tell-kernel $(device gpt)
vgcreate -qq tenant $(device pv)
lvcreate -qq --wipesignatures n --zero n -an -l 10 -n lv tenant
mdadm --quiet --create /dev/md/tenant --run --metadata=1.2 --level=1 --raid-devices=2 $(device md) missing
udevadm settle; mdadm --quiet --stop /dev/md/tenant
mkfs.btrfs -q $(device btrfs); btrfs device scan --forget
mkfs.ext4 -q $(device data)
"#;

/// Prints the host's own use of a volume.
const FOREIGN: &str = r#"
udevadm settle --timeout=60
shopt -s nullglob
for found in /sys/block/ublkb*/holders/*; do echo "there is $found"; done
ls -l /dev/disk/by-{id,label,partuuid,uuid} 2> /dev/null | grep ublkb || true
grep -E '^E:ID_(FS|PART)_' /run/udev/data/b259:* || true
ls -l /run/udev/watch | grep b259: || true
dmesg | grep 'scanned by (udev-worker)' || true
"#;

/// Prints partitions. Kernels before 7.0 scan for them when a device starts.
const PARTITIONS: &str = r#"
for found in /sys/class/block/ublkb*p*; do echo "there is $found"; done
"#;

/// Repeatedly runs the host programs that scan all block devices. Prints the duration of each, in ms.
const SCANS: &str = r#"
trap 'exit 0' TERM
while :; do
  for tool in blkid lvs 'mdadm --examine --scan' 'btrfs filesystem show' \
      'udevadm trigger --action=add --subsystem-match=block' 'udevadm settle'; do
    begin=$(date +%s%3N)
    $tool > /dev/null 2>&1 || true
    echo $(($(date +%s%3N) - begin)) $tool
  done
  sleep 4
done
"#;

/// Outcome of a run with the daemons of a host.
#[derive(Debug, Default)]
pub struct HostOutcome {
    /// Number of times that a volume was detached and attached again.
    pub attaches: usize,
    /// Number of exits of the daemon.
    pub ends: usize,
    /// Everything that the host read from a volume, or created from it, by itself.
    pub foreign: Vec<String>,
    /// The kernel's reports of tasks that waited for more than a minute.
    pub hung: Vec<String>,
}

pub(super) fn run(world: &World) -> Result<()> {
    let HostOutcome { foreign, hung, .. } = rounds(world, ROUNDS, ENDS)?;
    ensure!(foreign.is_empty(), "the host looked into a volume:\n{}", foreign.join("\n"));
    ensure!(hung.is_empty(), "{}", hung.join("\n"));
    Ok(())
}

/// Detaches and attaches volumes `attaches` times, and ends the daemon `ends` times, together with the
/// daemons and programs of a host.
///
/// # Errors
/// If anything fails that is not counted.
pub fn rounds(world: &World, attaches: usize, ends_due: usize) -> Result<HostOutcome> {
    let mut outcome = HostOutcome { attaches, ends: ends_due, ..HostOutcome::default() };
    let vm = world.vm_with("a", MachineOptions::systemd)?;
    let active = "cat /proc/1/comm; systemctl is-active systemd-udevd multipathd lvm2-monitor; \
                  sysctl -qw kernel.hung_task_timeout_secs=60";
    let found = vm.exec(active)?;
    ensure!(found == "systemd\nactive\nactive\nactive\n", "not a host with its daemons: {found}");
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let node = NodeDaemon::start(vm, &ControlInterface::standalone(&s3, BUCKET), "auto", "")?;

    script(&node, SIGNATURES)?;
    outcome.foreign.extend(host_uses(world, &node)?);
    check_udev_marks(&node)?;
    check_clone(&node)?;
    node.vm().spawn("scans", &bash(SCANS))?;
    end_daemon(&node, ends_due)?;
    outcome.foreign.extend(host_uses(world, &node)?);
    reattach_volumes(&node, attaches)?;
    outcome.foreign.extend(host_uses(world, &node)?);
    node.vm().signal("scans", SIGKILL)?;
    node.vm().wait("scans", LIMIT)?;
    report_longest_scan(node.vm())?;
    check_holders(&node)?;
    outcome.foreign.extend(host_uses(world, &node)?);
    let reports = node.vm().exec("dmesg | grep 'blocked for more than' || true")?;
    outcome.hung.extend(reports.lines().map(str::to_owned));
    Ok(outcome)
}

fn script(node: &NodeDaemon, script: &str) -> Result<String> {
    node.vm().exec(&format!("{SHELL}{script}"))
}

/// Returns the host's own uses of a volume.
fn host_uses(world: &World, node: &NodeDaemon) -> Result<Vec<String>> {
    let partitions = if world.kernel().is_at_least(7, 0) { PARTITIONS } else { "" };
    let found = script(node, &format!("{FOREIGN}{partitions}"))?;
    Ok(found.lines().map(str::to_owned).collect())
}

/// A device without a mark, like one of another program, is processed according to udev's own rules.
fn check_udev_marks(node: &NodeDaemon) -> Result<()> {
    let found = script(
        node,
        "device=$(device data); mark=/run/udev/holdfast/${device#/dev/}; test -s $mark\n\
         looked() { udevadm trigger --settle $device; properties $device | grep -c ^ID_FS_TYPE=ext4 || true; }\n\
         mv $mark /tmp/mark; looked; mv /tmp/mark $mark; looked",
    )?;
    ensure!(found == "1\n0\n", "probed without and with its mark: {found}");
    Ok(())
}

/// A clone of a mounted file system has its UUID. Both are mounted at the same time.
fn check_clone(node: &NodeDaemon) -> Result<()> {
    let found = script(
        node,
        "mkdir -p /mnt/data /mnt/clone; mount $(device data) /mnt/data\n\
         echo kept > /mnt/data/file; sync -f /mnt/data\n\
         holdfast-node create clone --from $(holdfast-node snapshot create data) --store store > /dev/null\n\
         mount $(attach clone) /mnt/clone; cat /mnt/clone/file; grep -cE ' /mnt/(data|clone) ' /proc/mounts",
    )?;
    ensure!(found == "kept\n2\n", "{found}");
    Ok(())
}

/// The daemon exits in each way while all devices are in use. In the meantime, programs that do not access
/// our devices do not wait.
fn end_daemon(node: &NodeDaemon, due: usize) -> Result<()> {
    for number in 0..due {
        match number % 3 {
            0 => {
                node.kill()?;
                check_host_while_quiesced(node)?;
                node.restart()?;
            }
            1 => {
                node.terminate()?;
                node.restart()?;
            }
            _ => node.hand_over()?,
        }
        script(node, "echo more >> /mnt/data/file; sync -f /mnt/data; cat /mnt/clone/file > /dev/null")?;
    }
    Ok(())
}

fn check_host_while_quiesced(node: &NodeDaemon) -> Result<()> {
    script(
        node,
        "timeout 30 lvs --config 'devices { global_filter = [ \"r|^/dev/ublkb|\" ] }'\n\
         timeout 30 lsblk; timeout 30 findmnt; timeout 30 mdadm --detail --scan; timeout 30 multipath -ll",
    )
    .map(drop)
    .context("while the daemon is gone")
}

/// Volumes are detached and attached again alternately.
fn reattach_volumes(node: &NodeDaemon, rounds: usize) -> Result<()> {
    script(
        node,
        &format!(
            "names=(gpt pv md btrfs)\n\
             for round in $(seq {rounds}); do name=${{names[round % 4]}}; detach $name; attach $name; done"
        ),
    )
    .map(drop)
}

fn report_longest_scan(vm: &Vm) -> Result<()> {
    let log = vm.log("scans")?;
    let duration = |line: &&str| line.split(' ').next().and_then(|word| word.parse::<u64>().ok());
    let longest = log.lines().max_by_key(duration).context("the programs of the host never ended")?;
    report::step(format_args!(
        "{} looks of the host at its devices, the longest: {longest} (ms)",
        log.lines().count()
    ));
    Ok(())
}

/// Each use of a device prevents its detach, and is named: a mount in another mount namespace, the loop
/// device of a raw volume, a logical volume activated by the user.
fn check_holders(node: &NodeDaemon) -> Result<()> {
    node.vm().spawn("agent", &bash("exec unshare --mount --propagation private sleep 100000"))?;
    script(
        node,
        "until nsenter --mount --target $(pgrep -x sleep -n) findmnt /mnt/clone; do sleep 0.1; done; umount /mnt/clone",
    )?;
    expect_detach_refused(node, "clone", "a mount at /mnt/clone in the mount namespace of process")?;
    expect_detach_refused(node, "clone", "(sleep)")?;
    node.vm().signal("agent", SIGKILL)?;
    node.vm().wait("agent", LIMIT)?;
    node.cli(&["detach", "clone"])?;

    // Like the kubelet's use of a raw volume.
    let looked = script(
        node,
        "mkdir -p /run/volumeDevices; : > /run/volumeDevices/raw; mount --bind $(device md) /run/volumeDevices/raw\n\
         losetup /dev/loop0 /run/volumeDevices/raw; udevadm settle; properties /dev/loop0 | grep -c ^ID_FS_ || true",
    )?;
    ensure!(looked == "0\n", "the loop device of a raw volume was probed");
    expect_detach_refused(node, "md", "the device loop0")?;
    script(node, "losetup --detach /dev/loop0; umount /run/volumeDevices/raw; detach md")?;

    script(node, "vgchange -qq -ay tenant; test -b /dev/tenant/lv")?;
    expect_detach_refused(node, "pv", "the device dm-0")?;
    script(
        node,
        "vgchange -qq -an tenant; detach pv; umount /mnt/data; detach data; detach gpt; detach btrfs",
    )
    .map(drop)
}

fn expect_detach_refused(node: &NodeDaemon, volume: &str, says: &str) -> Result<()> {
    let refused = node.cli(&["detach", volume]).err().with_context(|| format!("{volume} is in use"))?;
    let refused = format!("{refused:#}");
    ensure!(refused.contains(says), "not {says:?}: {refused}");
    Ok(())
}
