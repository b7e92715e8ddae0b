//! The `storage.holdfast.dev` custom resources.
//!
//! Owns: the Rust types of the API, the rules the API server enforces (CEL), the generated YAML in
//! `crds/*.yaml`, and the parsing of field values into typed ones. The daemon's configuration uses the same
//! syntax for sizes and durations.
//! Does not own: the operator's and the node daemon's reaction to a resource.
//! Invariants: every object the API server accepts also parses here, even with values of a later release;
//! `crds/*.yaml` matches these types (`cargo run -p holdfast-crds --bin generate-crds` writes it, a test
//! compares it).
//! On failure: a [`FieldError`] with the field, the problem and the fix.

#![expect(
    unreachable_pub,
    reason = "the KubeSchema derive copies each struct, `pub` included, into a function body"
)]

mod condition;
mod field_error;
mod generated;
mod later_release;
mod limits;
mod memory;
mod object_store;
mod persistent_volume;
mod quantity;
mod storage_node;
mod volume;
mod volume_group_snapshot;
mod volume_snapshot;

pub use condition::{
    ANSWERING, ASSIGNED, ATTACHED, CHANGE_REFUSED, CONTENT_DROPPED, CONTENT_LOST, ConditionBuilder,
    ConditionStatus, DATA_LOST, DELETES_REFUSED, DEVICES_KEPT, GRANTED, GROWTH_WAITS, LOCAL_DATA_READABLE,
    LOCAL_DISK_HEALTHY, NODE_FULL, NODE_UNKNOWN, NOT_CONFIGURED, PROVISIONED, READY, REFUSED, RESIZED,
    SERVING_CONDITIONS, STORE_REACHABLE, UNKNOWN_VALUE, WRITABLE, find_condition, is_true,
    is_true_with_fault,
};
pub use field_error::FieldError;
pub use generated::{GENERATED_DIRECTORIES, definitions, generated_files};
pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
pub use limits::{IOPS_LIMITS, THROUGHPUT_LIMITS, VolumeLimits};
pub use memory::{max_memory_bytes, max_spill_bytes};
pub use object_store::{
    Credentials, EnvironmentCredentials, ObjectStore, ObjectStoreSpec, ObjectStoreStatus, SecretKeyRef,
    SecretRef, SkippedVolume, Sweep, SweepStatus, WebIdentity,
};
pub use persistent_volume::bound_claim;
pub use quantity::{ByteSize, InvalidQuantity, MAX_SIZE_BYTES, TimeSpan};
pub use storage_node::{
    FencedData, HEARTBEAT_LABEL, HEARTBEAT_LIMIT, Handoff, MemoryUse, SpillUse, StorageNode, StorageNodeSpec,
    StorageNodeStatus, TransportName, TransportSupport, heartbeat_lease,
};
pub use volume::{
    ACKNOWLEDGE_LOSS, Backend, CLAIM, CloneSource, DeletionPolicy, DetachCause, DurabilityMode,
    EXCLUDED_FROM_BACKUP, Empty, FORCE_DETACH, FORMAT_UNKNOWN_CONTENT, FS_TYPE, FailoverPolicy, ForcedDetach,
    MEMORY_NODE, MemoryCompression, MemorySpec, NODES, OlderLosses, READ_ONLY_MANY, READERS_OF,
    RequiredTransport, STORAGE_CLASS, SnapshotSource, TRACEPARENT, Volume, VolumePhase, VolumeSource,
    VolumeSpec, VolumeStatus,
};
pub use volume_group_snapshot::{
    GroupMember, SNAPSHOT_DELETED, VolumeGroupSnapshot, VolumeGroupSnapshotSpec, VolumeGroupSnapshotStatus,
};
pub use volume_snapshot::{
    GroupProgress, GroupStep, NAMES_STORED, USER_SNAPSHOT, VOLUME_DELETED, VOLUME_IN_MEMORY, VOLUME_REPLACED,
    VolumeSnapshot, VolumeSnapshotSpec, VolumeSnapshotStatus, is_final_snapshot_reason,
};

/// API group of every kind in this crate.
pub const GROUP: &str = "storage.holdfast.dev";

/// Finalizer that the operator holds on a Volume until its objects are deleted.
pub const VOLUME_FINALIZER: &str = "holdfast.dev/volume";

/// Finalizer that the operator holds on a VolumeSnapshot until the snapshot is forgotten.
pub const SNAPSHOT_FINALIZER: &str = "holdfast.dev/snapshot";

/// Finalizer that the operator holds on a VolumeGroupSnapshot until its VolumeSnapshots are deleted.
pub const GROUP_SNAPSHOT_FINALIZER: &str = "holdfast.dev/group-snapshot";

/// Server-side-apply field manager of the operator.
pub const OPERATOR_FIELD_MANAGER: &str = "holdfast-operator";

/// Server-side-apply field manager of the node daemon.
pub const NODE_FIELD_MANAGER: &str = "holdfast-node";
