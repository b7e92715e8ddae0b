//! The API server as operator, node daemon and CSI driver use it.
//!
//! Owns: a request with a limit on its time; the way from an ObjectStore and its Secrets to the configuration
//! of an S3 client; events and the one who writes them.
//! Does not own: when these are read, the conditions that name a failure, which of them have an event, how
//! soon a failure is tried again.

pub mod api;
pub mod event;
pub mod store_config;
