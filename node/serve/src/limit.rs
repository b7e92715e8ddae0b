//! The bounds of messages that wait for a ring thread, and of operations in flight in a ring.
//!
//! Metrics show the highest use of both (`docs/metrics.md`).

/// Maximum messages that wait for a ring thread: more than one for each of its up to 1,637 volumes, because a
/// measurement of the cache sends that many at once. When the inbox is full, a sender waits until the thread
/// has taken a message, or drops its own. A thread takes all waiting messages at each turn.
pub const RING_MESSAGES: usize = 4096;

/// Maximum holes that evictions of a volume punch at a time; further holes wait, because an eviction
/// checks up to 64 map pages, and may free many ranges in each.
pub const EVICTIONS_IN_FLIGHT: u32 = 64;

/// Unused tokens of a volume's limit may be used later, up to those of this time: a second.
pub const CREDIT_MS: u64 = 1000;

/// Time between two checks of the requests that wait for a limit of their volume.
pub const LIMIT_PAUSE_MS: u64 = 5;

/// Maximum bytes that the large requests of a volume have in flight on local files; a single move may be
/// larger. A disk of 8 GB/s transfers that much in 250 us, so a single volume can keep it busy.
pub const MOVING_BYTES: u32 = 2 << 20;

/// Maximum length of a request that does not count towards [`MOVING_BYTES`]: 128 such requests, the depth of
/// a device, do not exceed it.
pub const FREE_MOVE_BYTES: u32 = 16 << 10;

/// Bytes of memory volumes' requests that a turn of a ring thread serves; the last request may exceed them.
/// lz4 needs about 0.3 ms to compress them, zstd about 1 ms (`docs/adr/0023-memory-volumes.md`).
pub const MEMORY_TURN_BYTES: u64 = 128 << 10;
