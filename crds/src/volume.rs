//! `Volume`: one virtual disk, where it lives, and who serves it.
//!
//! Writers of the fields:
//! - the user (or CSI) writes `spec`; `spec.nodeName` requests that the node serves the volume;
//! - the operator writes the finalizer and what the user left open of `spec.volumeID` and `spec.size`; `volumeId`,
//!   `restoredFrom`, `assignedNode` (its grant: at most one node at a time), `phase`, `observedGeneration` and its own
//!   conditions;
//! - the daemon named by `assignedNode` writes `node`, the device fields and its own conditions, and clears them once its
//!   final commit is done. Only then does the operator move the grant, or when the annotation [`FORCE_DETACH`] names that
//!   node.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::FieldError;
use crate::limits::VolumeLimits;
use crate::memory::{most_memory_bytes, most_spill_bytes};
use crate::quantity::{duration_within, volume_size_bytes};

const MIN_DIRTY_AGE: Duration = Duration::from_secs(1);
const MAX_DIRTY_AGE: Duration = Duration::from_secs(3600);

/// Annotation: the name of a node that is lost. The operator takes the volume from it without its final commit; what it
/// had not uploaded is missing afterwards.
pub const FORCE_DETACH: &str = "holdfast.dev/force-detach";

/// Annotation: the epoch of the attach during which the volume may be formatted although what it holds is unknown.
pub const FORMAT_UNKNOWN_CONTENT: &str = "holdfast.dev/format-unknown-content";

/// Annotation: the epoch of a node that was cut off, once a person has read what is missing because of it.
pub const ACKNOWLEDGE_LOSS: &str = "holdfast.dev/acknowledge-loss";

/// Annotation: namespace and name of the PersistentVolumeClaim that the volume was made for.
pub const CLAIM: &str = "holdfast.dev/persistentvolumeclaim";
/// Annotation: name of the StorageClass of that claim.
pub const STORAGE_CLASS: &str = "holdfast.dev/storageclass";
/// Annotation: the file system that its pods ask for; absent for a raw device.
pub const FS_TYPE: &str = "holdfast.dev/fstype";

/// Annotation: nodes for which the scheduler may take its PersistentVolume, where that is not the default: `any`.
pub const NODES: &str = "holdfast.dev/nodes";

/// Label of objects that the CSI driver makes, and of those that adopt them; its value is `true`. Velero leaves them
/// out of its backups: one that it made again would be another volume, or a new snapshot, under the name that handles
/// have.
pub const EXCLUDED_FROM_BACKUP: &str = "velero.io/exclude-from-backup";

/// Label of a memory Volume of a claim: the node that it was made for. The CSI driver promises its memory to no other
/// claim; a Volume that a user applies may take it.
pub const MEMORY_NODE: &str = "holdfast.dev/memory-node";

/// Label of a Volume that many nodes read and none attaches; its value is `true`. Each of them attaches a
/// Volume of its own ([`READERS_OF`]).
pub const READ_ONLY_MANY: &str = "holdfast.dev/read-only-many";
/// Label: name of the Volume with [`READ_ONLY_MANY`] for whose readers the object was made. It is the Volume of
/// one node, or the VolumeSnapshot that these begin with.
pub const READERS_OF: &str = "holdfast.dev/readers-of";

/// Annotation: W3C trace context (`traceparent`) of the request that last changed the Volume. The work that
/// follows from the change continues that trace.
pub const TRACEPARENT: &str = "holdfast.dev/traceparent";

/// A virtual disk with its durable home in an object store.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "storage.holdfast.dev",
    version = "v1alpha1",
    kind = "Volume",
    plural = "volumes",
    shortname = "hfv",
    category = "holdfast",
    doc = "A block volume whose durable home is an object store and which one node serves at a time.",
    status = "VolumeStatus",
    derive = "PartialEq",
    selectable = ".spec.nodeName",
    selectable = ".status.assignedNode",
    selectable = ".status.node",
    selectable = ".status.volumeId",
    validation = kube::core::Rule::new("!has(self.spec.volumeID) || !has(self.status) || !has(self.status.volumeId) || self.spec.volumeID == self.status.volumeId")
        .message("spec.volumeID must be the identity that the volume has in its object store: write the value of status.volumeId"),
    validation = kube::core::Rule::new("self.metadata.name.size() <= 63")
        .message("metadata.name must have at most 63 characters: choose a shorter name"),
    validation = kube::core::Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("metadata.name must consist of lower-case letters, digits and '-' and begin and end with a letter or digit: remove other characters such as '.'"),
    printcolumn(name = "Size", type_ = "string", json_path = ".spec.size"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Node", type_ = "string", json_path = ".status.node"),
    printcolumn(name = "Device", type_ = "string", json_path = ".status.devicePath"),
    printcolumn(name = "StoreReachable", type_ = "string", json_path = ".status.conditions[?(@.type=='StoreReachable')].status"),
    printcolumn(name = "Writable", type_ = "string", json_path = ".status.conditions[?(@.type=='Writable')].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason", priority = 1),
    printcolumn(name = "Transport", type_ = "string", json_path = ".status.transport", priority = 1),
    printcolumn(name = "Store", type_ = "string", json_path = ".spec.objectStore", priority = 1),
    printcolumn(name = "Epoch", type_ = "integer", json_path = ".status.epoch", priority = 1),
    printcolumn(name = "Committed", type_ = "integer", json_path = ".status.committedSeq", priority = 1),
    printcolumn(name = "DirtyBytes", type_ = "integer", json_path = ".status.dirtyBytes", priority = 1),
    printcolumn(name = "MaxIOPS", type_ = "integer", json_path = ".status.limits.iops", priority = 1),
    printcolumn(name = "MaxThroughput", type_ = "string", json_path = ".status.limits.throughput", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(
    validation = kube::core::Rule::new("self.backend != 'object' || has(self.objectStore)")
        .message("spec.objectStore is required with spec.backend `object`: write the name of an ObjectStore"),
    validation = kube::core::Rule::new("self.backend != 'memory' || !has(self.objectStore)")
        .message("spec.objectStore cannot be used with spec.backend `memory`, which stores nothing in a bucket: remove it, or write backend `object`"),
    validation = kube::core::Rule::new("self.backend == 'memory' || !has(self.memory)")
        .message("spec.memory needs spec.backend `memory`: remove it, or write backend `memory`"),
    validation = kube::core::Rule::new("has(self.memory) == has(oldSelf.memory)")
        .message("spec.memory cannot be added or removed: restore the old value, or create another Volume"),
    validation = kube::core::Rule::new("self.backend != 'memory' || has(self.source.empty)")
        .message("spec.source must be `empty` with spec.backend `memory`, which begins with nothing: remove it, and copy the files"),
    validation = kube::core::Rule::new("self.backend != 'memory' || self.durability == 'local'")
        .message("spec.durability cannot be `object` with spec.backend `memory`, which stores nothing in a bucket: write `local`"),
    validation = kube::core::Rule::new("self.backend != 'memory' || !has(self.limits)")
        .message("spec.limits cannot be used with spec.backend `memory`, whose requests are answered at once: remove it, or write backend `object`"),
    validation = kube::core::Rule::new("self.backend != 'memory' || self.deletionPolicy == 'Delete'")
        .message("spec.deletionPolicy cannot be `Retain` with spec.backend `memory`, which leaves nothing behind: write `Delete`"),
    validation = kube::core::Rule::new("self.backend == 'memory' || !has(self.size) || !has(oldSelf.size) || !isQuantity(self.size) || quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0")
        .message("spec.size cannot shrink: write the old size or a larger one"),
    validation = kube::core::Rule::new("self.backend != 'memory' || !has(oldSelf.nodeName) || oldSelf.nodeName == '' || !has(self.nodeName) || self.nodeName == '' || self.nodeName == oldSelf.nodeName")
        .message("spec.nodeName cannot change to another node with spec.backend `memory`, whose content does not move: write '' first, which drops the content, and the other node after that"),
    validation = kube::core::Rule::new("has(self.objectStore) == has(oldSelf.objectStore) && (!has(self.objectStore) || self.objectStore == oldSelf.objectStore)")
        .message("spec.objectStore is immutable: restore the old value, or create another Volume"),
    validation = kube::core::Rule::new("!has(oldSelf.volumeID) || (has(self.volumeID) && self.volumeID == oldSelf.volumeID)")
        .message("spec.volumeID is immutable: restore the old value, or create another Volume"),
    validation = kube::core::Rule::new("!has(self.source.existing) || has(self.volumeID)")
        .message("spec.volumeID is required with spec.source.existing: write the id of the volume in the object store"),
    validation = kube::core::Rule::new("has(self.size) || has(self.source.existing) || has(self.source.snapshot) || has(self.source.volume)")
        .message("spec.size is required: write for example `10Gi`. Only with spec.source.existing, spec.source.snapshot or spec.source.volume the size may be left out"),
    validation = kube::core::Rule::new("has(self.size) || !has(oldSelf.size)")
        .message("spec.size cannot be removed: restore the old value, or write a larger one"),
)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSpec {
    /// Logical size: a whole number of bytes with an optional suffix (`1Gi`), a multiple of 4096. It can only grow.
    /// Required, except with `source.existing`, `source.snapshot` and `source.volume`: then the operator writes the size
    /// that the object store knows. With the last two it is at least that of the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 24))]
    #[x_kube(
        validation = kube::core::Rule::new("isQuantity(self) && self.matches('^[0-9]+(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$') && quantity(self).isInteger()")
            .message("spec.size must be a whole number of bytes with an optional suffix: write for example `10Gi`, and `1536Mi` instead of `1.5Gi`"),
        validation = kube::core::Rule::new("!isQuantity(self) || quantity(self).isGreaterThan(quantity('0'))")
            .message("spec.size must be greater than 0: write for example `10Gi`"),
        validation = kube::core::Rule::new("!isQuantity(self) || !quantity(self).isInteger() || quantity(self).asInteger() % 4096 == 0")
            .message("spec.size must be a multiple of 4096 bytes: use a suffix such as `Mi` or `Gi`"),
        validation = kube::core::Rule::new("!isQuantity(self) || quantity(self).compareTo(quantity('64Ti')) <= 0")
            .message("spec.size must be at most 64Ti: write a smaller size"),
    )]
    pub size: Option<String>,
    /// Identity of the volume in the object store: lower-case letters, digits and '-'. Immutable. Where it is absent the
    /// operator writes the uid of the object, so that a saved Volume finds its data when it is created again.
    #[serde(default, rename = "volumeID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = kube::core::Rule::new("self.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')")
        .message("spec.volumeID must have at most 63 lower-case letters, digits and '-', and begin and end with a letter or digit: remove other characters"))]
    pub volume_id: Option<String>,
    /// Name of the ObjectStore that holds the volume. Required with backend `object`, and absent with `memory`; immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = kube::core::Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("spec.objectStore must be the name of an ObjectStore: lower-case letters, digits and '-'"))]
    pub object_store: Option<String>,
    /// Initial content. Immutable.
    #[serde(default)]
    #[x_kube(validation = kube::core::Rule::new("self == oldSelf")
        .message("spec.source is immutable: restore the old value, or create another Volume"))]
    pub source: VolumeSource,
    /// Name of the node that should serve the volume. Empty: no node serves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = kube::core::Rule::new("self == '' || self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')")
        .message("spec.nodeName must be the name of a node: lower-case letters, digits, '-' and '.'"))]
    pub node_name: Option<String>,
    /// Point at which a FLUSH is complete. A change of an attached volume takes effect within seconds.
    #[serde(default)]
    pub durability: Durability,
    /// Largest age of data that is not uploaded yet, while the object store answers: `30s` or `1m30s`. A change of an attached volume takes effect within seconds.
    #[serde(default = "default_max_dirty_age")]
    #[schemars(length(max = 16))]
    #[x_kube(
        validation = kube::core::Rule::new("self.matches('^([0-9]{1,9}(ms|s|m|h))+$')")
            .message("spec.maxDirtyAge must be a duration: write for example `30s`"),
        validation = kube::core::Rule::new("!self.matches('^([0-9]{1,9}(ms|s|m|h))+$') || (duration(self) >= duration('1s') && duration(self) <= duration('1h'))")
            .message("spec.maxDirtyAge must lie between 1s and 1h: write for example `30s`"),
    )]
    pub max_dirty_age: String,
    /// Limits of its requests; absent: none. A change of an attached volume takes effect within seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<VolumeLimits>,
    /// Home of the data. Immutable.
    #[serde(default)]
    #[x_kube(validation = kube::core::Rule::new("self == oldSelf")
        .message("spec.backend is immutable: restore the old value, or create another Volume"))]
    pub backend: Backend,
    /// Memory of a volume with backend `memory`; absent with `object`. While a node serves the volume its limits
    /// can only rise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = kube::core::Rule::new("has(self.limit) == has(oldSelf.limit)")
        .message("spec.memory.limit cannot be added or removed: restore the old value, or write a higher limit where there is one"),
        validation = kube::core::Rule::new("has(self.spill) == has(oldSelf.spill)")
        .message("spec.memory.spill cannot be added or removed: restore the old value, or create another Volume"))]
    pub memory: Option<MemorySpec>,
    /// Transport that the volume demands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<RequiredTransport>,
    /// Fate of the volume's objects when the Volume is deleted. `Delete`: they are kept for `spec.keepDeleted` of the ObjectStore, then removed. `Retain`: they stay.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
    /// Treatment of a lost node that is to release the volume.
    #[serde(default)]
    pub failover_policy: FailoverPolicy,
}

fn default_max_dirty_age() -> String {
    "30s".to_owned()
}

impl Volume {
    /// Namespace and name of the PersistentVolumeClaim that the volume was made for. Users may write the annotation
    /// [`CLAIM`].
    pub fn claim(&self) -> Option<(&str, &str)> {
        self.metadata.annotations.as_ref()?.get(CLAIM)?.split_once('/')
    }
}

impl VolumeSpec {
    /// The logical size in bytes.
    ///
    /// # Errors
    /// A [`FieldError`] naming `spec.size`. The API server refuses such values, so this happens only for objects that
    /// never passed it.
    pub fn size_bytes(&self) -> Result<u64, FieldError> {
        match &self.size {
            Some(size) => volume_size_bytes("spec.size", size),
            None => Err(FieldError::new("spec.size", "is missing", "write for example `10Gi`")),
        }
    }

    /// The limit on the age of un-uploaded data.
    ///
    /// # Errors
    /// A [`FieldError`] naming `spec.maxDirtyAge`.
    pub fn max_dirty_age(&self) -> Result<Duration, FieldError> {
        duration_within("spec.maxDirtyAge", &self.max_dirty_age, MIN_DIRTY_AGE..=MAX_DIRTY_AGE, "30s")
    }

    /// True for a volume in compressed memory of its node.
    pub fn is_memory(&self) -> bool {
        self.backend == Backend::Memory
    }

    /// The most memory that the content of a memory volume may take, in bytes; `None`: as much as any content needs.
    ///
    /// # Errors
    /// A [`FieldError`] naming `spec.memory.limit`.
    pub fn memory_limit_bytes(&self) -> Result<Option<u64>, FieldError> {
        let limit = self.memory.as_ref().and_then(|memory| memory.limit.as_deref());
        limit.map(|limit| volume_size_bytes("spec.memory.limit", limit)).transpose()
    }

    /// The most memory that a memory volume may take on its node, in bytes.
    ///
    /// # Errors
    /// A [`FieldError`] naming `spec.size` or `spec.memory.limit`.
    pub fn most_memory_bytes(&self) -> Result<u64, FieldError> {
        Ok(most_memory_bytes(self.size_bytes()?, self.memory_limit_bytes()?))
    }

    /// Maximum disk space for spilled pages of a memory volume, in bytes; `None`: none.
    ///
    /// # Errors
    /// A [`FieldError`] naming `spec.memory.spill`.
    pub fn memory_spill_bytes(&self) -> Result<Option<u64>, FieldError> {
        let spill = self.memory.as_ref().and_then(|memory| memory.spill.as_deref());
        spill.map(|spill| volume_size_bytes("spec.memory.spill", spill)).transpose()
    }

    /// The most bytes of its node's state disk that a memory volume may take.
    ///
    /// # Errors
    /// A [`FieldError`] naming `spec.size` or `spec.memory.spill`.
    pub fn most_spill_bytes(&self) -> Result<u64, FieldError> {
        Ok(most_spill_bytes(self.size_bytes()?, self.memory_spill_bytes()?))
    }

    /// True if only a node that serves by ublk may attach the volume.
    pub fn needs_ublk(&self) -> bool {
        self.transport == Some(RequiredTransport::Ublk)
    }

    /// The node that should serve the volume; `None` when the field is absent or empty.
    pub fn desired_node(&self) -> Option<&str> {
        self.node_name.as_deref().filter(|name| !name.is_empty())
    }
}

/// Initial content of a volume: exactly one of the fields.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum VolumeSource {
    /// Nothing: every sector reads as zeros.
    Empty(Empty),
    /// The content of a VolumeSnapshot in the ObjectStore of `spec.objectStore`. Nothing is copied there: the volume shares
    /// what it does not overwrite.
    Snapshot(SnapshotSource),
    /// The content that another Volume of the same ObjectStore has when this one is created. Nothing is copied there.
    Volume(CloneSource),
    /// The volume that the object store holds under `spec.volumeID`: it is adopted with its size and data.
    Existing(Empty),
}

impl Default for VolumeSource {
    fn default() -> Self {
        Self::Empty(Empty {})
    }
}

/// No parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub struct Empty {}

/// A snapshot to start from.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct SnapshotSource {
    /// Name of the VolumeSnapshot. The volume is created once that is Ready; `status.restoredFrom` says what it names.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = kube::core::Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("spec.source.snapshot.name must be the name of a VolumeSnapshot: lower-case letters, digits and '-'"))]
    pub name: String,
}

/// A volume to start from.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct CloneSource {
    /// Name of the Volume. Its content is that of a snapshot that the operator has taken, and deletes once this volume
    /// exists; `status.restoredFrom` names it.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = kube::core::Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("spec.source.volume.name must be the name of a Volume: lower-case letters, digits and '-'"))]
    pub name: String,
}

/// Point at which a FLUSH is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Durability {
    /// Once the data is safe on the node's own disk.
    #[default]
    Local,
    /// Once the data is committed to the object store.
    Object,
}

/// Home of a volume's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Backend {
    /// In an object store, with the node's disk as its cache.
    #[default]
    Object,
    /// In compressed memory of the node that serves the volume. It is lost when that node detaches the volume or restarts.
    Memory,
}

/// Memory of a memory volume.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemorySpec {
    /// The most memory that its content may take: a whole number of bytes with an optional suffix (`3Gi`), a multiple of 4096.
    /// Absent: as much as any content needs, which is `spec.size` and 4 MiB. Pages that need more go to the node's disk as far
    /// as `spill` allows; other writes fail with ENOSPC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 24))]
    #[x_kube(validation = kube::core::Rule::new("isQuantity(self) && self.matches('^[0-9]+(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$') && quantity(self).isInteger() && quantity(self).asInteger() % 4096 == 0 && quantity(self).compareTo(quantity('1Mi')) >= 0 && quantity(self).compareTo(quantity('64Ti')) <= 0")
        .message("spec.memory.limit must be a multiple of 4096 bytes between 1Mi and 64Ti: write for example `3Gi`"))]
    pub limit: Option<String>,
    /// Maximum disk space of the node for spilled pages, those that find no memory: a whole number of bytes with an optional suffix
    /// (`16Gi`), a multiple of 4096; more than `spec.size` is never taken. The node needs as much of `node.memorySpill` of the
    /// chart. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 24))]
    #[x_kube(validation = kube::core::Rule::new("isQuantity(self) && self.matches('^[0-9]+(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$') && quantity(self).isInteger() && quantity(self).asInteger() % 4096 == 0 && quantity(self).compareTo(quantity('1Mi')) >= 0 && quantity(self).compareTo(quantity('64Ti')) <= 0")
        .message("spec.memory.spill must be a multiple of 4096 bytes between 1Mi and 64Ti: write for example `16Gi`, or remove it"))]
    pub spill: Option<String>,
    /// Codec of its pages. Immutable.
    #[serde(default)]
    #[x_kube(validation = kube::core::Rule::new("self == oldSelf")
        .message("spec.memory.compression is immutable: restore the old value, or create another Volume"))]
    pub compression: MemoryCompression,
}

/// Codec of the pages of a memory volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum MemoryCompression {
    /// The faster one.
    #[default]
    Lz4,
    /// It takes less memory, and two to six times the processor time.
    Zstd,
}

/// Transport that the volume demands: it is attached only on a node whose kernel has that. Absent: any. A change takes
/// effect at the next attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum RequiredTransport {
    /// ublk, with or without a copy; not a loop device on a file of FUSE.
    Ublk,
}

/// Fate of a volume's objects when the Volume is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum DeletionPolicy {
    /// They are kept for `spec.keepDeleted` of the ObjectStore, then removed; a tombstone stays.
    #[default]
    Delete,
    /// They stay in the object store.
    Retain,
}

/// State of a volume, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum VolumePhase {
    /// Not provisioned yet; the condition `Provisioned` says what is missing.
    Pending,
    /// Provisioned; no node serves it.
    Ready,
    /// Granted to a node that has not attached it yet.
    Attaching,
    /// Served by a node.
    Attached,
    /// Still served by a node that must release it.
    Detaching,
    /// Being deleted.
    Deleting,
    /// Cannot proceed without a user; the conditions say why.
    Failed,
}

/// Observed state of a volume.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeStatus {
    /// State of the volume. Operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<VolumePhase>,
    /// Generation of the spec that this status refers to. Operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The volume's identity in the object store; never changes. Operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_id: Option<String>,
    /// The snapshot whose content the volume begins with, as volume id, `@` and its place in that volume's log; recorded
    /// before the volume is created, never changes. Operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restored_from: Option<String>,
    /// The one node that may serve the volume now. Operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assigned_node: Option<String>,
    /// The node that serves the volume now. Daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Block device on that node. Daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_path: Option<String>,
    /// Transport of the device's requests to the daemon, for example `ublk-zero-copy`. Daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// The writer's fencing number; it rises at every attach. Of a memory volume it is the time of the attach, in seconds
    /// since 1970. Daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>")]
    pub epoch: Option<u64>,
    /// Epoch of the last attach of a memory volume, written before it begins; what a node has of an earlier one is not
    /// served. Daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>")]
    pub last_epoch: Option<u64>,
    /// Point at which a FLUSH is complete on the attached device. Daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,
    /// Age at which data of the attached device is uploaded, while the store answers. Daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_dirty_age: Option<String>,
    /// Limits in effect on the attached device. Daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<VolumeLimits>,
    /// Last commit in the object store. Daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>")]
    pub committed_seq: Option<u64>,
    /// Bytes written but not committed yet. Daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>")]
    pub dirty_bytes: Option<u64>,
    /// Age of the oldest byte not committed yet, in seconds. Daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>")]
    pub oldest_dirty_seconds: Option<u64>,
    /// Every write that completed before then is in the object store; not renewed while nothing is dirty. Daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durable_through: Option<Time>,
    /// Last report of the node that was force-detached. Operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forced_detach: Option<ForcedDetach>,
    /// Nodes that were cut off before that one, and whose losses no person has acknowledged. Operator.
    /// At most 8, oldest first; `olderLosses` has those before them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier_losses: Vec<ForcedDetach>,
    /// Sum of the losses before the earlier ones, which no person has acknowledged either. Operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older_losses: Option<OlderLosses>,
    /// Size of the attached device, in bytes. Daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>")]
    pub attached_size_bytes: Option<u64>,
    /// Operator: `Ready`, `Provisioned`, `Assigned`, `Resized`, `UnuploadedDataLost`. Daemon: `Attached`, `StoreReachable`,
    /// `Writable`, `LocalDataReadable`, `LocalDiskHealthy`, `ContentLost`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = kube::core::ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Treatment of a lost node that is to release a volume. Both are safe: a node that was cut off is fenced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum FailoverPolicy {
    /// The operator cuts it off: what it had not uploaded is missing.
    #[default]
    Automatic,
    /// Only a person does, by the annotation `holdfast.dev/force-detach`.
    Manual,
}

/// Sign by which a node was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum DetachCause {
    /// A person said so, by the annotation.
    #[default]
    Annotation,
    /// The Node has the taint `node.kubernetes.io/out-of-service`.
    OutOfService,
    /// The Node was deleted, and its daemon is silent.
    NodeDeleted,
    /// The Node is not Ready, and its daemon is silent.
    NodeNotReady,
}

/// Losses of which a Volume's status keeps only the sum.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OlderLosses {
    /// Number of losses.
    #[schemars(with = "i32")]
    pub count: u32,
    /// Number of those whose node had not reported how much it had not uploaded.
    #[serde(default)]
    #[schemars(with = "i32")]
    pub not_reported: u32,
    /// Bytes that the others had reported as written and not committed, in all.
    #[schemars(with = "i64")]
    pub dirty_bytes: u64,
    /// Time of the first one.
    pub first_time: Time,
    /// Time of the last one.
    pub last_time: Time,
    /// Earliest time from which on writes may be missing. Absent: one of them had not reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durable_through: Option<Time>,
    /// Fencing number of the last one, with which all of them are acknowledged. Absent: none had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>")]
    pub epoch: Option<u64>,
}

/// A node that a volume was taken from by force, as it reported last.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ForcedDetach {
    /// The node. It keeps what it had not uploaded.
    pub node: String,
    /// Sign by which it was lost.
    #[serde(default)]
    pub cause: DetachCause,
    /// Time at which the volume was granted to another node.
    pub time: Time,
    /// Its fencing number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>")]
    pub epoch: Option<u64>,
    /// Point at which a FLUSH was complete on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durability: Option<Durability>,
    /// No commit of data followed that report: what it calls dirty is not in the object store. Absent: that is not known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_last_commit_reported: bool,
    /// Bytes it had written and not committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>")]
    pub dirty_bytes: Option<u64>,
    /// Every write that completed before then is in the object store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durable_through: Option<Time>,
}
