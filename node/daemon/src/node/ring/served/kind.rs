//! What an operation in the ring is, as its user data says.

use holdfast_types::SectorRange;

/// A part of a request; aux: bytes moved (in sectors) and the queue.
pub(super) const MOVE_KIND: u8 = 16;
/// A part of a request out of the slab; aux: the ticket.
pub(super) const COLD_KIND: u8 = 17;
/// A hole punched for a request; aux: the queue.
pub(super) const PUNCH_KIND: u8 = 18;
/// A side synced; aux: the side.
pub(super) const SYNC_SIDE_KIND: u8 = 19;
/// A piece of the durable map written.
pub(super) const MAP_WRITE_KIND: u8 = 20;
/// The durable map synced.
pub(super) const SYNC_MAP_KIND: u8 = 21;
/// Live-map memory allocated; aux: the chunk.
pub(super) const PREPARE_KIND: u8 = 22;
/// The chunk's place in the durable map allocated; aux: the chunk.
pub(super) const PREPARE_DURABLE_KIND: u8 = 24;
/// A hole punched where clean data was evicted.
pub(super) const EVICT_KIND: u8 = 23;
/// Nothing: the turn after the one that asked for it.
pub(super) const TURN_KIND: u8 = 25;

/// Bits of a move's aux that hold its length in sectors.
pub(super) const LENGTH_BITS: u32 = 14;

/// The length of a range, in bytes.
pub(super) fn bytes(range: SectorRange) -> u32 {
    u32::try_from(range.bytes()).expect("a request is smaller than 4 GiB")
}
