//! API server access for operator, node daemon and CSI driver.
//!
//! Owns: requests with a timeout; the conversion of an ObjectStore and its Secrets to the configuration of an
//! S3 client; events and their recorder.
//! Does not own: when these are read, the conditions for failures, the choice of events, the retry schedule.

pub mod api;
pub mod event;
pub mod store_config;
