//! The bounds of what waits between the ring threads and the runtime, and of what is in flight in a ring.
//!
//! Each bound's comment names its effect. All show how full they were as metrics (`docs/metrics.md`).

use holdfast_engine::limit::MAP_WRITE_PAGES;

/// Messages that wait for a ring thread, at most. A sender of one more waits until the thread has taken one,
/// or drops it. A thread takes all of them at each turn.
pub(in crate::node) const RING_MESSAGES: usize = 1024;

/// Background work of a volume beside cold reads: at most one upload, pending record, record to create,
/// record to read and checkpoint each, and some to spare.
pub(in crate::node) const WORK_OF_COMMITS: usize = 16;

/// Holes that evictions of a volume punch at a time, at most. The others wait: an eviction may free as many
/// ranges as the volume has pages with both kinds of sectors.
pub(in crate::node) const EVICTIONS_IN_FLIGHT: u32 = 64;

/// Operations in a ring for a volume itself, those of its requests apart: evictions, the writes of a group of
/// map pages (two slots each), syncs, turns, and some to spare. What was reserved for every volume of a ring
/// fits its table, which then never grows.
pub(in crate::node) const OPERATIONS_OF_VOLUME: u32 = EVICTIONS_IN_FLIGHT + 2 * MAP_WRITE_PAGES as u32 + 64;
