//! PersistentVolumes, as evidence of the claim that owns a Volume's data.

use k8s_openapi::api::core::v1::PersistentVolume;

/// Returns the claim bound to a PersistentVolume, in the format of the annotation [`CLAIM`](crate::CLAIM). Returns `None`
/// while the PersistentVolume is unbound or being deleted: a released one still names its deleted claim, and a reserved one
/// names a claim without a uid.
pub fn bound_claim(volume: &PersistentVolume) -> Option<String> {
    let is_bound = volume.status.as_ref()?.phase.as_deref() == Some("Bound");
    let claim = volume.spec.as_ref()?.claim_ref.as_ref()?;
    let is_there = is_bound && volume.metadata.deletion_timestamp.is_none() && claim.uid.is_some();
    is_there.then_some(format!("{}/{}", claim.namespace.as_deref()?, claim.name.as_deref()?))
}
