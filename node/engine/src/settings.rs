//! Settings and state with which a volume is started.

use holdfast_format::manifest::Manifest;
use holdfast_types::{Millis, Seq};

use crate::durable_map::Header;

/// Limits at which dirty data is sealed and writes are delayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirtyLimits {
    /// Dirty bytes on the active side at which it is sealed.
    pub seal_bytes: u64,
    /// Dirty bytes on the active side at which writes wait for the commit in progress.
    pub max_bytes: u64,
    /// Age of the oldest dirty byte at which the side is sealed.
    pub max_age_ms: Millis,
}

/// The meaning of a successful FLUSH.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Durability {
    /// The data it covers survives a crash of the process and a power failure of the host.
    #[default]
    Local,
    /// The data it covers survives the loss of the node: it is committed.
    Object,
}

/// Settings that may change while the volume is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RuntimeSettings {
    /// Age of the oldest dirty byte at which the side is sealed.
    pub max_age_ms: Millis,
    /// The meaning of a successful FLUSH.
    pub durability: Durability,
}

/// Settings and header with which a volume is started.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Requests the device can have in flight (`queues * depth`).
    pub requests: u32,
    /// Its limits.
    pub limits: DirtyLimits,
    /// The meaning of a successful FLUSH.
    pub durability: Durability,
    /// The durable header as last written; its newest nonce is this writer's, and at an attach its epoch too.
    pub header: Header,
    /// The header's generation.
    pub header_generation: u64,
    /// Milliseconds since 1970 when the clock of `now` was zero, for the timestamps of records.
    pub unix_ms_at_zero: u64,
}

/// State of a volume as an attach found it.
#[derive(Debug, Clone)]
pub struct AttachState {
    /// The log.
    pub manifest: Manifest,
    /// The greatest generation in the durable map on this node, whose pages are in the memory of the live
    /// map ([`RestoredMap`](crate::sector_map::RestoredMap)); zero on a fresh one.
    pub generation: u64,
}

impl AttachState {
    /// Returns the state of a volume without data on this node.
    pub fn in_log(manifest: Manifest) -> Self {
        Self { manifest, generation: 0 }
    }
}

/// The record that a predecessor was about to create, which a successor needs in addition to the live map.
#[derive(Debug, Clone)]
pub struct Pending {
    /// The sequence number of that record.
    pub seq: Seq,
    /// Its bytes.
    pub bytes: Vec<u8>,
}
