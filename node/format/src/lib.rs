//! The stored formats: the encoding of each object and record, and their combined meaning.
//!
//! Owns: encoding, decoding and checking of everything that a volume stores in its bucket, and the effect
//! of records on a volume's state ([`manifest`]). Does not own: reading or storing any of it (`node/log`,
//! `node/background`), nor a volume's local files, which are the engine's. Byte layouts are drawn at the
//! head of [`record`], [`manifest`], [`segment`], [`index`] and [`snapshot`], and in `docs/formats/`.
//!
//! [`safeguard`] and [`crash_point`] are here because all crates above name them.

pub mod chunk_ranges;
pub mod chunk_set;
pub mod compose;
pub mod crash_point;
pub mod displaced;
pub mod fork;
pub mod index;
pub mod limit;
pub mod log_length;
pub mod manifest;
pub mod prefetch_list;
pub mod record;
pub mod safeguard;
pub mod segment;
pub mod side;
pub mod slab_table;
pub mod snapshot;
pub mod wire;

pub use wire::{DecodeError, begins_as_ours};
