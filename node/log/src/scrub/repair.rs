//! Replacement of damaged checkpoints by a new one made from the rest of the log.

use holdfast_objects::ObjectStore;
use holdfast_types::VolumeId;
use holdfast_types::key::ObjectKey;

use super::Report;
use crate::append::write_checkpoint;
use crate::error::{LogFailure, store};

/// Removes each damaged checkpoint that the log and the other checkpoints can stand in for, and makes a new
/// one as of the log's end, also where a truncated log has none. A key that was removed is not created again:
/// where the damaged one stood at the log's end, readers begin at the one before it, or at a root, until the
/// writer makes the next. Returns the keys removed.
///
/// # Errors
/// [`LogFailure::Store`]: what is left is repaired by the next scrub.
pub async fn repair_checkpoints(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    report: &Report,
) -> Result<Vec<String>, LogFailure> {
    let manifest = &report.manifest;
    // First: without any checkpoint a truncated log cannot be read.
    let is_due = report.lacks_checkpoint || !report.replaceable.is_empty();
    if is_due && !report.replaceable.contains(&manifest.seq()) {
        write_checkpoint(objects, volume, manifest.seq(), manifest.encode_checkpoint().into()).await?;
    }
    let mut removed = Vec::new();
    for seq in &report.replaceable {
        let key = ObjectKey::Checkpoint(volume.clone(), *seq).to_string();
        objects.delete(&[&key]).await.map_err(store("remove a damaged checkpoint", volume))?;
        removed.push(key);
    }
    Ok(removed)
}
