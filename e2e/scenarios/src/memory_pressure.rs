//! The control group of the daemon and of programs is at its limit, as on a Kubernetes node (`kubepods`).
//! Most of its memory is dirty pages of file systems on our devices. To reclaim memory, the kernel must write
//! to the devices, which the daemon serves with the remaining memory. The machine itself has little memory,
//! but enough.
//!
//! Tested fault: a thread of the daemon waits for memory, which waits for a write to the daemon's own device.
//! Then nothing is written any more, and every program that requests memory waits, too.
//!
//! Then the limit of the daemon's own group is lowered below its use: the kernel kills the daemon, and the
//! next one recovers the devices.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::node::{ControlInterface, NodeDaemon, PROGRAM, SIGKILL};
use holdfast_lab::report;
use holdfast_lab::s3::proxy::{FaultProxy, ProxyFault, Rule};
use holdfast_lab::vm::machine::MachineOptions;
use holdfast_lab::vm::{Vm, bash};
use holdfast_lab::wire::Exit;
use holdfast_lab::world::World;

const BUCKET: &str = "pressure";
const VOLUME: &str = "disk";
/// Memory of the machine, and the rest for programs, the page cache and the daemon, in MiB.
const MACHINE_MIB: u32 = 768;
const LEFT_MIB: u32 = 400;
/// Limit of the group that contains the daemon's group and that of programs, in MiB: `kubepods` of a node.
const PODS_MIB: u32 = 256;
/// A limit that no daemon can stay below, in MiB.
const TOO_LITTLE_MIB: u32 = 2;
const PODS: &str = "/sys/fs/cgroup/pods";
/// Continuous uploads, in little memory.
const DATA: &str = "slab_size = \"64Mi\"\nseal_size = \"8Mi\"\nmax_dirty_age = \"2s\"\nupload_memory = \"64Mi\"\nmax_dirty = \"8Gi\"";
/// Time of the store for each PUT.
const STORE_DELAY: Duration = Duration::from_secs(1);
const AT: &str = "/mnt";
const NOISE: &str = "/state/noise";
/// Files that are written, and the length of each, in MiB: more than the machine's memory.
const FILES: u32 = 40;
const FILE_MIB: u32 = 12;
/// Length of the mapped file, in MiB: more than its group's limit.
const MAPPED_MIB: u32 = 256;
/// Written to the device under pressure, then after the kill, in MiB.
const STORED_MIB: [u32; 2] = [512, 64];
/// Seconds of the machine's time without a completed write after which a device counts as hanging.
const HANGS_SECONDS: u32 = 60;
const LIMIT: Duration = Duration::from_secs(60);
const END_LIMIT: Duration = Duration::from_secs(300);

pub(super) fn zero_copy(world: &World) -> Result<()> {
    run(world, "zero-copy", MachineOptions::node())
}

pub(super) fn user_copy(world: &World) -> Result<()> {
    run(world, "user-copy", MachineOptions::node())
}

/// Runs on a machine without the ublk driver.
pub(super) fn fuse(world: &World) -> Result<()> {
    run(world, "auto", MachineOptions::without_ublk())
}

fn run(world: &World, transport: &str, options: MachineOptions) -> Result<()> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let proxy = FaultProxy::start(s3.port())?;
    let vm = world.vm_with("a", || MachineOptions { memory_mib: MACHINE_MIB, ..options })?;
    let control =
        ControlInterface::Standalone { endpoint: proxy.endpoint_in_vm(), bucket: BUCKET.to_owned() };
    // As on a Kubernetes node, where it is not a child of the daemon. With ublk, it is not used.
    vm.spawn("keeper", &bash("mkdir -p /run/holdfast; exec holdfast-node keeper"))?;
    let node = NodeDaemon::start(vm, &control, transport, DATA)?;
    let vm = node.vm();
    make_groups(vm)?;
    confine(vm)?;
    node.cli(&["create", VOLUME, "--size", "1Gi", "--store", "store"])?;
    let device = node.cli(&["attach", VOLUME, "--store", "store"])?.trim().to_owned();
    vm.wait_block_device(&device, LIMIT)?;
    vm.exec(&format!("mkfs.ext4 -q -F {device} >&2; mount {device} {AT}"))?;

    report::step("programs write more than the machine's memory; the store is slow");
    let rule = Rule {
        method: Some("PUT"),
        target: String::new(),
        first_only: false,
        fault: ProxyFault::Delay(STORE_DELAY),
    };
    proxy.set_rules(vec![rule]);
    start_programs(vm)?;
    report::step(wait_stored(vm, &device, STORED_MIB[0])?);
    ensure!(vm.status(PROGRAM)?.is_none(), "the daemon ended:\n{}", memory(vm)?);
    report::step(memory(vm)?);
    vm.exec(&format!(
        "grep -E '^max [1-9]' {PODS}/memory.events; grep -E '^oom_kill 0' {PODS}/memory.events"
    ))?;
    every_thread_is_an_io_flusher(vm)?;

    report::step("the kernel kills the daemon at the limit of its group, and the next one continues");
    vm.exec(&format!("echo {TOO_LITTLE_MIB}M > {PODS}/node/memory.max"))?;
    let exit = vm.wait(PROGRAM, LIMIT)?;
    ensure!(exit == Exit::Signal(SIGKILL), "the daemon ended by {exit:?}");
    vm.exec(&format!(
        "grep -x 'oom_kill 1' {PODS}/memory.events; grep -x 'oom_kill 1' {PODS}/node/memory.events; echo max > {PODS}/node/memory.max"
    ))?;
    node.restart()?;
    confine(vm)?;
    report::step(wait_stored(vm, &device, STORED_MIB[1])?);
    report::step(memory(vm)?);
    check_programs(vm, &device)?;
    node.terminate()
}

/// Creates the groups, and fills the machine's memory with unreclaimable pages.
fn make_groups(vm: &Vm) -> Result<()> {
    vm.exec(&format!(
        "mount -t cgroup2 none /sys/fs/cgroup; cd /sys/fs/cgroup; echo +memory +io > cgroup.subtree_control; \
         mkdir {PODS}; cd {PODS}; echo +memory +io > cgroup.subtree_control; mkdir node keeper programs; \
         sysctl -qw kernel.hung_task_timeout_secs={HANGS_SECONDS} vm.dirty_ratio=40 vm.dirty_background_ratio=10; \
         grep -q 'SwapTotal: *0 kB' /proc/meminfo; head -c {FILE_MIB}M /dev/urandom > {NOISE}; \
         mkdir /tmp/filled; mount -t tmpfs -o size=100% none /tmp/filled; \
         left=$(awk '/^MemAvailable:/ {{ print int($2 / 1024) }}' /proc/meminfo); \
         head -c $((left - {LEFT_MIB}))M /dev/zero > /tmp/filled/memory; \
         echo {PODS_MIB}M > {PODS}/memory.max"
    ))
    .map(drop)
}

/// Moves daemon and keeper into their groups. A kubelet has them killed after all other programs.
fn confine(vm: &Vm) -> Result<()> {
    vm.exec(&format!(
        "for name in node keeper; do \
           for _ in $(seq 100); do pgrep -x holdfast-$name > /dev/null && break; sleep 0.1; done; \
           pids=$(pgrep -x holdfast-$name); \
           for pid in $pids; do echo $pid > {PODS}/$name/cgroup.procs; echo -997 > /proc/$pid/oom_score_adj; done; \
         done"
    ))
    .map(drop)
}

/// Starts writing programs in their group: one for files, one for a mapped file.
fn start_programs(vm: &Vm) -> Result<()> {
    vm.spawn(
        "files",
        &bash(&format!(
            "echo $$ > {PODS}/programs/cgroup.procs; cd {AT}; number=0; until test -e /tmp/enough; do \
               number=$((number % {FILES} + 1)); dd if={NOISE} of=file$number bs=128k conv=notrunc status=none; \
             done; exec sync -f ."
        )),
    )?;
    vm.spawn(
        "mapped",
        &bash(&format!(
            "echo $$ > {PODS}/programs/cgroup.procs; until test -e /tmp/enough; do \
               fio --name=mapped --filename={AT}/mapped --size={MAPPED_MIB}M --ioengine=mmap --rw=randwrite --bs=4k \
                 --io_size=4M --fallocate=none --verify=crc32c --verify_fatal=1 --thread; \
             done"
        )),
    )
    .map(drop)
}

/// Waits until this much more was written to the device; returns the elapsed time. The device counts as
/// hanging if no write completes for long.
fn wait_stored(vm: &Vm, device: &str, mib: u32) -> Result<String> {
    let name = device.trim_start_matches("/dev/");
    let found = vm.exec(&format!(
        "look() {{ read -r -a stat < /sys/block/{name}/stat; }}\n\
         look; due=$((stat[6] + {mib} * 2048)) last=${{stat[4]}} since=$SECONDS longest=0\n\
         while [ ${{stat[6]}} -lt $due ]; do\n\
           sleep 0.5; look; none=$((SECONDS - since))\n\
           [ $none -le $longest ] || longest=$none\n\
           if [ ${{stat[4]}} -gt $last ]; then last=${{stat[4]}} since=$SECONDS; fi\n\
           [ $none -lt {HANGS_SECONDS} ] || {{ dmesg | tail -n 80; exit 1; }}\n\
         done\n\
         echo \"{mib} MiB were written in $SECONDS s; the longest time without a write was $longest s\""
    ))?;
    Ok(found.trim().to_owned())
}

/// Returns the memory use of groups and machine, for the log of the scenario.
fn memory(vm: &Vm) -> Result<String> {
    let found = vm.exec(&format!(
        "grep -E '^(MemFree|MemAvailable|Dirty|Writeback|AnonPages|Shmem):' /proc/meminfo | tr -s '\\n ' ' '; echo; \
         cd {PODS}; for group in . node keeper programs; do \
           echo $group: $(cat $group/memory.current $group/memory.events) $(grep -E '^(anon|file|kernel|shmem|file_dirty) ' $group/memory.stat); \
         done"
    ))?;
    Ok(found.trim().to_owned())
}

/// An unmarked thread may wait, when memory is short, for a device that its own process serves; the next
/// daemon depends on the keeper.
fn every_thread_is_an_io_flusher(vm: &Vm) -> Result<()> {
    // `PF_MEMALLOC_NOIO` in the flags of `stat`, which `PR_SET_IO_FLUSHER` sets.
    let found = vm.exec(
        "for task in $(pgrep 'holdfast-(node|keep)' | sed 's|.*|/proc/&/task/*|'); do \
           stat=$(cat $task/stat 2>/dev/null) || continue; set -- ${stat##*) }; \
           (( $7 & 0x80000 )) && echo marked || echo $task $stat; done | sort | uniq -c",
    )?;
    ensure!(found.lines().count() == 1 && found.contains("marked"), "threads: {found}");
    Ok(())
}

/// Checks that no program saw an error, each file has its written content, and no task hung.
fn check_programs(vm: &Vm, device: &str) -> Result<()> {
    vm.exec("touch /tmp/enough")?;
    for program in ["files", "mapped"] {
        let exit = vm.wait(program, END_LIMIT).with_context(|| format!("wait for {program}"))?;
        ensure!(exit == Exit::Code(0), "{program} ended by {exit:?}: {}", vm.log(program)?);
    }
    vm.exec(&format!(
        "rm /tmp/filled/memory; echo max > {PODS}/memory.max; umount {AT}; echo 3 > /proc/sys/vm/drop_caches; \
         e2fsck -fn {device} >&2; mount {device} {AT}; for file in {AT}/file*; do cmp {NOISE} $file; done; umount {AT}; \
         ! dmesg | grep -iE 'I/O error|corrupt|blocked for more than|page allocation failure|CONSTRAINT_NONE'"
    ))
    .map(drop)
}
