//! PersistentVolumes, as far as they say whose data a Volume holds.

use k8s_openapi::api::core::v1::PersistentVolume;

/// The claim that a PersistentVolume is bound to, as the annotation [`CLAIM`](crate::CLAIM) names it. `None` while
/// it is not bound or is being deleted: one that was released still names the claim that is gone, and one that is
/// only reserved a claim without a uid.
pub fn bound_claim(volume: &PersistentVolume) -> Option<String> {
    let is_bound = volume.status.as_ref()?.phase.as_deref() == Some("Bound");
    let claim = volume.spec.as_ref()?.claim_ref.as_ref()?;
    let is_there = is_bound && volume.metadata.deletion_timestamp.is_none() && claim.uid.is_some();
    is_there.then_some(format!("{}/{}", claim.namespace.as_deref()?, claim.name.as_deref()?))
}
