//! The shell of a Holdfast program: what daemon, operator and CSI driver do alike around their own work.
//!
//! Owns: the admin endpoint, logs and their level, traces and their export, the signals that end a process,
//! the text of errors, the tasks that end with their owner.
//! Does not own: what a program does, when it is ready, its metrics.

pub mod admin;
mod chain;
pub mod log_level;
pub mod logs;
pub mod shutdown;
pub mod tasks;
pub mod telemetry;
pub mod trace;

pub use chain::chain;
