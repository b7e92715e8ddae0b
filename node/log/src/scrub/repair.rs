//! Replaces damaged checkpoints with a new one built from the rest of the log.

use holdfast_objects::ObjectStore;
use holdfast_types::VolumeId;
use holdfast_types::key::ObjectKey;

use super::ScrubReport;
use crate::append::write_checkpoint;
use crate::error::{LogFailure, store_write};

/// Deletes each damaged checkpoint that can be rebuilt from the log and the other checkpoints, and creates a
/// new one as of the log's end, also for a truncated log without any. A deleted key is never created again:
/// if the damaged checkpoint was at the log's end, readers start at the previous checkpoint, or at a root,
/// until the writer creates the next. Returns the deleted keys.
///
/// # Errors
/// [`LogFailure::Store`]: the next scrub repairs the rest.
pub async fn repair_checkpoints(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    report: &ScrubReport,
) -> Result<Vec<String>, LogFailure> {
    let manifest = &report.manifest;
    // Created before the deletion, because a truncated log cannot be read without any checkpoint.
    let is_due = report.lacks_checkpoint || !report.replaceable.is_empty();
    if is_due && !report.replaceable.contains(&manifest.seq()) {
        write_checkpoint(objects, volume, manifest.seq(), manifest.encode_checkpoint().into()).await?;
    }
    let mut removed = Vec::new();
    for seq in &report.replaceable {
        let key = ObjectKey::Checkpoint(volume.clone(), *seq).to_string();
        objects.delete(&[&key]).await.map_err(store_write("remove a damaged checkpoint", volume))?;
        removed.push(key);
    }
    Ok(removed)
}
