//! Why a step for a volume failed, and what the user is told.

use holdfast_crds::{Time, VolumePhase, VolumeStatus};
use holdfast_engine::DecodeError;
use holdfast_objects::{ErrorKind, StoreError};

use super::facts::Facts;
use super::plan::{Obstacle, PROVISIONED, pending};
use crate::object_store::connect::ConnectError;
use crate::requeue::Retry;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeFailure {
    /// The API server did not take a request.
    #[error("the API server refused a request for the volume")]
    Api(#[source] kube::Error),
    /// Somebody changed the object since it was read.
    #[error("the volume changed meanwhile")]
    Changed,
    /// The ObjectStore cannot be used.
    #[error("the ObjectStore cannot be used")]
    Connect(#[from] ConnectError),
    /// The object store did not do what was asked.
    #[error("a request to the object store failed")]
    Store(#[from] StoreError),
    /// A create of a log record stayed ambiguous.
    #[error("whether record {key} was created is not known")]
    Ambiguous {
        /// The record's key.
        key: String,
    },
    /// The volume's first record is not the one we would write.
    #[error("object {key} is not this volume's first record")]
    Foreign {
        /// The record's key.
        key: String,
    },
    /// A record cannot be read.
    #[error("log record {key} is damaged")]
    Damaged {
        /// The record's key.
        key: String,
        /// What is wrong with it.
        #[source]
        source: DecodeError,
    },
}

impl VolumeFailure {
    /// When to try again.
    pub(crate) fn retry(&self) -> Retry {
        match self {
            Self::Changed | Self::Ambiguous { .. } => Retry::Soon,
            Self::Api(_) => Retry::Later,
            Self::Connect(error) => error.retry(),
            Self::Store(error) => Retry::of(error.kind()),
            Self::Foreign { .. } | Self::Damaged { .. } => Retry::Rarely,
        }
    }

    /// Reason of the condition; `None` when there is nothing to tell.
    fn reason(&self) -> Option<&'static str> {
        match self {
            Self::Changed | Self::Api(_) => None,
            Self::Connect(_) => Some("ObjectStoreUnusable"),
            Self::Store(error) => Some(match error.kind() {
                ErrorKind::Denied => "AccessDenied",
                ErrorKind::Throttled | ErrorKind::Unavailable => "ObjectStoreUnavailable",
                ErrorKind::Conflict | ErrorKind::Ambiguous | ErrorKind::Exists => "ObjectStoreBusy",
                ErrorKind::NotFound | ErrorKind::Invalid | ErrorKind::Corrupt => "ObjectStoreRefused",
            }),
            Self::Ambiguous { .. } => Some("ObjectStoreBusy"),
            Self::Foreign { .. } => Some("ForeignRecord"),
            Self::Damaged { .. } => Some("DamagedRecord"),
        }
    }

    /// The status that tells the user of the failure; `None` when there is nothing to tell.
    pub(crate) fn status(&self, facts: &Facts, now: &Time) -> Option<VolumeStatus> {
        let reason = self.reason()?;
        let message =
            format!("spec.objectStore: {} (`{}`); {}", self.brief(), facts.store_name(), self.fix());
        let phase = if facts.deleting { VolumePhase::Deleting } else { VolumePhase::Pending };
        let mut status = pending(facts, &Obstacle::new(phase, reason, message), now);
        if facts.deleting {
            status.conditions.retain(|condition| condition.type_ == PROVISIONED);
        }
        Some(status)
    }

    /// The failure and its direct source. Deeper ones carry request ids, and a message that differs at every attempt would
    /// be a write at every attempt.
    fn brief(&self) -> String {
        let source = std::error::Error::source(self).map(|source| format!(": {source}"));
        format!("{self}{}", source.unwrap_or_default())
    }

    fn fix(&self) -> &'static str {
        match self {
            Self::Connect(_) => "see the conditions of the ObjectStore",
            Self::Foreign { .. } => "give the ObjectStore a prefix of its own",
            Self::Damaged { .. } => "restore the object from a backup of the bucket",
            Self::Api(_) | Self::Changed | Self::Store(_) | Self::Ambiguous { .. } => {
                "it will be tried again"
            }
        }
    }
}

/// An error with its sources, joined by colons.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}
