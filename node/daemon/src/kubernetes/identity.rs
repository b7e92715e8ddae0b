//! The identity of a Volume in its object store.

use holdfast_crds::Volume;
use holdfast_types::VolumeId;

/// The identity of a Volume; none before the operator gave it one.
pub(super) fn identity(volume: &Volume) -> Option<VolumeId> {
    volume.status.as_ref()?.volume_id.clone()?.try_into().ok()
}
