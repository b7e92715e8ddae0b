//! Failures of a step, as reported in conditions.

use holdfast_cluster::api::ApiError;
use holdfast_crds::{Time, VolumeSnapshotStatus};
use holdfast_log::{LogFailure, SnapshotError};
use holdfast_types::{InvalidSnapshotName, InvalidSnapshotUid, InvalidVolumeId};

use super::facts::SnapshotFacts;
use super::plan::not_ready;
use crate::object_store::connect::ConnectError;
use crate::requeue::Requeue;
use crate::volume::failure::{brief, log_reason, log_retry};

/// Reason why a step failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnapshotFailure {
    /// The API server did not accept a request.
    #[error("the API server refused a request for the snapshot")]
    Api(#[source] ApiError),
    /// Another client changed the object since it was read.
    #[error("the snapshot changed in the meantime")]
    Changed,
    /// The ObjectStore cannot be used.
    #[error("the ObjectStore cannot be used")]
    Connect(#[from] ConnectError),
    /// The recorded volume identity is invalid.
    #[error("status.volumeId is not valid")]
    Recorded(#[from] InvalidVolumeId),
    /// The recorded snapshot name is invalid.
    #[error("status.snapshotId is not valid")]
    RecordedName(#[from] InvalidSnapshotName),
    /// The recorded uid is invalid.
    #[error("status.snapshotUid is not valid")]
    RecordedUid(#[from] InvalidSnapshotUid),
    /// The snapshot was not taken, or not forgotten.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
}

impl From<LogFailure> for SnapshotFailure {
    fn from(failure: LogFailure) -> Self {
        Self::Snapshot(failure.into())
    }
}

impl SnapshotFailure {
    /// Returns the retry policy for the failure.
    pub(crate) fn retry(&self) -> Requeue {
        match self {
            Self::Changed => Requeue::Soon,
            Self::Api(_) => Requeue::Later,
            Self::Connect(error) => error.retry(),
            Self::Snapshot(SnapshotError::Log(failure)) => log_retry(failure),
            // The Volume will report this soon, or a user attached it manually.
            Self::Snapshot(SnapshotError::Attached { .. }) => Requeue::Later,
            Self::Snapshot(_) | Self::Recorded(_) | Self::RecordedName(_) | Self::RecordedUid(_) => {
                Requeue::Rarely
            }
        }
    }

    /// Returns the condition's reason; `None` if there is nothing to report.
    pub(crate) fn reason(&self) -> Option<&'static str> {
        match self {
            Self::Changed | Self::Api(_) => None,
            Self::Connect(_) => Some("ObjectStoreUnusable"),
            Self::Recorded(_) | Self::RecordedName(_) | Self::RecordedUid(_) => Some("InvalidStatus"),
            Self::Snapshot(SnapshotError::Log(failure)) => Some(log_reason(failure)),
            Self::Snapshot(SnapshotError::Attached { .. }) => Some("VolumeAttached"),
            Self::Snapshot(SnapshotError::TooMany(_)) => Some("TooManySnapshots"),
            Self::Snapshot(SnapshotError::NoSuchSnapshot { .. }) => Some("SnapshotNotFound"),
            Self::Snapshot(_) => Some("VolumeNotFound"),
        }
    }

    /// Returns the status that reports the failure; `None` if there is nothing to report.
    pub(crate) fn status(&self, facts: &SnapshotFacts, now: &Time) -> Option<VolumeSnapshotStatus> {
        let place = facts.volume.as_ref().map(|volume| volume.object_store.as_str());
        let store = facts.status.object_store.as_deref().or(place).unwrap_or_default();
        let field = if facts.spec.snapshot_id.is_some() { "spec.snapshotID" } else { "spec.volume" };
        let then = if facts.deleting {
            "it is retried; set spec.deletionPolicy to `Retain` to leave the snapshot there"
        } else if matches!(self, Self::Snapshot(SnapshotError::Attached { .. })) {
            // The log of a volume whose node was cut off names that node until the next attach.
            "it is retried. If that node was cut off, start a pod that uses the volume: the node of that pod takes the snapshot"
        } else {
            "it is retried"
        };
        let message = format!("{field}: {} (ObjectStore `{store}`); {then}", brief(self));
        Some(not_ready(facts, self.reason()?, message, now))
    }
}
