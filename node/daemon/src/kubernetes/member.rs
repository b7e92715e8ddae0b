//! This node's part in a group snapshot: the next step and its outcome.
//!
//! ```text
//! the operator writes   Prepare                    Hold            Release
//! this node answers        Preparing, Prepared,      Held             Released, then the snapshot
//!                          Prepared ...                 \               /
//!                                                        +-> Lapsed <--+--> a snapshot, to be deleted
//! ```
//!
//! A prepared volume that begins a long commit is Preparing again until it ends. A cut whose VolumeSnapshot
//! is deleted is ended, so that it does not block the volume's next one.
//!
//! Does not own: the cut itself (`node/engine/src/volume/cut.rs`).
//! Invariants: a snapshot is reported along with `Released` only if it is of the point at which the volume
//! was held. Once `Hold` was written or the cut has lapsed, a snapshot is reported in any case, so that its
//! deletion knows that no other one will enter the log: an earlier process may have taken one.
//! On failure: a failed hold has lapsed; the other steps are retried.

use std::collections::HashMap;
use std::time::Duration;

use holdfast_crds::{GroupProgress, GroupStep, VolumeSnapshotStatus};
use holdfast_format::snapshot::Snapshot;
use holdfast_types::{SnapshotUid, VolumeId};
use parking_lot::Mutex;

use super::retry::OperationFailure;
use crate::node::CutStep;
use crate::volumes::Volumes;

/// Time after which a self-ending step is repeated: a prepared volume stays prepared, and a volume that is no
/// longer held stops reporting it.
pub(super) const AGAIN: Duration = Duration::from_secs(5);

/// Maximum wait for a prepared volume to confirm this; later it counts as in a long commit. A request to hold
/// writes is not seen until then.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(2);

/// Step of this node for a requested snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemberStep {
    /// Take a snapshot of all completed writes.
    Take,
    /// Announce that this node supports groups, and has started no snapshot.
    Announce,
    /// Perform this step of a cut.
    Cut(CutStep),
    /// Keep a prepared volume prepared.
    StayPrepared,
    /// Wait for the snapshot of the cut.
    Await,
}

/// Outcome of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StepOutcome {
    /// The snapshot is in the log.
    Taken(Snapshot),
    /// A group snapshot has reached this step.
    Reached(GroupProgress),
    Failed(OperationFailure),
}

/// Returns the next step for a group snapshot; `None` while the operator is about to write one.
pub(super) fn next(status: &VolumeSnapshotStatus) -> Option<MemberStep> {
    use GroupProgress::{Held, Lapsed, Prepared, Preparing, Released};
    match (status.group_step?, status.group_progress) {
        // A later release of the operator wrote it, and notices that nothing is reported.
        (GroupStep::Unknown, _) => None,
        (GroupStep::Prepare | GroupStep::Hold | GroupStep::Release, Some(Lapsed)) => Some(MemberStep::Take),
        (GroupStep::Prepare, None) => Some(MemberStep::Announce),
        (GroupStep::Prepare, Some(Prepared)) => Some(MemberStep::StayPrepared),
        (GroupStep::Prepare, Some(Preparing | Held | Released)) => Some(MemberStep::Cut(CutStep::Prepare)),
        (GroupStep::Hold, None | Some(Preparing | Prepared | Held)) => Some(MemberStep::Cut(CutStep::Hold)),
        (GroupStep::Hold, Some(Released)) => None,
        (GroupStep::Release, None | Some(Preparing | Prepared | Held)) => {
            Some(MemberStep::Cut(CutStep::Release))
        }
        (GroupStep::Release, Some(Released)) => Some(MemberStep::Await),
    }
}

/// Performs a step of a cut.
pub(super) async fn cut<V: Volumes>(
    volumes: &V,
    volume: &VolumeId,
    uid: SnapshotUid,
    step: CutStep,
) -> StepOutcome {
    let reached = match step {
        CutStep::Prepare => GroupProgress::Prepared,
        CutStep::Hold => GroupProgress::Held,
        CutStep::Release => GroupProgress::Released,
    };
    match (volumes.cut(volume, uid, step).await, step) {
        (Ok(true), _) => StepOutcome::Reached(reached),
        (Ok(false), _) => StepOutcome::Reached(GroupProgress::Lapsed),
        (Err(failure), CutStep::Prepare) => StepOutcome::Failed(OperationFailure::from(failure)),
        (Err(failure), CutStep::Hold | CutStep::Release) => {
            tracing::warn!(%volume, %uid, error = failure.message, "the snapshot has no common point with its group");
            StepOutcome::Reached(GroupProgress::Lapsed)
        }
    }
}

/// Keeps a prepared volume prepared, or returns that it prepares again.
pub(super) async fn stay_prepared<V: Volumes>(
    volumes: &V,
    volume: &VolumeId,
    uid: SnapshotUid,
) -> StepOutcome {
    let confirmed = cut(volumes, volume, uid, CutStep::Prepare);
    let prepares = StepOutcome::Reached(GroupProgress::Preparing);
    tokio::time::timeout(CONFIRMED_WITHIN, confirmed).await.unwrap_or(prepares)
}

/// The VolumeSnapshots for which this process has prepared cuts.
#[derive(Debug, Default)]
pub(super) struct PreparedCuts(Mutex<HashMap<SnapshotUid, VolumeId>>);

impl PreparedCuts {
    /// Adds a cut, and ends those whose VolumeSnapshots no longer request anything of this node: `is_asked`
    /// is false for their uids. Their attempts are over, and no release of them will follow.
    pub(super) async fn add<V: Volumes>(
        &self,
        volumes: &V,
        volume: &VolumeId,
        uid: SnapshotUid,
        is_asked: impl Fn(SnapshotUid) -> bool,
    ) {
        let ended: Vec<_> = {
            let mut prepared = self.0.lock();
            let ended = prepared.extract_if(|known, _| *known != uid && !is_asked(*known)).collect();
            prepared.insert(uid, volume.clone());
            ended
        };
        for (uid, volume) in ended {
            // Without an effect if it has ended by itself, or the volume is not here.
            let _released = volumes.cut(&volume, uid, CutStep::Release).await;
        }
    }
}

/// Waits for the snapshot of a cut whose writes were released.
pub(super) async fn taken<V: Volumes>(volumes: &V, volume: &VolumeId, uid: SnapshotUid) -> StepOutcome {
    match volumes.await_cut(volume, uid).await {
        Ok(Some(taken)) => StepOutcome::Taken(taken),
        Ok(None) => StepOutcome::Reached(GroupProgress::Lapsed),
        Err(failure) => StepOutcome::Failed(OperationFailure::from(failure)),
    }
}

/// Returns the condition's message while the snapshot is not taken.
pub(super) fn message(progress: GroupProgress) -> &'static str {
    match progress {
        GroupProgress::Preparing => "dirty data is being committed before the snapshots of its group",
        GroupProgress::Prepared => "the volume is prepared for the snapshots of its group",
        GroupProgress::Held => {
            "writes to the volume wait for the snapshots of its group, some seconds at most"
        }
        GroupProgress::Released => "the snapshot has its point, and is being committed",
        GroupProgress::Lapsed => {
            "the snapshot has no common point with those of its group, and will be deleted"
        }
    }
}

#[cfg(test)]
mod tests;
