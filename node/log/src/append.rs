//! Creates objects once: log records, and all other objects whose key belongs to its first creator.
//!
//! On failure: a record whose create had an unclear outcome is read back; the outcome is never guessed. Any
//! other object has reproducible content or is read afterwards, so its create is retried.

use bytes::Bytes;
use holdfast_format::record::Record;
use holdfast_objects::{CreateError, ObjectStore, StoreError};
use holdfast_types::key::ObjectKey;
use holdfast_types::{Seq, VolumeId};

use crate::error::{LogFailure, store, store_write};
use crate::limit::MAX_METADATA_BYTES;

/// Outcome of [`create_once`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum CreatedOnce {
    /// This call stored the object.
    Now,
    /// An object existed: from an earlier call whose response was lost, or from another writer.
    Before,
}

/// Creates an object once: one PUT. `what` completes "failed to ..." in the error.
///
/// # Errors
/// [`LogFailure::Store`]: the object was not created, or its existence is unknown; try again.
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
        Err(CreateError::Failed(source) | CreateError::Ambiguous(source)) => {
            Err(store_write(what, volume)(source))
        }
    }
}

/// Outcome of creating a record, with all ambiguity resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum CreateOutcome {
    /// The record is in the log.
    Created,
    /// Another record occupies the position.
    Lost,
}

/// Creates `log/<seq>` once.
///
/// # Errors
/// [`LogFailure::Store`]: the record was not created, or its existence is unknown; the same record may be
/// retried.
pub async fn create_record(objects: &dyn ObjectStore, record: &Record) -> Result<CreateOutcome, LogFailure> {
    let volume = &record.volume;
    let key = ObjectKey::Log(volume.clone(), record.seq).to_string();
    let bytes = Bytes::from(record.encode());
    let doubt = match objects.create(&key, bytes.clone()).await {
        Ok(_created) => return Ok(CreateOutcome::Created),
        Err(CreateError::Failed(source)) => return Err(store_write("create a log record", volume)(source)),
        Err(CreateError::Exists { .. }) => None,
        Err(CreateError::Ambiguous(source)) => Some(source),
    };
    match (objects.get(&key, MAX_METADATA_BYTES).await, doubt) {
        (Ok(there), _) if there == bytes => Ok(CreateOutcome::Created),
        (Ok(_), _) => Ok(CreateOutcome::Lost),
        (Err(StoreError::NotFound { .. }), Some(doubt)) => {
            Err(store_write("create a log record", volume)(doubt))
        }
        (Err(source), _) => Err(store("read a log record back", volume)(source)),
    }
}

/// Returns true if the created record is the one stored at its position: one GET.
///
/// A store that checks the key first and stores the object later confirms several creates of one key, and
/// keeps the last object. A writer therefore reads its record back before irreversible work. This detects
/// every other create that was stored before this call.
///
/// # Errors
/// [`LogFailure::Store`]: the answer is unknown.
pub async fn is_in_place(objects: &dyn ObjectStore, record: &Record) -> Result<bool, LogFailure> {
    let key = ObjectKey::Log(record.volume.clone(), record.seq).to_string();
    match objects.get(&key, MAX_METADATA_BYTES).await {
        Ok(there) => Ok(there == record.encode()),
        Err(StoreError::NotFound { .. }) => Ok(false),
        Err(source) => Err(store("read a log record back", &record.volume)(source)),
    }
}

/// Stores a checkpoint, independently of the deletions it permits ([`crate::tidy`]).
///
/// # Errors
/// [`LogFailure::Store`]: try again with the next checkpoint.
pub async fn write_checkpoint(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    seq: Seq,
    bytes: Bytes,
) -> Result<(), LogFailure> {
    let key = ObjectKey::Checkpoint(volume.clone(), seq).to_string();
    // Checkpoints of one seq are identical, regardless of the writer.
    create_once(objects, "write a checkpoint", volume, &key, bytes)
        .await
        .map(|(CreatedOnce::Now | CreatedOnce::Before)| ())
}
