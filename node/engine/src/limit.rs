//! All bounds of the engine; those of the stored formats are in `holdfast_format::limit`.

/// Maximum number of snapshots waiting at a writer.
pub const WAITING_SNAPSHOTS: usize = 64;
/// Milliseconds for which a volume that is prepared for a cut defers seals: long enough for several responses
/// of a slow API server. Overdue data is deferred once by this time, so much later is its commit.
pub const PREPARED_MS: u64 = 10_000;
/// Milliseconds for which repeated requests can keep a volume prepared: the slowest volume of a group needs
/// time to commit its dirty data, but two groups may each have a volume for which the other waits.
pub const PREPARED_AT_MOST_MS: u64 = 120_000;
/// Milliseconds after which the hold of a cut lapses: the longest wait of a write without a release.
pub const HOLD_MS: u64 = 5000;
/// Maximum expected milliseconds until the end of a commit in progress for a hold that has to wait for it;
/// the rest of [`HOLD_MS`] is left to the other volumes of the cut.
pub const HOLD_WAITS_MS: u64 = HOLD_MS / 2;
/// Nonces of own attaches in the durable header: as many as fit into its 512 bytes.
pub const REMEMBERED_NONCES: usize = 21;
/// Largest request that moves data, in bytes.
pub const MAX_IO_BYTES: u32 = 1 << 20;
/// Milliseconds after a failed round before background work requests another.
pub const RETRY_ROUND_AFTER_MS: u64 = 1000;
/// First and maximum delay, in milliseconds, before sectors that the local disk could not read are read
/// again.
pub const READ_AGAIN_AFTER_MS: [u64; 2] = [1000, 60_000];
/// Maximum ranges of unreadable sectors that a volume remembers; the next attempt finds the rest.
pub const REMEMBERED_UNREADABLE: usize = 64;
/// Map pages that a round copies in one turn of the ring thread, with one sync of the sides for all of them:
/// 1 MiB of copies, which is a round's memory regardless of the volume's size. A smaller number costs a busy
/// volume more syncs.
pub const ROUND_PAGES: usize = 512;
/// Blocks copied in one turn, in place of pages, if they go to the journal: 160 KiB of copies, and a record
/// of 47 slots.
pub const ROUND_BLOCKS: usize = 8192;
/// Map pages encoded in one turn of the ring thread, whose slots (one of 4 KiB, two for a first write) are
/// written together: about a millisecond, and at most 512 KiB of buffers. One turn searches as many pages for
/// dirty data, or marks as many clean after a commit.
pub const MAP_WRITE_PAGES: usize = 64;
/// Maximum changed blocks (128 KiB of volume each) of a map page for which the blocks go to the journal
/// instead of the page to its slot.
pub const JOURNAL_BLOCKS: u32 = 32;
/// Minimum page writes that a slot of the journal (4 KiB, like a page's) must save. Each of these pages may
/// still be written before the journal restarts, so that at worst a ninth of the writes is wasted.
pub const JOURNAL_SAVES: u64 = 8;
/// Map pages of a volume per slot of its journal, which takes 1/16384 of the volume's size: the two rounds of
/// a commit of 16,384 scattered sectors of 1 TiB take 192 of its 16,384 slots.
pub const JOURNAL_PAGES_PER_SLOT: u64 = 4;
/// Maximum slots of the journal: 256 MiB.
pub const JOURNAL_SLOTS: u64 = 65_536;
/// Map pages (16 MiB of volume each) evicted between two rounds.
pub const EVICT_PAGES: u64 = 64;
/// Bytes to evict after a write fails with ENOSPC.
pub const DISK_FULL_EVICT_BYTES: u64 = 64 << 20;
/// Dirty bytes of a side at which a volume that is to commit soon seals it, if its own limit is larger.
pub const COMMIT_SOON_BYTES: u64 = 1 << 20;
/// Age in milliseconds at which such a volume seals dirty data, if its own limit is longer.
pub const COMMIT_SOON_AGE_MS: u64 = 1000;
/// Minimum milliseconds between a swap of the sides and a seal whose only reason is that the side's clean
/// data is needed.
pub const EARLY_SEAL_EVERY_MS: u64 = 1000;
/// Milliseconds after which writes delayed by the pace are checked again.
pub const PAUSE_MS: u64 = 10;
/// Minimum expected duration of a commit in milliseconds: shorter ones say little about the store.
pub const COMMIT_EXPECTED_AT_LEAST_MS: u64 = 250;
/// Bytes per second assumed for the upload of a commit without a measurement: less than most stores
/// sustain.
pub const ASSUMED_UPLOAD_BYTES_PER_SECOND: u64 = 32 << 20;
/// Multiple of a commit's expected duration after which, but not before [`NO_PACE_AFTER_MS`], its store
/// counts as unresponsive: the pace ends, and the limit of dirty bytes stops writes.
pub const NO_PACE_AFTER_TIMES: u64 = 8;
/// Minimum duration after which a store counts as unresponsive.
pub const NO_PACE_AFTER_MS: u64 = 4000;
/// Number of blocks (128 KiB of volume each) with a dirty sector at which a side is sealed, regardless of its
/// dirty bytes, to which zeros do not add. A seal takes 16 bytes of memory for each, and its index 96.
pub const SEAL_BLOCKS: u64 = 1 << 18;
/// Number of blocks with a dirty sector on the active side at which writes and discards wait for the commit
/// in progress: as many as the largest `data.max_dirty` fills. The list of a seal thus takes 32 MiB, plus the
/// entries of the requests that waited.
pub const MAX_DIRTY_BLOCKS: u64 = 1 << 21;
