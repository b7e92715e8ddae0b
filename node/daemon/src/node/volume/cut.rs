//! Cuts: the part of a volume served here in snapshots of several volumes at one point.
//!
//! Does not own: the order of the steps over all volumes (the operator), or the cut itself
//! (`node/engine/src/volume/cut.rs`).
//! On failure: the cut has lapsed, and writes continue.

use std::time::Duration;

use holdfast_engine::event::Event;
use holdfast_engine::snapshot::{CutAnswer, SnapshotRefused};
use holdfast_format::snapshot::Snapshot;
use holdfast_types::{SnapshotUid, VolumeId};

use super::snapshot::{Snapshots, ask, forgotten, refused};
use crate::node::error::NodeError;
use holdfast_serve::SnapshotAnswer;

/// Maximum wait for the commit of dirty data: it is retried, and writes do not wait in the meantime.
const PREPARES_WITHIN: Duration = Duration::from_secs(60);

/// A step of a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CutStep {
    /// Commit dirty data, so that the next step takes no time.
    Prepare,
    /// Block writes, and fix the snapshot's point.
    Hold,
    /// Resume writes.
    Release,
}

impl Snapshots<'_> {
    /// Performs a step of a cut of a volume served here. Returns false if the cut has lapsed: writes are not
    /// blocked, or were not blocked until now.
    ///
    /// # Errors
    /// [`NodeError::NotAttached`], [`NodeError::Busy`], [`NodeError::Snapshot`], the store's error.
    #[tracing::instrument(name = "cut", skip_all, fields(%volume, %uid, ?step))]
    pub(crate) async fn cut(
        &self,
        volume: &VolumeId,
        uid: SnapshotUid,
        step: CutStep,
    ) -> Result<bool, NodeError> {
        let busy = |doing| NodeError::Busy { volume: volume.clone(), doing };
        let present = self.volumes.present(volume)?;
        match step {
            CutStep::Prepare => {
                let forgotten = forgotten(&present, volume).await?;
                let prepare = Event::PrepareCut { uid, forgotten };
                let prepared = ask(&present, volume, prepare, |answer| match answer {
                    SnapshotAnswer::Cut(of, CutAnswer::Prepared) if of == uid => Some(Ok(true)),
                    SnapshotAnswer::Cut(of, CutAnswer::Lapsed) if of == uid => Some(Ok(false)),
                    SnapshotAnswer::Cut(of, CutAnswer::Busy) if of == uid => {
                        Some(Err(busy("part of another group of snapshots that is being taken")))
                    }
                    SnapshotAnswer::Refused(of, why) if of == uid => Some(Err(refused(volume, why))),
                    SnapshotAnswer::Cut(..) | SnapshotAnswer::Taken(_) | SnapshotAnswer::Refused(..) => None,
                });
                let late = busy("committing dirty data before a group of snapshots");
                tokio::time::timeout(PREPARES_WITHIN, prepared).await.unwrap_or(Err(late))
            }
            CutStep::Hold => {
                let hold = Event::Cut { uid };
                ask(&present, volume, hold, |answer| lasts(answer, uid, CutAnswer::Held)).await
            }
            CutStep::Release => {
                let release = Event::ReleaseCut { uid };
                ask(&present, volume, release, |answer| lasts(answer, uid, CutAnswer::Released)).await
            }
        }
    }

    /// Returns the snapshot of a cut whose writes were released, once it is registered; waits while the store
    /// is unreachable. `None`: it is of another point, or was not taken.
    ///
    /// # Errors
    /// [`NodeError::NotAttached`], [`NodeError::Busy`], [`NodeError::Fenced`], [`NodeError::Snapshot`].
    #[tracing::instrument(name = "await_cut", skip_all, fields(%volume, %uid))]
    pub(crate) async fn await_cut(
        &self,
        volume: &VolumeId,
        uid: SnapshotUid,
    ) -> Result<Option<Snapshot>, NodeError> {
        let present = self.volumes.present(volume)?;
        ask(&present, volume, Event::AwaitCut { uid }, |answer| match answer {
            SnapshotAnswer::Taken(taken) if taken.uid == uid => Some(Ok(Some(taken))),
            SnapshotAnswer::Refused(of, SnapshotRefused::Missed) if of == uid => Some(Ok(None)),
            SnapshotAnswer::Refused(of, why) if of == uid => Some(Err(refused(volume, why))),
            SnapshotAnswer::Taken(_) | SnapshotAnswer::Refused(..) | SnapshotAnswer::Cut(..) => None,
        })
        .await
    }
}

/// Returns true if the cut has reached `wanted`, false if it has lapsed, `None` for another answer.
fn lasts(answer: SnapshotAnswer, uid: SnapshotUid, wanted: CutAnswer) -> Option<Result<bool, NodeError>> {
    match answer {
        SnapshotAnswer::Cut(of, said) if of == uid && said == wanted => Some(Ok(true)),
        SnapshotAnswer::Cut(of, CutAnswer::Lapsed) if of == uid => Some(Ok(false)),
        SnapshotAnswer::Cut(..) | SnapshotAnswer::Taken(_) | SnapshotAnswer::Refused(..) => None,
    }
}
