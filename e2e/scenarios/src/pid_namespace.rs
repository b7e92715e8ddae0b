//! The node daemon in a separate PID namespace, as in a pod without `hostPID`: the kernel compares the pid
//! named by a server with the one that it sees itself.

use std::time::Duration;

use anyhow::{Result, ensure};
use holdfast_lab::node::{ControlInterface, NodeDaemon};
use holdfast_lab::world::World;

use super::load::Load;

const BUCKET: &str = "pids";
/// Maximum run time of fio, in seconds of the machine's time.
const LOAD_SECONDS: u32 = 300;
const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let node =
        NodeDaemon::start_in_pid_namespace(world.vm("a")?, &ControlInterface::standalone(&s3, BUCKET))?;
    let pids = node.vm().exec("readlink /proc/self/ns/pid /proc/$(pgrep -x holdfast-node)/ns/pid")?;
    let (own, daemons) = pids.trim().split_once('\n').unwrap_or_default();
    ensure!(!daemons.is_empty() && own != daemons, "the daemon has no PID namespace of its own: {pids}");
    every_thread_is_an_io_flusher(&node)?;

    node.cli(&["create", "disk", "--size", "256Mi", "--store", "store"])?;
    let device = node.cli(&["attach", "disk", "--store", "store"])?.trim().to_owned();
    node.vm().wait_block_device(&device, LIMIT)?;
    let load = Load::start(node.vm(), &device, LOAD_SECONDS)?;
    node.kill()?;
    node.restart()?;
    load.wait_progress()?;
    load.stop()?;
    node.cli(&["detach", "disk"])?;
    Ok(())
}

/// An unmarked thread may wait, when memory is short, for a device that its own process serves.
fn every_thread_is_an_io_flusher(node: &NodeDaemon) -> Result<()> {
    // `PF_MEMALLOC_NOIO` in the flags of `stat`, which `PR_SET_IO_FLUSHER` sets.
    let script = "cd /proc/$(pgrep -x holdfast-node)/task; for task in *; do \
                  set -- $(sed 's/.*) //' $task/stat); \
                  (( $7 & 0x80000 )) && echo marked || echo $task $(cat $task/comm); done | sort | uniq -c";
    let threads = node.vm().exec(script)?;
    ensure!(threads.lines().count() == 1 && threads.contains("marked"), "threads of the daemon: {threads}");
    Ok(())
}
