//! `StorageNode`: the capabilities and state of one node, written by its daemon.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Label of the Leases that running node daemons renew.
pub const HEARTBEAT_LABEL: &str = "storage.holdfast.dev/heartbeat";

/// Time without a renewal after which a node daemon counts as silent.
pub const HEARTBEAT_LIMIT: Duration = Duration::from_secs(40);

/// Returns the name of the Lease that the node's daemon renews.
pub fn heartbeat_lease(node: &str) -> String {
    format!("node-{node}")
}

/// One node that serves volumes. Its name is the node's name.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "storage.holdfast.dev",
    version = "v1alpha1",
    kind = "StorageNode",
    plural = "storagenodes",
    shortname = "hfnode",
    category = "holdfast",
    doc = "A node that serves volumes: its kernel, transports, capacity and daemon. Written by the node daemon.",
    status = "StorageNodeStatus",
    derive = "PartialEq",
    derive = "Default",
    validation = kube::core::Rule::new("self.metadata.name.size() <= 253")
        .message("metadata.name must be the name of a node"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(name = "Kernel", type_ = "string", json_path = ".status.kernelRelease"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.daemonVersion"),
    printcolumn(name = "Transport", type_ = "string", json_path = ".status.transport"),
    printcolumn(name = "Volumes", type_ = "integer", json_path = ".status.attachedVolumes"),
    printcolumn(name = "StateDir", type_ = "string", json_path = ".status.stateDir", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct StorageNodeSpec {}

/// Observed state of a node.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StorageNodeStatus {
    /// Release of the running kernel, as `uname -r` prints it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_release: Option<String>,
    /// Version of the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub daemon_version: Option<String>,
    /// Directory that holds the volumes' data files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_dir: Option<String>,
    /// Size of the filesystem under `stateDir`, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", range(min = 0))]
    pub capacity_bytes: Option<u64>,
    /// Free space of that filesystem, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", range(min = 0))]
    pub available_bytes: Option<u64>,
    /// Node memory for memory volumes. Absent: the node serves none (`node.memoryVolumes` of the chart is 0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryUse>,
    /// Number of volumes that the node serves now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i32>", range(min = 0))]
    pub attached_volumes: Option<u32>,
    /// Transport of new devices on this node: one of the names in `transports`. Absent: no transport is available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// Every transport the daemon knows, with the reason if it is unavailable on this node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = kube::core::ListMerge::Map(vec!["name".into()]))]
    pub transports: Vec<TransportSupport>,
    /// Data that fenced writers never uploaded, at most 64 entries; `holdfast-node fenced` on the node exports and deletes it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = kube::core::ListMerge::Map(vec!["name".into()]))]
    pub fenced: Vec<FencedData>,
    /// Number of entries omitted from `fenced`; `holdfast-node fenced list` on the node lists all. Absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i32>", range(min = 0))]
    pub fenced_unlisted: Option<u32>,
    /// The most recent handoff of devices from one daemon to another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_handoff: Option<Handoff>,
    /// `Ready`: the daemon runs and at least one transport is available. `SectorsAtomic`: the disk under `stateDir`
    /// guarantees that a power cut tears no 4096-byte sector of a volume. `KernelTeardownFixed`: the kernel is 7.1 or
    /// newer, without the known faults in the teardown of a ublk server. `Draining`: the Node is cordoned, or tainted by a
    /// program that removes nodes. `DevicesKept`, on a node without ublk: a keeper holds the connections that let the
    /// devices outlive the daemon.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = kube::core::ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

impl StorageNodeStatus {
    /// Returns true if new devices on the node use ublk; `None` while it creates none.
    pub fn makes_ublk_devices(&self) -> Option<bool> {
        self.transport.as_deref().map(|name| name != TransportName::FuseLoop.as_str())
    }
}

/// Node memory for memory volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemoryUse {
    /// Maximum memory of all memory volumes on the node together, in bytes.
    #[schemars(with = "i64", range(min = 0))]
    pub limit_bytes: u64,
    /// Maximum memory of the attached memory volumes, including their tables and buffers, in bytes.
    #[schemars(with = "i64", range(min = 0))]
    pub promised_bytes: u64,
    /// Memory in use by memory volumes, including their tables and buffers, in bytes.
    #[schemars(with = "i64", range(min = 0))]
    pub used_bytes: u64,
    /// Disk space on the node for spilled pages of memory volumes. Absent: the node has none (`node.memorySpill` of the
    /// chart is 0), or the daemon's release does not support spilling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spill: Option<SpillUse>,
}

/// Disk space on a node for spilled pages of memory volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SpillUse {
    /// Maximum size of the spill files of all memory volumes on the node together, in bytes: `node.memorySpill` of the
    /// chart, or less if the disk has less free space.
    #[schemars(with = "i64", range(min = 0))]
    pub limit_bytes: u64,
    /// Maximum size of the spill files of the attached volumes, in bytes.
    #[schemars(with = "i64", range(min = 0))]
    pub promised_bytes: u64,
    /// Bytes of the pages currently spilled.
    #[schemars(with = "i64", range(min = 0))]
    pub used_bytes: u64,
}

/// Name of a transport of this release, which carries a device's requests to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportName {
    /// ublk, with the request's pages as registered buffers.
    UblkZeroCopy,
    /// ublk, with copies through its character device.
    UblkUserCopy,
    /// ublk, with a buffer per request that the kernel copies to and from: memory volumes.
    UblkKernelCopy,
    /// A loop device on a FUSE file, for kernels without ublk.
    FuseLoop,
}

impl TransportName {
    /// Returns the API's name of the transport.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UblkZeroCopy => "ublk-zero-copy",
            Self::UblkUserCopy => "ublk-user-copy",
            Self::UblkKernelCopy => "ublk-kernel-copy",
            Self::FuseLoop => "fuse-loop",
        }
    }
}

/// Availability of one transport on a node.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TransportSupport {
    /// Name of the transport.
    pub name: String,
    /// True if the transport can be used.
    pub available: bool,
    /// Reason why the transport cannot be used, and the remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}

/// Data that one fenced writer never uploaded.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FencedData {
    /// Name used by `holdfast-node fenced`: a directory below `fenced` in `stateDir`.
    pub name: String,
    /// The volume's identity in the object store (`status.volumeId` of its Volume).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_id: Option<String>,
    /// The writer's fencing number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", range(min = 0))]
    pub epoch: Option<u64>,
    /// Bytes that were never uploaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", range(min = 0))]
    pub bytes: Option<u64>,
    /// Reason why the other fields are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

/// A handoff of devices from one daemon to another.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Handoff {
    /// Time at which the handoff ended.
    pub time: Time,
    /// Number of devices handed over.
    #[schemars(with = "i32", range(min = 0))]
    pub devices: u32,
    /// Longest time during which one device answered no requests, in milliseconds.
    #[schemars(with = "i64", range(min = 0))]
    pub longest_stall_ms: u64,
}
