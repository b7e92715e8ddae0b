//! Moves the end of a log, so that a create that may still be in flight cannot become its next record.
//!
//! The outcome of a create may stay unknown: the client stopped waiting, the object does not exist, and the
//! request may take effect later. A caller that repeats the same create learns the outcome. A caller that no
//! longer wants the record occupies its position with an empty record.

use holdfast_format::record::{Body, Record};
use holdfast_format::snapshot::SnapshotChange;
use holdfast_objects::ObjectStore;
use holdfast_types::{Epoch, Nonce, VolumeId};

use crate::append::{CreateOutcome, create_record, is_in_place};
use crate::error::LogFailure;
use crate::fork::confirm_fork;
use crate::limit::TRIES;
use crate::read::read_manifest_to_end;
use crate::take_snapshot::keep_short;
use crate::truncate::was_truncated_after;

/// Appends an empty record to the log of a detached volume: a record of the control plane that was sent
/// earlier and is not in the log by then can never become part of it. Does nothing for a volume without a
/// log, or with a writer, which extends the log itself. No other caller may use the same `nonce`.
///
/// # Errors
/// [`LogFailure::WasDeleted`]: the log has its tombstone. Another [`LogFailure`]: the result is unknown; call
/// again.
pub async fn pass_end(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    nonce: Nonce,
    unix_ms: u64,
) -> Result<(), LogFailure> {
    for _ in 0..TRIES {
        let manifest = read_manifest_to_end(objects, volume).await?;
        if manifest.is_deleted() {
            return Err(LogFailure::WasDeleted(volume.clone()));
        }
        if !manifest.takes_control_records() {
            return Ok(());
        }
        if manifest.is_unconfirmed() {
            confirm_fork(objects, volume).await?;
            continue;
        }
        keep_short(objects, &manifest).await?;
        let record = Record {
            volume: volume.clone(),
            seq: manifest.seq().next(),
            epoch: Epoch(0),
            nonce,
            unix_ms,
            body: Body::of_snapshots(SnapshotChange::default()),
        };
        if create_record(objects, &record).await? == CreateOutcome::Created
            && !was_truncated_after(objects, volume, manifest.checkpointed()).await?
            && is_in_place(objects, &record).await?
        {
            return Ok(());
        }
    }
    Err(LogFailure::Contended(volume.clone()))
}
