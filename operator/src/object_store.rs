//! Health of every `ObjectStore`, and connections to those that are fit for volumes.
//!
//! Owns: the status of ObjectStores; reading their Secrets.
//! Does not own: requests to the store (`holdfast-s3`).
//! On failure: the condition `Ready` is False with a message that names the field and the fix.

pub(crate) mod connect;
pub(crate) mod controller;
pub(crate) mod health;

use std::time::Duration;

use holdfast_crds::ObjectStore;
use holdfast_log::trash::TrashTerms;
use kube::ResourceExt;

/// Returns an ObjectStore's terms for deleted volumes. A time that cannot be parsed is replaced by the
/// default; the API server rejects such values.
pub(crate) fn trash_terms(store: &ObjectStore) -> TrashTerms {
    let keep = store.spec.keep_deleted().unwrap_or(Duration::from_hours(24));
    TrashTerms { keep, owner: store.uid().unwrap_or_default() }
}
