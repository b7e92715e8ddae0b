//! Forks: volumes that begin with what a snapshot of another volume holds. Nothing is copied.
//!
//! A fork and the removal of the volume that it reads may come at once. The create record of the fork comes
//! first, then the question whether the snapshot is forgotten and its volume removed ([`confirm`]). A removal
//! comes after all snapshots are forgotten; it looks for forks behind its tombstone ([`refuse_with_forks`]).
//! So either the removal sees the fork and deletes nothing, or the fork sees the tombstone and ends itself.

use std::collections::BTreeSet;

use futures::future::try_join_all;
use holdfast_engine::fork::Fork;
use holdfast_engine::record::Body;
use holdfast_engine::safeguard::{
    Safeguard::{AskIfForgotten, ForksKeepObjects},
    safeguard,
};
use holdfast_objects::{ObjectStore, StoreError};
use holdfast_types::{Seq, SnapshotName, VolumeId};

use crate::limit::PARALLEL_READS;
use crate::list::list_volumes;
use crate::read::{read_manifest_to_end, read_record};
use crate::snapshot::{is_forgotten, read_snapshot};
use crate::{LogFailure, store};

/// The beginning of a fork of `snapshot`: two GETs, and more where its record was truncated.
pub(crate) async fn read_fork(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    snapshot: &SnapshotName,
) -> Result<Fork, LogFailure> {
    if !is_registered(objects, snapshot).await? {
        return Err(no_such_source(volume, snapshot));
    }
    let root = match read_snapshot(objects, &snapshot.volume, snapshot.seq).await {
        Ok(root) => root,
        Err(LogFailure::Store { source: StoreError::NotFound { .. }, .. }) => {
            return Err(no_such_source(volume, snapshot));
        }
        Err(error) => return Err(error),
    };
    let fork = Fork::of(&root).ok_or_else(|| LogFailure::TooManyForks { snapshot: snapshot.clone() })?;
    // A root stands under its own name.
    if fork.snapshot == *snapshot { Ok(fork) } else { Err(no_such_source(volume, snapshot)) }
}

/// Returns true if the log says that the place is a snapshot. A root that a writer left in another place is
/// garbage.
async fn is_registered(objects: &dyn ObjectStore, snapshot: &SnapshotName) -> Result<bool, LogFailure> {
    let SnapshotName { volume, seq } = snapshot;
    match read_record(objects, volume, *seq).await {
        Ok(record) => Ok(record.body.snapshot_taken().is_some()),
        Err(LogFailure::Store { source: StoreError::NotFound { .. }, .. }) => {
            let manifest = read_manifest_to_end(objects, volume).await?;
            Ok(manifest.snapshots().iter().any(|known| known.seq == *seq))
        }
        Err(error) => Err(error),
    }
}

pub(crate) fn no_such_source(volume: &VolumeId, snapshot: &SnapshotName) -> LogFailure {
    LogFailure::NoSuchSource { volume: volume.clone(), snapshot: snapshot.clone() }
}

/// Returns true if the objects of `snapshot` stay for a fork whose create record is in the store: one GET
/// that is answered "not found". Where the snapshot was forgotten they stay as long as its volume does.
pub(crate) async fn confirm(objects: &dyn ObjectStore, snapshot: &SnapshotName) -> Result<bool, LogFailure> {
    Ok(!safeguard(AskIfForgotten)
        || !is_forgotten(objects, snapshot).await?
        || !read_manifest_to_end(objects, &snapshot.volume).await?.is_deleted())
}

/// Looks for volumes that read objects of `volume`: forks of its snapshots, and forks of those. Two LISTs and
/// one GET for each volume of the store. A fork may come and the one that it is of end meanwhile, so it lists
/// until no volume is new.
///
/// # Errors
/// [`LogFailure::HasForks`]; else why the store, or the first record of another volume, cannot be read.
pub(crate) async fn refuse_with_forks(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
) -> Result<(), LogFailure> {
    if !safeguard(ForksKeepObjects) {
        return Ok(());
    }
    let mut seen = BTreeSet::from([volume.clone()]);
    loop {
        let all = list_volumes(objects).await;
        let mut new = all.map_err(store("list the other volumes for the removal", volume))?;
        new.retain(|other| !seen.contains(other));
        if new.is_empty() {
            return Ok(());
        }
        let mut forks = Vec::new();
        for batch in new.chunks(PARALLEL_READS) {
            let found = try_join_all(batch.iter().map(|other| reads_from(objects, other, volume))).await?;
            forks.extend(batch.iter().zip(found).filter(|(_, reads)| *reads).map(|(other, _)| other.clone()));
        }
        if !forks.is_empty() {
            return Err(LogFailure::HasForks { volume: volume.clone(), forks });
        }
        seen.extend(new);
    }
}

/// Returns true if `other` exists and reads objects of `volume`.
async fn reads_from(
    objects: &dyn ObjectStore,
    other: &VolumeId,
    volume: &VolumeId,
) -> Result<bool, LogFailure> {
    let created = match read_record(objects, other, Seq::FIRST).await {
        Ok(record) => record.body,
        // Readers of a volume with a checkpoint do not need the record.
        Err(LogFailure::Store { source: StoreError::NotFound { .. }, .. } | LogFailure::Damaged { .. }) => {
            let manifest = read_manifest_to_end(objects, other).await?;
            return Ok(manifest.exists() && manifest.lineage().ancestors().contains(volume));
        }
        Err(error) => return Err(error),
    };
    match created {
        Body::Create { source: Some(fork), .. } if fork.is_behind(volume) => {
            Ok(!read_manifest_to_end(objects, other).await?.is_deleted())
        }
        Body::Create { .. } | Body::Attach { .. } | Body::Change { .. } | Body::Detach | Body::Delete => {
            Ok(false)
        }
    }
}
