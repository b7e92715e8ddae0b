//! Dirty data of an outage is uploaded by the daemon that accepted it, within the memory limit of its cgroup.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::node::{ControlInterface, NodeDaemon};
use holdfast_lab::report;
use holdfast_lab::vm::bash;
use holdfast_lab::wait::until;
use holdfast_lab::wire::Exit;
use holdfast_lab::world::World;

const BUCKET: &str = "drain";
const NAME: &str = "disk";
const DATA: &str = "slab_size = \"64Mi\"\nmax_dirty = \"8Gi\"";
/// Memory that the daemon may use, in MiB: `MemoryMax=` of a unit.
pub const MEMORY_MIB: u64 = 512;
/// Dirty bytes of the scenario, in MiB.
const LITTLE_MIB: u64 = 768;
/// Incompressible noise, written repeatedly, in MiB.
const NOISE_MIB: u64 = 64;
const CGROUP: &str = "/sys/fs/cgroup/node";
const LIMIT: Duration = Duration::from_secs(60);
const DRAIN_LIMIT: Duration = Duration::from_secs(3600);

pub(super) fn run(world: &World) -> Result<()> {
    let peak_mib = drain(world, LITTLE_MIB)?;
    ensure!(peak_mib <= MEMORY_MIB as f64, "the daemon used {peak_mib} MiB");
    Ok(())
}

/// Writes `dirty_mib` while the store is unreachable, and waits for their upload afterwards. Returns the peak
/// of the daemon's resident memory, in MiB.
///
/// # Errors
/// If the daemon exits, or not all data is uploaded.
pub fn drain(world: &World, dirty_mib: u64) -> Result<f64> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let node = NodeDaemon::start(world.vm("a")?, &ControlInterface::standalone(&s3, BUCKET), "auto", DATA)?;
    let vm = node.vm();
    let pid = confine(&node)?;
    node.cli(&["create", NAME, "--size", &format!("{dirty_mib}Mi"), "--store", "store"])?;
    let device = node.cli(&["attach", NAME, "--store", "store"])?.trim().to_owned();
    vm.wait_block_device(&device, LIMIT)?;

    report::step(format_args!("the store becomes unreachable, and {dirty_mib} MiB are written"));
    s3.stop();
    vm.spawn(
        "write",
        &bash(&format!(
            "head -c {NOISE_MIB}M /dev/urandom > /tmp/noise; \
             for at in $(seq 0 {NOISE_MIB} {}); do \
               dd if=/tmp/noise of={device} bs=1M seek=$at oflag=direct conv=notrunc status=none || exit 1; \
             done; exec sync {device}",
            dirty_mib - 1
        )),
    )?;
    let exit = vm.wait("write", DRAIN_LIMIT)?;
    ensure!(exit == Exit::Code(0), "the writer ended by {exit:?}: {}", vm.log("write")?);
    until("the figures to be shown", LIMIT, || {
        Ok((node.metric("holdfast_volume_dirty_bytes", NAME)? >= Some((dirty_mib << 20) as f64))
            .then_some(()))
    })?;

    report::step(format_args!("the store is back\n{}", memory(&node, &pid)?));
    s3.resume()?;
    until("everything to be uploaded", DRAIN_LIMIT, || {
        let ended = vm.status(holdfast_lab::node::PROGRAM)?;
        ensure!(
            ended.is_none(),
            "the daemon ended by {ended:?}\n{}",
            vm.exec(&format!("cat {CGROUP}/memory.events"))?
        );
        Ok((node.metric("holdfast_volume_dirty_bytes", NAME)? == Some(0.0)).then_some(()))
    })?;
    let output = memory(&node, &pid)?;
    report::step(&output);
    let peak_kib = output.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    let peak_kib: f64 = peak_kib.context("find VmHWM")?.trim().parse().context("read VmHWM")?;
    vm.exec(&format!("grep -x 'oom_kill 0' {CGROUP}/memory.events"))?;
    node.cli(&["detach", NAME])?;
    node.terminate()?;
    Ok(peak_kib / 1024.0)
}

/// Limits the memory of the daemon, including everything charged to it. Returns its pid.
fn confine(node: &NodeDaemon) -> Result<String> {
    let pid = node.vm().exec(&format!(
        "mount -t cgroup2 none /sys/fs/cgroup; echo +memory > /sys/fs/cgroup/cgroup.subtree_control; mkdir {CGROUP}; \
         echo {MEMORY_MIB}M > {CGROUP}/memory.max; pgrep -x holdfast-node | tee {CGROUP}/cgroup.procs"
    ))?;
    Ok(pid.trim().to_owned())
}

/// Returns the daemon's memory use, and its peak.
fn memory(node: &NodeDaemon, pid: &str) -> Result<String> {
    node.vm().exec(&format!(
        "grep -E '^(VmHWM|VmRSS|RssAnon|RssShmem|RssFile)' /proc/{pid}/status; cd {CGROUP}; \
         echo memory.current $(cat memory.current) memory.peak $(cat memory.peak); grep -E '^(anon|file|shmem) ' memory.stat"
    ))
}
