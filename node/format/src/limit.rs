//! All bounds of the stored formats; those of the log's length are in `log_length.rs`.

/// Maximum runs of chunks in a reference, so that its size in a record and in memory does not grow with the
/// volume. Part of the formats, because fewer ranges are exact.
pub const MAX_CHUNK_RANGES: usize = 64;
/// Maximum attach records in a manifest; dirty data older than the oldest of them counts as foreign.
pub const REMEMBERED_ATTACHES: usize = 256;
/// Maximum registered snapshots of a volume: 160 KiB of each checkpoint.
pub const MAX_SNAPSHOTS: usize = 4096;
/// Largest volume: the block number of a frame has 32 bits (512 TiB).
pub const MAX_SECTORS: u64 = (1 << 32) * holdfast_types::BLOCK_SECTORS;
/// Maximum blocks of a prefetch list: 256 MiB.
pub const MAX_PREFETCH_BLOCKS: usize = 2048;
/// Maximum bytes of the labels of a create record, so that names do not make a volume's records large.
pub const MAX_LABEL_BYTES: usize = 1 << 10;
/// Maximum bytes of the root in a detach record. Readers that need only the record also read the root, once
/// for each detach since the newest checkpoint.
pub const MAX_DETACH_ROOT_BYTES: usize = 64 << 10;
