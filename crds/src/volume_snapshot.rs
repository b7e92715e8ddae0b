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
        .message("spec.snapshotID names a snapshot that is there already, and a group takes its own: remove one of the two"),
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
    /// The snapshot that the object store holds already, as volume id, `@` and its place in the volume's log: it is
    /// adopted, and nothing is taken. It must be one of the Volume. Immutable.
    #[serde(default, rename = "snapshotID", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 84))]
    #[x_kube(validation = kube::core::Rule::new("self.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?@[1-9][0-9]{0,19}$')")
        .message("spec.snapshotID must be a volume id, '@' and a number, as in `holdfast-node snapshot list`: correct it"))]
    pub snapshot_id: Option<String>,
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
    /// UUID that the snapshot is registered with in the object store, where it is another one than that of this
    /// object: of one that was adopted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = kube::core::Rule::new("self.matches('^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$')")
        .message("status.snapshotUid must be a UUID in lower case, as in `holdfast-node snapshot list`: correct it"))]
    pub snapshot_uid: Option<String>,
    /// True once the names of this object and of the user's VolumeSnapshot are in the object store too: `restore` in
    /// another cluster gives them to it again. False where they never will be: the object store keeps the names that the
    /// cluster which took the snapshot gave it (condition `NamesStored`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin_stored: Option<bool>,
    /// The point in time whose content the snapshot holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken_time: Option<Time>,
    /// Logical size of the volume there, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>")]
    pub size_bytes: Option<u64>,
    /// The same for people, such as `10Gi`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// Bytes in the object store that nothing but this snapshot needs, as of the last sweep: they are free after
    /// its deletion.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<i64>")]
    pub exclusive_bytes: Option<u64>,
    /// The same for people, rounded to a tenth, such as `1.2Gi`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclusive: Option<String>,
    /// `Ready`: the snapshot is taken, and what it holds can be read. `NamesStored`, only while it is False: why the
    /// names of this object are not in the object store.
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

/// Condition of a VolumeSnapshot whose names are not in the object store; absent once they are.
pub const NAMES_STORED: &str = "NamesStored";

/// Annotation of a VolumeSnapshot: namespace and name of the user's VolumeSnapshot, of `snapshot.storage.k8s.io`.
pub const USER_SNAPSHOT: &str = "holdfast.dev/csi-volumesnapshot";

impl VolumeSnapshot {
    /// UUID that the snapshot is registered with in the object store.
    pub fn uid_in_store(&self) -> Option<&str> {
        let adopted = self.status.as_ref().and_then(|status| status.snapshot_uid.as_deref());
        adopted.or(self.metadata.uid.as_deref())
    }

    /// True unless `spec.snapshotID` names a snapshot and the status is not the one of its adoption: an operator of a
    /// release without that field took another one, or dropped the uid.
    pub fn is_what_it_adopts(&self) -> bool {
        let Some(wanted) = &self.spec.snapshot_id else { return true };
        let status = self.status.as_ref();
        status.is_some_and(|status| {
            status.snapshot_id.as_ref() == Some(wanted) && status.snapshot_uid.is_some()
        })
    }

    /// Namespace and name of the user's VolumeSnapshot.
    pub fn user_snapshot(&self) -> Option<(&str, &str)> {
        self.metadata.annotations.as_ref()?.get(USER_SNAPSHOT)?.split_once('/')
    }
}

/// Reason of `Ready`: the volume was deleted before the snapshot was taken.
pub const VOLUME_DELETED: &str = "VolumeDeleted";
/// Reason of `Ready`: the Volume of that name has another identity than the one that the snapshot is of.
pub const VOLUME_REPLACED: &str = "VolumeReplaced";

/// Reason: its volume is a memory volume, which has no snapshots.
pub const VOLUME_IN_MEMORY: &str = "VolumeInMemory";

/// True if a snapshot whose `Ready` has this reason will never be taken.
pub fn is_final_snapshot_reason(reason: &str) -> bool {
    [VOLUME_DELETED, VOLUME_IN_MEMORY, VOLUME_REPLACED].contains(&reason)
}
