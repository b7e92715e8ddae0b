//! `VolumeGroupSnapshot`: the contents of several volumes at one point in time.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::volume::DeletionPolicy;

/// The contents of several volumes at one point in time: one VolumeSnapshot each.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Deserialize, Serialize)]
#[kube(
    group = "storage.holdfast.dev",
    version = "v1alpha1",
    kind = "VolumeGroupSnapshot",
    plural = "volumegroupsnapshots",
    shortname = "hfgroup",
    category = "holdfast",
    doc = "The contents of several volumes at one point in time: one VolumeSnapshot of each.",
    status = "VolumeGroupSnapshotStatus",
    derive = "PartialEq",
    validation = kube::core::Rule::new("self.metadata.name.size() <= 52")
        .message("metadata.name must have at most 52 characters, so that the names of its VolumeSnapshots can begin with it: choose a shorter name"),
    validation = kube::core::Rule::new("self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("metadata.name must consist of lower-case letters, digits and '-' and begin and end with a letter or digit: remove other characters such as '.'"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason"),
    printcolumn(name = "Taken", type_ = "date", json_path = ".status.takenTime"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct VolumeGroupSnapshotSpec {
    /// Names of the Volumes, each once. Immutable.
    #[schemars(length(min = 1, max = 32), inner(length(min = 1, max = 63)))]
    #[x_kube(
        merge_strategy = kube::core::ListMerge::Set,
        validation = kube::core::Rule::new("self == oldSelf")
            .message("spec.volumes is immutable: create another VolumeGroupSnapshot"))]
    pub volumes: Vec<String>,
    /// Treatment of the snapshots in the object store when the VolumeGroupSnapshot is deleted: its VolumeSnapshots inherit
    /// this policy once all are taken. A later change does not affect them.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

/// Observed state of a group of snapshots.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeGroupSnapshotStatus {
    /// Generation of the spec that this status refers to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Number of the current attempt, starting at 1. It is recorded before the attempt's VolumeSnapshots are created; their
    /// names end in it. The VolumeSnapshots of a failed attempt are deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<i64>,
    /// The VolumeSnapshots, in the order of `spec.volumes`, once all are taken at one point.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<GroupMember>,
    /// The point in time, by the operator's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken_time: Option<Time>,
    /// `Ready`: all snapshots are taken at one point, and their contents can be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = kube::core::ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Reason of `Ready`: a VolumeSnapshot of a complete group was deleted. It is not taken again.
pub const SNAPSHOT_DELETED: &str = "SnapshotDeleted";

/// One snapshot of a group.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupMember {
    /// Name of the Volume.
    pub volume: String,
    /// Name of the VolumeSnapshot.
    pub snapshot: String,
}
