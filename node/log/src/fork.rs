//! Forks: volumes that start from the content of another volume's snapshot, without copying it.
//!
//! Creating a fork and forgetting its snapshot may happen concurrently. The fork's create record comes first,
//! then the check for the snapshot's mark ([`confirm`]). Objects are deleted only after all snapshots that
//! name them were seen as forgotten, and a later listing found no fork ([`forks_of`], [`crate::sweep`]). So
//! either the deletion sees the fork and keeps its objects, or the fork sees the mark and removes itself.

use std::collections::BTreeSet;

use futures::future::try_join_all;
use holdfast_format::fork::Fork;
use holdfast_format::record::{Body, Record};
use holdfast_format::safeguard::{
    Safeguard::{AskIfForgotten, ForksKeepObjects, ForksOfForksCount, StoreVerdict},
    safeguard,
};
use holdfast_format::snapshot::SnapshotChange;
use holdfast_objects::{ObjectStore, StoreError};
use holdfast_types::key::ObjectKey;
use holdfast_types::{Epoch, Seq, SnapshotName, SnapshotUid, VolumeId};

use crate::append::{CreateOutcome, create_record};
use crate::error::{LogFailure, or_damage};
use crate::limit::PARALLEL_READS;
use crate::objects::list_volumes;
use crate::read::{read_manifest_to_end, read_record};
use crate::snapshot::{is_forgotten, read_snapshot, registered};
use crate::truncate::was_truncated_after;

/// Returns the start of a fork of `snapshot`: three GETs, and more if its record was truncated.
pub(crate) async fn read_fork(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    snapshot: &SnapshotName,
    uid: Option<SnapshotUid>,
) -> Result<Fork, LogFailure> {
    let Some(found) = registered(objects, snapshot).await? else {
        return Err(no_such_source(volume, snapshot));
    };
    if let Some(wanted) = uid.filter(|wanted| *wanted != found) {
        let (volume, snapshot) = (volume.clone(), snapshot.clone());
        return Err(LogFailure::OtherSnapshot { volume, snapshot, found, wanted });
    }
    let root = match read_snapshot(objects, &snapshot.volume, snapshot.seq).await {
        Ok(root) => root,
        Err(LogFailure::Store { source: StoreError::NotFound { .. }, .. }) => {
            return Err(no_such_source(volume, snapshot));
        }
        Err(error) => return Err(error),
    };
    root.fork().ok_or_else(|| LogFailure::TooManyForks { snapshot: snapshot.clone() })
}

pub(crate) fn no_such_source(volume: &VolumeId, snapshot: &SnapshotName) -> LogFailure {
    LogFailure::NoSuchSource { volume: volume.clone(), snapshot: snapshot.clone() }
}

/// Decides whether the fork with the create record `created` is valid: one GET for its snapshot's mark. The
/// next record stores the result, so that the check is not repeated once the snapshot is forgotten: one PUT.
/// That record is empty, or the fork's tombstone. Another GET confirms that the record is part of the log,
/// because its position may have been truncated since.
pub(crate) async fn confirm(objects: &dyn ObjectStore, created: &Record) -> Result<(), LogFailure> {
    let Body::Create { source: Some(fork), .. } = &created.body else { return Ok(()) };
    let volume = &created.volume;
    let stands = !safeguard(AskIfForgotten) || !is_forgotten(objects, &fork.snapshot).await?;
    if stands && !safeguard(StoreVerdict) {
        return Ok(());
    }
    let body = if stands { Body::of_snapshots(SnapshotChange::default()) } else { Body::Delete };
    let verdict = Record { seq: Seq::FIRST.next(), epoch: Epoch(0), body, ..created.clone() };
    let counts = create_record(objects, &verdict).await? == CreateOutcome::Created
        && !was_truncated_after(objects, volume, Seq::FIRST).await?;
    // Otherwise another record came first: from an attach or a sweep that also checked, or from a removal.
    let ended = if counts { !stands } else { read_manifest_to_end(objects, volume).await?.is_deleted() };
    if ended { Err(no_such_source(volume, &fork.snapshot)) } else { Ok(()) }
}

/// Decides whether a fork whose creator did not complete is valid (`Manifest::is_unconfirmed`). Must precede
/// any other record.
///
/// # Errors
/// [`LogFailure::NoSuchSource`]: the fork came too late, and was removed; any other error leaves this
/// unknown.
pub async fn confirm_fork(objects: &dyn ObjectStore, volume: &VolumeId) -> Result<(), LogFailure> {
    let created = read_record(objects, volume, Seq::FIRST).await?;
    if created.volume != *volume {
        let key = ObjectKey::Log(volume.clone(), Seq::FIRST).to_string();
        return Err(LogFailure::Misplaced { key, volume: created.volume, seq: created.seq });
    }
    confirm(objects, &created).await
}

/// Returns the volumes that read objects of `volume`: forks of its snapshots, forks of those, and damaged
/// volumes that may be forks. Two LISTs and one GET per volume of the store. A fork may be created while its
/// parent is removed, so the list is repeated until it shows no new volume.
///
/// # Errors
/// The store did not answer.
pub(crate) async fn forks_of(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
) -> Result<Vec<VolumeId>, LogFailure> {
    let (mut seen, mut forks) = (BTreeSet::from([volume.clone()]), Vec::new());
    if !safeguard(ForksKeepObjects) {
        return Ok(forks);
    }
    loop {
        let mut new = list_volumes(objects).await.map_err(|source| LogFailure::Volumes { source })?;
        new.retain(|other| seen.insert(other.clone()));
        if new.is_empty() {
            return Ok(forks);
        }
        for batch in new.chunks(PARALLEL_READS) {
            let asked = batch.iter().map(|other| or_damage(reads_from(objects, other, volume)));
            let found = try_join_all(asked).await?.into_iter().map(|reads| reads.unwrap_or(true));
            forks.extend(batch.iter().zip(found).filter(|(_, reads)| *reads).map(|(other, _)| other.clone()));
        }
    }
}

/// Returns true if `other` exists and reads objects of `volume`.
async fn reads_from(
    objects: &dyn ObjectStore,
    other: &VolumeId,
    volume: &VolumeId,
) -> Result<bool, LogFailure> {
    let created = match read_record(objects, other, Seq::FIRST).await {
        Ok(record) if record.volume == *other => record.body,
        // A volume with a checkpoint can be read without the record.
        Ok(_)
        | Err(LogFailure::Store { source: StoreError::NotFound { .. }, .. } | LogFailure::Damaged { .. }) => {
            let manifest = read_manifest_to_end(objects, other).await?;
            return Ok(manifest.exists() && manifest.lineage().ancestors().contains(volume));
        }
        Err(error) => return Err(error),
    };
    match created {
        Body::Create { source: Some(fork), .. } if is_behind(&fork, volume) => {
            Ok(!read_manifest_to_end(objects, other).await?.is_deleted())
        }
        Body::Create { .. }
        | Body::Attach { .. }
        | Body::Change { .. }
        | Body::Detach { .. }
        | Body::Delete => Ok(false),
    }
}

/// Returns true if the fork reads objects of `volume`, which is one of its ancestors.
fn is_behind(fork: &Fork, volume: &VolumeId) -> bool {
    let counts = |ancestor: &VolumeId| *ancestor == fork.snapshot.volume || safeguard(ForksOfForksCount);
    fork.ancestors().any(|ancestor| ancestor == volume && counts(ancestor))
}
