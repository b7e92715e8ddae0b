//! Conditions: their types and reasons, one entry for each type, with a stable transition time.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Condition type. Of an ObjectStore: the bucket answers, can be listed, and creates a key once only. Of a
/// StorageNode: its daemon runs, and at least one transport can be used. Of a VolumeSnapshot: it is
/// taken. Of a VolumeGroupSnapshot: all of its VolumeSnapshots are.
pub const READY: &str = "Ready";

/// Condition of a StorageNode without ublk: a keeper holds the connections of all its devices.
pub const DEVICES_KEPT: &str = "DevicesKept";

/// Condition of a Volume: it exists in its object store.
pub const PROVISIONED: &str = "Provisioned";
/// Condition of a Volume: the request of `spec.nodeName` is granted.
pub const ASSIGNED: &str = "Assigned";
/// Reason of [`ASSIGNED`]: the node of the spec may serve the volume.
pub const GRANTED: &str = "Granted";
/// Reason of [`ASSIGNED`]: so may a node that has no StorageNode.
pub const NODE_UNKNOWN: &str = "NodeUnknown";
/// Condition of a Volume: the attached device has the size of the spec.
pub const RESIZED: &str = "Resized";
/// Condition of a Volume: a node was force-detached, and what it had not uploaded is missing.
pub const DATA_LOST: &str = "UnuploadedDataLost";
/// Condition of a Volume that a node is to serve: it does.
pub const ATTACHED: &str = "Attached";
/// Condition of a served Volume: the object store answers the node.
pub const STORE_REACHABLE: &str = "StoreReachable";
/// Condition of a served Volume: writes do not wait.
pub const WRITABLE: &str = "Writable";
/// Condition of a served Volume: what is to be uploaded can be read.
pub const LOCAL_DATA_READABLE: &str = "LocalDataReadable";
/// Condition of a served Volume: no sync of the local disk failed since the attach.
pub const LOCAL_DISK_HEALTHY: &str = "LocalDiskHealthy";
/// Condition of a memory Volume: content that it had is lost.
pub const CONTENT_LOST: &str = "ContentLost";
/// Reason of [`CONTENT_LOST`]: its node detached the volume, as it was asked to.
pub const CONTENT_DROPPED: &str = "Detached";
/// Conditions by which the daemon reports faults that users of the volume notice.
pub const SERVING_CONDITIONS: [&str; 4] =
    [STORE_REACHABLE, WRITABLE, LOCAL_DATA_READABLE, LOCAL_DISK_HEALTHY];

/// The three values a condition can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// The condition holds.
    True,
    /// The condition does not hold; reason and message say why.
    False,
    /// Not observed yet, or no longer observable.
    Unknown,
}

impl ConditionStatus {
    /// The word the API uses.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// Finds the condition of one type.
pub fn find_condition<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// True when the condition of this type is present and holds.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find_condition(conditions, type_).is_some_and(|condition| condition.status == "True")
}

/// Makes the conditions of one report on an object.
#[derive(Clone, Copy, Debug)]
pub struct ConditionBuilder<'a> {
    /// The conditions that the object has.
    pub previous: &'a [Condition],
    /// Generation of the spec the report refers to.
    pub observed_generation: Option<i64>,
    /// The time of the report.
    pub now: &'a Time,
}

impl ConditionBuilder<'_> {
    /// A condition. Its transition time stays as it was unless the status changed, so that writing an
    /// unchanged condition again changes nothing.
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
