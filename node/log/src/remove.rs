//! Removing a volume: the tombstone first, then everything else.
//!
//! A volume with snapshots that were not forgotten is not removed. Where forks read its objects, these are
//! left to the [`crate::sweep`]s after the forks' end. Marks of forgotten snapshots stay, so that a fork
//! which came too late can see them. What bars the places of the log stays too, so that the id is never used
//! again:
//! - the tombstone, at the end of the log;
//! - the record at the first place, so that a create of the volume loses ([`crate::provision`]);
//! - the truncation markers of all places between them. Records are deleted here too: a reader whose LIST
//!   shows only the first record must not take that for the log of a new volume, and an attach that read the
//!   log long ago must not win a place that this has emptied ([`crate::was_truncated_after`]).

use holdfast_engine::manifest::Manifest;
use holdfast_engine::record::{Body, Record};
use holdfast_objects::{MAX_PAGE_ENTRIES, ObjectStore};
use holdfast_types::key::{ObjectKey, snapshot_prefix, volume_prefix};
use holdfast_types::{Epoch, Nonce, Seq, VolumeId};

use crate::create::{CreateOutcome, create_record};
use crate::fork::forks_of;
use crate::limit::TRIES;
use crate::read::{read_manifest_to_end, read_record, records_after, seqs_under};
use crate::snapshot::{forgotten_from, live};
use crate::truncate::{store_markers_beyond, was_truncated_after};
use crate::{LogFailure, store};

/// Ends the volume's log with its tombstone (which fences any writer), then deletes all objects but those
/// that bar its places and the marks of forgotten snapshots. Returns the volumes that read objects of it:
/// then none was deleted, which is the work of a [`crate::sweep`]. May be called again after it failed
/// half-way.
/// Without a log there is nothing to remove.
///
/// # Errors
/// [`LogFailure::HasSnapshots`]: nothing was changed. Another [`LogFailure`]: what is left is removed by the
/// next call.
pub async fn remove(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    nonce: Nonce,
    unix_ms: u64,
) -> Result<Vec<VolumeId>, LogFailure> {
    remove_if(objects, volume, nonce, unix_ms, |_manifest| Wanted::Removed).await
}

/// The fate of a volume whose log was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// It is removed.
    Removed,
    /// It was used since that was decided, and is kept.
    Kept,
    /// It is kept until the log can be read: only that tells.
    Unknown,
}

/// The same if `wanted` says so of the log up to which nothing was appended before the tombstone; it is given
/// nothing for a log that is damaged.
///
/// # Errors
/// [`LogFailure::UsedSince`]: the volume is kept, nothing was changed; the damage of a log that decides; else
/// those of [`remove`].
pub(crate) async fn remove_if(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    nonce: Nonce,
    unix_ms: u64,
    wanted: impl Fn(Option<&Manifest>) -> Wanted,
) -> Result<Vec<VolumeId>, LogFailure> {
    let Some(tombstone) = bury(objects, volume, nonce, unix_ms, wanted).await? else {
        return Ok(Vec::new());
    };
    // All snapshots are forgotten: a fork that comes now is void.
    if !forgotten_from(objects, volume, Seq::FIRST).await?.is_empty() {
        let forks = forks_of(objects, volume).await?;
        if !forks.is_empty() {
            return Ok(forks);
        }
    }
    store_markers_beyond(objects, volume, tombstone).await?;
    let prefix = volume_prefix(volume);
    let mut start_after: Option<String> = None;
    // A writer that had not noticed its end may have stored one more segment meanwhile: look until nothing is
    // found.
    let mut found_any = false;
    loop {
        let page = objects
            .list(&prefix, start_after.as_deref(), MAX_PAGE_ENTRIES)
            .await
            .map_err(store("list the objects", volume))?;
        let unneeded: Vec<&str> = page
            .entries
            .iter()
            .map(|entry| entry.key.as_str())
            .filter(|key| ObjectKey::parse(key).is_some_and(|key| !stays_of_removed(&key, tombstone)))
            .collect();
        objects.delete(&unneeded).await.map_err(store("delete the objects", volume))?;
        found_any |= !unneeded.is_empty();
        match page.entries.last() {
            Some(last) if page.more => start_after = Some(last.key.clone()),
            Some(_) | None if std::mem::take(&mut found_any) => start_after = None,
            Some(_) | None => return Ok(Vec::new()),
        }
    }
}

/// Returns true if an object of a removed volume stays for good.
pub(crate) fn stays_of_removed(key: &ObjectKey, tombstone: Seq) -> bool {
    match key {
        ObjectKey::Log(_, seq) => *seq == Seq::FIRST || *seq == tombstone,
        ObjectKey::TruncationMarker(..) | ObjectKey::Forgotten(..) => true,
        ObjectKey::Checkpoint(..) | ObjectKey::Segment(..) | ObjectKey::Run(..) | ObjectKey::Snapshot(..) => {
            false
        }
    }
}

/// The tombstone, made now if need be.
async fn bury(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    nonce: Nonce,
    unix_ms: u64,
    wanted: impl Fn(Option<&Manifest>) -> Wanted,
) -> Result<Option<Seq>, LogFailure> {
    for _ in 0..TRIES {
        let Some(last) = records_after(objects, volume, Seq(0)).await?.last().copied() else {
            return Ok(None);
        };
        let read = refuse_with_snapshots(objects, volume, last).await?;
        match read_record(objects, volume, last).await {
            Ok(Record { body: Body::Delete, .. }) => return Ok(Some(last)),
            // A damaged record is not a tombstone, and is about to be deleted.
            Ok(_) | Err(LogFailure::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
        match (wanted(read.as_ref().ok()), read) {
            (Wanted::Removed, _) => {}
            (Wanted::Unknown, Err(damage)) => return Err(damage),
            (Wanted::Kept | Wanted::Unknown, _) => return Err(LogFailure::UsedSince(volume.clone())),
        }
        let record = Record {
            volume: volume.clone(),
            seq: last.next(),
            epoch: Epoch(0),
            nonce,
            unix_ms,
            body: Body::Delete,
        };
        // Where an older LIST ended, records may have been truncated: then this is not the log's end.
        if create_record(objects, &record).await? == CreateOutcome::Created
            && !was_truncated_after(objects, volume, last).await?
        {
            return Ok(Some(record.seq));
        }
    }
    Err(LogFailure::Contended(volume.clone()))
}

/// Reads the log, or how it is damaged. A record at `last` or before it may have registered snapshots;
/// one that comes behind it makes the create of the tombstone lose.
///
/// # Errors
/// [`LogFailure::HasSnapshots`]; of a log that cannot be read, its damage, where there may be snapshots.
pub(crate) async fn refuse_with_snapshots(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    last: Seq,
) -> Result<Result<Manifest, LogFailure>, LogFailure> {
    match read_manifest_to_end(objects, volume).await {
        Ok(manifest) => {
            let seqs: Vec<Seq> = live(objects, &manifest).await?.iter().map(|known| known.seq).collect();
            if seqs.is_empty() {
                Ok(Ok(manifest))
            } else {
                Err(LogFailure::HasSnapshots { volume: volume.clone(), seqs })
            }
        }
        Err(
            damage @ (LogFailure::Damaged { .. }
            | LogFailure::Misplaced { .. }
            | LogFailure::Broken { .. }
            | LogFailure::Contended(_)),
        ) => {
            let mut roots = seqs_under(objects, volume, &snapshot_prefix(volume), None).await?;
            let forgotten = forgotten_from(objects, volume, Seq::FIRST).await?;
            roots.retain(|seq| *seq <= last && !forgotten.contains(seq));
            if roots.is_empty() { Ok(Err(damage)) } else { Err(damage) }
        }
        Err(error) => Err(error),
    }
}
