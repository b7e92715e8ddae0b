//! Truncation of a log: checkpoints replace records, and a reader of an outdated part of the log can detect
//! this.
//!
//! 1. two checkpoints exist at or after the end of the truncation: readers start at one of them;
//! 2. the marker of that end is stored, after the markers of all ends before it (`TruncationMarked`);
//! 3. the records up to it are deleted (`Truncated`), except those whose position a late create of another
//!    writer could still take: the first one, and every attach record. Only then is the next marker stored.
//!
//! The names are crash points. A marker is never deleted, not even with the volume, so that an existing
//! marker never disappears. Readers and writers rely on that ([`was_truncated_after`]). While the first
//! marker after a seq is missing, no record after that seq was ever deleted. A record created there is thus
//! the only one that ever existed at its position. At a truncated position, a late create may succeed and its
//! record stays, but because of the marker no reader treats it as part of the log.
//!
//! Effect of a wrong result about a marker:
//! - a wrong *missing*: a reader uses a superseded log, and an attach whose record was created at a truncated
//!   position considers itself the winner: two writers. Therefore only `StoreError::NotFound`, which always
//!   comes from the store itself, means *missing*. Any other response is an error, and the reader starts
//!   again;
//! - a wrong *present*: a reader starts again, or a truncation deletes less. A marker must still be empty, so
//!   a proxy's page in its place is an error, too.

use bytes::Bytes;
use holdfast_format::crash_point::{CrashPoint, reach};
use holdfast_format::log_length::{mark_after, mark_upto};
use holdfast_format::manifest::Manifest;
use holdfast_objects::{MAX_PAGE_ENTRIES, ObjectStore};
use holdfast_types::key::{ObjectKey, checkpoint_prefix};
use holdfast_types::{Seq, VolumeId};

use crate::append::{CreatedOnce, create_once};
use crate::error::{LogFailure, store, store_write};
use crate::objects::{is_present, records_after};

/// Number of checkpoints kept: the newest, and the previous one for readers that listed it as the newest.
const KEPT_CHECKPOINTS: usize = 2;

/// Returns true if records after `seq` may have been truncated before now. If false, everything read after
/// `seq` and before this call is the log; if true, it may not be.
///
/// # Errors
/// [`LogFailure::Store`]: the result is unknown.
pub async fn was_truncated_after(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    seq: Seq,
) -> Result<bool, LogFailure> {
    is_marked(objects, volume, mark_after(seq)).await
}

/// Deletes the objects that the stored checkpoint of `seq` replaces: older checkpoints except one, and the
/// records that neither needs.
///
/// # Errors
/// [`LogFailure`]: the rest is deleted after the next checkpoint.
pub async fn tidy(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    seq: Seq,
    checkpoint: &[u8],
) -> Result<(), LogFailure> {
    match drop_checkpoints(objects, volume, seq).await? {
        Some(older) => truncate(objects, volume, older, (seq, checkpoint)).await,
        None => Ok(()),
    }
}

/// Deletes the checkpoints that the one of `seq` replaces. Returns the seq of the previous one, which is
/// kept.
///
/// # Errors
/// [`LogFailure::Store`]: the rest is deleted after a later checkpoint.
pub async fn drop_checkpoints(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    seq: Seq,
) -> Result<Option<Seq>, LogFailure> {
    let page = objects
        .list(&checkpoint_prefix(volume), None, MAX_PAGE_ENTRIES)
        .await
        .map_err(store("list the checkpoints", volume))?;
    // Objects of other programs count as none, wherever their names sort.
    let found: Vec<(&str, Seq)> = page
        .entries
        .iter()
        .filter_map(|entry| {
            let Some(ObjectKey::Checkpoint(_, found)) = ObjectKey::parse(&entry.key) else { return None };
            Some((entry.key.as_str(), found))
        })
        .collect();
    let surplus = found.len().saturating_sub(KEPT_CHECKPOINTS);
    let dropped: Vec<&str> = found[..surplus].iter().map(|(key, _)| *key).collect();
    objects.delete(&dropped).await.map_err(store_write("drop the old checkpoints", volume))?;
    Ok(found[surplus..].iter().rev().map(|(_, kept)| *kept).find(|kept| *kept < seq))
}

/// Deletes the records that are no longer needed. `newest` are the seq and the bytes of the writer's newest
/// checkpoint, `older` is the seq of the previous one.
///
/// # Errors
/// [`LogFailure`]: the rest is truncated after the next checkpoint.
pub async fn truncate(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    older: Seq,
    newest: (Seq, &[u8]),
) -> Result<(), LogFailure> {
    let Some(end) = mark_upto(older) else { return Ok(()) };
    let marked = newest_marker(objects, volume, end).await?;
    // Everything before the second newest marker was deleted before the newest was stored.
    let from = marked.and_then(|marked| mark_upto(Seq(marked.0 - 1))).unwrap_or(Seq(0));
    let listed = records_after(objects, volume, from).await?;
    let (seq, bytes) = newest;
    let manifest = Manifest::decode_checkpoint(bytes).map_err(|source| LogFailure::Damaged {
        key: ObjectKey::Checkpoint(volume.clone(), seq).to_string(),
        source,
    })?;
    let mut marker = from;
    while marker < end {
        let before = marker;
        marker = mark_after(before);
        if marked.is_none_or(|marked| marked < marker) {
            let (true | false) = store_marker(objects, volume, marker).await?;
            reach(CrashPoint::TruncationMarked);
        }
        let unneeded: Vec<Seq> = listed
            .iter()
            .copied()
            .filter(|seq| (before.next()..=marker).contains(seq) && manifest.may_be_truncated(*seq))
            .collect();
        if !unneeded.is_empty() {
            delete_records(objects, volume, &unneeded).await?;
            reach(CrashPoint::Truncated);
        }
    }
    Ok(())
}

/// Returns the newest existing marker up to `end`.
pub(crate) async fn newest_marker(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    end: Seq,
) -> Result<Option<Seq>, LogFailure> {
    let mut place = mark_upto(end);
    while let Some(marker) = place {
        if is_marked(objects, volume, marker).await? {
            return Ok(Some(marker));
        }
        place = mark_upto(Seq(marker.0 - 1));
    }
    Ok(None)
}

async fn is_marked(objects: &dyn ObjectStore, volume: &VolumeId, marker: Seq) -> Result<bool, LogFailure> {
    let key = ObjectKey::TruncationMarker(volume.clone(), marker);
    is_present(objects, "look for a truncation marker", &key).await
}

/// Stores every marker up to the first one after `seq`, in order: all records up to `seq` may then be
/// deleted. `last` is at most `seq`; returns false if records after it may have been truncated before.
pub(crate) async fn store_markers(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    last: Seq,
    seq: Seq,
) -> Result<bool, LogFailure> {
    let mut are_new = true;
    let mut marker = newest_marker(objects, volume, last).await?.unwrap_or(Seq(0));
    while marker < mark_after(seq) {
        marker = mark_after(marker);
        are_new &= store_marker(objects, volume, marker).await?;
    }
    Ok(are_new)
}

/// Stores a marker; returns false if it already existed.
async fn store_marker(objects: &dyn ObjectStore, volume: &VolumeId, marker: Seq) -> Result<bool, LogFailure> {
    let key = ObjectKey::TruncationMarker(volume.clone(), marker).to_string();
    let created = create_once(objects, "store a truncation marker", volume, &key, Bytes::new()).await?;
    Ok(created == CreatedOnce::Now)
}

async fn delete_records(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    unneeded: &[Seq],
) -> Result<(), LogFailure> {
    let keys: Vec<String> =
        unneeded.iter().map(|seq| ObjectKey::Log(volume.clone(), *seq).to_string()).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    objects.delete(&keys).await.map_err(store_write("delete the log records", volume))
}
