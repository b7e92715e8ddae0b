//! Common parts of all Holdfast programs: daemon, operator and CSI driver.
//!
//! Owns: the admin endpoint, logs and their level, traces and their export, termination signals, error
//! formatting, tasks tied to their owner.
//! Does not own: a program's work, readiness and metrics.

pub mod admin;
mod chain;
pub mod log_level;
pub mod logs;
pub mod shutdown;
pub mod tasks;
pub mod telemetry;
pub mod trace;

pub use chain::chain;
