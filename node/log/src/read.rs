//! Reads a log into a manifest.
//!
//! A record or checkpoint counts as missing only if the store itself reports this. If a log seemed to end too
//! early, a restarted writer would mistake its own records for another writer's, and release its volume.
//! Bytes that cannot be decoded are an error, never the end of the log.
//!
//! 1. list the checkpoints and the records;
//! 2. read the last record. A tombstone is sufficient, and so is a detach record with the root, which is the
//!    whole state before it;
//! 3. otherwise read that checkpoint and the other records. If one of them is damaged or missing, the newest
//!    root replaces everything before it.
//!
//! Even a record with a root may not be the last record, or not be part of the log ([`was_truncated_after`]).
//! A root is the state that its writer read from the same log or appended to it.

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

/// Objects of a volume listed at once to find its log: a truncated log has about 160 records, not counting
/// attaches.
const FIRST_PAGE: usize = 256;

/// Returns the volume's state as far as LIST shows its log; without a log, a manifest that does not exist.
///
/// A store may return an outdated LIST, and the log may be truncated in the meantime. That suffices for a
/// caller that then creates the next record: its create conflicts with the records that LIST did not show, or
/// [`was_truncated_after`] detects that the log was truncated since [`Manifest::checkpointed`]. Every other
/// caller needs [`read_manifest_to_end`].
///
/// # Errors
/// [`LogFailure`]: names a damaged or missing object, which is never skipped.
pub async fn read_manifest(objects: &dyn ObjectStore, volume: &VolumeId) -> Result<Manifest, LogFailure> {
    for _ in 0..TRIES {
        if let Some(manifest) = try_read(objects, volume).await? {
            // LIST may be stale, so it never proves by itself that a volume does not exist.
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

/// Returns the volume's state at the end of its log, independent of LIST: two more GETs.
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

/// Returns true for errors of a log that was truncated during the read, or listed from an outdated state.
fn may_come_of_a_truncation(error: &LogFailure) -> bool {
    matches!(
        error,
        LogFailure::Broken { .. }
            | LogFailure::Contended(_)
            | LogFailure::Store { source: StoreError::NotFound { .. }, .. }
    )
}

/// Applies the records after `manifest` sequentially, until none follows.
///
/// # Errors
/// [`LogFailure::Contended`]: the last record is a tombstone, and the log was truncated since it was listed.
/// The tombstone may be a late one, from a fork or a removal, and not part of the log. A new LIST resolves
/// this.
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

/// Reads once; returns `None` if a writer created a newer checkpoint, and deleted the listed one or truncated
/// the records after it.
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

/// The log as shown by LIST.
struct LogListing {
    /// The newest checkpoint; zero without one.
    checkpoint: Seq,
    /// The records after it, ascending.
    records: Vec<Seq>,
}

/// Lists the checkpoints and the log: one LIST, because they sort first among a volume's objects. With
/// hundreds of attach records, or of marks of forgotten snapshots, a second one starts at the checkpoint.
async fn list_log(objects: &dyn ObjectStore, volume: &VolumeId) -> Result<LogListing, LogFailure> {
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
                | ObjectKey::Origin(..)
                | ObjectKey::PrefetchList(..),
            )
            | None => {}
        }
    }
    let end = page.entries.last().filter(|_| page.more).map(|entry| entry.key.as_str());
    // The page ends, or may end, before the last object under the prefix.
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
    Ok(LogListing { checkpoint, records })
}

/// Reads the records that LIST shows, and the checkpoint if needed. Returns `None` if the checkpoint was
/// deleted.
async fn read_listed(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    listed: &LogListing,
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

/// Returns the state from the newest root and the records after it, unless those are damaged, too.
async fn read_from_root(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    listed: &LogListing,
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

/// Returns the state after the record at `seq`, if it is a detach record with the root.
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

/// Returns the checkpoint of `seq`, or the state before the first record for zero. Returns `None` if the
/// checkpoint does not exist.
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

/// Decodes the manifest in `bytes`, stored under `key`, of `volume` as of `seq`.
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

/// Reads the record at `seq`.
///
/// # Errors
/// [`LogFailure::Store`] with [`StoreError::NotFound`] if it does not exist; [`LogFailure::Damaged`].
pub async fn read_record(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    seq: Seq,
) -> Result<Record, LogFailure> {
    let key = ObjectKey::Log(volume.clone(), seq).to_string();
    let bytes = objects.get(&key, MAX_METADATA_BYTES).await.map_err(store("read a log record", volume))?;
    Record::decode(&bytes).map_err(|source| LogFailure::Damaged { key, source })
}
