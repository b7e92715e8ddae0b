//! Failures of a step for a volume, and their report to the user.

use holdfast_cluster::api::ApiError;
use holdfast_crds::{Time, VolumePhase, VolumeStatus};
use holdfast_log::LogFailure;
use holdfast_objects::ErrorKind;

use super::facts::ClusterFacts;
use super::home::Obstacle;
use super::plan::{deleting, pending, ungranted};
use crate::object_store::connect::ConnectError;
use crate::requeue::Requeue;

/// Reason why a step failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeFailure {
    /// The API server did not accept a request.
    #[error("the API server refused a request for the volume")]
    Api(#[source] ApiError),
    /// Another client changed the object since it was read.
    #[error("the volume changed in the meantime")]
    Changed,
    /// The ObjectStore cannot be used.
    #[error("the ObjectStore cannot be used")]
    Connect(#[from] ConnectError),
    /// The volume's log was not created or removed.
    #[error(transparent)]
    Log(#[from] LogFailure),
}

impl VolumeFailure {
    /// Returns the retry policy for the failure.
    pub(crate) fn retry(&self) -> Requeue {
        match self {
            Self::Changed => Requeue::Soon,
            Self::Api(_) => Requeue::Later,
            Self::Connect(error) => error.retry(),
            Self::Log(failure) => log_retry(failure),
        }
    }

    /// Returns the condition's reason; `None` if there is nothing to report.
    fn reason(&self) -> Option<&'static str> {
        match self {
            Self::Changed | Self::Api(_) => None,
            Self::Connect(_) => Some("ObjectStoreUnusable"),
            Self::Log(failure) => Some(log_reason(failure)),
        }
    }

    /// Returns the status that reports the failure; `None` if there is nothing to report.
    pub(crate) fn status(&self, facts: &ClusterFacts, now: &Time) -> Option<VolumeStatus> {
        let reason = self.reason()?;
        let message =
            format!("{}: {} (`{}`); {}", self.field(facts), brief(self), facts.store_name(), self.fix());
        if facts.deleting {
            return Some(deleting(facts, reason, message, now));
        }
        let phase =
            if self.field(facts) == "spec.objectStore" { VolumePhase::Pending } else { VolumePhase::Failed };
        Some(pending(facts, &Obstacle::new(phase, reason, message), now))
    }

    /// Returns the status that reports a log that was not read, although its writer decides whether the
    /// desired node may have the volume. `None` if no node waits, or there is nothing to report.
    pub(crate) fn ungranted(&self, facts: &ClusterFacts, now: &Time) -> Option<VolumeStatus> {
        let (reason, node) = (self.reason()?, facts.desired()?);
        if facts.serving() == Some(node) || facts.assigned() == Some(node) {
            return None;
        }
        let (why, store, fix) = (brief(self), facts.store_name(), self.fix());
        let message = format!(
            "node {node} waits, because the log of the volume was not read: {why} (`{store}`); {fix}"
        );
        Some(ungranted(facts, reason, &message, now))
    }

    /// Returns the field that the failure refers to.
    fn field(&self, facts: &ClusterFacts) -> &'static str {
        match self {
            Self::Log(
                LogFailure::CreatedElsewhere { .. }
                | LogFailure::OtherSource { .. }
                | LogFailure::WasDeleted(_)
                | LogFailure::HasSnapshots { .. },
            ) => "spec.volumeID",
            Self::Log(LogFailure::ExistsOtherwise { .. } | LogFailure::SmallerThanSource { .. }) => {
                "spec.size"
            }
            Self::Log(LogFailure::StillAttached { .. }) => "spec.deletionPolicy",
            Self::Log(
                LogFailure::NoSuchSource { .. }
                | LogFailure::OtherSnapshot { .. }
                | LogFailure::TooManyForks { .. },
            ) => facts.source_field(),
            Self::Log(_) | Self::Api(_) | Self::Changed | Self::Connect(_) => "spec.objectStore",
        }
    }

    fn fix(&self) -> &'static str {
        match self {
            Self::Connect(_) => "see the conditions of the ObjectStore",
            Self::Log(LogFailure::CreatedElsewhere { .. } | LogFailure::OtherSource { .. }) => {
                "nothing was changed. To adopt it, delete this Volume and create it with `spec.source.existing: {}`"
            }
            Self::Log(LogFailure::WasDeleted(_)) => "create the Volume with another spec.volumeID",
            Self::Log(LogFailure::ExistsOtherwise { .. }) => "write its current size, or a larger one",
            Self::Log(
                LogFailure::Damaged { .. } | LogFailure::Misplaced { .. } | LogFailure::Broken { .. },
            ) => "restore the object from a backup of the bucket",
            Self::Log(LogFailure::HasSnapshots { .. }) => {
                "delete its VolumeSnapshots. For snapshots without a VolumeSnapshot, set spec.deletionPolicy to \
                 `Retain`, adopt the volume with `spec.source.existing`, and run `holdfast-node snapshot delete` \
                 on its node"
            }
            Self::Log(LogFailure::StillAttached { .. }) => {
                "delete the Volume there, or set `Retain` here; the next attempt says what to do if that node is lost"
            }
            Self::Log(LogFailure::NoSuchSource { .. }) => {
                "delete this Volume, and create another, with another spec.volumeID, from a VolumeSnapshot that is Ready"
            }
            Self::Log(LogFailure::OtherSnapshot { .. }) => {
                "delete this Volume and the VolumeSnapshot, whose snapshot is not in this bucket; restore another"
            }
            Self::Log(LogFailure::SmallerThanSource { .. }) => {
                "write the size of the snapshot, or a larger one"
            }
            Self::Log(LogFailure::TooManyForks { .. }) => {
                "delete this Volume; create an empty one, and copy the content of the volume that has the snapshot into it"
            }
            Self::Log(LogFailure::Store { source, .. }) if source.kind() == ErrorKind::Denied => {
                "allow `s3:ListBucket`, `s3:GetObject`, `s3:PutObject` and `s3:DeleteObject` in the bucket's policy or the role"
            }
            Self::Api(_) | Self::Changed | Self::Log(_) => "it is retried",
        }
    }
}

/// Returns the retry policy for a failure of the log.
pub(crate) fn log_retry(failure: &LogFailure) -> Requeue {
    if let LogFailure::Store { source, .. } | LogFailure::Volumes { source } = failure {
        return Requeue::of(source.kind());
    }
    // The deletion of a VolumeSnapshot triggers the next attempt.
    if matches!(failure, LogFailure::HasSnapshots { .. }) {
        return Requeue::OnChange;
    }
    if failure.is_transient() { Requeue::Later } else { Requeue::Rarely }
}

/// Returns the condition's reason for a failure of the log.
pub(crate) fn log_reason(failure: &LogFailure) -> &'static str {
    match failure {
        LogFailure::Store { source, .. } | LogFailure::Volumes { source } => match source.kind() {
            ErrorKind::Denied => "AccessDenied",
            ErrorKind::Blocked(blocker) => blocker.reason(),
            ErrorKind::Throttled | ErrorKind::Unavailable => "ObjectStoreUnavailable",
            ErrorKind::Conflict | ErrorKind::Ambiguous | ErrorKind::Exists => "ObjectStoreBusy",
            ErrorKind::NotFound | ErrorKind::Invalid | ErrorKind::Corrupt => "ObjectStoreRefused",
        },
        LogFailure::Contended(_) => "ObjectStoreBusy",
        LogFailure::NotEmpty { .. } => "ObjectStoreUnavailable",
        LogFailure::CreatedElsewhere { .. } | LogFailure::OtherSource { .. } | LogFailure::WasDeleted(_) => {
            "IdTaken"
        }
        LogFailure::ExistsOtherwise { .. } | LogFailure::SmallerThanSource { .. } => "InvalidSize",
        LogFailure::Damaged { .. } | LogFailure::Misplaced { .. } | LogFailure::Broken { .. } => "DamagedLog",
        LogFailure::HasSnapshots { .. } => "HasSnapshots",
        // The same reason as in the plan, which checks this first.
        LogFailure::StillAttached { .. } => "DeletionBlocked",
        LogFailure::NoSuchSource { .. } => "SnapshotNotFound",
        LogFailure::OtherSnapshot { .. } => "SnapshotReplaced",
        LogFailure::ForeignRoot(_) => "SnapshotPlaceTaken",
        LogFailure::TooManyForks { .. } => "TooManyForks",
        LogFailure::NoLog(_) | _ => "LogFailed",
    }
}

/// Formats a failure and its direct source. Deeper sources contain request ids; a message that differs at
/// every attempt would cause a write at every attempt.
pub(crate) fn brief(failure: &dyn std::error::Error) -> String {
    let source = failure.source().map(|source| format!(": {source}"));
    format!("{failure}{}", source.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use holdfast_crds::{ASSIGNED, ConditionStatus, PROVISIONED, READY, find_condition};
    use holdfast_objects::{Blocker, StoreError};
    use holdfast_types::Seq;

    use super::*;
    use crate::volume::facts::{ContentFacts, StoreFact, VolumeIdentity};

    fn store_failure(source: StoreError) -> VolumeFailure {
        let volume = "v".parse().expect("a volume id");
        LogFailure::Store { what: "create a log record", volume, is_write: true, source }.into()
    }

    fn facts() -> ClusterFacts {
        ClusterFacts {
            identity: VolumeIdentity {
                name: "data".to_owned(),
                uid: "uid-1".to_owned(),
                id: "v".to_owned(),
                rival: None,
            },
            content: ContentFacts::NOT_READ,
            generation: 1,
            spec: serde_json::from_value(serde_json::json!({ "size": "1Gi", "objectStore": "store" }))
                .expect("a spec"),
            status: VolumeStatus::default(),
            finalizer: true,
            deleting: false,
            force_detach: None,
            log_writer: None,
            released_epoch: None,
            lost: None,
            acknowledged: None,
            store: StoreFact::Ready,
            trash: None,
            node_known: false,
        }
    }

    #[test]
    fn a_failure_names_the_field_with_a_stable_message() {
        let facts = facts();
        let now = Time("2026-01-01T00:00:00Z".parse().expect("a timestamp"));
        let message = |request: &str| {
            let denied = StoreError::Denied { code: "AccessDenied".to_owned(), source: request.into() };
            let failure = store_failure(denied);
            assert_eq!(failure.retry(), Requeue::Rarely);
            let status = failure.status(&facts, &now).expect("something to report");
            assert_eq!((status.phase, status.volume_id), (Some(VolumePhase::Pending), None));
            assert_eq!(status.conditions[0].reason, "AccessDenied");
            status.conditions[0].message.clone()
        };
        let first = message("request 1");
        assert!(first.starts_with("spec.objectStore: ") && first.contains("(AccessDenied)"), "{first}");
        assert!(first.contains("`s3:DeleteObject`"), "a Volume may wait for it to be deleted: {first}");
        assert_eq!(first, message("request 2"));
        assert_eq!(VolumeFailure::Changed.status(&facts, &now), None);
    }

    /// Regression: a full quota was reported as a missing right in the bucket's policy.
    #[test]
    fn what_blocks_the_store_is_named_with_its_fix() {
        let now = Time("2026-01-01T00:00:00Z".parse().expect("a timestamp"));
        for blocker in Blocker::ALL {
            let source = "request 1".into();
            let failure = store_failure(StoreError::Blocked { blocker, code: "X".to_owned(), source });
            let status = failure.status(&facts(), &now).expect("something to report");
            let condition = &status.conditions[0];
            assert_eq!((failure.retry(), condition.reason.as_str()), (Requeue::Rarely, blocker.reason()));
            assert!(condition.message.contains(blocker.state()), "{}", condition.message);
            assert!(condition.message.contains(&format!("; {}", blocker.fix())), "{}", condition.message);
            assert!(!condition.message.contains("s3:PutObject"), "{}", condition.message);
        }
    }

    /// A deleted Volume stays, and its message names the snapshots to delete first.
    #[test]
    fn a_volume_with_snapshots_says_what_to_delete() {
        let volume = "v".parse().expect("a volume id");
        let failure = VolumeFailure::from(LogFailure::HasSnapshots { volume, seqs: vec![Seq(8)] });
        let now = Time("2026-01-01T00:00:00Z".parse().expect("a timestamp"));
        let facts = ClusterFacts { deleting: true, ..facts() };
        let status = failure.status(&facts, &now).expect("something to report");
        let condition = &status.conditions[0];
        assert_eq!(condition.reason, "HasSnapshots");
        assert_eq!(
            condition.message,
            "spec.volumeID: volume v has a snapshot that would be lost with it (v@8): delete them first \
             (`store`); delete its VolumeSnapshots. For snapshots without a VolumeSnapshot, set \
             spec.deletionPolicy to `Retain`, adopt the volume with `spec.source.existing`, and run \
             `holdfast-node snapshot delete` on its node"
        );
    }

    /// Regression, found in review: each deleted Volume with snapshots cost five requests every 25 seconds,
    /// possibly for weeks.
    #[test]
    fn a_volume_with_snapshots_waits_for_an_event() {
        let volume = "v".parse().expect("a volume id");
        let failure = VolumeFailure::from(LogFailure::HasSnapshots { volume, seqs: vec![Seq(8)] });
        assert_eq!(failure.retry(), Requeue::OnChange);
    }

    /// Another cluster attached it after the plan was made.
    #[test]
    fn a_volume_attached_elsewhere_says_where_and_what_to_do() {
        let (volume, epoch) = ("v".parse().expect("a volume id"), holdfast_types::Epoch(7));
        let failure =
            VolumeFailure::from(LogFailure::StillAttached { volume, node: "away".to_owned(), epoch });
        let now = Time("2026-01-01T00:00:00Z".parse().expect("a timestamp"));
        let facts = ClusterFacts { deleting: true, ..facts() };
        let status = failure.status(&facts, &now).expect("something to report");
        let condition = &status.conditions[0];
        assert_eq!((failure.retry(), condition.reason.as_str()), (Requeue::Rarely, "DeletionBlocked"));
        for part in ["spec.deletionPolicy: ", "node away has it attached, with epoch 7", "`Retain`"] {
            assert!(condition.message.contains(part), "{}", condition.message);
        }
    }

    /// Regression, found in review: without the log, a Volume whose node was lost kept the condition of its
    /// last plan, such as the request for a node that it had by then.
    #[test]
    fn a_node_that_waits_for_the_log_is_told_so() {
        let failure = VolumeFailure::from(LogFailure::NoLog("v".parse().expect("a volume id")));
        let now = Time("2026-01-01T00:00:00Z".parse().expect("a timestamp"));
        let mut facts = facts();
        facts.spec.node_name = Some("b".to_owned());
        let old = |type_, reason| facts.conditions(&now).build(type_, ConditionStatus::False, reason, "old");
        facts.status.conditions = vec![old(ASSIGNED, "NotRequested"), old(PROVISIONED, "Created")];
        facts.status.volume_id = Some("v".to_owned());
        facts.status.phase = Some(VolumePhase::Ready);
        let status = failure.ungranted(&facts, &now).expect("something to report");
        let ready = find_condition(&status.conditions, READY).expect("ready");
        assert_eq!((status.phase, ready.status.as_str()), (Some(VolumePhase::Attaching), "False"));
        assert_eq!((status.volume_id.as_deref(), status.conditions.len()), (Some("v"), 3));
        let assigned = find_condition(&status.conditions, ASSIGNED).expect("assigned");
        assert_eq!((assigned.status.as_str(), assigned.reason.as_str()), ("False", "LogFailed"));
        assert!(assigned.message.starts_with("node b waits, because the log of the volume was not read: "));
        facts.status.assigned_node = Some("b".to_owned());
        assert_eq!(failure.ungranted(&facts, &now), None, "it has the grant");
        facts.status.assigned_node = None;
        assert_eq!(VolumeFailure::Changed.ungranted(&facts, &now), None);
    }

    /// The snapshot was deleted after the volume that starts from it recorded it.
    #[test]
    fn a_snapshot_that_is_gone_fails_the_volume_and_names_the_field() {
        let (volume, snapshot) = ("v".parse().expect("an id"), "w@7".parse().expect("a snapshot"));
        let failure = VolumeFailure::from(LogFailure::NoSuchSource { volume, snapshot });
        assert_eq!(failure.retry(), Requeue::Rarely);
        let now = Time("2026-01-01T00:00:00Z".parse().expect("a timestamp"));
        let mut facts = facts();
        facts.status.restored_from = Some("w@7".to_owned());
        let status = failure.status(&facts, &now).expect("something to report");
        assert_eq!(status.phase, Some(VolumePhase::Failed));
        assert_eq!(status.restored_from.as_deref(), Some("w@7"), "a retry restores no other");
        let condition = &status.conditions[0];
        assert_eq!(condition.reason, "SnapshotNotFound");
        assert!(condition.message.starts_with("spec.source.snapshot.name: "), "{}", condition.message);
        assert!(condition.message.contains("w@7"), "{}", condition.message);
    }

    #[test]
    fn a_snapshot_of_another_uid_fails_the_volume() {
        use holdfast_types::SnapshotUid;
        let (volume, snapshot) = ("v".parse().expect("an id"), "w@7".parse().expect("a snapshot"));
        let (found, wanted) = (SnapshotUid([1; 16]), SnapshotUid([2; 16]));
        let failure = VolumeFailure::from(LogFailure::OtherSnapshot { volume, snapshot, found, wanted });
        assert_eq!(failure.retry(), Requeue::Rarely);
        let now = Time("2026-01-01T00:00:00Z".parse().expect("a timestamp"));
        let status = failure.status(&facts(), &now).expect("something to report");
        let condition = &status.conditions[0];
        assert_eq!(
            (status.phase, condition.reason.as_str()),
            (Some(VolumePhase::Failed), "SnapshotReplaced")
        );
        let message = &condition.message;
        assert!(message.starts_with("spec.source.snapshot.name: volume v cannot be restored"), "{message}");
        assert!(message.ends_with("restore another"), "{message}");
    }

    /// The Volume was saved, and is applied again with another snapshot or none.
    #[test]
    fn a_volume_that_began_otherwise_is_adopted_or_left() {
        let (volume, snapshot) = ("v".parse().expect("an id"), Some("w@7".parse().expect("a snapshot")));
        let failure = VolumeFailure::from(LogFailure::OtherSource { volume, snapshot });
        let now = Time("2026-01-01T00:00:00Z".parse().expect("a timestamp"));
        let status = failure.status(&facts(), &now).expect("something to report");
        assert_eq!((failure.retry(), status.phase), (Requeue::Rarely, Some(VolumePhase::Failed)));
        let condition = &status.conditions[0];
        assert_eq!(condition.reason, "IdTaken");
        for part in ["spec.volumeID: ", "w@7", "nothing was changed", "`spec.source.existing: {}`"] {
            assert!(condition.message.contains(part), "{}", condition.message);
        }
    }

    #[test]
    fn an_unreachable_store_is_retried_sooner_than_a_refusing_one() {
        assert_eq!(store_failure(StoreError::Unavailable("x".into())).retry(), Requeue::Later);
    }
}
