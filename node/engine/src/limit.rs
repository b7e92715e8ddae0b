//! Every bound of the engine in one place; those of the stored formats are in `holdfast_format::limit`.

/// Snapshots that wait for a writer at a time.
pub const WAITING_SNAPSHOTS: usize = 64;
/// Milliseconds for which a volume that is prepared for a cut defers seals: several answers of a slow API
/// server.
pub const PREPARED_MS: u64 = 10_000;
/// Milliseconds for which it stays prepared where it is asked for again and again: two groups may each have a
/// volume that the other waits for. The slowest volume of a group commits what is dirty meanwhile.
pub const PREPARED_AT_MOST_MS: u64 = 120_000;
/// Milliseconds after which the hold of a cut lapses: the longest wait of a write where no release comes.
pub const HOLD_MS: u64 = 5000;
/// Nonces of own attaches that the durable header keeps: so many that it fits 512 bytes.
pub const REMEMBERED_NONCES: usize = 21;
/// Largest request in bytes that moves data.
pub const MAX_IO_BYTES: u32 = 1 << 20;
/// Milliseconds that background work waits after a failed round before it asks for another.
pub const RETRY_ROUND_AFTER_MS: u64 = 1000;
/// Milliseconds before sectors that the local disk could not read are read again: at first, and at most.
pub const READ_AGAIN_AFTER_MS: [u64; 2] = [1000, 60_000];
/// Ranges of unreadable sectors that a volume remembers; the rest is found by the next try.
pub const REMEMBERED_UNREADABLE: usize = 64;
/// Map pages that a round copies in one turn of the ring thread, and syncs the sides for once: 1 MiB of
/// copies, the memory that a round takes whatever the size of the volume. A busy volume pays for a small
/// number with syncs.
pub const ROUND_PAGES: usize = 512;
/// Blocks that it copies in one turn instead where the journal takes them: 160 KiB of copies, and a record of
/// 47 slots.
pub const ROUND_BLOCKS: usize = 8192;
/// Map pages that are encoded in one turn of the ring thread, and whose slots (one of 4 KiB, at first two)
/// are written at once: about a millisecond, and at most 512 KiB of buffers. As many are looked through in
/// one turn for what is dirty, or made clean after a commit.
pub const MAP_WRITE_PAGES: usize = 64;
/// Blocks (128 KiB of volume each) of a map page that may have changed for the journal to take them instead
/// of the page.
pub const JOURNAL_BLOCKS: u32 = 32;
/// Map pages that a slot of the journal (4 KiB, as a page's) must save at least: each of them may have to be
/// written later for the journal to begin again, so that a ninth is lost at worst.
pub const JOURNAL_SAVES: u64 = 8;
/// Map pages of a volume for each slot of its journal, which takes 1/16384 of the volume's size: the two
/// rounds of a commit of 16,384 scattered sectors of 1 TiB take 192 of its 16,384 slots.
pub const JOURNAL_PAGES_PER_SLOT: u64 = 4;
/// Slots of the journal at most: 256 MiB.
pub const JOURNAL_SLOTS: u64 = 65_536;
/// Map pages (16 MiB of volume each) evicted between two rounds.
pub const EVICT_PAGES: u64 = 64;
/// Bytes to evict when a write hits ENOSPC.
pub const DISK_FULL_EVICT_BYTES: u64 = 64 << 20;
/// Dirty bytes of a side at which a volume that is to commit soon seals it, where its own limit is larger.
pub const COMMIT_SOON_BYTES: u64 = 1 << 20;
/// Age in milliseconds at which such a volume seals dirty data, where its own limit is longer.
pub const COMMIT_SOON_AGE_MS: u64 = 1000;
/// Least milliseconds between a swap of the sides and a seal made only because the side's clean data is
/// needed.
pub const EARLY_SEAL_EVERY_MS: u64 = 1000;
/// Milliseconds after which the writes that the pace delays are looked at again.
pub const PAUSE_MS: u64 = 10;
/// Milliseconds that a commit is expected to take at least: smaller ones say little of the store.
pub const COMMIT_EXPECTED_AT_LEAST_MS: u64 = 250;
/// Bytes in a second at which a commit is expected to be uploaded where none was measured: less than most
/// stores take.
pub const ASSUMED_UPLOAD_BYTES_PER_SECOND: u64 = 32 << 20;
/// A commit that takes so many times as long as expected, and [`NO_PACE_AFTER_MS`], is one of a store that
/// does not answer: the pace ends, and the limit of dirty bytes stops writes.
pub const NO_PACE_AFTER_TIMES: u64 = 8;
/// The least for it.
pub const NO_PACE_AFTER_MS: u64 = 4000;
/// Blocks (128 KiB of volume each) with a dirty sector on a side at which it is sealed, whatever their bytes:
/// zeros count for none. A seal takes 16 bytes of memory for each, and its index 96.
pub const SEAL_BLOCKS: u64 = 1 << 18;
/// Blocks with a dirty sector on the active side at which writes and discards wait for the commit in
/// progress: as many as the largest `data.max_dirty` fills. So the list of a seal takes 32 MiB, and what the
/// requests add that waited.
pub const MAX_DIRTY_BLOCKS: u64 = 1 << 21;
