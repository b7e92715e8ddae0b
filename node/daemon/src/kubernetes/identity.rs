//! The identity of a Volume in its object store.

use holdfast_crds::Volume;
use holdfast_types::VolumeId;

/// Returns a Volume's identity; `None` before the operator assigned one.
pub(super) fn identity(volume: &Volume) -> Option<VolumeId> {
    volume.status.as_ref()?.volume_id.clone()?.try_into().ok()
}
