//! Memory: the daemon's limits, and the setting that keeps its threads from waiting for their own devices.

use std::fs;
use std::io;
use std::path::Path;

use super::{Check, about};
use crate::node::{INDEX_CACHE_BYTES, NodeConfig};

const CONTROL_GROUPS: &str = "/sys/fs/cgroup";

/// Memory, in bytes; `None` if the kernel does not report it.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemoryFacts {
    /// The daemon's own limits: uploads, segment indexes and memory volumes.
    pub(super) needed: u64,
    /// The lowest limit of this process's control groups.
    pub(super) limit: Option<u64>,
    /// Total memory of the host.
    pub(super) total: Option<u64>,
    /// Memory currently available to programs.
    pub(super) available: Option<u64>,
}

impl MemoryFacts {
    pub(super) fn observe(node: &NodeConfig) -> Self {
        let host = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self {
            needed: node.upload_memory_bytes + INDEX_CACHE_BYTES + node.memory_volumes_bytes,
            limit: limit(Path::new(CONTROL_GROUPS), &own),
            total: figure(&host, "MemTotal:"),
            available: figure(&host, "MemAvailable:"),
        }
    }
}

/// Returns a figure of /proc/meminfo.
fn figure(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Returns the lowest `memory.max` from the process's control group (version 2) up to the root.
fn limit(root: &Path, own: &str) -> Option<u64> {
    let group = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let group = root.join(group);
    let above = group.ancestors().take_while(|group| group.starts_with(root));
    let limits = above.filter_map(|group| fs::read_to_string(group.join("memory.max")).ok());
    limits.filter_map(|limit| limit.trim().parse().ok()).min()
}

pub(super) fn check(facts: &MemoryFacts) -> Check {
    const NAME: &str = "memory";
    let MemoryFacts { needed, limit, total, available } = *facts;
    let most = limit.into_iter().chain(total).min();
    let need = about(needed);
    if let Some(most) = most.filter(|most| *most < needed) {
        let found = format!(
            "the daemon may use {need} for uploads, indexes and memory volumes, but its limit is {}. The kernel \
             kills it at the limit",
            about(most)
        );
        return Check::fail(
            NAME,
            found,
            "lower data.upload_memory or data.memory_volumes, or raise the limit of memory",
        );
    }
    match available {
        Some(available) if available < needed => {
            let found = format!(
                "the daemon may use {need} for uploads, indexes and memory volumes, but only {} are available now",
                about(available)
            );
            Check::warn(
                NAME,
                found,
                "lower data.upload_memory or data.memory_volumes, or move other programs",
            )
        }
        Some(available) => Check::pass(NAME, format!("{need} of {} that are available", about(available))),
        None => Check::pass(NAME, format!("{need} for uploads, indexes and memory volumes")),
    }
}

/// Checks the result of the daemon's first call.
pub(super) fn check_io_flusher(marked: io::Result<()>) -> Check {
    const NAME: &str = "memory reclaim";
    match marked {
        Ok(()) => Check::pass(NAME, "does not wait for the daemon's own devices (PR_SET_IO_FLUSHER)"),
        Err(error) => {
            let found = format!(
                "PR_SET_IO_FLUSHER failed ({error}). A node that is short of memory may wait for its own devices"
            );
            Check::warn(NAME, found, "grant CAP_SYS_RESOURCE (in a pod: privileged)")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_above_a_process_counts() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("system.slice/holdfast.service");
        fs::create_dir_all(&group).unwrap();
        let limit = || limit(root.path(), "1:name=x:/other\n0::/system.slice/holdfast.service\n");
        assert_eq!(limit(), None);
        fs::write(group.join("memory.max"), "max\n").unwrap();
        assert_eq!(limit(), None);
        fs::write(root.path().join("system.slice/memory.max"), "1048576\n").unwrap();
        assert_eq!(limit(), Some(1 << 20));
        fs::write(group.join("memory.max"), "4096\n").unwrap();
        assert_eq!(limit(), Some(4096));
    }

    #[test]
    fn figures_of_the_host_are_in_bytes() {
        let meminfo = "MemTotal:        8000 kB\nMemAvailable:    4000 kB\n";
        assert_eq!(figure(meminfo, "MemTotal:"), Some(8000 << 10));
        assert_eq!(figure(meminfo, "SwapTotal:"), None);
    }
}
