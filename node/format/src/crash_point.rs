//! The places where the death of the process, or of its host, matters: between any two of the ordered steps
//! of an operation.
//!
//! Owns: their names. [`reach`] stands at each of them. Without the feature `simulation` it is nothing; with
//! it, the simulation sees every visit and may end the process there (`node/sim/src/crash.rs`). What the
//! process did to the live map before the point is done; what it was about to ask for in answer to the same
//! event is never asked for.
//!
//! Ordered steps in module comments, here and in `node/background`, cite these names.

/// Defines the enum and the list of all its values, so that none can be left out of the list.
macro_rules! crash_points {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// A step after which a death matters.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum CrashPoint {
            $($(#[$doc])+ $name,)+
        }

        impl CrashPoint {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)+];
        }
    };
}

crash_points! {
    // An attach (`node/background/src/attach.rs`).
    /// Step 2: superseded local state is moved to where it is preserved.
    SupersededPreserved,
    /// Step 3: the header with this attach's nonce is synced.
    IntentStored,
    /// Step 4: another record stands in its place: everything begins again.
    AttachLost,
    /// Step 5: its place had been truncated: everything begins again.
    AttachSuperseded,
    /// Step 5: the attach record is in the log, and nothing serves yet.
    AttachWon,

    // A new live map, and what takes over from a dead process.
    /// The map of a new attach is made and cannot be opened yet.
    MapMade,
    /// It can be opened: a successor takes over instead of attaching.
    MapPublished,
    /// A successor has opened the live map of a dead process.
    Resumed,
    /// It knows the log, and whether it was fenced.
    LogLearned,

    // A write, a discard, zeroes.
    /// The chunk's part of the live map is allocated, and does not say so.
    ChunkAllocated,
    /// The live map says so.
    ChunkPrepared,
    /// The bytes are in the side's file; the live map does not say so.
    Stored,
    /// The live map says so; the client is not answered.
    Marked,
    /// A write failed, and its range is marked uncertain.
    MarkedUncertain,

    // A round (`volume/flush.rs`).
    /// Step 1: it is known which pages changed.
    RoundBegun,
    /// Step 2: some of the changed pages are copied.
    PagesCopied,
    /// Step 3: the sides are synced.
    SidesSynced,
    /// Before step 4: the journal is filled and synced, and the header does not say so.
    JournalFilled,
    /// Step 4: the pages are in the durable map's file, not synced.
    PagesWritten,
    /// Step 5: they are synced; the live map still names the slots before.
    PagesSynced,
    /// Step 5: the live map names their slots.
    SlotsSwapped,
    /// Step 6: the header is in the file, not synced.
    HeaderWritten,
    /// Step 6: it is synced.
    HeaderSynced,
    /// Before step 7: the round has ended and no flush is answered.
    RoundEnded,
    /// A round has failed and nothing is answered.
    RoundFailed,

    // A seal and its commit (`volume/seal.rs`, `volume/commit.rs`).
    /// The sides are swapped.
    SidesSwapped,
    /// The sealed side is still: its round is asked for.
    SideStill,
    /// That round has ended: the upload is asked for.
    SealDurable,
    /// The segment is made of the sealed sides, and nowhere yet (`node/background/src/work.rs`).
    SegmentBuilt,
    /// The local disk could not read all of them (`volume/unreadable.rs`).
    UploadFailed,
    /// The unreadable sectors were overwritten, and both sides are sealed as one.
    BothSealed,
    /// It is in the store.
    SegmentStored,
    /// The record is made, and nowhere yet.
    RecordMade,
    /// It is stored locally, and not sent.
    RecordStored,
    /// The root of the snapshot that it registers is in the store, and it is not sent.
    RootStored,
    /// The record that a dead predecessor had stored is sent again.
    RecordRepeated,
    /// The create was answered without a clear yes: the key is to be read back.
    RecordInDoubt,
    /// The key was read back.
    RecordReadBack,
    /// The record is in the log; the live map knows nothing of it.
    RecordWon,
    /// Some of the committed pages are clean in the live map.
    SomeCleared,
    /// All of them are.
    DirtyCleared,
    /// The data that the loss of the host left dirty is committed: the volume is about to serve.
    Recovered,
    /// The live map says a size that the log says already, and the header does not.
    MapGrown,
    /// A checkpoint is made, and not stored.
    CheckpointMade,
    /// It is stored.
    CheckpointStored,
    /// The mark up to which records may be gone is stored, and all of them are there
    /// (`node/log/src/truncate.rs`).
    TruncationMarked,
    /// The unneeded records up to the marker are gone.
    Truncated,
    /// An idle writer has looked at its next place in the log.
    LogLookedAt,
    /// Another writer was seen; not reported yet.
    Fenced,

    // An eviction (`volume/evict.rs`).
    /// Step 1: clean data of the inactive side is remote in the live map.
    Released,
    /// Step 3: the durable map says so, and no read needs the ranges: they are about to be punched.
    Unneeded,
    /// Step 4: a range is punched.
    Punched,
    /// A chunk that holds nothing local counts as not allocated, and its memory is still there
    /// (`volume/give_back.rs`).
    ChunkEmptied,

    // A repair of the object store (`volume/repair.rs`).
    /// Clean data is marked to be uploaded again.
    MarkedForRepair,

    // A merge of runs (`volume/merge.rs`).
    /// Step 2: its run is stored, and no record names it.
    MergeStored,
    /// Step 3: the record that carries it is about to be made.
    MergeCarried,

    // Release (`volume/lifecycle.rs`).
    /// Nothing is dirty any more: the detach record is to be made.
    Clean,
    /// The detach record is in the log; the local state does not say so.
    DetachWon,
    /// The local state is closed clean.
    Closed,
}

#[cfg(feature = "simulation")]
thread_local! {
    static WATCHED: std::cell::Cell<Option<fn(CrashPoint)>> = const { std::cell::Cell::new(None) };
}

/// Calls `hook` at every crash point that an engine of this thread reaches; the hook may unwind, which ends
/// the process.
#[cfg(feature = "simulation")]
pub fn watch(hook: Option<fn(CrashPoint)>) {
    WATCHED.set(hook);
}

/// The process is at `point`.
#[cfg(feature = "simulation")]
pub fn reach(point: CrashPoint) {
    if let Some(hook) = WATCHED.get() {
        hook(point);
    }
}

/// The process is at `point`: every change of the live map before it is done. The map's own fences see to
/// that (`sector_map.rs`).
#[cfg(not(feature = "simulation"))]
#[inline(always)]
pub const fn reach(_: CrashPoint) {}
