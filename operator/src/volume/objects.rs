//! A volume's objects as the control plane sees them: its first record, its tombstone, and the removal of the rest.
//!
//! Invariants: creating a volume is one PUT; the record's bytes depend on the Volume alone, so a repeated create meets its
//! own success; the tombstone is the last record of the log and stays for ever, so no writer can revive the volume.
//! On failure: repeat from the start.

use bytes::Bytes;
use holdfast_engine::record::{Body, Record};
use holdfast_objects::{CreateError, ObjectStore, StoreError};
use holdfast_types::key::{ObjectKey, log_prefix, volume_prefix};
use holdfast_types::{Epoch, Nonce, SECTOR_BYTES, Seq, VolumeId};

use super::failure::VolumeFailure;

/// How often the tombstone's place in the log may be taken by a writer before we give up for this time.
const TOMBSTONE_ATTEMPTS: usize = 8;

/// Largest record the control plane reads.
const MAX_RECORD_BYTES: u64 = 64 << 20;

/// Entries asked for in one page of a listing.
const PAGE: usize = 1000;

/// Creates the volume's first record; one PUT when nothing is in its way.
///
/// # Errors
/// [`VolumeFailure::Foreign`] if another record has its place; else why the store did not take it.
pub(crate) async fn provision(
    store: &dyn ObjectStore,
    volume: &VolumeId,
    size_bytes: u64,
    created_unix_ms: u64,
) -> Result<(), VolumeFailure> {
    let body = Body::Create { sectors: size_bytes / SECTOR_BYTES };
    match create(store, &control_record(volume, Seq::FIRST, created_unix_ms, body)).await? {
        Outcome::Ours => Ok(()),
        Outcome::Taken => Err(VolumeFailure::Foreign { key: log_key(volume, Seq::FIRST) }),
    }
}

/// Ends the log with a tombstone and removes every other object of the volume.
///
/// # Errors
/// Why the store did not do it; what was removed stays removed.
pub(crate) async fn remove(
    store: &dyn ObjectStore,
    volume: &VolumeId,
    deleted_unix_ms: u64,
) -> Result<(), VolumeFailure> {
    let tombstone = write_tombstone(store, volume, deleted_unix_ms).await?;
    let prefix = volume_prefix(volume);
    // A writer that was late may still have finished a PUT: go on until only the tombstone is listed.
    loop {
        let mut removed = 0usize;
        let mut after: Option<String> = None;
        loop {
            let page = store.list(&prefix, after.as_deref(), PAGE).await?;
            for entry in &page.entries {
                if entry.key != tombstone {
                    store.delete(&entry.key).await?;
                    removed += 1;
                }
            }
            after = page.entries.last().map(|entry| entry.key.clone());
            if !page.more || after.is_none() {
                break;
            }
        }
        if removed == 0 {
            return Ok(());
        }
    }
}

/// Writes the tombstone unless it is there, and returns its key.
async fn write_tombstone(
    store: &dyn ObjectStore,
    volume: &VolumeId,
    deleted_unix_ms: u64,
) -> Result<String, VolumeFailure> {
    let mut key = log_key(volume, Seq::FIRST);
    for _ in 0..TOMBSTONE_ATTEMPTS {
        let last = last_seq(store, volume).await?;
        if let Some(seq) = last {
            key = log_key(volume, seq);
            match read(store, &key).await {
                Ok(Some(record)) if record.body == Body::Delete => return Ok(key),
                // A damaged record is no tombstone; it must not keep its volume from being deleted.
                Ok(_) | Err(VolumeFailure::Damaged { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let seq = last.map_or(Seq::FIRST, Seq::next);
        key = log_key(volume, seq);
        match create(store, &control_record(volume, seq, deleted_unix_ms, Body::Delete)).await? {
            Outcome::Ours => return Ok(key),
            Outcome::Taken => tracing::info!(%volume, %seq, "a writer took the tombstone's place in the log"),
        }
    }
    Err(VolumeFailure::Ambiguous { key })
}

async fn last_seq(store: &dyn ObjectStore, volume: &VolumeId) -> Result<Option<Seq>, VolumeFailure> {
    let prefix = log_prefix(volume);
    let mut last: Option<Seq> = None;
    let mut after: Option<String> = None;
    loop {
        let page = store.list(&prefix, after.as_deref(), PAGE).await?;
        for entry in &page.entries {
            if let Some(ObjectKey::Log(_, seq)) = ObjectKey::parse(&entry.key) {
                last = last.max(Some(seq));
            }
        }
        after = page.entries.last().map(|entry| entry.key.clone());
        if !page.more || after.is_none() {
            return Ok(last);
        }
    }
}

enum Outcome {
    /// The record in the store is ours.
    Ours,
    /// The place holds another record.
    Taken,
}

async fn create(store: &dyn ObjectStore, record: &Record) -> Result<Outcome, VolumeFailure> {
    let key = log_key(&record.volume, record.seq);
    match store.create(&key, Bytes::from(record.encode())).await {
        Ok(_created) => Ok(Outcome::Ours),
        Err(CreateError::Failed(error)) => Err(error.into()),
        // Our own earlier attempt may have made it: compare what is there.
        Err(CreateError::Exists { .. } | CreateError::Ambiguous(_)) => match read(store, &key).await? {
            Some(found) if found == *record => Ok(Outcome::Ours),
            Some(_) => Ok(Outcome::Taken),
            None => Err(VolumeFailure::Ambiguous { key }),
        },
    }
}

async fn read(store: &dyn ObjectStore, key: &str) -> Result<Option<Record>, VolumeFailure> {
    match store.get(key, MAX_RECORD_BYTES).await {
        Ok(bytes) => Record::decode(&bytes)
            .map(Some)
            .map_err(|source| VolumeFailure::Damaged { key: key.to_owned(), source }),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A record of the control plane: no writer, so epoch and nonce are zero.
fn control_record(volume: &VolumeId, seq: Seq, unix_ms: u64, body: Body) -> Record {
    Record { volume: volume.clone(), seq, epoch: Epoch(0), nonce: Nonce([0; 16]), unix_ms, body }
}

fn log_key(volume: &VolumeId, seq: Seq) -> String {
    ObjectKey::Log(volume.clone(), seq).to_string()
}

#[cfg(test)]
mod tests;
