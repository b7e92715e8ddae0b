//! The volume planner: no I/O, no clock, no threads.
//!
//! Owns: what a volume's data structures mean, in memory, on the local disk and in the object store, and the
//! order in which they may change. Does not own: doing any of it; [`volume::Volume::handle`] takes events and
//! answers with actions. Byte layouts are drawn at the head of [`record`], [`manifest`], [`segment`],
//! [`snapshot`], [`durable_map`] and [`sector_map`].

pub mod action;
pub mod attach;
pub mod chunk_set;
pub mod compose;
pub mod crash_point;
pub mod durable_map;
pub mod event;
pub mod fence;
pub mod fork;
pub mod index;
pub mod limit;
pub mod log_length;
pub mod manifest;
pub mod record;
pub mod round_size;
pub mod safeguard;
pub mod sector_map;
pub mod segment;
pub mod snapshot;
pub mod volume;
pub mod wire;

pub use wire::{DecodeError, begins_as_ours};
