//! Users' permissions to format volumes with unknown content: valid for one attach each.
//!
//! Owns: the epoch for which each volume's user gave permission, as last read from the API server.
//! Does not own: formatting, or the record that a permission was used (the CSI driver).

use std::collections::HashMap;
use std::sync::Arc;

use holdfast_types::VolumeId;
use parking_lot::Mutex;

/// The permissions. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct FormatPermissions(Arc<Mutex<HashMap<VolumeId, u64>>>);

impl FormatPermissions {
    /// Records the epoch for which a volume's user gives permission; `None` revokes it.
    pub(crate) fn set(&self, volume: &VolumeId, epoch: Option<u64>) {
        let mut permissions = self.0.lock();
        match epoch {
            Some(epoch) => permissions.insert(volume.clone(), epoch),
            None => permissions.remove(volume),
        };
    }

    /// Returns true if the volume may be formatted while it is attached with this epoch.
    pub(crate) fn allow(&self, volume: &VolumeId, epoch: u64) -> bool {
        self.0.lock().get(volume) == Some(&epoch)
    }
}
