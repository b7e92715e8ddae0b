//! The points at which a crash of the process, or of its host, matters: between any two ordered steps of
//! an operation.
//!
//! Owns: the names of these points. [`reach`] marks each of them. Without the feature `simulation` it does
//! nothing; with the feature, the simulation observes every visit and may end the process there
//! (`node/sim/src/crash.rs`). All changes of the live map before the point are done then; later actions for
//! the same event are never requested.
//!
//! Ordered steps in module comments, here and in `node/background`, cite these names.

/// Defines the enum and the list of all its values, so that the list is always complete.
macro_rules! crash_points {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// A step after which a crash matters.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum CrashPoint {
            $($(#[$doc])+ $name,)+
        }

        impl CrashPoint {
            /// All crash points.
            pub const ALL: &[Self] = &[$(Self::$name,)+];
        }
    };
}

crash_points! {
    // An attach (`node/background/src/attach.rs`).
    /// Step 2: superseded local state is moved to its preserved place.
    SupersededPreserved,
    /// Step 3: the header with this attach's nonce is synced.
    IntentStored,
    /// Step 4 or 6: another record occupies the position; everything restarts.
    AttachLost,
    /// Step 5: the position had been truncated; everything restarts.
    AttachSuperseded,
    /// Step 6: the attach record is in the log, and the volume does not serve yet.
    AttachWon,

    // A new live map, and the takeover from a dead process.
    /// The map of a new attach is created and cannot be opened yet.
    MapCreated,
    /// The map can be opened: a successor takes over instead of attaching.
    MapPublished,
    /// A successor has opened the live map of a dead process.
    Resumed,
    /// The successor has read the log, and knows whether it was fenced.
    LogLearned,

    // A write, a discard, zeroes.
    /// The chunk's part of the live map is allocated, but not marked as allocated.
    ChunkAllocated,
    /// The allocation is marked in the live map.
    ChunkPrepared,
    /// The bytes are in the side's file, but not marked in the live map.
    Stored,
    /// The bytes are marked in the live map; the client is not answered.
    Marked,
    /// A write failed, and its range is marked uncertain.
    MarkedUncertain,

    // A round (`volume/flush.rs`).
    /// Step 1: the set of changed pages is fixed.
    RoundBegun,
    /// Step 2: some of the changed pages are copied.
    PagesCopied,
    /// Step 3: the sides are synced.
    SidesSynced,
    /// Before step 4: the journal is filled and synced, but the header does not mention it.
    JournalFilled,
    /// Step 4: the pages are in the durable map's file, not synced.
    PagesWritten,
    /// Step 5: the pages are synced; the live map still names the previous slots.
    PagesSynced,
    /// Step 5: the live map names the new slots.
    SlotsSwapped,
    /// Step 6: the header is in the file, not synced.
    HeaderWritten,
    /// Step 6: the header is synced.
    HeaderSynced,
    /// Before step 7: the round has ended, but no flush is answered.
    RoundEnded,
    /// A round has failed, but no flush is answered.
    RoundFailed,

    // A seal and its commit (`volume/seal.rs`, `volume/commit.rs`).
    /// The sides are swapped.
    SidesSwapped,
    /// No write is in flight on the sealed side any more; its round is requested.
    SideStill,
    /// That round has ended; the upload is requested.
    SealDurable,
    /// The segment is built from the sealed sides, and not stored (`node/background/src/upload_parts.rs`).
    SegmentBuilt,
    /// The local disk could not read all of the sealed sides (`volume/unreadable.rs`).
    UploadFailed,
    /// The unreadable sectors were overwritten, and both sides are sealed together.
    BothSealed,
    /// The segment is stored.
    SegmentStored,
    /// The record is built in memory, and stored nowhere.
    RecordBuilt,
    /// The record is stored locally, but not sent.
    RecordStored,
    /// The root of the snapshot that the record registers is stored, but the record is not sent.
    RootStored,
    /// The record that a dead predecessor had stored is sent again.
    RecordRepeated,
    /// The create had no clear result: the key is to be read back.
    RecordInDoubt,
    /// The key was read back.
    RecordReadBack,
    /// The record is in the log, but the live map does not reflect it.
    RecordWon,
    /// Some of the committed pages are clean in the live map.
    SomeCleared,
    /// All committed pages are clean in the live map.
    DirtyCleared,
    /// The data that the loss of the host left dirty is committed; the volume is about to serve.
    Recovered,
    /// The live map has the new size, which the log already has and the header does not.
    MapGrown,
    /// A checkpoint is encoded, but not stored.
    CheckpointBuilt,
    /// The checkpoint is stored.
    CheckpointStored,
    /// The truncation marker is stored, and all records up to it still exist (`node/log/src/truncate.rs`).
    TruncationMarked,
    /// The unneeded records up to the marker are deleted.
    Truncated,
    /// An idle writer has checked its next position in the log.
    LogLookedAt,
    /// Another writer was detected, but not reported yet.
    Fenced,

    // An eviction (`volume/evict.rs`).
    /// Step 1: clean data of the inactive side is remote in the live map.
    Released,
    /// Step 3: the durable map records this, and reads no longer need the ranges, which are about to be
    /// punched.
    Unneeded,
    /// Step 4: a range is punched.
    Punched,
    /// A chunk without local data counts as not allocated, but its memory still exists
    /// (`volume/give_back.rs`).
    ChunkEmptied,

    // A repair of the object store (`volume/repair.rs`).
    /// Clean data is marked to be uploaded again.
    MarkedForRepair,

    // A merge of runs (`volume/merge.rs`).
    /// Step 2: the merge's run is stored, and no record names it.
    MergeStored,
    /// Step 3: the record that carries the merge is about to be created.
    MergeCarried,

    // Release (`volume/lifecycle.rs`).
    /// No data is dirty any more; the detach record is about to be created.
    Clean,
    /// The detach record is in the log, but the local state does not reflect it.
    DetachWon,
    /// The local state is closed cleanly.
    Closed,
}

#[cfg(feature = "simulation")]
thread_local! {
    static WATCHED: std::cell::Cell<Option<fn(CrashPoint)>> = const { std::cell::Cell::new(None) };
}

/// Calls `hook` at every crash point that an engine of this thread reaches; the hook may unwind, which
/// ends the process.
#[cfg(feature = "simulation")]
pub fn watch(hook: Option<fn(CrashPoint)>) {
    WATCHED.set(hook);
}

/// Reports that the process is at `point`.
#[cfg(feature = "simulation")]
pub fn reach(point: CrashPoint) {
    if let Some(hook) = WATCHED.get() {
        hook(point);
    }
}

/// Marks that the process is at `point`: every earlier change of the live map is done, which the map's own
/// fences ensure (`sector_map.rs`).
#[cfg(not(feature = "simulation"))]
#[inline(always)]
pub const fn reach(_: CrashPoint) {}
