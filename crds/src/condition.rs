//! Condition types and reasons; each type has one entry with a stable transition time.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Condition type. ObjectStore: the bucket answers, can be listed, and rejects a second create of the same key.
/// StorageNode: its daemon runs, and at least one transport is available. VolumeSnapshot: the snapshot is taken.
/// VolumeGroupSnapshot: all of its VolumeSnapshots are ready.
pub const READY: &str = "Ready";

/// Reason of [`READY`], and of [`PROVISIONED`]: the spec has a value that only a later release knows.
pub const UNKNOWN_VALUE: &str = "UnknownValue";

/// Condition of a StorageNode without ublk: a keeper holds the connections of all its devices.
pub const DEVICES_KEPT: &str = "DevicesKept";

/// Condition of a Volume: it exists in its object store.
pub const PROVISIONED: &str = "Provisioned";
/// Condition of a Volume: the operator granted the request in `spec.nodeName`.
pub const ASSIGNED: &str = "Assigned";
/// Reason of [`ASSIGNED`]: the node named in the spec may serve the volume.
pub const GRANTED: &str = "Granted";
/// Reason of [`ASSIGNED`]: granted to a node that has no StorageNode.
pub const NODE_UNKNOWN: &str = "NodeUnknown";
/// Condition of a Volume: the attached device has the size of the spec.
pub const RESIZED: &str = "Resized";
/// Condition of a Volume: a node was force-detached, and its unuploaded writes are missing.
pub const DATA_LOST: &str = "UnuploadedDataLost";
/// Condition of a Volume with a requested node: the node serves the volume.
pub const ATTACHED: &str = "Attached";
/// Reason of [`ATTACHED`] if it is `True`: the settings of the spec could not be applied.
pub const NOT_CONFIGURED: &str = "NotConfigured";
/// Reason of [`ATTACHED`]: the node has no room for the volume, or for its growth if the condition is `True`.
pub const NODE_FULL: &str = "NodeFull";
/// Reason of [`ATTACHED`]: the node refuses the attach, or the growth if the condition is `True`.
pub const REFUSED: &str = "Refused";
/// Reason of [`ATTACHED`] if it is `True`: the growth has not completed in time.
pub const GROWTH_WAITS: &str = "GrowthWaits";
/// Condition of a served Volume: the node reaches the object store.
pub const STORE_REACHABLE: &str = "StoreReachable";
/// Reason of [`STORE_REACHABLE`]: nothing is wrong.
pub const ANSWERING: &str = "Answering";
/// Reason of [`STORE_REACHABLE`], also if it is `True`: the newest configuration of the store is not in use.
pub const CHANGE_REFUSED: &str = "ChangeRefused";
/// Reason of [`STORE_REACHABLE`] if it is `True`: the store denies deletes.
pub const DELETES_REFUSED: &str = "DeletesRefused";
/// Condition of a served Volume: writes are not blocked.
pub const WRITABLE: &str = "Writable";
/// Condition of a served Volume: local data that is pending upload can be read.
pub const LOCAL_DATA_READABLE: &str = "LocalDataReadable";
/// Condition of a served Volume: no sync of the local disk failed since the attach.
pub const LOCAL_DISK_HEALTHY: &str = "LocalDiskHealthy";
/// Condition of a memory Volume: its earlier content is lost.
pub const CONTENT_LOST: &str = "ContentLost";
/// Reason of [`CONTENT_LOST`]: the node detached the volume on request. Each other reason is a fault.
pub const CONTENT_DROPPED: &str = "Detached";
/// Conditions in which the daemon reports faults that affect the volume's users.
pub const SERVING_CONDITIONS: [&str; 4] =
    [STORE_REACHABLE, WRITABLE, LOCAL_DATA_READABLE, LOCAL_DISK_HEALTHY];

/// The three values a condition can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// The condition holds.
    True,
    /// The condition does not hold; reason and message say why.
    False,
    /// Not observed yet, or can no longer be observed.
    Unknown,
}

impl ConditionStatus {
    /// Returns the API's name of the status.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// Returns the condition of the given type, if present.
pub fn find_condition<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Returns true if the condition of the given type is present and `True`.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find_condition(conditions, type_).is_some_and(|condition| condition.status == "True")
}

/// Returns true if the condition of a Volume is `True`, and its reason reports a fault that needs an action.
pub fn is_true_with_fault(condition: &Condition) -> bool {
    let faults: &[&str] = match condition.type_.as_str() {
        STORE_REACHABLE => &[CHANGE_REFUSED, DELETES_REFUSED],
        ATTACHED => &[NOT_CONFIGURED, NODE_FULL, REFUSED, GROWTH_WAITS],
        _ => &[],
    };
    condition.status == "True" && faults.contains(&condition.reason.as_str())
}

/// Builds the conditions of one status report.
#[derive(Clone, Copy, Debug)]
pub struct ConditionBuilder<'a> {
    /// Conditions currently in the object's status.
    pub previous: &'a [Condition],
    /// Generation of the spec that the report refers to.
    pub observed_generation: Option<i64>,
    /// Time of the report.
    pub now: &'a Time,
}

impl ConditionBuilder<'_> {
    /// Builds a condition. The transition time changes only when the status changes, so rewriting an unchanged condition is
    /// a no-op.
    pub fn build(
        &self,
        type_: &str,
        status: ConditionStatus,
        reason: &str,
        message: impl Into<String>,
    ) -> Condition {
        let last_transition_time = find_condition(self.previous, type_)
            .filter(|old| old.status == status.as_str())
            .map_or_else(|| self.now.clone(), |old| old.last_transition_time.clone());
        Condition {
            type_: type_.to_owned(),
            status: status.as_str().to_owned(),
            reason: reason.to_owned(),
            message: message.into(),
            observed_generation: self.observed_generation,
            last_transition_time,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transition_time_moves_only_with_the_status() {
        let early = Time("2026-01-01T00:00:00Z".parse().expect("a timestamp"));
        let late = Time("2026-01-02T00:00:00Z".parse().expect("a timestamp"));
        let old = vec![ConditionBuilder { previous: &[], observed_generation: Some(1), now: &early }.build(
            "Ready",
            ConditionStatus::False,
            "Unreachable",
            "a",
        )];
        let same = ConditionBuilder { previous: &old, observed_generation: Some(2), now: &late }.build(
            "Ready",
            ConditionStatus::False,
            "AccessDenied",
            "b",
        );
        assert_eq!(same.last_transition_time, early);
        let turned = ConditionBuilder { previous: &old, observed_generation: Some(2), now: &late }.build(
            "Ready",
            ConditionStatus::True,
            "Probed",
            "",
        );
        assert_eq!(turned.last_transition_time, late);
        assert!(is_true(&[turned], "Ready"));
    }
}
