//! An orderly shutdown like that of systemd-shutdown(8) after systemd has executed it: the same name, the
//! same signals, then the file systems. The earlier phase of systemd (stopping units, some of them
//! concurrently) is not covered.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

use super::{power_off, print_console};

/// Name of process 1 during the shutdown.
const NAME: &str = "systemd-shutdow";
/// Time for processes to exit after SIGTERM, and then after SIGKILL.
const TERM_LIMIT: Duration = Duration::from_secs(60);
const KILL_LIMIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(100);

/// Powers the machine off.
///
/// # Errors
/// If the kernel rejects it.
pub(super) fn run() -> Result<()> {
    let own = "/proc/self/task/1/comm";
    fs::write(own, NAME).with_context(|| format!("write {own}"))?;
    for (signal, limit) in [(Signal::TERM, TERM_LIMIT), (Signal::KILL, KILL_LIMIT)] {
        for process in processes()? {
            // It may have exited.
            kill_process(process, signal).ok();
        }
        let begun = Instant::now();
        while !processes()?.is_empty() && begun.elapsed() < limit {
            std::thread::sleep(POLL);
        }
        print_console(&format!(
            "{signal:?}: {} processes are left after {:?}",
            processes()?.len(),
            begun.elapsed()
        ));
    }
    let mounts = fs::read_to_string("/proc/self/mounts").context("read the mounts")?;
    for mount in mounts.lines().rev().filter(|mount| mount.starts_with("/dev/ublkb")) {
        let target = mount.split(' ').nth(1).context("a mount has a path")?;
        print_console(&format!("unmount {target}: {:?}", unmount(target, UnmountFlags::empty())));
    }
    power_off()
}

/// Returns all processes except process 1 and the kernel's, which have no command line.
fn processes() -> Result<Vec<Pid>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("read /proc")? {
        let entry = entry.context("read /proc")?;
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        // A process that has exited in the meantime has none either.
        let is_program = fs::read(entry.path().join("cmdline")).is_ok_and(|line| !line.is_empty());
        found.extend(pid.filter(|pid| !pid.is_init() && is_program));
    }
    Ok(found)
}
