//! The named scenarios, which `cargo e2e test` runs after the host's own tests.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::pins::{KERNEL, KernelPin, LTS_KERNEL};
use holdfast_lab::world::World;

mod adoption;
mod api_outage;
mod api_rules;
mod autoscaler;
mod cache_disk;
mod changed_blocks;
pub mod chaos;
mod chart;
mod claims_without_ublk;
pub mod cluster;
mod control_plane;
mod cordon;
mod counts;
mod csi_controller;
pub mod csi_node;
pub mod csi_sanity;
mod damage;
mod device_identity;
pub mod drain;
mod failover;
mod fenced;
mod group_snapshots;
mod guards;
mod held_requests;
pub mod host_daemons;
mod host_shutdown;
mod images;
mod keeper;
pub mod kill_rounds;
mod limits;
mod load;
mod memory_claims;
mod memory_pressure;
pub mod memory_volumes;
pub mod node_loss;
mod object;
mod partition;
mod pid_namespace;
mod plugin;
pub mod power_cuts;
mod preflight;
pub mod provisioning;
mod read_only_many;
pub mod restore;
pub mod rotation;
mod s3;
mod s3_faults;
pub mod s3_outage;
mod seaweedfs;
mod smoke;
mod snapshots;
mod standalone;
pub mod store_dialects;
pub mod story;
mod top;
mod traces;
mod truncation;
mod ublk;
mod velero;
pub mod volume_snapshots;
mod volumes;
pub mod without_ublk;

/// A behavior visible to users, tested with real components.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// Name on the command line.
    pub name: &'static str,
    /// The property that holds when it passes.
    pub about: &'static str,
    /// Expected time on two quiet cores, without the setup of the host.
    pub expected: Duration,
    /// True if it must run alone. `chaos` has few seconds between kills. `s3-outage` measures rates and
    /// checks the reported state immediately after its outage. `kill-rounds-*` use two cores to the end.
    /// `cluster` and `failover` have the time limits of a kubelet.
    pub alone: bool,
    /// Plays it in a separate world.
    pub run: fn(&World) -> Result<()>,
}

/// Ratio of a scenario's time limit to its expected time: machines are slow on a busy host.
const LIMIT_FACTOR: u32 = 10;
/// Minimum time limit: each of a few boots may take as long as a whole scenario on a quiet host.
const MIN_LIMIT: Duration = Duration::from_secs(600);

impl Scenario {
    /// Returns the time limit, without the setup of the host.
    pub fn limit(&self) -> Duration {
        (self.expected * LIMIT_FACTOR).max(MIN_LIMIT)
    }
}

/// A scenario and the kernel of its machines. Its name, as in `kill-rounds-user-copy@6.12`, contains the
/// series of the kernel unless that is the default.
#[derive(Debug, Clone, Copy)]
pub struct Lane {
    /// The scenario.
    pub scenario: &'static Scenario,
    /// The kernel.
    pub kernel: KernelPin,
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.scenario.name)?;
        if self.kernel == KERNEL { Ok(()) } else { write!(f, "@{}", self.kernel.series()) }
    }
}

/// Scenarios that run on this kernel, too, in a run without a filter.
const ALSO_ON: &[(&str, KernelPin)] = &[("ublk-devices", LTS_KERNEL), ("ublk-user-copy", LTS_KERNEL)];
/// Scenarios that run on this kernel without a filter, because the default one has a faster transport.
const INSTEAD_ON: &[(&str, KernelPin)] = &[("kill-rounds-user-copy", LTS_KERNEL)];

/// Returns the lanes of a run without a filter, in order.
pub fn usual_lanes() -> Vec<Lane> {
    let on = |lanes: &'static [(&str, KernelPin)], scenario: &Scenario| {
        lanes.iter().find(|(name, _)| *name == scenario.name).map(|(_, kernel)| *kernel)
    };
    let usual =
        ALL.iter().map(|scenario| Lane { scenario, kernel: on(INSTEAD_ON, scenario).unwrap_or(KERNEL) });
    let also = ALL.iter().filter_map(|scenario| Some(Lane { scenario, kernel: on(ALSO_ON, scenario)? }));
    usual.chain(also).collect()
}

/// Returns the lanes selected by a part of a name: among those of a run without a filter, and every scenario
/// on the default kernel; or, with `@` and the series of a kernel after the part, every scenario on that
/// kernel.
///
/// # Errors
/// If no kernel of that series is pinned.
pub fn lanes(filter: &str) -> Result<Vec<Lane>> {
    let Some((part, series)) = filter.split_once('@') else {
        let on_usual = ALL.iter().chain(BY_NAME).map(|scenario| Lane { scenario, kernel: KERNEL });
        let on_others = usual_lanes().into_iter().filter(|lane| lane.kernel != KERNEL);
        let all = on_usual.chain(on_others);
        return ensure_some(filter, all.filter(|lane| lane.scenario.name.contains(filter)).collect());
    };
    let kernel = KernelPin::of(series)?;
    let all = ALL.iter().chain(BY_NAME).filter(|scenario| scenario.name.contains(part));
    let all = all.filter(|scenario| !part.is_empty() || !WITH_A_PROGRAM.contains(&scenario.name));
    ensure_some(filter, all.map(|scenario| Lane { scenario, kernel }).collect())
}

/// Returns these lanes, unless there are none: a wrong name must not look like a run without failures.
fn ensure_some(filter: &str, lanes: Vec<Lane>) -> Result<Vec<Lane>> {
    ensure!(!lanes.is_empty(), "no scenario has {filter:?} in its name: `cargo e2e list` shows them");
    Ok(lanes)
}

/// Returns the lane of this name.
///
/// # Errors
/// If it does not exist.
pub fn lane(name: &str) -> Result<Lane> {
    let found = lanes(name)?.into_iter().find(|lane| lane.to_string() == name);
    found.with_context(|| format!("no scenario {name:?}"))
}

/// All scenarios of a run without a filter, in order.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "smoke",
        about: "a test machine boots, uses ublk, survives a reset and powers itself off",
        expected: Duration::from_secs(15),
        alone: false,
        run: smoke::run,
    },
    Scenario {
        name: "s3",
        about: "the S3 server starts, records requests, and serves again after a stop and a freeze",
        expected: Duration::from_secs(2),
        alone: false,
        run: s3::run,
    },
    Scenario {
        name: "control-plane",
        about: "the Kubernetes API starts, enforces roles, and is reached from a test machine",
        expected: Duration::from_secs(10),
        alone: false,
        run: control_plane::run,
    },
    Scenario {
        name: "api-rules",
        about: "the API server accepts valid documents and rejects invalid ones, naming the field",
        expected: Duration::from_secs(20),
        alone: false,
        run: api_rules::run,
    },
    Scenario {
        name: "counts",
        about: "a request costs a ring thread no more instructions, allocations and system calls than its bar",
        expected: Duration::from_secs(50),
        alone: false,
        run: counts::run,
    },
    Scenario {
        name: "chart",
        about: "the chart passes helm's checks, and the API server accepts all rendered objects",
        expected: Duration::from_secs(18),
        alone: false,
        run: chart::run,
    },
    Scenario {
        name: "guards",
        about: "a node writes only its own part of its own volumes; objects that serve volumes cannot be deleted, and a second release is rejected",
        expected: Duration::from_secs(25),
        alone: false,
        run: guards::run,
    },
    Scenario {
        name: "images",
        about: "rebuilt OCI images are identical, and each program in them starts",
        expected: Duration::from_secs(35),
        alone: false,
        run: images::run,
    },
    Scenario {
        name: "provisioning",
        about: "a volume is created with one PUT and deleted again; unfit stores are reported with field and fix",
        expected: Duration::from_secs(25),
        alone: false,
        run: provisioning::run,
    },
    Scenario {
        name: "store-dialects",
        about: "for servers and providers whose S3 differs, preflight and the ObjectStore report cause and fix; everything recovers within 30 s",
        expected: Duration::from_secs(60),
        alone: false,
        run: store_dialects::run,
    },
    Scenario {
        name: "api-outage",
        about: "while the API server is unresponsive or gone, volumes are served and uploaded, and a daemon is killed or replaced; afterwards everything continues, and no node was cut off",
        expected: Duration::from_secs(90),
        alone: false,
        run: api_outage::run,
    },
    Scenario {
        name: "adoption",
        about: "a Volume that was saved, deleted and reapplied has its data; data of another Volume is never overwritten or removed, and is adopted only on request",
        expected: Duration::from_secs(40),
        alone: false,
        run: adoption::run,
    },
    Scenario {
        name: "csi-controller",
        about: "the CSI controller creates, publishes, unpublishes, expands, modifies and deletes volumes, despite crashes of itself and of the operator",
        expected: Duration::from_secs(40),
        alone: false,
        run: csi_controller::run,
    },
    Scenario {
        name: "changed-blocks",
        about: "backup programs get the blocks of a snapshot and the blocks changed between two, also for a volume created from another one's snapshot, and after an outage of the store",
        expected: Duration::from_secs(60),
        alone: false,
        run: changed_blocks::run,
    },
    Scenario {
        name: "chaos",
        about: "100 concurrent claims get volumes and are deleted while operator and CSI controller are killed every 5 s; nothing is left behind",
        expected: Duration::from_secs(60),
        alone: true,
        run: chaos::run,
    },
    Scenario {
        name: "ublk-devices",
        about: "the device tests of node/ublk pass on a kernel with the driver",
        expected: Duration::from_secs(60),
        alone: false,
        run: ublk::device_tests,
    },
    Scenario {
        name: "ublk-zero-copy",
        about: "a device served with zero copy keeps its data under load while its server is killed",
        expected: Duration::from_secs(30),
        alone: false,
        run: ublk::zero_copy,
    },
    Scenario {
        name: "ublk-user-copy",
        about: "the same with user copy",
        expected: Duration::from_secs(40),
        alone: false,
        run: ublk::user_copy,
    },
    Scenario {
        name: "ublk-kernel-copy",
        about: "the same with kernel copy",
        expected: Duration::from_secs(40),
        alone: false,
        run: ublk::kernel_copy,
    },
    Scenario {
        name: "ublk-many",
        about: "70 devices are served by as many threads as one, and again after a kill",
        expected: Duration::from_secs(50),
        alone: false,
        run: ublk::serve_many,
    },
    Scenario {
        name: "standalone-zero-copy",
        about: "a volume of the command line survives kills under load, even if its device is held; it grows, changes its settings, and moves to another node",
        expected: Duration::from_secs(80),
        alone: false,
        run: standalone::zero_copy,
    },
    Scenario {
        name: "limits",
        about: "limits of IOPS and throughput hold within 5 %, are changed and removed under load, outlive kills and restarts, and keep a busy volume from slowing down a quiet one",
        expected: Duration::from_secs(150),
        alone: false,
        run: limits::run,
    },
    Scenario {
        name: "memory-volumes",
        about: "memory volumes survive kills, a restart and a handoff under load with every page correct, in memory or spilled; a full one fails writes and loses nothing; a detach leaves nothing behind",
        expected: Duration::from_secs(120),
        alone: false,
        run: memory_volumes::run,
    },
    Scenario {
        name: "memory-claims",
        about: "claims of memory volumes without an object store: capacity of the node, a restarted daemon, a restarted host with a reported loss, pages on the disk, rejections, and nothing left behind",
        expected: Duration::from_secs(120),
        alone: false,
        run: memory_claims::run,
    },
    Scenario {
        name: "snapshots",
        about: "snapshots are taken under load and of a detached volume, listed and deleted; each rejection names the fix",
        expected: Duration::from_secs(90),
        alone: false,
        run: snapshots::run,
    },
    Scenario {
        name: "volume-snapshots",
        about: "VolumeSnapshots are taken exactly once, despite crashes and an outage; Volumes are created from them on another node; deleted, they leave nothing behind",
        expected: Duration::from_secs(120),
        alone: false,
        run: volume_snapshots::run,
    },
    Scenario {
        name: "group-snapshots",
        about: "snapshots of Volumes on two nodes with alternating writes have one common point; a dead daemon and an outage delay no write",
        expected: Duration::from_secs(100),
        alone: false,
        run: group_snapshots::run,
    },
    Scenario {
        name: "pid-namespace",
        about: "a daemon in a separate PID namespace attaches a volume, and the next one recovers it under load",
        expected: Duration::from_secs(60),
        alone: false,
        run: pid_namespace::run,
    },
    Scenario {
        name: "preflight",
        about: "a fit node passes preflight, and each fault of an unfit one is reported with its fix; preflight leaves no file, object or Pod behind, however it ends",
        expected: Duration::from_secs(60),
        alone: false,
        run: preflight::run,
    },
    Scenario {
        name: "device-identity",
        about: "a volume keeps its own device when numbers are reused, daemons die, and a detach races an attach",
        expected: Duration::from_secs(80),
        alone: false,
        run: device_identity::run,
    },
    Scenario {
        name: "damage",
        about: "a corrupted byte is reported and never served; a scrub finds it and repairs it from the node's copy",
        expected: Duration::from_secs(60),
        alone: false,
        run: damage::run,
    },
    Scenario {
        name: "csi-node",
        about: "claims are formatted, mounted, expanded and modified in use, read on another node and deleted, despite kills; unknown data is never formatted",
        expected: Duration::from_secs(120),
        alone: false,
        run: csi_node::run,
    },
    Scenario {
        name: "read-only-many",
        about: "two nodes read one claim (ReadOnlyMany) created from a snapshot of one in use, despite kills; it leaves nothing behind",
        expected: Duration::from_secs(100),
        alone: false,
        run: read_only_many::run,
    },
    Scenario {
        name: "traces",
        about: "one trace goes from the creation of a claim over all programs to its first write in the store",
        expected: Duration::from_secs(50),
        alone: false,
        run: traces::run,
    },
    Scenario {
        name: "csi-sanity",
        about: "the CSI project's own tests pass on real devices",
        expected: Duration::from_secs(150),
        alone: false,
        run: csi_sanity::run,
    },
    Scenario {
        name: "fenced",
        about: "data that a replaced writer never uploaded is preserved, listed, exported to a file and deleted only on request",
        expected: Duration::from_secs(60),
        alone: false,
        run: fenced::run,
    },
    Scenario {
        name: "truncation",
        about: "a log is truncated while a replaced writer and a late one are paused; neither damages the volume",
        expected: Duration::from_secs(60),
        alone: false,
        run: truncation::run,
    },
    Scenario {
        name: "node-loss",
        about: "a lost node's volume continues elsewhere as a prefix; what is missing is reported, preserved on the node, exported",
        expected: Duration::from_secs(130),
        alone: false,
        run: node_loss::run,
    },
    Scenario {
        name: "partition",
        about: "a node that lost only the API server continues to write until its volumes are served elsewhere; each acknowledged write is there, or preserved on the node",
        expected: Duration::from_secs(110),
        alone: false,
        run: partition::run,
    },
    Scenario {
        name: "restore",
        about: "a new cluster restores the volumes and claims of an existing bucket, with their bytes; an attached writer is replaced only by name",
        expected: Duration::from_secs(120),
        alone: false,
        run: restore::run,
    },
    Scenario {
        name: "top",
        about: "the plugin shows the rates of a node's volumes, from its daemon's metrics through the API server; an unresponsive node is named",
        expected: Duration::from_secs(40),
        alone: false,
        run: top::run,
    },
    Scenario {
        name: "rotation",
        about: "the bucket's key is revoked under load; with the new one in the Secret uploads resume within 90 s, and no request fails",
        expected: Duration::from_secs(90),
        alone: false,
        run: rotation::run,
    },
    Scenario {
        name: "s3-faults",
        about: "a store that is slow, resets, throttles, loses answers or is silent loses nothing and duplicates nothing",
        expected: Duration::from_secs(120),
        alone: false,
        run: s3_faults::run,
    },
    Scenario {
        name: "s3-outage",
        about: "while the store is unreachable nothing fails, writes wait at the quota, and the Volumes report it; afterwards everything catches up, without a herd",
        expected: Duration::from_secs(170),
        alone: true,
        run: s3_outage::run,
    },
    Scenario {
        name: "held-requests-zero-copy",
        about: "forced writes that wait for the store occupy all requests of their device: no other volume waits, and daemons are replaced",
        expected: Duration::from_secs(60),
        alone: false,
        run: held_requests::zero_copy,
    },
    Scenario {
        name: "memory-pressure-zero-copy",
        about: "programs and the daemon share a control group at its memory limit, full of dirty pages of a device, and the daemon is killed at its own limit; nothing hangs, and no program gets an error",
        expected: Duration::from_secs(90),
        alone: false,
        run: memory_pressure::zero_copy,
    },
    Scenario {
        name: "drain",
        about: "the dirty backlog of an outage is uploaded within a memory limit of 512 MiB",
        expected: Duration::from_secs(150),
        alone: false,
        run: drain::run,
    },
    Scenario {
        name: "cordon",
        about: "a Node that is cordoned or tainted for its removal commits soon, and as usual once it is in service again",
        expected: Duration::from_secs(60),
        alone: false,
        run: cordon::run,
    },
    Scenario {
        name: "host-shutdown",
        about: "an orderly shutdown completes with volumes mounted under load and a flush that waits for the store; no flushed data is lost",
        expected: Duration::from_secs(120),
        alone: false,
        run: host_shutdown::run,
    },
    Scenario {
        name: "host-daemons",
        about: "on a node with systemd, udev, LVM, md, multipath and btrfs the host reads no volume by itself; attaches, detaches and daemon exits hang nothing, and each holder is named",
        expected: Duration::from_secs(90),
        alone: false,
        run: host_daemons::run,
    },
    Scenario {
        name: "cache-disk",
        about: "a full disk delays writes, a disk that cannot read or flush is reported, and nothing is lost",
        expected: Duration::from_secs(70),
        alone: false,
        run: cache_disk::run,
    },
    Scenario {
        name: "power-cuts",
        about: "power cuts that lose unflushed writes lose no flushed data, and no stale data is served",
        expected: Duration::from_secs(120),
        alone: false,
        run: power_cuts::run,
    },
    Scenario {
        name: "kill-rounds-zero-copy",
        about: "the daemon is ended repeatedly under three file systems and forced writes; no device hangs, no file is lost",
        expected: Duration::from_secs(120),
        alone: true,
        run: kill_rounds::zero_copy,
    },
    Scenario {
        name: "kill-rounds-user-copy",
        about: "the same with user copy",
        expected: Duration::from_secs(120),
        alone: true,
        run: kill_rounds::user_copy,
    },
    Scenario {
        name: "without-ublk",
        about: "a node without ublk serves a volume by FUSE despite kills of daemon and keeper under load; a node with ublk reads it",
        expected: Duration::from_secs(90),
        alone: false,
        run: without_ublk::run,
    },
    Scenario {
        name: "story-zero-copy",
        about: "volumes of the Kubernetes API are served, survive kills and a reset, move, and are deleted",
        expected: Duration::from_secs(100),
        alone: false,
        run: story::zero_copy,
    },
];

/// Scenarios that run only by name or in rotation: they, or their prerequisites, take long.
pub const BY_NAME: &[Scenario] = &[
    Scenario {
        name: "cluster",
        about: "the chart runs under a real kubelet and passes its own test; a claim is written by one pod, read by the next, and deleted with its data; a pod writes while the daemon is rolled and evicted, and while a bad image is rolled out; the plugin shows these writes, and restores a Volume",
        expected: Duration::from_secs(400),
        alone: true,
        run: cluster::run,
    },
    Scenario {
        name: "failover",
        about: "the node of a StatefulSet, of the operator and of the CSI controller loses its power: once it is out of service, its pods continue on the other node with a prefix of the written data, the claim reports data that may be missing, and the returned node serves nothing; a drain loses nothing",
        expected: Duration::from_secs(600),
        alone: true,
        run: failover::run,
    },
    Scenario {
        name: "autoscaler",
        about: "the real cluster-autoscaler, named by HOLDFAST_CLUSTER_AUTOSCALER, creates nodes from zero for pods with claims as documented, and none in vain for a memory volume; a node that it removes commits its pod's writes",
        expected: Duration::from_secs(200),
        alone: false,
        run: autoscaler::run,
    },
    Scenario {
        name: "claims-without-ublk",
        about: "claims on a node without ublk: daemon and keeper are killed and replaced under load, the claim grows in use and moves to a node with ublk and back",
        expected: Duration::from_secs(200),
        alone: false,
        run: claims_without_ublk::run,
    },
    Scenario {
        name: "seaweedfs",
        about: "a second real S3 server passes the conformance suite, and serves a volume as in `standalone-zero-copy`",
        expected: Duration::from_secs(120),
        alone: false,
        run: seaweedfs::run,
    },
    Scenario {
        name: "velero",
        about: "Velero backs up two claims by CSI snapshots, and restores them after their namespace, then after their cluster is lost; the deletion of each backup removes its snapshots, and nothing that a claim reads",
        expected: Duration::from_secs(240),
        alone: false,
        run: velero::run,
    },
    Scenario {
        name: "kill-rounds-fuse",
        about: "the daemon is ended repeatedly, as in `kill-rounds-zero-copy`, on a machine without ublk, with FUSE and a loop device",
        expected: Duration::from_secs(240),
        alone: true,
        run: kill_rounds::fuse,
    },
    Scenario {
        name: "held-requests-user-copy",
        about: "the same as `held-requests-zero-copy`, with user copy",
        expected: Duration::from_secs(60),
        alone: false,
        run: held_requests::user_copy,
    },
    Scenario {
        name: "memory-pressure-user-copy",
        about: "the same as `memory-pressure-zero-copy`, with user copy",
        expected: Duration::from_secs(90),
        alone: false,
        run: memory_pressure::user_copy,
    },
    Scenario {
        name: "memory-pressure-fuse",
        about: "the same as `memory-pressure-zero-copy`, on a machine without ublk, with FUSE and a loop device",
        expected: Duration::from_secs(90),
        alone: false,
        run: memory_pressure::fuse,
    },
    Scenario {
        name: "standalone-user-copy",
        about: "the same as `standalone-zero-copy`, with user copy",
        expected: Duration::from_secs(75),
        alone: false,
        run: standalone::user_copy,
    },
    Scenario {
        name: "csi-sanity-fuse",
        about: "the same as `csi-sanity`, on a node without ublk",
        expected: Duration::from_secs(180),
        alone: false,
        run: csi_sanity::fuse,
    },
    Scenario {
        name: "story-fuse",
        about: "the same as `story-zero-copy`, on nodes without ublk",
        expected: Duration::from_secs(150),
        alone: false,
        run: story::fuse,
    },
    Scenario {
        name: "story-user-copy",
        about: "the same as `story-zero-copy`, with user copy",
        expected: Duration::from_secs(100),
        alone: false,
        run: story::user_copy,
    },
];

/// Lanes that alternate in runs without a filter, one per day: together they would take too long.
/// docs/testing.md has the date of each one's last success.
pub const IN_TURN: &[&str] = &[
    "ublk-many@6.12",
    "device-identity@6.12",
    "host-shutdown@6.12",
    "cluster",
    "standalone-user-copy@6.12",
    "kill-rounds-user-copy",
    "kill-rounds-fuse",
    "host-daemons@6.12",
    "failover",
    "held-requests-user-copy@6.12",
    "kill-rounds-zero-copy@7.2",
    "story-user-copy@6.12",
    "ublk-zero-copy@7.2",
    "without-ublk@6.12",
    "seaweedfs",
    "velero",
    "claims-without-ublk",
    "story-user-copy",
    "held-requests-user-copy",
    "memory-pressure-user-copy",
    "memory-pressure-fuse",
    "memory-volumes@6.12",
    "standalone-user-copy",
    "csi-sanity-fuse",
    "story-fuse",
];

/// Scenarios of a run without a filter that start only while its time permits, except for a different one
/// each day, which always runs: simulations, tests of the workspace or another lane cover much of each. Their
/// number is prime, so that weekly runs play each of them, too.
const IF_TIME_ALLOWS: &[&str] = &[
    "adoption",
    "api-outage",
    "cache-disk",
    "changed-blocks",
    "cordon",
    "damage",
    "device-identity",
    "fenced",
    "group-snapshots",
    "limits",
    "memory-pressure-zero-copy",
    "node-loss",
    "partition",
    "pid-namespace",
    "provisioning",
    "read-only-many",
    "restore",
    "rotation",
    "store-dialects",
    "traces",
    "truncation",
    "ublk-kernel-copy",
    "ublk-many",
];

/// Returns the position of a lane among those that start only while the time of a run permits, on this day
/// since 1970; `None` for a lane of every run.
pub fn day_order(lane: &Lane, day: u64) -> Option<u64> {
    let place = IF_TIME_ALLOWS.iter().position(|name| **name == lane.to_string())? as u64;
    let all = IF_TIME_ALLOWS.len() as u64;
    Some((place + all - day % all) % all)
}

/// Scenarios outside the rotation: each needs a program that the lab cannot build, and fails without it.
pub const WITH_A_PROGRAM: &[&str] = &["autoscaler"];

/// Returns the lane of the rotation for this day, counted from 1970.
///
/// # Errors
/// If the list names one that does not exist.
pub fn rotation_lane(day: u64) -> Result<Lane> {
    let place = day % IN_TURN.len() as u64;
    lane(IN_TURN[place as usize])
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_lab::pins::OLDER_KERNEL;

    #[test]
    fn each_rotating_lane_has_its_day() {
        let usual: Vec<String> = usual_lanes().iter().map(Lane::to_string).collect();
        let days: Vec<String> =
            (0..IN_TURN.len() as u64).map(|day| rotation_lane(20_000 + day).unwrap().to_string()).collect();
        assert!(IN_TURN.iter().all(|name| days.iter().any(|day| day == name)), "{days:?}");
        assert!(days.iter().all(|name| !usual.contains(name)), "one runs twice: {days:?}");
        let others: Vec<&str> = BY_NAME.iter().map(|scenario| scenario.name).collect();
        assert!(others.iter().all(|name| IN_TURN.contains(name) != WITH_A_PROGRAM.contains(name)));
        assert!(WITH_A_PROGRAM.iter().all(|name| others.contains(name)));
    }

    #[test]
    fn each_postponable_lane_comes_first_on_one_day() {
        let usual = usual_lanes();
        let all = IF_TIME_ALLOWS.len() as u64;
        assert!((2..all).all(|number| !all.is_multiple_of(number)), "{all} is not prime");
        let first = |day| {
            let places = usual.iter().filter_map(|lane| Some((day_order(lane, day)?, lane)));
            let mut places: Vec<(u64, String)> =
                places.map(|(place, lane)| (place, lane.to_string())).collect();
            places.sort_unstable();
            assert!(places.iter().map(|(place, _)| *place).eq(0..all), "{places:?}");
            places.remove(0).1
        };
        let mut days: Vec<String> = (0..all).map(|day| first(20_000 + day)).collect();
        days.sort_unstable();
        assert_eq!(days, IF_TIME_ALLOWS);
        assert!(!usual.iter().any(|lane| lane.scenario.alone && day_order(lane, 0).is_some()));
    }

    #[test]
    fn each_additional_lane_is_found_by_its_name() {
        let usual = usual_lanes();
        assert_eq!(usual.len(), ALL.len() + ALSO_ON.len());
        for each in usual {
            let found = lane(&each.to_string()).unwrap();
            assert_eq!((found.scenario.name, found.kernel), (each.scenario.name, each.kernel));
        }
    }

    #[test]
    fn a_filter_chooses_by_name_and_by_kernel() {
        let names = |filter| lanes(filter).unwrap().iter().map(Lane::to_string).collect::<Vec<_>>();
        assert_eq!(names("ublk-devices"), ["ublk-devices", "ublk-devices@6.12"]);
        assert_eq!(names("ublk-devices@7.2"), ["ublk-devices@7.2"]);
        assert_eq!(names("rounds-user"), ["kill-rounds-user-copy", "kill-rounds-user-copy@6.12"]);
        assert_eq!(names("failover"), ["failover"]);
        assert_eq!(names("@7.2").len(), ALL.len() + BY_NAME.len() - WITH_A_PROGRAM.len());
        assert_eq!(lanes("story@7.2").unwrap()[0].kernel, OLDER_KERNEL);
        let refused = lanes("story@5.10").unwrap_err().to_string();
        assert_eq!(refused, "no kernel \"5.10\"; there are 7.3, 7.2, 6.12");
    }
}
