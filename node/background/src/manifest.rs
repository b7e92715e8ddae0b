//! The manifest of a volume that was taken over while it was served.

use holdfast_engine::manifest::Manifest;
use holdfast_log::read_manifest;
use holdfast_objects::ObjectStore;
use holdfast_types::VolumeId;

use crate::TimeAndChance;
use crate::backoff::Backoff;

/// Reads the log, however long the store takes to answer. Reads of remote blocks, commits and a detach wait for it.
pub async fn load_manifest(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    time: &impl TimeAndChance,
) -> Manifest {
    let mut backoff = Backoff::of_commits();
    loop {
        match read_manifest(objects, volume).await {
            Ok(manifest) => return manifest,
            Err(error) => {
                tracing::warn!(%volume, error = &error as &dyn std::error::Error, "the log cannot be read yet");
                backoff.wait(time).await;
            }
        }
    }
}
