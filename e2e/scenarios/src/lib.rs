//! The named scenarios, which `cargo e2e test` runs after the host's own tests.

use std::time::Duration;

use anyhow::Result;
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
mod lane;
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
mod stalled_disk;
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

pub use lane::{IN_TURN, ScenarioLane, WITH_A_PROGRAM, day_order, lane, lanes, rotation_lane, usual_lanes};

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
        name: "stalled-disk-user-copy",
        about: "the disk stalls while the daemon is killed: the next one waits for the late write, which overwrites no newer one",
        expected: Duration::from_secs(40),
        alone: false,
        run: stalled_disk::user_copy,
    },
    Scenario {
        name: "stalled-disk-zero-copy",
        about: "the same as `stalled-disk-user-copy`, with zero copy",
        expected: Duration::from_secs(40),
        alone: false,
        run: stalled_disk::zero_copy,
    },
    Scenario {
        name: "stalled-disk-fuse",
        about: "the same as `stalled-disk-user-copy`, without ublk",
        expected: Duration::from_secs(40),
        alone: false,
        run: stalled_disk::fuse,
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
