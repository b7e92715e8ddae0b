//! `StorageNode`: what one node can do, written by its daemon.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Label of the Leases that node daemons renew while they live.
pub const HEARTBEAT_LABEL: &str = "storage.holdfast.dev/heartbeat";

/// Time without a renewal after which a node daemon counts as silent.
pub const HEARTBEAT_LIMIT: Duration = Duration::from_secs(40);

/// The name of the Lease that the daemon of a node renews.
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
    /// Directory that holds the volumes' sides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_dir: Option<String>,
    /// Size of the filesystem under `stateDir`, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>")]
    pub capacity_bytes: Option<u64>,
    /// Free bytes of that filesystem.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>")]
    pub available_bytes: Option<u64>,
    /// Memory of the node for memory volumes. Absent: the node makes none (`node.memoryVolumes` of the chart is 0).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryUse>,
    /// Number of volumes the node serves now.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i32>")]
    pub attached_volumes: Option<u32>,
    /// Transport of the devices that the node makes: one of the names of `transports`. Absent: none can be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// Every transport the daemon knows, and why one cannot be used here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = kube::core::ListMerge::Map(vec!["name".into()]))]
    pub transports: Vec<TransportSupport>,
    /// Data that replaced writers never uploaded, at most 64 of them; `holdfast-node fenced` on the node exports and deletes it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = kube::core::ListMerge::Map(vec!["name".into()]))]
    pub fenced: Vec<FencedData>,
    /// Number of those that `fenced` leaves out; `holdfast-node fenced list` on the node names all. Absent: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i32>")]
    pub fenced_unlisted: Option<u32>,
    /// The last time one daemon passed its devices to another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_handoff: Option<Handoff>,
    /// `Ready`: the daemon runs and at least one transport can be used. `SectorsAtomic`: the disk under `stateDir` promises
    /// that a power cut leaves every 4096-byte sector of a volume as one write made it. `KernelTeardownFixed`: the kernel is
    /// 7.1 or newer, without the known faults in the end of a ublk server. `Draining`: the Node is cordoned, or tainted by a
    /// program that removes nodes. `DevicesKept`, on a node without ublk: a keeper holds what its devices need to outlive the
    /// daemon.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = kube::core::ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

impl StorageNodeStatus {
    /// True if the devices that the node makes are of ublk; `None` while it makes none.
    pub fn makes_ublk_devices(&self) -> Option<bool> {
        self.transport.as_deref().map(|name| name != TransportName::FuseLoop.as_str())
    }
}

/// Memory of a node for memory volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemoryUse {
    /// The most that all memory volumes of the node may take together, in bytes.
    #[schemars(with = "i64")]
    pub limit_bytes: u64,
    /// The most that those that are attached may take, with their tables and buffers, in bytes.
    #[schemars(with = "i64")]
    pub promised_bytes: u64,
    /// The memory that they take now, with their tables and buffers, in bytes.
    #[schemars(with = "i64")]
    pub used_bytes: u64,
    /// Disk space of the node for their spilled pages, those that find no memory. Absent: it has none for them (`node.memorySpill` of the chart is
    /// 0), or the daemon is of a release without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spill: Option<SpillUse>,
}

/// Disk space of a node for spilled pages of memory volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SpillUse {
    /// The most that the spill files of all memory volumes of the node may take together, in bytes: `node.memorySpill` of the
    /// chart, or less where the disk has less room.
    #[schemars(with = "i64")]
    pub limit_bytes: u64,
    /// The most that those of the attached volumes may take, in bytes.
    #[schemars(with = "i64")]
    pub promised_bytes: u64,
    /// Bytes of the pages that are in them now.
    #[schemars(with = "i64")]
    pub used_bytes: u64,
}

/// Name of a way by which a device's requests reach the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TransportName {
    /// ublk with the request's pages as registered buffers.
    UblkZeroCopy,
    /// ublk with copies through its character device.
    UblkUserCopy,
    /// ublk with a buffer of each request, which the kernel copies: memory volumes.
    UblkKernelCopy,
    /// A loop device on a file of FUSE, where the kernel has no ublk.
    FuseLoop,
}

impl TransportName {
    /// The word the API uses.
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
    pub name: TransportName,
    /// True if it can be used.
    pub available: bool,
    /// Reason for which it cannot be used, and the remedy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}

/// Data that one replaced writer never uploaded.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FencedData {
    /// By which `holdfast-node fenced` knows it: a directory below `fenced` in `stateDir`.
    pub name: String,
    /// The volume's identity in the object store (`status.volumeId` of its Volume).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_id: Option<String>,
    /// The writer's fencing number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>")]
    pub epoch: Option<u64>,
    /// Bytes never uploaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>")]
    pub bytes: Option<u64>,
    /// Reason for which the rest is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

/// One daemon passing its devices to another.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Handoff {
    /// Time at which it ended.
    pub time: Time,
    /// Number of devices passed.
    #[schemars(with = "i32")]
    pub devices: u32,
    /// Longest time one device answered nothing, in milliseconds.
    #[schemars(with = "i64")]
    pub longest_stall_ms: u64,
}
