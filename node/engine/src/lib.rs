//! The volume planner: no I/O, no clock, no threads.

pub mod compose;
pub mod limit;
pub mod manifest;
pub mod record;
pub mod segment;
mod wire;

pub use wire::DecodeError;
