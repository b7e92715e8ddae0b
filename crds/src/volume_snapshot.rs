//! `VolumeSnapshot`: the content of a volume at one point in time.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::later_release::known;
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
    printcolumn(name = "Size", type_ = "string", json_path = ".status.size"),
    printcolumn(name = "Exclusive", type_ = "string", json_path = ".status.exclusive"),
    printcolumn(name = "Taken", type_ = "date", json_path = ".status.takenTime"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(
    validation = kube::core::Rule::new("has(self.group) == has(oldSelf.group) && (!has(self.group) || self.group == oldSelf.group)")
        .message("spec.group is immutable: restore the old value, or create another VolumeSnapshot"),
    validation = kube::core::Rule::new("has(self.snapshotID) == has(oldSelf.snapshotID) && (!has(self.snapshotID) || self.snapshotID == oldSelf.snapshotID)")
        .message("spec.snapshotID is immutable: restore the old value, or create another VolumeSnapshot"),
    validation = kube::core::Rule::new("!has(self.snapshotID) || !has(self.group)")
        .message("spec.snapshotID names an existing snapshot, but a group takes its own: remove one of the two"),
)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotSpec {
    /// Name of the Volume. Immutable.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = kube::core::Rule::new("self == oldSelf")
        .message("spec.volume is immutable: create another VolumeSnapshot"))]
    pub volume: String,
    /// Name of the VolumeGroupSnapshot that created this object: the snapshot is then taken at the same point as the others
    /// of the group. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 52))]
    pub group: Option<String>,
    /// A snapshot that already exists in the object store, as volume id, `@` and its sequence number in the volume's log:
    /// it is adopted, and no snapshot is taken. It must belong to the Volume. Immutable.
    #[serde(default, rename = "snapshotID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 84))]
    #[x_kube(validation = kube::core::Rule::new("self.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?@[1-9][0-9]{0,19}$')")
        .message("spec.snapshotID must be a volume id, '@' and a number, as in `holdfast-node snapshot list`: correct it"))]
    pub snapshot_id: Option<String>,
    /// Treatment of the snapshot in the object store when the VolumeSnapshot is deleted.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

/// Observed state of a snapshot.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeSnapshotStatus {
    /// Generation of the spec that this status refers to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Identity of the snapshot's volume in the object store; recorded before the snapshot is taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_id: Option<String>,
    /// Name of the ObjectStore that holds the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_store: Option<String>,
    /// The node that serves the volume and takes the snapshot. Empty if no node serves it: then the operator takes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Snapshots of a group only: the step that the node should perform. Written by the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group_step: Option<GroupStep>,
    /// Snapshots of a group only: the node's progress. Written by its daemon.
    #[serde(default, deserialize_with = "known", skip_serializing_if = "Option::is_none")]
    pub group_progress: Option<GroupProgress>,
    /// The snapshot in the object store, as volume id, `@` and its sequence number in the volume's log; never changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    /// UUID under which the snapshot is registered in the object store, if it differs from that of this object: for an
    /// adopted snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = kube::core::Rule::new("self.matches('^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$')")
        .message("status.snapshotUid must be a UUID in lower case, as in `holdfast-node snapshot list`: correct it"))]
    pub snapshot_uid: Option<String>,
    /// True once the names of this object and of the user's VolumeSnapshot are also in the object store: `restore` in
    /// another cluster then restores these names. False if they never will be: the object store keeps the names given by
    /// the cluster that took the snapshot (condition `NamesStored`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin_stored: Option<bool>,
    /// Point in time of the snapshot's content.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken_time: Option<Time>,
    /// Logical size of the volume at that point, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", range(min = 0))]
    pub size_bytes: Option<u64>,
    /// The size for display, such as `10Gi`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// Bytes in the object store that only this snapshot needs, as of the last sweep: deleting it frees them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>", range(min = 0))]
    pub exclusive_bytes: Option<u64>,
    /// The exclusive bytes for display, rounded to a tenth, such as `1.2Gi`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclusive: Option<String>,
    /// `Ready`: the snapshot is taken, and its content can be read. `NamesStored`, present only while False: the reason
    /// why the names of this object are not in the object store.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = kube::core::ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// Step of a node towards a snapshot at the same point as others.
///
/// Each volume blocks writes from its own snapshot until every node has taken its snapshot. No write after the point on one
/// volume can thus have completed before a write before the point on another volume began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema)]
pub enum GroupStep {
    /// Prepare for taking the snapshot without delay.
    Prepare,
    /// Block writes to the volume, and take the snapshot.
    Hold,
    /// All volumes of the group are held: unblock writes.
    Release,
    /// A step that only a later release knows. The API server rejects it.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// Progress of a node towards a snapshot at the same point as others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, schemars::JsonSchema)]
pub enum GroupProgress {
    /// The node commits its dirty data, and has not started the snapshot. A daemon of a release without groups reports
    /// nothing.
    Preparing,
    /// The node can take the snapshot without delay.
    Prepared,
    /// Writes are blocked. The snapshot point is after the last write admitted before the block.
    Held,
    /// Writes were blocked until the release.
    Released,
    /// Writes were unblocked before the release, or were never blocked: the attempt failed.
    Lapsed,
}

/// Condition of a VolumeSnapshot whose names are not in the object store; absent once they are.
pub const NAMES_STORED: &str = "NamesStored";

/// Annotation of a VolumeSnapshot: namespace and name of the user's VolumeSnapshot (`snapshot.storage.k8s.io`).
pub const USER_SNAPSHOT: &str = "holdfast.dev/csi-volumesnapshot";

impl VolumeSnapshot {
    /// Returns the UUID under which the snapshot is registered in the object store.
    pub fn uid_in_store(&self) -> Option<&str> {
        let adopted = self.status.as_ref().and_then(|status| status.snapshot_uid.as_deref());
        adopted.or(self.metadata.uid.as_deref())
    }

    /// Returns true if no adoption was requested, or if the status records the requested snapshot and its uid. An operator
    /// of a release without the field took another snapshot, or dropped the uid.
    pub fn is_adoption_complete(&self) -> bool {
        let Some(wanted) = &self.spec.snapshot_id else { return true };
        let status = self.status.as_ref();
        status.is_some_and(|status| {
            status.snapshot_id.as_ref() == Some(wanted) && status.snapshot_uid.is_some()
        })
    }

    /// Returns the namespace and name of the user's VolumeSnapshot.
    pub fn user_snapshot(&self) -> Option<(&str, &str)> {
        self.metadata.annotations.as_ref()?.get(USER_SNAPSHOT)?.split_once('/')
    }
}

/// Reason of `Ready`: the volume was deleted before the snapshot was taken.
pub const VOLUME_DELETED: &str = "VolumeDeleted";
/// Reason of `Ready`: the Volume of that name is not the volume that the snapshot was requested for.
pub const VOLUME_REPLACED: &str = "VolumeReplaced";

/// Reason: the volume is a memory volume, which has no snapshots.
pub const VOLUME_IN_MEMORY: &str = "VolumeInMemory";

/// Returns true if a snapshot whose `Ready` has this reason will never be taken.
pub fn is_final_snapshot_reason(reason: &str) -> bool {
    [VOLUME_DELETED, VOLUME_IN_MEMORY, VOLUME_REPLACED].contains(&reason)
}
