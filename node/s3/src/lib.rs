//! Object store on Amazon S3 and servers that implement its protocol.
//!
//! Owns: the connection to one bucket and all use of the AWS SDK; one operation per file.
//! Does not own: object names, the meaning of objects, a volume's behaviour while its bucket is unreachable.
//! Runs on: a tokio runtime with timers.
//! Invariants: a create is retried only after a response that nothing was written; every request has an
//! attempt timeout and holds a permit; a body is never longer than requested.
//! On failure: a [`holdfast_objects::StoreError`] whose kind determines the caller's reaction.

mod attempt;
mod availability;
mod classify;
mod clock;
mod config;
mod connect;
mod create;
mod delete;
mod get;
mod hedging;
mod invalid_config;
mod list;
mod permits;
mod probe;
mod proxies;
mod put_segment;
mod request_class;
mod store;
mod unfinished;

pub use clock::ServerClock;
pub use config::{S3Config, S3Credentials, Timeouts};
pub use invalid_config::InvalidConfig;
pub use probe::{ProbeFailure, Probed};
pub use proxies::Proxies;
pub use store::{S3Store, StoreAdaptation};
