//! Conversion of a volume's limits: from its spec, and to its status.

use holdfast_crds::{ByteSize, FieldError, VolumeLimits, VolumeSpec};
use holdfast_serve::IoLimits;

/// Returns the limits requested in a spec.
///
/// # Errors
/// A [`FieldError`] naming the field. The API server rejects these values.
pub(super) fn wanted(spec: &VolumeSpec) -> Result<IoLimits, FieldError> {
    let Some(limits) = &spec.limits else { return Ok(IoLimits::NONE) };
    Ok(IoLimits { iops: limits.max_iops()?, bytes_per_second: limits.max_bytes_per_second()? })
}

/// Returns the limits in effect, for a status; `None` if there are none.
pub(super) fn reported(limits: IoLimits) -> Option<VolumeLimits> {
    let IoLimits { iops, bytes_per_second } = limits;
    (limits != IoLimits::NONE).then(|| VolumeLimits {
        iops: iops.and_then(|iops| i64::try_from(iops).ok()),
        throughput: bytes_per_second.map(|bytes| ByteSize(bytes).to_string()),
    })
}
