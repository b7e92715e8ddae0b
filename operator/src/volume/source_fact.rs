//! Observed state of the Volume that another one starts from.

use holdfast_crds::{PROVISIONED, Volume, is_true};

/// Observed state of the Volume that a volume starts from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SourceFact {
    /// Not read, because the plan does not depend on it.
    NotRead,
    /// No Volume has that name.
    Missing,
    /// Its deletion was requested.
    Deleting,
    /// It does not exist in its object store yet.
    NotProvisioned,
    /// It is a memory volume, which has no snapshots.
    Memory,
    /// It exists.
    Ready {
        /// Name of its ObjectStore.
        object_store: String,
        /// Its identity there.
        volume_id: String,
        /// Its size in bytes, if its spec has one.
        size_bytes: Option<u64>,
    },
}

impl SourceFact {
    /// Reads the fact from a Volume.
    pub(crate) fn of(volume: Option<&Volume>) -> Self {
        let Some(volume) = volume else { return Self::Missing };
        if volume.metadata.deletion_timestamp.is_some() {
            return Self::Deleting;
        }
        if volume.spec.is_memory() {
            return Self::Memory;
        }
        if !volume.status.as_ref().is_some_and(|status| is_true(&status.conditions, PROVISIONED)) {
            return Self::NotProvisioned;
        }
        let object_store = volume.spec.object_store.clone().unwrap_or_default();
        let volume_id = volume.status.as_ref().and_then(|status| status.volume_id.clone());
        let volume_id = volume_id.unwrap_or_default();
        Self::Ready { object_store, volume_id, size_bytes: volume.spec.size_bytes().ok() }
    }
}
