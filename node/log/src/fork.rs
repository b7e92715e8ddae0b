//! Forks: volumes that start from the content of another volume's snapshot, without copying it.
//!
//! Creating a fork and forgetting its snapshot may happen concurrently. The fork's create record comes first,
//! then the check for the snapshot's mark ([`confirm`]). Objects are deleted only after all snapshots that
//! name them were seen as forgotten, and a later listing found no fork ([`crate::sweep`]). So either the
//! deletion sees the fork and keeps its objects, or the fork sees the mark and removes itself.

use holdfast_format::fork::Fork;
use holdfast_format::record::{Body, Record};
use holdfast_format::safeguard::{
    Safeguard::{AskIfForgotten, StoreVerdict},
    safeguard,
};
use holdfast_format::snapshot::SnapshotChange;
use holdfast_objects::{ObjectStore, StoreError};
use holdfast_types::key::ObjectKey;
use holdfast_types::{Epoch, Seq, SnapshotName, SnapshotUid, VolumeId};

use crate::append::{CreateOutcome, create_record};
use crate::error::LogFailure;
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
