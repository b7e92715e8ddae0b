//! Forks: volumes that begin with what a snapshot of another volume holds. Nothing is copied.
//!
//! A fork and the end of its snapshot may come at once. The create record of the fork comes first, then the
//! question whether the snapshot is forgotten ([`confirm`]). Objects are deleted only after all snapshots
//! that name them were seen to be forgotten, and no fork was listed after that ([`forks_of`],
//! [`crate::sweep`]). So either the fork is seen and keeps its objects, or it sees the mark and ends itself.

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

/// The beginning of a fork of `snapshot`: three GETs, and more where its record was truncated.
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

/// Decides if the fork whose create record is `created` stands: the mark of its snapshot, one GET. The next
/// record says which, so that it is not asked again once the snapshot is forgotten: one PUT. It is empty, or
/// the fork's tombstone. One GET more says that the record is part of the log: its place may have been
/// truncated since.
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
    // Else another record came first: of an attach or a sweep that asked as well, or of a removal.
    let ended = if counts { !stands } else { read_manifest_to_end(objects, volume).await?.is_deleted() };
    if ended { Err(no_such_source(volume, &fork.snapshot)) } else { Ok(()) }
}

/// Decides if a fork stands whose creator did not come to it (`Manifest::is_unconfirmed`). Any other record
/// comes after that.
///
/// # Errors
/// [`LogFailure::NoSuchSource`]: it came too late, and has ended; else why that is not known.
pub async fn confirm_fork(objects: &dyn ObjectStore, volume: &VolumeId) -> Result<(), LogFailure> {
    let created = read_record(objects, volume, Seq::FIRST).await?;
    if created.volume != *volume {
        let key = ObjectKey::Log(volume.clone(), Seq::FIRST).to_string();
        return Err(LogFailure::Misplaced { key, volume: created.volume, seq: created.seq });
    }
    confirm(objects, &created).await
}

/// The volumes that read objects of `volume`: forks of its snapshots, forks of those, and volumes of which
/// that is unknown because they are damaged. Two LISTs and one GET for each volume of the store. A fork may
/// come and the one that it is of end meanwhile, so it lists until no volume is new.
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
        // Readers of a volume with a checkpoint do not need the record.
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

/// Returns true if the fork reads objects of `volume`: it is of a snapshot of it, or of a fork of one.
fn is_behind(fork: &Fork, volume: &VolumeId) -> bool {
    let counts = |ancestor: &VolumeId| *ancestor == fork.snapshot.volume || safeguard(ForksOfForksCount);
    fork.ancestors().any(|ancestor| ancestor == volume && counts(ancestor))
}
