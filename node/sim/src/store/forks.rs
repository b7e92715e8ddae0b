//! Forks in the store: the volume becomes one of them.

use holdfast_types::VolumeId;
use holdfast_types::key::volume_prefix;

use super::Store;

impl Store {
    /// Continues as the volume `fork`.
    pub(crate) fn continue_as(&mut self, fork: &VolumeId) {
        self.volume = fork.clone();
        self.late.clear();
    }

    /// Returns the objects of a volume, each with its bytes.
    pub(crate) fn objects_of(&self, volume: &VolumeId) -> Vec<(String, Vec<u8>)> {
        let objects = self.bucket.stored.objects.under(&volume_prefix(volume));
        objects.map(|(key, bytes)| (key.to_owned(), bytes.to_vec())).collect()
    }
}
