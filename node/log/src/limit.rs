//! Limits of the log.

/// Maximum attempts to read the end of a growing log.
pub(crate) const TRIES: usize = 8;
/// Number of volumes read in parallel.
pub(crate) const PARALLEL_READS: usize = 16;
/// Maximum size of a record or checkpoint to read, in bytes.
pub(crate) const MAX_METADATA_BYTES: u64 = 256 << 20;
