//! Creating objects once: the records of a log, and all else whose place is taken by the first create.
//!
//! On failure: a create of a record that did not answer clearly is read back; its outcome is never guessed.
//! Any other object is the same each time that it is made, or is read afterwards: its create is repeated.

use bytes::Bytes;
use holdfast_format::record::Record;
use holdfast_objects::{CreateError, ObjectStore, StoreError};
use holdfast_types::key::ObjectKey;
use holdfast_types::{Seq, VolumeId};

use crate::error::{LogFailure, store};
use crate::limit::MAX_METADATA_BYTES;

/// Outcomes of [`create_once`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum CreatedOnce {
    /// This call stored it.
    Now,
    /// An object was there: of an earlier call whose answer was lost, or of another writer.
    Before,
}

/// Creates an object once: one PUT. `what` completes "failed to ..." in the error.
///
/// # Errors
/// [`LogFailure::Store`]: the object is not there, or that is unknown; try again.
pub(crate) async fn create_once(
    objects: &dyn ObjectStore,
    what: &'static str,
    volume: &VolumeId,
    key: &str,
    body: Bytes,
) -> Result<CreatedOnce, LogFailure> {
    match objects.create(key, body).await {
        Ok(_) => Ok(CreatedOnce::Now),
        Err(CreateError::Exists { .. }) => Ok(CreatedOnce::Before),
        Err(CreateError::Failed(source) | CreateError::Ambiguous(source)) => Err(store(what, volume)(source)),
    }
}

/// Outcomes of a create-once, after every doubt was resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum CreateOutcome {
    /// The record is in the log.
    Created,
    /// Another record is in its place.
    Lost,
}

/// Creates `log/<seq>` once.
///
/// # Errors
/// [`LogFailure::Store`]: the record is not there, or that is unknown; the same record may be retried.
pub async fn create_record(objects: &dyn ObjectStore, record: &Record) -> Result<CreateOutcome, LogFailure> {
    let volume = &record.volume;
    let key = ObjectKey::Log(volume.clone(), record.seq).to_string();
    let bytes = Bytes::from(record.encode());
    let doubt = match objects.create(&key, bytes.clone()).await {
        Ok(_created) => return Ok(CreateOutcome::Created),
        Err(CreateError::Failed(source)) => return Err(store("create a log record", volume)(source)),
        Err(CreateError::Exists { .. }) => None,
        Err(CreateError::Ambiguous(source)) => Some(source),
    };
    match (objects.get(&key, MAX_METADATA_BYTES).await, doubt) {
        (Ok(there), _) if there == bytes => Ok(CreateOutcome::Created),
        (Ok(_), _) => Ok(CreateOutcome::Lost),
        (Err(StoreError::NotFound { .. }), Some(doubt)) => Err(store("create a log record", volume)(doubt)),
        (Err(source), _) => Err(store("read a log record back", volume)(source)),
    }
}

/// Returns true if the record that was created is the one in its place: one GET.
///
/// A store that looks whether a key is free and stores the object some time later tells several writers
/// that they created it, and has the object of the last of them. So before a writer does what cannot be
/// undone it reads its record back. That finds every other create which was stored before this call.
///
/// # Errors
/// [`LogFailure::Store`]: that is unknown.
pub async fn is_in_place(objects: &dyn ObjectStore, record: &Record) -> Result<bool, LogFailure> {
    let key = ObjectKey::Log(record.volume.clone(), record.seq).to_string();
    match objects.get(&key, MAX_METADATA_BYTES).await {
        Ok(there) => Ok(there == record.encode()),
        Err(StoreError::NotFound { .. }) => Ok(false),
        Err(source) => Err(store("read a log record back", &record.volume)(source)),
    }
}

/// Stores a checkpoint. That it is stored does not depend on what may be deleted for it
/// ([`crate::tidy`]).
///
/// # Errors
/// [`LogFailure::Store`]: try again at the next occasion.
pub async fn write_checkpoint(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    seq: Seq,
    bytes: Bytes,
) -> Result<(), LogFailure> {
    let key = ObjectKey::Checkpoint(volume.clone(), seq).to_string();
    // A checkpoint of this seq is the same, whichever writer made it.
    create_once(objects, "write a checkpoint", volume, &key, bytes)
        .await
        .map(|(CreatedOnce::Now | CreatedOnce::Before)| ())
}
