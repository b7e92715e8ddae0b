//! The bounds of what waits between the ring threads and the runtime, and of what is in flight in a ring.
//!
//! Each bound's comment names its effect. All show how full they were as metrics (`docs/metrics.md`).

/// Background work of a volume beside cold reads: at most one upload, merge, pending record, record to
/// create, record to read and checkpoint each, and some to spare.
pub(in crate::node) const WORK_OF_COMMITS: usize = 16;

/// Volumes whose durable maps are read at the same time, at most. After a restart of the host all volumes of
/// a node may be attached at once; the others wait. Each takes [`MAP_WINDOW_BYTES`] and about 10 MiB for each
/// TiB of volume, beside its live map.
pub(in crate::node) const MAP_READERS: usize = 4;

/// Bytes of a durable map that are read at once.
pub(in crate::node) const MAP_WINDOW_BYTES: usize = 1 << 20;
