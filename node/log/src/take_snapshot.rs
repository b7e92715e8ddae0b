//! Takes a snapshot of a volume that no writer has attached:
//!
//! 1. read the log to its end, where its writer must have detached. If it is long, store a checkpoint, and
//!    delete the records that are no longer needed;
//! 2. store the root. A registered snapshot thus always has a root, and a root that no record registers is
//!    garbage. If another root, or the mark of another snapshot, exists there, which a restored bucket may
//!    have kept, an empty record passes this position, and everything restarts at a later one;
//! 3. create the record once. If another record occupies the position, everything restarts;
//! 4. check that the log was not truncated in the meantime ([`crate::was_truncated_after`]), and that the
//!    position holds this record ([`crate::is_in_place`]): otherwise the record is not part of the log, and
//!    everything restarts.
//!
//! The writer of an attached volume takes its snapshots itself, in the same order.

use bytes::Bytes;
use holdfast_format::limit::MAX_SNAPSHOTS;
use holdfast_format::log_length::checkpoint_every;
use holdfast_format::manifest::Manifest;
use holdfast_format::record::{Body, Record};
use holdfast_format::safeguard::{Safeguard::CheckSnapshotPlace, safeguard};
use holdfast_format::snapshot::{Snapshot, SnapshotChange};
use holdfast_objects::ObjectStore;
use holdfast_types::{Epoch, Nonce, SnapshotName, SnapshotUid, VolumeId};

use crate::append::{CreateOutcome, create_record, is_in_place, write_checkpoint};
use crate::error::LogFailure;
use crate::fork::confirm_fork;
use crate::limit::TRIES;
use crate::snapshot::{RootPlace, SnapshotError, existing, forgotten, store_root};
use crate::truncate::{tidy, was_truncated_after};

/// Takes a snapshot of a volume that no node has attached: root and record, two PUTs. Returns the existing
/// snapshot for a uid that was already used.
///
/// # Errors
/// [`SnapshotError`]: nothing was registered, unless the store did not answer; then try again.
pub async fn snapshot_detached(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    uid: SnapshotUid,
    nonce: Nonce,
    unix_ms: u64,
) -> Result<Snapshot, SnapshotError> {
    let mut foreign = None;
    for _ in 0..TRIES {
        let manifest = existing(objects, volume).await?;
        if manifest.is_unconfirmed() {
            confirm_fork(objects, volume).await?;
            continue;
        }
        let dropped = forgotten(objects, &manifest).await?;
        let live = || manifest.snapshots().iter().filter(|known| !dropped.contains(&known.seq));
        if let Some(there) = live().find(|known| known.uid == uid) {
            return Ok(*there);
        }
        if live().count() >= MAX_SNAPSHOTS {
            return Err(SnapshotError::TooMany(volume.clone()));
        }
        if let Some(writer) = manifest.attached().filter(|_| !manifest.takes_control_records()) {
            let (node, epoch) = (writer.node, writer.epoch);
            return Err(SnapshotError::Attached { volume: volume.clone(), node, epoch });
        }
        keep_short(objects, &manifest).await?;
        let change = SnapshotChange { taken: Some(uid), dropped: dropped.into_iter().collect() };
        let record = Record {
            volume: volume.clone(),
            seq: manifest.seq().next(),
            epoch: Epoch(0),
            nonce,
            unix_ms,
            body: Body::of_snapshots(change),
        };
        match register(objects, manifest, &record).await? {
            Registered::Taken(taken) => return Ok(taken),
            Registered::Overtaken => foreign = None,
            Registered::ForeignRoot => foreign = Some(record.seq),
        }
    }
    let volume = volume.clone();
    Err(match foreign {
        Some(seq) => LogFailure::ForeignRoot(SnapshotName { volume, seq }),
        None => LogFailure::Contended(volume),
    }
    .into())
}

/// Stores a checkpoint of a log that is longer than a writer leaves it, and deletes the objects that the
/// checkpoint replaces: each reader reads all records after the newest checkpoint, and each sweep lists those
/// before it.
pub(crate) async fn keep_short(objects: &dyn ObjectStore, manifest: &Manifest) -> Result<(), LogFailure> {
    let (volume, seq) = (manifest.volume(), manifest.seq());
    if seq.0.saturating_sub(manifest.checkpointed().0) < checkpoint_every() {
        return Ok(());
    }
    let checkpoint = Bytes::from(manifest.encode_checkpoint());
    write_checkpoint(objects, volume, seq, checkpoint.clone()).await?;
    tidy(objects, volume, seq, &checkpoint).await
}

/// Outcome of an attempt to register a snapshot.
enum Registered {
    /// The snapshot is in the log.
    Taken(Snapshot),
    /// The record is not part of the log.
    Overtaken,
    /// The root of another history occupied the position, which the log has now passed.
    ForeignRoot,
}

/// Stores the root and creates the record. On a conflicting root, creates a record that registers nothing.
async fn register(
    objects: &dyn ObjectStore,
    mut manifest: Manifest,
    record: &Record,
) -> Result<Registered, LogFailure> {
    let volume = &record.volume;
    let begun_at = manifest.checkpointed();
    manifest.apply(record).map_err(|source| LogFailure::Broken { volume: volume.clone(), source })?;
    let root = manifest.encode_root().into();
    if store_root(objects, volume, record.seq, root).await? == RootPlace::Foreign {
        let passing = Record { body: Body::of_snapshots(SnapshotChange::default()), ..record.clone() };
        // Any other record at the position passes it, too.
        let (CreateOutcome::Created | CreateOutcome::Lost) = create_record(objects, &passing).await?;
        return Ok(Registered::ForeignRoot);
    }
    let is_lost = create_record(objects, record).await? == CreateOutcome::Lost;
    if is_lost
        || (was_truncated_after(objects, volume, begun_at).await? && safeguard(CheckSnapshotPlace))
        || !is_in_place(objects, record).await?
    {
        return Ok(Registered::Overtaken);
    }
    Ok(manifest.snapshots().last().map_or(Registered::Overtaken, |taken| Registered::Taken(*taken)))
}
