//! Limits of the queues between the ring threads and the runtime, and of in-flight work in a ring.
//!
//! Each limit's comment names its effect. Metrics report the fill level of all of them (`docs/metrics.md`).

/// Background work of a volume apart from cold reads: at most one upload, merge, pending record, record to
/// create, record to read and checkpoint each, plus some reserve.
pub(in crate::node) const WORK_OF_COMMITS: usize = 16;

/// Maximum of concurrently read durable maps. After a restart of the host, all volumes of a node may be
/// attached at once; the others wait. Each takes [`MAP_WINDOW_BYTES`] and about 10 MiB per TiB of volume, in
/// addition to its live map.
pub(in crate::node) const MAP_READERS: usize = 4;

/// Bytes of a durable map per read.
pub(in crate::node) const MAP_WINDOW_BYTES: usize = 1 << 20;
