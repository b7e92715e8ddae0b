//! The input facts of a volume's plan.

use std::time::Duration;

use holdfast_crds::{ConditionBuilder, DeletionPolicy, Time, VolumeSpec, VolumeStatus};

use super::operations::{Doing, OperationOutcome, Unconfigured};
use super::retry::HELD_ELSEWHERE;
use crate::node;

/// Snapshot of one volume's facts.
#[derive(Clone, Debug)]
pub(crate) struct NodeFacts {
    /// Name of this node.
    pub(crate) me: String,
    /// `metadata.uid`.
    pub(crate) uid: Option<String>,
    /// `metadata.generation`.
    pub(crate) generation: Option<i64>,
    /// The desired state.
    pub(crate) spec: VolumeSpec,
    /// True if deletion was requested.
    pub(crate) deleting: bool,
    /// Status reported so far, by all its writers.
    pub(crate) status: VolumeStatus,
    /// The volume on this node, if present.
    pub(crate) here: Option<node::NodeVolumeStatus>,
    /// True if this node has files of the volume without serving it.
    pub(crate) kept: bool,
    /// Operation of this process on the volume that is in progress.
    pub(crate) doing: Option<Doing>,
    /// Outcome of this process's last operation on the volume.
    pub(crate) last: Option<OperationOutcome>,
    /// The last change of its settings, if it failed.
    pub(crate) unconfigured: Option<Unconfigured>,
    /// Time until a failed operation may be retried.
    pub(crate) wait: Duration,
    /// Namespace and name of the Secret with its store's credentials.
    pub(crate) secret: Option<String>,
    /// Time since this process last wrote the status.
    pub(crate) since_report: Option<Duration>,
    /// Time since this process first saw a change of the spec that the operator has not observed, of a volume
    /// on this node.
    pub(crate) unanswered: Option<Duration>,
}

impl NodeFacts {
    /// Returns a builder for the conditions of a report at this time.
    pub(crate) fn conditions<'a>(&'a self, now: &'a Time) -> ConditionBuilder<'a> {
        ConditionBuilder { previous: &self.status.conditions, observed_generation: self.generation, now }
    }

    /// Returns true if this process wrote the status less than this time ago.
    pub(super) fn reported_within(&self, time: Duration) -> bool {
        self.since_report.is_some_and(|since| since < time)
    }

    pub(super) fn granted(&self) -> bool {
        self.status.assigned_node.as_deref() == Some(&self.me)
    }

    pub(super) fn granted_to_another(&self) -> bool {
        self.status.assigned_node.as_deref().is_some_and(|node| !node.is_empty() && node != self.me)
    }

    pub(super) fn claimed(&self) -> bool {
        self.status.node.as_deref() == Some(&self.me)
    }

    /// Returns true if another node has attached the volume and reports its epoch.
    pub(super) fn served_elsewhere(&self) -> bool {
        self.status.epoch.is_some()
            && self.status.node.as_deref().is_some_and(|node| !node.is_empty() && node != self.me)
    }

    /// Returns the highest known epoch of a memory volume: of the attach in progress or the last one.
    pub(super) fn newest_epoch(&self) -> Option<u64> {
        self.status.last_epoch.max(self.status.epoch).filter(|_| self.spec.is_memory())
    }

    /// Returns the highest epoch that this node was cut off from.
    fn cut_off_epoch(&self) -> Option<u64> {
        let forced = self.status.forced_detach.as_ref().filter(|forced| forced.node == self.me);
        forced.and_then(|forced| forced.epoch)
    }

    /// Returns true for a memory volume's epoch that a later attach replaced, or this node was cut off from.
    pub(super) fn is_outdated(&self, epoch: u64) -> bool {
        self.newest_epoch().is_some_and(|newest| epoch < newest)
            || self.cut_off_epoch().is_some_and(|cut_off| epoch <= cut_off)
    }

    /// Returns the epoch of a memory volume's next attach: the time in seconds since 1970, or more if the
    /// clock is behind earlier epochs.
    pub(super) fn next_epoch(&self, now: &Time) -> u64 {
        let forced = self.status.forced_detach.as_ref().and_then(|forced| forced.epoch);
        let before = self.newest_epoch().max(forced).unwrap_or_default();
        u64::try_from(now.0.as_second()).unwrap_or_default().max(before + 1)
    }

    /// Returns true if the log named another node as attached at this node's last attempt to attach.
    pub(super) fn is_held_elsewhere(&self) -> bool {
        matches!(&self.last, Some(OperationOutcome::Failed(failure)) if failure.reason == HELD_ELSEWHERE)
    }

    pub(super) fn requested(&self) -> bool {
        !self.deleting && self.spec.desired_node() == Some(&self.me)
    }

    /// Returns true if un-uploaded data of the volume on this node is discardable, because it is deleted with
    /// the volume.
    pub(super) fn is_discardable(&self) -> bool {
        self.deleting && self.spec.deletion_policy == DeletionPolicy::Delete
    }
}
