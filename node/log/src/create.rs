//! Creation of volumes.

use holdfast_format::fork::Fork;
use holdfast_format::manifest::apply::LogError;
use holdfast_format::record::{Body, Labels, Record};
use holdfast_objects::{ObjectStore, StoreError};
use holdfast_types::{Epoch, Nonce, Seq, SnapshotName, SnapshotUid, VolumeId};

use crate::append::{CreateOutcome, create_record};
use crate::error::LogFailure;
use crate::fork::{confirm, confirm_fork, no_such_source, read_fork};
use crate::read::{read_manifest_to_end, read_record};
use crate::snapshot::is_forgotten;
use crate::trash::take_back;

/// Parameters of a new volume.
#[derive(Debug, Clone)]
pub struct Creation {
    /// Logical size.
    pub sectors: u64,
    /// The Volume object and claim for which the volume is created.
    pub labels: Labels,
    /// The snapshot from which the volume starts; `None`: it starts empty.
    pub source: Option<SnapshotName>,
    /// The expected uid of the snapshot; `None`: any. After a restore of the bucket, a name may refer to a
    /// different snapshot.
    pub source_uid: Option<SnapshotUid>,
    /// Identity of the volume.
    pub nonce: Nonce,
    /// Time of the request, in milliseconds since 1970.
    pub unix_ms: u64,
}

impl Creation {
    /// Returns the parameters of a volume without labels.
    pub fn plain(sectors: u64, nonce: Nonce, unix_ms: u64) -> Self {
        Self { sectors, labels: Labels::default(), source: None, source_uid: None, nonce, unix_ms }
    }
}

/// Creates the volume and returns its sectors: one PUT. With a source, the volume starts from the snapshot's
/// content, zero sectors mean the snapshot's size, and the call costs one PUT and six GETs more (`fork.rs`);
/// if the snapshot's record was truncated, its log is read instead: about 10 to 70 GETs. Repeating the call
/// with the same size for the same [origin](Labels::origin) is a no-op, regardless of nonce and time; it
/// reads the log to its end, to check that the volume was not removed.
///
/// # Errors
/// [`LogFailure::ExistsOtherwise`], [`LogFailure::CreatedElsewhere`] or [`LogFailure::WasDeleted`] if the id
/// is taken, and [`LogFailure::OtherSource`] if a volume with another source has it;
/// [`LogFailure::NoSuchSource`], [`LogFailure::OtherSnapshot`], [`LogFailure::SmallerThanSource`] or
/// [`LogFailure::TooManyForks`] if the snapshot cannot be the source: nothing was created, except the id's
/// tombstone if the snapshot was forgotten in the meantime; [`LogFailure::Broken`] if the existing record
/// belongs to another volume; otherwise the store's failure.
pub async fn provision(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    creation: Creation,
) -> Result<u64, LogFailure> {
    let Creation { sectors, labels, source, source_uid, nonce, unix_ms } = creation;
    let origin = labels.origin();
    let begin = match &source {
        Some(snapshot) => match begin_with(objects, volume, snapshot, source_uid, sectors).await {
            // An existing volume may outlive its snapshot.
            Err(LogFailure::NoSuchSource { .. } | LogFailure::OtherSnapshot { .. })
                if begins_with(objects, volume, snapshot).await? =>
            {
                None
            }
            begin => begin.map(|(sectors, fork)| Some((sectors, Some(Box::new(fork)))))?,
        },
        None => Some((sectors, None)),
    };
    if let Some((sectors, source)) = begin {
        let body = Body::Create { sectors, source, labels };
        let record =
            Record { volume: volume.clone(), seq: Seq::FIRST, epoch: Epoch(0), nonce, unix_ms, body };
        if create_record(objects, &record).await? == CreateOutcome::Created {
            return confirm(objects, &record).await.map(|()| sectors);
        }
    }
    let existing = read_creation(objects, volume).await?;
    let manifest = read_manifest_to_end(objects, volume).await?;
    if manifest.is_deleted() {
        return Err(LogFailure::WasDeleted(volume.clone()));
    }
    if existing.labels.origin() != origin {
        return Err(LogFailure::CreatedElsewhere {
            volume: volume.clone(),
            origin: existing.labels.origin(),
        });
    }
    if existing.source != source {
        return Err(LogFailure::OtherSource { volume: volume.clone(), snapshot: existing.source });
    }
    let requested = if source.is_some() && sectors == 0 { existing.sectors } else { sectors };
    if manifest.sectors() != requested {
        return Err(LogFailure::ExistsOtherwise { volume: volume.clone(), sectors: manifest.sectors() });
    }
    if manifest.is_unconfirmed() {
        confirm_fork(objects, volume).await?;
    }
    take_back(objects, volume).await?;
    Ok(requested)
}

/// Returns the start of a fork of `snapshot`, and its size: the requested one, or the snapshot's for zero.
async fn begin_with(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    snapshot: &SnapshotName,
    uid: Option<SnapshotUid>,
    sectors: u64,
) -> Result<(u64, Fork), LogFailure> {
    if is_forgotten(objects, snapshot).await? {
        return Err(no_such_source(volume, snapshot));
    }
    let fork = read_fork(objects, volume, snapshot, uid).await?;
    let sectors = if sectors == 0 { fork.sectors } else { sectors };
    if sectors < fork.sectors {
        let (volume, snapshot, snapshot_sectors) = (volume.clone(), snapshot.clone(), fork.sectors);
        return Err(LogFailure::SmallerThanSource { volume, sectors, snapshot, snapshot_sectors });
    }
    Ok((sectors, fork))
}

/// Returns true if the volume exists and was created from the snapshot.
async fn begins_with(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    snapshot: &SnapshotName,
) -> Result<bool, LogFailure> {
    match read_creation(objects, volume).await {
        Ok(creation) => Ok(creation.source.as_ref() == Some(snapshot)),
        Err(LogFailure::Store { source: StoreError::NotFound { .. }, .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reads the creation of the volume: one GET. Its record exists as long as any object of the volume.
///
/// # Errors
/// [`LogFailure::Store`] with [`StoreError::NotFound`] if the volume does not exist; otherwise as for any
/// record.
pub async fn read_creation(objects: &dyn ObjectStore, volume: &VolumeId) -> Result<Creation, LogFailure> {
    let Record { volume: found, nonce, unix_ms, body, .. } = read_record(objects, volume, Seq::FIRST).await?;
    if found != *volume {
        let source = LogError::Volume { seq: Seq::FIRST, found, expected: volume.clone() };
        return Err(LogFailure::Broken { volume: volume.clone(), source });
    }
    match body {
        Body::Create { sectors, source, labels } => {
            let source = source.map(|fork| fork.snapshot);
            Ok(Creation { sectors, labels, source, source_uid: None, nonce, unix_ms })
        }
        Body::Attach { .. } | Body::Change { .. } | Body::Detach { .. } | Body::Delete => {
            Err(LogFailure::WasDeleted(volume.clone()))
        }
    }
}
