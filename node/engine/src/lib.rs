//! The volume planner: no I/O, no clock, no threads.
//!
//! Owns: the state of attached volumes, in memory and in their local files, and the order in which it, the
//! local files and the bucket may change. Does not own: executing these changes ([`volume::Volume::handle`]
//! takes events and returns actions), the formats in the bucket (`node/format`). Byte layouts of the local
//! files are drawn at the head of [`durable_map`] and [`sector_map`].

pub mod action;
pub mod attach;
pub mod durable_map;
pub mod event;
pub mod limit;
pub mod round_size;
pub mod sector_map;
pub mod settings;
pub mod snapshot;
pub mod volume;
