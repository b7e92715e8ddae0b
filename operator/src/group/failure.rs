//! Failures of a step, as reported in conditions.

use holdfast_cluster::api::ApiError;
use holdfast_crds::{Time, VolumeGroupSnapshotStatus};
use holdfast_log::LogFailure;
use holdfast_types::InvalidSnapshotName;

use super::facts::GroupFacts;
use super::plan::waiting;
use crate::object_store::connect::ConnectError;
use crate::requeue::Requeue;
use crate::snapshot::failure::SnapshotFailure;
use crate::volume::failure::{brief, log_reason, log_retry};

/// Reason why a step failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GroupFailure {
    /// The API server did not accept a request.
    #[error("the API server refused a request for the group of snapshots")]
    Api(#[source] ApiError),
    /// Another client changed the object since it was read.
    #[error("the group of snapshots changed in the meantime")]
    Changed,
    /// The API server has not listed VolumeSnapshots and Volumes yet.
    #[error("the VolumeSnapshots and Volumes are not known yet")]
    Unseen,
    /// A step for a VolumeSnapshot failed.
    #[error("VolumeSnapshot {name}")]
    Snapshot {
        /// Name of the VolumeSnapshot.
        name: String,
        /// The failure.
        source: Box<SnapshotFailure>,
    },
    /// The log of a volume could not be read.
    #[error("the log of Volume {volume} could not be read")]
    Log {
        /// Name of the volume.
        volume: String,
        /// The failure.
        source: Box<LogFailure>,
    },
    /// The ObjectStore of a volume cannot be used.
    #[error("the ObjectStore of Volume {volume} cannot be used")]
    Connect {
        /// Name of the volume.
        volume: String,
        /// The failure.
        source: ConnectError,
    },
    /// The recorded snapshot name is invalid.
    #[error("status.snapshotId of VolumeSnapshot {name} is not valid")]
    Recorded {
        /// Name of the VolumeSnapshot.
        name: String,
        /// The failure.
        source: InvalidSnapshotName,
    },
    /// Volumes changed after their snapshots were taken: the attempt failed.
    #[error("volumes changed after their snapshots were taken: {}", .0.join(", "))]
    Touched(Vec<String>),
}

impl GroupFailure {
    /// Returns the retry policy for the failure.
    pub(crate) fn retry(&self) -> Requeue {
        match self {
            Self::Changed | Self::Touched(_) => Requeue::Soon,
            Self::Api(_) | Self::Unseen => Requeue::Later,
            Self::Snapshot { source, .. } => source.retry(),
            Self::Log { source, .. } => log_retry(source),
            Self::Connect { source, .. } => source.retry(),
            Self::Recorded { .. } => Requeue::Rarely,
        }
    }

    /// Returns the condition's reason; `None` if there is nothing to report.
    fn reason(&self) -> Option<&'static str> {
        match self {
            Self::Changed | Self::Touched(_) | Self::Api(_) | Self::Unseen => None,
            Self::Snapshot { source, .. } => source.reason(),
            Self::Log { source, .. } => Some(log_reason(source)),
            Self::Connect { .. } => Some("ObjectStoreUnusable"),
            Self::Recorded { .. } => Some("InvalidStatus"),
        }
    }

    /// Returns the status that reports the failure; `None` if there is nothing to report.
    pub(crate) fn status(&self, facts: &GroupFacts, now: &Time) -> Option<VolumeGroupSnapshotStatus> {
        let reason = self.reason()?;
        let message = match self {
            Self::Snapshot { name, source } => {
                let volume = facts.members.iter().find(|member| member.name == *name);
                let volume = volume.map(|member| member.volume.as_str()).unwrap_or_default();
                format!("Volume `{volume}`: VolumeSnapshot `{name}`: {}; it is retried", brief(source))
            }
            Self::Api(_)
            | Self::Changed
            | Self::Unseen
            | Self::Log { .. }
            | Self::Connect { .. }
            | Self::Recorded { .. }
            | Self::Touched(_) => format!("{}; it is retried", brief(self)),
        };
        Some(waiting(facts, reason, message, now))
    }
}
