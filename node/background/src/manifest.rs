//! The manifest of a served volume that was taken over.

use holdfast_format::manifest::Manifest;
use holdfast_format::safeguard::{Safeguard::ProbeBeyondList, safeguard};
use holdfast_log::{read_manifest, read_manifest_to_end};
use holdfast_objects::ObjectStore;
use holdfast_types::VolumeId;

use crate::Environment;
use crate::backoff::JobBackoff;

/// Reads the log to its end, no matter how long the store takes to answer. Reads of remote blocks, commits
/// and a detach wait for it. LIST alone is not enough: without the last commits of its predecessor, this
/// process would mistake the writer's own records for another writer's, and release the volume.
pub async fn load_manifest(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    time: &impl Environment,
) -> Manifest {
    let mut backoff = JobBackoff::of_commits();
    loop {
        let read = if safeguard(ProbeBeyondList) {
            read_manifest_to_end(objects, volume).await
        } else {
            read_manifest(objects, volume).await
        };
        match read {
            Ok(manifest) => return manifest,
            Err(error) => {
                tracing::warn!(%volume, error = &error as &dyn std::error::Error, "the log cannot be read yet");
                backoff.wait(time).await;
            }
        }
    }
}
