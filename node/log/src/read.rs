//! Reading a log into a manifest.
//!
//! A record or checkpoint "does not exist" only if the store itself says so. A log that seems to end too
//! early makes a restarted writer take its own records for another's, and release its volume. Bytes that
//! cannot be decoded are an error, never the end of the log.
//!
//! 1. the checkpoints and the records are listed;
//! 2. the last record is read. The tombstone says all, and so does a detach record that carries the root: the
//!    whole state that it follows;
//! 3. else that checkpoint and the other records are read. If something there is damaged or missing, the
//!    newest root takes the place of all before it.
//!
//! That a record is the last one, or the log's at all, is known no better with a root than without
//! ([`was_truncated_after`]). A root is what its writer had read or made of the same log.

use futures::future::{join, try_join_all};
use holdfast_format::manifest::Manifest;
use holdfast_format::manifest::apply::LogError;
use holdfast_format::record::{Body, Record};
use holdfast_objects::{ObjectStore, StoreError};
use holdfast_types::key::{ObjectKey, checkpoint_prefix, log_prefix, volume_prefix};
use holdfast_types::{Seq, VolumeId};

use crate::error::{LogFailure, store};
use crate::limit::{MAX_METADATA_BYTES, TRIES};
use crate::objects::{records_after, seqs_under};
use crate::truncate::was_truncated_after;

/// Objects of a volume that are listed at once to find its log: a log that is truncated has about 160 records
/// beside its attaches.
const FIRST_PAGE: usize = 256;

/// The volume's state as far as LIST shows its log; a manifest that does not exist when there is no log.
///
/// A store may answer a LIST as of some time ago, and the log may be truncated meanwhile. That is enough for
/// a caller that then creates the next record: its create meets the records that LIST did not show, or
/// [`was_truncated_after`] detects that the log was truncated since [`Manifest::checkpointed`]. Every other
/// caller needs [`read_manifest_to_end`].
///
/// # Errors
/// [`LogFailure`]: a damaged or missing object is named, never skipped.
pub async fn read_manifest(objects: &dyn ObjectStore, volume: &VolumeId) -> Result<Manifest, LogFailure> {
    for _ in 0..TRIES {
        if let Some(manifest) = try_read(objects, volume).await? {
            // LIST may be stale: "does not exist" is never concluded from it alone.
            if manifest.exists() || manifest.is_deleted() {
                return Ok(manifest);
            }
            match follow(objects, manifest).await {
                Err(LogFailure::Contended(_)) => {}
                read => return read,
            }
        }
    }
    Err(LogFailure::Contended(volume.clone()))
}

/// The volume's state at the end of its log, whatever LIST shows: two GETs more.
///
/// # Errors
/// As [`read_manifest`].
pub async fn read_manifest_to_end(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
) -> Result<Manifest, LogFailure> {
    for _ in 0..TRIES {
        let manifest = read_manifest(objects, volume).await?;
        if !manifest.exists() {
            return Ok(manifest);
        }
        let begun_at = manifest.checkpointed();
        match follow(objects, manifest).await {
            Err(error) if !may_come_of_a_truncation(&error) => return Err(error),
            read if !was_truncated_after(objects, volume, begun_at).await? => return read,
            Ok(_) | Err(_) => {}
        }
    }
    Err(LogFailure::Contended(volume.clone()))
}

/// True for errors of a log that was truncated during the read, or of which a LIST showed an older part.
fn may_come_of_a_truncation(error: &LogFailure) -> bool {
    matches!(
        error,
        LogFailure::Broken { .. }
            | LogFailure::Contended(_)
            | LogFailure::Store { source: StoreError::NotFound { .. }, .. }
    )
}

/// Applies the records after `manifest`, one after the other, until there is none.
///
/// # Errors
/// [`LogFailure::Contended`]: it came to a tombstone, and the log was truncated since it was listed. So the
/// tombstone may have come late, of a fork or of a removal, and be no part of the log. A new LIST tells.
async fn follow(objects: &dyn ObjectStore, mut manifest: Manifest) -> Result<Manifest, LogFailure> {
    let (volume, begun_at) = (manifest.volume().clone(), manifest.checkpointed());
    loop {
        match read_record(objects, &volume, manifest.seq().next()).await {
            Ok(Record { body: Body::Delete, seq, .. }) => {
                return if was_truncated_after(objects, &volume, begun_at).await? {
                    Err(LogFailure::Contended(volume))
                } else {
                    Ok(Manifest::tombstone(volume, seq))
                };
            }
            Ok(record) => manifest.apply(&record).map_err(broken(&volume))?,
            Err(LogFailure::Store { source: StoreError::NotFound { .. }, .. }) => return Ok(manifest),
            Err(error) => return Err(error),
        }
    }
}

/// One try; `None` when a writer made a newer checkpoint, and dropped the one that LIST shows or truncated
/// what follows it.
async fn try_read(objects: &dyn ObjectStore, volume: &VolumeId) -> Result<Option<Manifest>, LogFailure> {
    let listed = list_log(objects, volume).await?;
    let error = match read_listed(objects, volume, &listed).await {
        Err(error) => error,
        read => return read,
    };
    if may_come_of_a_truncation(&error) && was_truncated_after(objects, volume, listed.checkpoint).await? {
        return Ok(None);
    }
    if !matches!(error, LogFailure::Damaged { .. } | LogFailure::Broken { .. }) {
        return Err(error);
    }
    match read_from_root(objects, volume, &listed).await {
        Err(error) if !may_come_of_a_truncation(&error) => Err(error),
        Err(_) if was_truncated_after(objects, volume, listed.checkpoint).await? => Ok(None),
        read => read?.map(Some).ok_or(error),
    }
}

/// The log as LIST shows it.
struct Listed {
    /// The newest checkpoint; zero without one.
    checkpoint: Seq,
    /// The records after it, ascending.
    records: Vec<Seq>,
}

/// Lists the checkpoints and the log: one LIST, since they are among the first objects of a volume. Behind
/// hundreds of attach records, or of marks of forgotten snapshots, a second one begins at the checkpoint.
async fn list_log(objects: &dyn ObjectStore, volume: &VolumeId) -> Result<Listed, LogFailure> {
    let page = objects
        .list(&volume_prefix(volume), None, FIRST_PAGE)
        .await
        .map_err(store("list the log", volume))?;
    let (mut checkpoints, mut records) = (Vec::new(), Vec::new());
    for entry in &page.entries {
        match ObjectKey::parse(&entry.key) {
            Some(ObjectKey::Checkpoint(_, seq)) => checkpoints.push(seq),
            Some(ObjectKey::Log(_, seq)) => records.push(seq),
            Some(
                ObjectKey::Segment(..)
                | ObjectKey::Run(..)
                | ObjectKey::TruncationMarker(..)
                | ObjectKey::Snapshot(..)
                | ObjectKey::Forgotten(..)
                | ObjectKey::Origin(..),
            )
            | None => {}
        }
    }
    let end = page.entries.last().filter(|_| page.more).map(|entry| entry.key.as_str());
    // The page ends before the last object under the prefix, or may do so.
    let is_cut = |prefix: &str| end.is_some_and(|end| end < prefix || end.starts_with(prefix));
    if is_cut(&checkpoint_prefix(volume)) {
        let seen = checkpoints.last().map(|seq| ObjectKey::Checkpoint(volume.clone(), *seq).to_string());
        checkpoints.extend(seqs_under(objects, volume, &checkpoint_prefix(volume), seen).await?);
    }
    let checkpoint = checkpoints.last().copied().unwrap_or(Seq(0));
    records.retain(|seq| *seq > checkpoint);
    if is_cut(&log_prefix(volume)) {
        let seen = records.last().copied().unwrap_or(checkpoint);
        records.extend(records_after(objects, volume, seen).await?);
    }
    Ok(Listed { checkpoint, records })
}

/// Reads the records that LIST shows, and the checkpoint if it is needed. `None` if that was dropped.
async fn read_listed(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    listed: &Listed,
) -> Result<Option<Manifest>, LogFailure> {
    let Some((seq, seqs)) = listed.records.split_last() else {
        return read_checkpoint(objects, volume, listed.checkpoint).await;
    };
    let last = read_record(objects, volume, *seq).await?;
    if last.body == Body::Delete {
        return Ok(Some(Manifest::tombstone(volume.clone(), last.seq)));
    }
    if let Some(detached) = state_in(&last, volume, *seq, listed.checkpoint)? {
        return Ok(Some(detached));
    }
    let records = try_join_all(seqs.iter().map(|seq| read_record(objects, volume, *seq)));
    let (checkpoint, records) = join(read_checkpoint(objects, volume, listed.checkpoint), records).await;
    let Some(manifest) = checkpoint? else { return Ok(None) };
    replay(manifest, records?.iter().chain([&last])).map(Some)
}

/// The state that the newest root and the records behind it give, unless these are damaged too.
async fn read_from_root(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    listed: &Listed,
) -> Result<Option<Manifest>, LogFailure> {
    let mut behind = Vec::new();
    for seq in listed.records.iter().rev() {
        let record = match read_record(objects, volume, *seq).await {
            Err(LogFailure::Damaged { .. }) => return Ok(None),
            read => read?,
        };
        if let Some(detached) = state_in(&record, volume, *seq, listed.checkpoint)? {
            return replay(detached, behind.iter().rev()).map(Some);
        }
        behind.push(record);
    }
    Ok(None)
}

/// The state after the record at `seq`, if that is a detach record that carries the root.
fn state_in(
    record: &Record,
    volume: &VolumeId,
    seq: Seq,
    checkpoint: Seq,
) -> Result<Option<Manifest>, LogFailure> {
    let Body::Detach { root: Some(root) } = &record.body else { return Ok(None) };
    if record.volume != *volume || record.seq != seq {
        let key = ObjectKey::Log(volume.clone(), seq).to_string();
        return Err(LogFailure::Misplaced { key, volume: record.volume.clone(), seq: record.seq });
    }
    Manifest::clone(root).detached_by(record, checkpoint).map(Some).map_err(broken(volume))
}

fn replay<'a>(
    mut manifest: Manifest,
    records: impl IntoIterator<Item = &'a Record>,
) -> Result<Manifest, LogFailure> {
    for record in records {
        manifest.apply(record).map_err(broken(&record.volume))?;
    }
    Ok(manifest)
}

/// The checkpoint of `seq`, or the state before the first record for zero. `None` if there is no such
/// checkpoint.
async fn read_checkpoint(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    seq: Seq,
) -> Result<Option<Manifest>, LogFailure> {
    if seq == Seq(0) {
        return Ok(Some(Manifest::empty(volume.clone())));
    }
    let key = ObjectKey::Checkpoint(volume.clone(), seq).to_string();
    match objects.get(&key, MAX_METADATA_BYTES).await {
        Ok(bytes) => decode_manifest(key, volume, seq, &bytes).map(Some),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(store("read the checkpoint", volume)(error)),
    }
}

fn broken(volume: &VolumeId) -> impl FnOnce(LogError) -> LogFailure {
    let volume = volume.clone();
    move |source| LogFailure::Broken { volume, source }
}

/// The manifest in `bytes`, which stand under `key`: that of `volume` as of `seq`.
pub(crate) fn decode_manifest(
    key: String,
    volume: &VolumeId,
    seq: Seq,
    bytes: &[u8],
) -> Result<Manifest, LogFailure> {
    let manifest = match Manifest::decode_checkpoint(bytes) {
        Ok(manifest) => manifest,
        Err(source) => return Err(LogFailure::Damaged { key, source }),
    };
    if manifest.volume() != volume || manifest.seq() != seq {
        return Err(LogFailure::Misplaced { key, volume: manifest.volume().clone(), seq: manifest.seq() });
    }
    Ok(manifest)
}

/// The record at `seq`.
///
/// # Errors
/// [`LogFailure::Store`] with [`StoreError::NotFound`] where there is none; [`LogFailure::Damaged`].
pub async fn read_record(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    seq: Seq,
) -> Result<Record, LogFailure> {
    let key = ObjectKey::Log(volume.clone(), seq).to_string();
    let bytes = objects.get(&key, MAX_METADATA_BYTES).await.map_err(store("read a log record", volume))?;
    Record::decode(&bytes).map_err(|source| LogFailure::Damaged { key, source })
}
