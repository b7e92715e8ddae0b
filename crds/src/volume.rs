//! `Volume`: one virtual disk, the location of its data, and the node that serves it.
//!
//! Writers of the fields:
//! - the user (or CSI) writes `spec`; `spec.nodeName` requests that the node serves the volume;
//! - the operator writes the finalizer and, if the user left them empty, `spec.volumeID` and `spec.size`;
//!   `volumeId`, `restoredFrom`, `assignedNode` (its grant: at most one node at a time), `phase`,
//!   `observedGeneration` and its own conditions;
//! - the daemon named by `assignedNode` writes `node`, the device fields and its own conditions, and clears
//!   them after its final commit. Only then, or when the annotation [`FORCE_DETACH`] names that node, does
//!   the operator move the grant.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::FieldError;
use crate::later_release::{check, known};
use crate::limits::VolumeLimits;
use crate::memory::{max_memory_bytes, max_spill_bytes};
use crate::quantity::{duration_within, volume_size_bytes};

const MIN_DIRTY_AGE: Duration = Duration::from_secs(1);
const MAX_DIRTY_AGE: Duration = Duration::from_secs(3600);

/// Annotation: the name of a lost node. The operator takes the volume from the node without its final commit; the node's
/// unuploaded writes are then missing.
pub const FORCE_DETACH: &str = "holdfast.dev/force-detach";

/// Annotation: epoch of the attach that may format the volume although its content is unknown.
pub const FORMAT_UNKNOWN_CONTENT: &str = "holdfast.dev/format-unknown-content";

/// Annotation: epoch of a force-detached node, once a user has reviewed the data loss.
pub const ACKNOWLEDGE_LOSS: &str = "holdfast.dev/acknowledge-loss";

/// Annotation: namespace and name of the PersistentVolumeClaim that the volume was created for.
pub const CLAIM: &str = "holdfast.dev/persistentvolumeclaim";
/// Annotation: name of the StorageClass of that claim.
pub const STORAGE_CLASS: &str = "holdfast.dev/storageclass";
/// Annotation: file system requested by the volume's pods; absent for a raw device.
pub const FS_TYPE: &str = "holdfast.dev/fstype";

/// Annotation: nodes on which pods may use the PersistentVolume, if not the default: `any`.
pub const NODES: &str = "holdfast.dev/nodes";

/// Label of objects that the CSI driver creates, and of those that adopt them; its value is `true`. Velero excludes them
/// from its backups: a restored one would be a different volume, or a new snapshot, under the name that existing handles
/// refer to.
pub const EXCLUDED_FROM_BACKUP: &str = "velero.io/exclude-from-backup";

/// Label of a memory Volume of a claim: the node that it was created for. The CSI driver promises its memory to no other
/// claim; a Volume that a user applies may take it.
pub const MEMORY_NODE: &str = "holdfast.dev/memory-node";

/// Label of a Volume that many nodes read and none attaches; its value is `true`. Each of them attaches its own Volume
/// ([`READERS_OF`]).
pub const READ_ONLY_MANY: &str = "holdfast.dev/read-only-many";
/// Label: name of the Volume with [`READ_ONLY_MANY`] for whose readers the object was created. The object is one node's
/// Volume, or the VolumeSnapshot that these Volumes start from.
pub const READERS_OF: &str = "holdfast.dev/readers-of";

/// Annotation: W3C trace context (`traceparent`) of the request that last changed the Volume. Work caused by the change
/// continues that trace.
pub const TRACEPARENT: &str = "holdfast.dev/traceparent";

/// A virtual disk whose durable copy is in an object store.
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
        .message("spec.source must be `empty` with spec.backend `memory`, which starts empty: remove it, and copy the files"),
    validation = kube::core::Rule::new("self.backend != 'memory' || self.durability == 'local'")
        .message("spec.durability cannot be `object` with spec.backend `memory`, which stores nothing in a bucket: write `local`"),
    validation = kube::core::Rule::new("self.backend != 'memory' || !has(self.limits)")
        .message("spec.limits cannot be used with spec.backend `memory`, whose requests are answered at once: remove it, or write backend `object`"),
    validation = kube::core::Rule::new("self.backend != 'memory' || self.deletionPolicy == 'Delete'")
        .message("spec.deletionPolicy cannot be `Retain` with spec.backend `memory`, which keeps no data after the deletion: write `Delete`"),
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
    /// from the object store. With `source.snapshot` and `source.volume`, the size must be at least that of the source.
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
    /// Identity of the volume in the object store: lower-case letters, digits and '-'. Immutable. If absent, the operator
    /// writes the uid of the object, so that a saved Volume finds its data when it is created again.
    #[serde(default, rename = "volumeID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = kube::core::Rule::new("self.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')")
        .message("spec.volumeID must have at most 63 lower-case letters, digits and '-', and begin and end with a letter or digit: remove other characters"))]
    pub volume_id: Option<String>,
    /// Name of the ObjectStore that holds the volume. Required with backend `object`, forbidden with `memory`; immutable.
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
    /// Point at which a FLUSH completes. A change to an attached volume takes effect within seconds.
    #[serde(default)]
    pub durability: DurabilityMode,
    /// Maximum age of data that is not uploaded yet, while the object store is reachable: `30s` or `1m30s`. A change to an attached volume takes effect within seconds.
    #[serde(default = "default_max_dirty_age")]
    #[schemars(length(max = 16))]
    #[x_kube(
        validation = kube::core::Rule::new("self.matches('^([0-9]{1,9}(ms|s|m|h))+$')")
            .message("spec.maxDirtyAge must be a duration: write for example `30s`"),
        validation = kube::core::Rule::new("!self.matches('^([0-9]{1,9}(ms|s|m|h))+$') || (duration(self) >= duration('1s') && duration(self) <= duration('1h'))")
            .message("spec.maxDirtyAge must lie between 1s and 1h: write for example `30s`"),
    )]
    pub max_dirty_age: String,
    /// Limits on the volume's requests; absent: none. A change to an attached volume takes effect within seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<VolumeLimits>,
    /// Location of the data. Immutable.
    #[serde(default)]
    #[x_kube(validation = kube::core::Rule::new("self == oldSelf")
        .message("spec.backend is immutable: restore the old value, or create another Volume"))]
    pub backend: Backend,
    /// Memory settings of a volume with backend `memory`; absent with `object`. While a node serves the volume, the limits
    /// can only rise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = kube::core::Rule::new("has(self.limit) == has(oldSelf.limit)")
        .message("spec.memory.limit cannot be added or removed: restore the old value, or write a higher limit where there is one"),
        validation = kube::core::Rule::new("has(self.spill) == has(oldSelf.spill)")
        .message("spec.memory.spill cannot be added or removed: restore the old value, or create another Volume"))]
    pub memory: Option<MemorySpec>,
    /// Transport that the volume requires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<RequiredTransport>,
    /// Treatment of the volume's objects when the Volume is deleted. `Delete`: they are kept for `spec.keepDeleted` of the ObjectStore, then deleted. `Retain`: they are kept.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
    /// Treatment of a lost node that must release the volume.
    #[serde(default)]
    pub failover_policy: FailoverPolicy,
}

/// Reads a reported durability; `None` if it is absent, or one of a later release.
fn known_durability<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<DurabilityMode>, D::Error> {
    let mode = Option::<DurabilityMode>::deserialize(deserializer)?;
    Ok(mode.filter(|mode| *mode != DurabilityMode::Unknown))
}

fn default_max_dirty_age() -> String {
    "30s".to_owned()
}

impl Volume {
    /// Returns the namespace and name of the PersistentVolumeClaim that the volume was created for. Users may write the
    /// annotation [`CLAIM`].
    pub fn claim(&self) -> Option<(&str, &str)> {
        self.metadata.annotations.as_ref()?.get(CLAIM)?.split_once('/')
    }
}

impl VolumeSpec {
    /// Checks that this release knows each value. Other fields of a spec that it does not know are ignored.
    ///
    /// # Errors
    /// A [`FieldError`] naming the field with a value of a later release.
    pub fn check_known(&self) -> Result<(), FieldError> {
        self.check_servable()?;
        check("spec.source", !matches!(self.source, VolumeSource::Unknown(_)))?;
        self.deletion_policy.check_known()?;
        check("spec.failoverPolicy", self.failover_policy != FailoverPolicy::Unknown)
    }

    /// Checks that this release knows the values on which an attach depends.
    ///
    /// # Errors
    /// A [`FieldError`] naming the field with a value of a later release.
    pub fn check_servable(&self) -> Result<(), FieldError> {
        check("spec.backend", self.backend != Backend::Unknown)?;
        check("spec.durability", self.durability != DurabilityMode::Unknown)?;
        check("spec.transport", self.transport != Some(RequiredTransport::Unknown))?;
        let compression = self.memory.as_ref().map(|memory| memory.compression);
        check("spec.memory.compression", compression != Some(MemoryCompression::Unknown))
    }

    /// Returns the logical size in bytes.
    ///
    /// # Errors
    /// A [`FieldError`] naming `spec.size`. The API server rejects such values, so this only happens for objects that
    /// bypassed it.
    pub fn size_bytes(&self) -> Result<u64, FieldError> {
        match &self.size {
            Some(size) => volume_size_bytes("spec.size", size),
            None => Err(FieldError::new("spec.size", "is missing", "write for example `10Gi`")),
        }
    }

    /// Returns the maximum age of data that is not uploaded yet.
    ///
    /// # Errors
    /// A [`FieldError`] naming `spec.maxDirtyAge`.
    pub fn max_dirty_age(&self) -> Result<Duration, FieldError> {
        duration_within("spec.maxDirtyAge", &self.max_dirty_age, MIN_DIRTY_AGE..=MAX_DIRTY_AGE, "30s")
    }

    /// Returns true for a volume in the compressed memory of its node.
    pub fn is_memory(&self) -> bool {
        self.backend == Backend::Memory
    }

    /// Returns the maximum memory for the content of a memory volume, in bytes; `None`: its size and 4 MiB.
    ///
    /// # Errors
    /// A [`FieldError`] naming `spec.memory.limit`.
    pub fn memory_limit_bytes(&self) -> Result<Option<u64>, FieldError> {
        let limit = self.memory.as_ref().and_then(|memory| memory.limit.as_deref());
        limit.map(|limit| volume_size_bytes("spec.memory.limit", limit)).transpose()
    }

    /// Returns the maximum memory that a memory volume may use on its node, in bytes.
    ///
    /// # Errors
    /// A [`FieldError`] naming `spec.size` or `spec.memory.limit`.
    pub fn max_memory_bytes(&self) -> Result<u64, FieldError> {
        Ok(max_memory_bytes(self.size_bytes()?, self.memory_limit_bytes()?))
    }

    /// Returns the maximum disk space for spilled pages of a memory volume, in bytes; `None`: none.
    ///
    /// # Errors
    /// A [`FieldError`] naming `spec.memory.spill`.
    pub fn memory_spill_bytes(&self) -> Result<Option<u64>, FieldError> {
        let spill = self.memory.as_ref().and_then(|memory| memory.spill.as_deref());
        spill.map(|spill| volume_size_bytes("spec.memory.spill", spill)).transpose()
    }

    /// Returns the maximum space that a memory volume may use on its node's state disk, in bytes.
    ///
    /// # Errors
    /// A [`FieldError`] naming `spec.size` or `spec.memory.spill`.
    pub fn max_spill_bytes(&self) -> Result<u64, FieldError> {
        Ok(max_spill_bytes(self.size_bytes()?, self.memory_spill_bytes()?))
    }

    /// Returns true if only a node with ublk may attach the volume.
    pub fn needs_ublk(&self) -> bool {
        self.transport == Some(RequiredTransport::Ublk)
    }

    /// Returns the node that should serve the volume; `None` if the field is absent or empty.
    pub fn desired_node(&self) -> Option<&str> {
        self.node_name.as_deref().filter(|name| !name.is_empty())
    }
}

/// Initial content of a volume: exactly one of the fields.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum VolumeSource {
    /// Empty: every sector reads as zeros.
    Empty(Empty),
    /// The content of a VolumeSnapshot in the ObjectStore of `spec.objectStore`. No data is copied: the volume shares all
    /// data that it does not overwrite.
    Snapshot(SnapshotSource),
    /// The content of another Volume of the same ObjectStore when this one is created. No data is copied.
    Volume(CloneSource),
    /// The volume that the object store already holds under `spec.volumeID`: it is adopted with its size and data.
    Existing(Empty),
    /// A value that only a later release knows. The API server rejects it.
    #[serde(untagged)]
    #[schemars(skip, !untagged)]
    Unknown(serde_json::Value),
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
    /// Name of the VolumeSnapshot. The operator creates the volume once the snapshot is Ready; `status.restoredFrom` records the snapshot's identity.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = kube::core::Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("spec.source.snapshot.name must be the name of a VolumeSnapshot: lower-case letters, digits and '-'"))]
    pub name: String,
}

/// A volume to start from.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct CloneSource {
    /// Name of the Volume. The operator takes a snapshot of it, and deletes the snapshot once this volume exists;
    /// `status.restoredFrom` names the snapshot.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = kube::core::Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("spec.source.volume.name must be the name of a Volume: lower-case letters, digits and '-'"))]
    pub name: String,
}

/// Point at which a FLUSH completes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum DurabilityMode {
    /// Once the data is safe on the node's own disk.
    #[default]
    Local,
    /// Once the data is committed to the object store.
    Object,
    /// A value that only a later release knows. The API server rejects it.
    #[serde(other, skip_serializing)]
    #[schemars(skip)]
    Unknown,
}

/// Location of a volume's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Backend {
    /// In an object store, with the node's disk as its cache.
    #[default]
    Object,
    /// In compressed memory of the node that serves the volume. The content is lost when that node detaches the volume or restarts.
    Memory,
    /// A value that only a later release knows. The API server rejects it.
    #[serde(other, skip_serializing)]
    #[schemars(skip)]
    Unknown,
}

/// Memory settings of a memory volume.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemorySpec {
    /// Maximum memory for the volume's content: a whole number of bytes with an optional suffix (`3Gi`), a multiple of
    /// 4096. Absent: `spec.size` and 4 MiB. Pages beyond the limit go to the node's
    /// disk as far as `spill` allows; other writes fail with ENOSPC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 24))]
    #[x_kube(validation = kube::core::Rule::new("isQuantity(self) && self.matches('^[0-9]+(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$') && quantity(self).isInteger() && quantity(self).asInteger() % 4096 == 0 && quantity(self).compareTo(quantity('1Mi')) >= 0 && quantity(self).compareTo(quantity('64Ti')) <= 0")
        .message("spec.memory.limit must be a multiple of 4096 bytes between 1Mi and 64Ti: write for example `3Gi`"))]
    pub limit: Option<String>,
    /// Maximum disk space on the node for pages that exceed the memory limit: a whole number of bytes with an optional
    /// suffix (`16Gi`), a multiple of 4096; at most `spec.size` is used. The node reserves this much of `node.memorySpill`
    /// of the chart. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 24))]
    #[x_kube(validation = kube::core::Rule::new("isQuantity(self) && self.matches('^[0-9]+(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$') && quantity(self).isInteger() && quantity(self).asInteger() % 4096 == 0 && quantity(self).compareTo(quantity('1Mi')) >= 0 && quantity(self).compareTo(quantity('64Ti')) <= 0")
        .message("spec.memory.spill must be a multiple of 4096 bytes between 1Mi and 64Ti: write for example `16Gi`, or remove it"))]
    pub spill: Option<String>,
    /// Compression codec of the volume's pages. Immutable.
    #[serde(default)]
    #[x_kube(validation = kube::core::Rule::new("self == oldSelf")
        .message("spec.memory.compression is immutable: restore the old value, or create another Volume"))]
    pub compression: MemoryCompression,
}

/// Compression codec of a memory volume's pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum MemoryCompression {
    /// Faster.
    #[default]
    Lz4,
    /// Uses less memory and two to six times the CPU time.
    Zstd,
    /// A value that only a later release knows. The API server rejects it.
    #[serde(other, skip_serializing)]
    #[schemars(skip)]
    Unknown,
}

/// Transport that the volume requires: only a node whose kernel supports it attaches the volume. Absent: any. A change
/// takes effect at the next attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum RequiredTransport {
    /// ublk, with or without a copy; not a loop device on a FUSE file.
    Ublk,
    /// A value that only a later release knows. The API server rejects it.
    #[serde(other, skip_serializing)]
    #[schemars(skip)]
    Unknown,
}

/// Treatment of a volume's objects when the Volume is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum DeletionPolicy {
    /// They are kept for `spec.keepDeleted` of the ObjectStore, then deleted; a tombstone remains.
    #[default]
    Delete,
    /// They are kept in the object store.
    Retain,
    /// A value that only a later release knows. The API server rejects it.
    #[serde(other, skip_serializing)]
    #[schemars(skip)]
    Unknown,
}

impl DeletionPolicy {
    /// Checks that this release knows the policy.
    ///
    /// # Errors
    /// A [`FieldError`] naming `spec.deletionPolicy`.
    pub fn check_known(self) -> Result<(), FieldError> {
        check("spec.deletionPolicy", self != Self::Unknown)
    }
}

/// Summary of a volume's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum VolumePhase {
    /// Not provisioned yet; the condition `Provisioned` gives the reason.
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
    /// Cannot proceed without user action; the conditions give the reason.
    Failed,
}

/// Observed state of a volume.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeStatus {
    /// State of the volume. Written by the operator.
    #[serde(default, deserialize_with = "known", skip_serializing_if = "Option::is_none")]
    pub phase: Option<VolumePhase>,
    /// Generation of the spec that this status refers to. Written by the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The volume's identity in the object store; never changes. Written by the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_id: Option<String>,
    /// Snapshot that the volume was created from, as volume id, `@` and its sequence number in that volume's log; recorded
    /// before the volume is created, never changes. Written by the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restored_from: Option<String>,
    /// The one node that may serve the volume now. Written by the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assigned_node: Option<String>,
    /// The node that serves the volume now. Written by the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Block device on that node. Written by the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_path: Option<String>,
    /// Transport of the device's requests to the daemon, for example `ublk-zero-copy`. Written by the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transport: Option<String>,
    /// The writer's fencing number; it rises at every attach. For a memory volume it is the time of the attach, in seconds
    /// since 1970. Written by the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", range(min = 0))]
    pub epoch: Option<u64>,
    /// Epoch of the last attach of a memory volume, written before the attach begins; a node does not serve content of an
    /// earlier epoch. Written by the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", range(min = 0))]
    pub last_epoch: Option<u64>,
    /// Point at which a FLUSH completes on the attached device. Written by the daemon.
    #[serde(default, deserialize_with = "known_durability", skip_serializing_if = "Option::is_none")]
    pub durability: Option<DurabilityMode>,
    /// Maximum age of data on the attached device before upload, while the object store is reachable. Written by the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_dirty_age: Option<String>,
    /// Limits in effect on the attached device. Written by the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<VolumeLimits>,
    /// Sequence number of the last commit in the object store. Written by the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", range(min = 0))]
    pub committed_seq: Option<u64>,
    /// Bytes written but not yet committed. Written by the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", range(min = 0))]
    pub dirty_bytes: Option<u64>,
    /// Age of the oldest byte not yet committed, in seconds. Written by the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", range(min = 0))]
    pub oldest_dirty_seconds: Option<u64>,
    /// Every write that completed before this time is in the object store; not updated while nothing is dirty. Written by the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durable_through: Option<Time>,
    /// Last report of the node that was force-detached. Written by the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forced_detach: Option<ForcedDetach>,
    /// Nodes that were force-detached earlier and whose losses no user has acknowledged. Written by the operator. At most
    /// 8, oldest first; `olderLosses` sums up those before them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier_losses: Vec<ForcedDetach>,
    /// Sum of the unacknowledged losses before `earlierLosses`. Written by the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older_losses: Option<OlderLosses>,
    /// Size of the attached device, in bytes. Written by the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", range(min = 0))]
    pub attached_size_bytes: Option<u64>,
    /// Written by the operator: `Ready`, `Provisioned`, `Assigned`, `Resized`, `UnuploadedDataLost`. Written by the daemon:
    /// `Attached`, `StoreReachable`, `Writable`, `LocalDataReadable`, `LocalDiskHealthy`, `ContentLost`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = kube::core::ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Treatment of a lost node that must release a volume. Both are safe: a force-detached node is fenced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum FailoverPolicy {
    /// The operator force-detaches the node: its unuploaded writes are missing.
    #[default]
    Automatic,
    /// Only a user force-detaches the node, with the annotation `holdfast.dev/force-detach`.
    Manual,
    /// A value that only a later release knows. The API server rejects it.
    #[serde(other, skip_serializing)]
    #[schemars(skip)]
    Unknown,
}

/// Sign that a node is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
pub enum DetachCause {
    /// A user set the annotation.
    #[default]
    Annotation,
    /// The Node has the taint `node.kubernetes.io/out-of-service`.
    OutOfService,
    /// The Node was deleted, and its daemon is silent.
    NodeDeleted,
    /// The Node is not Ready, and its daemon is silent.
    NodeNotReady,
    /// A sign that only a later release knows.
    #[serde(other)]
    Unknown,
}

/// Losses that a Volume's status keeps only as a sum.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OlderLosses {
    /// Number of losses.
    #[schemars(with = "i32", range(min = 0))]
    pub count: u32,
    /// Number of losses whose node had not reported its unuploaded bytes.
    #[serde(default)]
    #[schemars(with = "i32", range(min = 0))]
    pub not_reported: u32,
    /// Total of the bytes that the other nodes had reported as written but not committed.
    #[schemars(with = "i64", range(min = 0))]
    pub dirty_bytes: u64,
    /// Time of the first loss.
    pub first_time: Time,
    /// Time of the last loss.
    pub last_time: Time,
    /// Earliest time from which writes may be missing. Absent: at least one node had not reported it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durable_through: Option<Time>,
    /// Fencing number of the last loss, which acknowledges all of them. Absent: none had a fencing number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", range(min = 0))]
    pub epoch: Option<u64>,
}

/// A node from which a volume was force-detached, with its last report.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ForcedDetach {
    /// Name of the node. The node keeps its unuploaded data.
    pub node: String,
    /// Sign that the node was lost.
    #[serde(default)]
    pub cause: DetachCause,
    /// Time at which the volume was granted to another node.
    pub time: Time,
    /// The node's fencing number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", range(min = 0))]
    pub epoch: Option<u64>,
    /// Point at which a FLUSH completed on the node.
    #[serde(default, deserialize_with = "known_durability", skip_serializing_if = "Option::is_none")]
    pub durability: Option<DurabilityMode>,
    /// True if no data commit followed that report, so the bytes it lists as dirty are not in the object store. Absent: unknown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_last_commit_reported: bool,
    /// Bytes that the node had written but not committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", range(min = 0))]
    pub dirty_bytes: Option<u64>,
    /// Every write that completed before this time is in the object store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durable_through: Option<Time>,
}
