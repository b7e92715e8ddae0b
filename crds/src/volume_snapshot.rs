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
    printcolumn(name = "Group", type_ = "string", json_path = ".spec.group", priority = 1),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(name = "Size", type_ = "integer", json_path = ".status.sizeBytes"),
    printcolumn(name = "Exclusive", type_ = "integer", json_path = ".status.exclusiveBytes"),
    printcolumn(name = "Taken", type_ = "date", json_path = ".status.takenTime"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(
    validation = kube::core::Rule::new("has(self.group) == has(oldSelf.group) && (!has(self.group) || self.group == oldSelf.group)")
        .message("spec.group is immutable: restore the old value, or create another VolumeSnapshot"),
)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotSpec {
    /// Name of the Volume. Immutable.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = kube::core::Rule::new("self == oldSelf")
        .message("spec.volume is immutable: create another VolumeSnapshot"))]
    pub volume: String,
    /// Name of the VolumeGroupSnapshot that it belongs to, which creates it: then it is taken at the same point as the
    /// others of the group. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 52))]
    pub group: Option<String>,
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
    /// Of a snapshot of a group: what the node is to do. Written by the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_step: Option<GroupStep>,
    /// Of a snapshot of a group: what the node has done. Written by its daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_progress: Option<GroupProgress>,
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

/// A step of a node towards a snapshot at the same point as others.
///
/// Writes to a volume wait from its snapshot until all nodes have taken theirs. So no write that came after the
/// point on one volume can have completed before one that came before it on another was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema)]
pub enum GroupStep {
    /// Get ready to take the snapshot without delay.
    Prepare,
    /// Let writes to the volume wait, and take the snapshot.
    Hold,
    /// All volumes of the group are held: let writes continue.
    Release,
}

/// State of a node on the way to a snapshot at the same point as others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema)]
pub enum GroupProgress {
    /// The node commits what is dirty, and has begun no snapshot: a daemon of a release that knows no groups says
    /// nothing.
    Preparing,
    /// The snapshot can be taken without delay.
    Prepared,
    /// Writes wait, and the point of the snapshot is behind the last one that did not.
    Held,
    /// Writes waited until the release.
    Released,
    /// Writes did not wait until the release, or not at all: the attempt has failed.
    Lapsed,
}

/// Reason of `Ready`: the volume was deleted before the snapshot was taken.
pub const VOLUME_DELETED: &str = "VolumeDeleted";
/// Reason of `Ready`: the Volume of that name has another identity than the one that the snapshot is of.
pub const VOLUME_REPLACED: &str = "VolumeReplaced";

/// True if a snapshot whose `Ready` has this reason will never be taken.
pub fn is_final_snapshot_reason(reason: &str) -> bool {
    [VOLUME_DELETED, VOLUME_REPLACED].contains(&reason)
}
