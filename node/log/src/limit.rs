//! Limits of the log.

/// Number of reads of the end of a log that grows meanwhile.
pub(crate) const TRIES: usize = 8;
/// Deletes in flight at once.
pub(crate) const PARALLEL_DELETES: usize = 16;
