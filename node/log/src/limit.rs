//! Limits of the log.

/// Number of reads of the end of a log that grows meanwhile.
pub(crate) const TRIES: usize = 8;
/// Volumes that are read at once.
pub(crate) const PARALLEL_READS: usize = 16;
/// Largest record or checkpoint read, in bytes.
pub(crate) const MAX_METADATA_BYTES: u64 = 256 << 20;
