//! Every bound of the stored formats in one place; those of the log's length are in `log_length.rs`.

/// Runs of chunks in a reference: what it takes in a record and in memory does not grow with the volume. Part
/// of the formats: a fence of fewer runs is exact.
pub const MAX_FENCE_RUNS: usize = 64;
/// Attach records a manifest remembers; dirty data older than the oldest of them counts as foreign.
pub const REMEMBERED_ATTACHES: usize = 256;
/// Snapshots that a volume can have registered: 160 KiB of each checkpoint.
pub const MAX_SNAPSHOTS: usize = 4096;
/// Largest volume: the block number of a frame has 32 bits (512 TiB).
pub const MAX_SECTORS: u64 = (1 << 32) * holdfast_types::BLOCK_SECTORS;
/// Bytes of the labels of a create record: so that no record of a volume is large because of names.
pub const MAX_LABEL_BYTES: usize = 1 << 10;
/// Bytes of the largest root that a detach record carries: readers that need the record alone read it with
/// the root, once for each detach since the newest checkpoint.
pub const MAX_DETACH_ROOT_BYTES: usize = 64 << 10;
