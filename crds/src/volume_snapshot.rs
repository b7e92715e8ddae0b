//! `VolumeSnapshot`: the content of a volume at one point in time.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::volume::DeletionPolicy;

/// The content of a volume at one point in time.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "storage.holdfast.dev",
    version = "v1alpha1",
    kind = "VolumeSnapshot",
    plural = "volumesnapshots",
    shortname = "hfsnap",
    category = "holdfast",
    doc = "The content of a volume at one point in time, kept in the volume's object store.",
    status = "VolumeSnapshotStatus",
    selectable = ".status.node",
    derive = "PartialEq",
    validation = kube::core::Rule::new("self.metadata.name.size() <= 63")
        .message("metadata.name must have at most 63 characters: choose a shorter name"),
    validation = kube::core::Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("metadata.name must consist of lower-case letters, digits and '-' and begin and end with a letter or digit: remove other characters such as '.'"),
    printcolumn(name = "Volume", type_ = "string", json_path = ".spec.volume"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(name = "Size", type_ = "integer", json_path = ".status.sizeBytes"),
    printcolumn(name = "Exclusive", type_ = "integer", json_path = ".status.exclusiveBytes"),
    printcolumn(name = "Taken", type_ = "date", json_path = ".status.takenTime"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotSpec {
    /// Name of the Volume. Immutable.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = kube::core::Rule::new("self == oldSelf")
        .message("spec.volume is immutable: create another VolumeSnapshot"))]
    pub volume: String,
    /// Fate of the snapshot in the object store when the VolumeSnapshot is deleted.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

/// Observed state of a snapshot.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotStatus {
    /// Generation of the spec this status refers to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Identity of the volume that it is of, in the object store; recorded before the snapshot is taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_id: Option<String>,
    /// Name of the ObjectStore that holds the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_store: Option<String>,
    /// The node that serves the volume and takes the snapshot. Empty where no node serves it: then the
    /// operator takes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The snapshot in the object store, as volume id, `@` and its place in the volume's log; never changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    /// The point in time whose content the snapshot holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken_time: Option<Time>,
    /// Logical size of the volume there, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>")]
    pub size_bytes: Option<u64>,
    /// Bytes in the object store that nothing but this snapshot needs, as of the last sweep: they are free after
    /// its deletion.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>")]
    pub exclusive_bytes: Option<u64>,
    /// `Ready`: the snapshot is taken, and what it holds can be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = kube::core::ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Reason of `Ready`: the volume was deleted before the snapshot was taken.
pub const VOLUME_DELETED: &str = "VolumeDeleted";
/// Reason of `Ready`: the Volume of that name has another identity than the one that the snapshot is of.
pub const VOLUME_REPLACED: &str = "VolumeReplaced";

/// True if a snapshot whose `Ready` has this reason will never be taken.
pub fn is_final_snapshot_reason(reason: &str) -> bool {
    [VOLUME_DELETED, VOLUME_REPLACED].contains(&reason)
}
