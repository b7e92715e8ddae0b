//! Health of every `ObjectStore`, and connections to those that are fit for volumes.
//!
//! Owns: the status of ObjectStores; the reading of their Secrets.
//! Does not own: requests to the store (`holdfast-s3`).
//! On failure: the condition `Ready` is False with a message that names the field and the fix.

pub(crate) mod connect;
pub(crate) mod controller;
pub(crate) mod health;
