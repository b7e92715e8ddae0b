//! Permissions of users to format volumes whose content is unknown: one attach each.
//!
//! Owns: the epoch for which each volume's user gave one, as the API server said last.
//! Does not own: the formatting, nor the note that a permission was used (the CSI driver).

use std::collections::HashMap;
use std::sync::Arc;

use holdfast_types::VolumeId;
use parking_lot::Mutex;

/// The permissions. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct FormatPermissions(Arc<Mutex<HashMap<VolumeId, u64>>>);

impl FormatPermissions {
    /// Notes the epoch for which a volume's user gives permission; none takes it back.
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
