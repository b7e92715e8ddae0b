//! Safeguards that a simulation takes out, one at a time, to show that it would notice: of the engine and of the background
//! work.
//!
//! Without the feature `simulation` nothing can be taken out, and the compiler drops every question. With it a bug must
//! still be planted at run time, in the thread that runs the engine: a build that has the feature only because the
//! simulation was built beside it behaves as one without. A test over `cargo metadata` lets nobody but `node/sim` ask for
//! the feature.
//!
//! The numbers are those of the invariants in `docs/invariants.md` that a bug breaks.

/// A safeguard that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bug {
    /// A round does not sync the sides (1).
    NoSideSync,
    /// A round does not sync the durable map (13).
    NoMapSync,
    /// A side is uploaded while writes to it are in flight (10).
    UploadInFlight,
    /// Another writer's record in the log is not noticed (11).
    NoFenceCheck,
    /// An ambiguous PUT counts as one that succeeded (11).
    AmbiguousIsWon,
    /// Clean data is trusted at every attach (4).
    StaleClean,
    /// A side is uploaded and committed without a round before (1).
    CommitBeforeRound,
    /// A flush joins the round that is running (1).
    FlushJoinsRunning,
    /// The first round after a takeover takes the predecessor's writes for synced (1).
    NoFirstFullRound,
    /// A late completion on the sealed side hides newer data in the active one (4).
    LateCompletionHides,
    /// A record is sent before it is stored locally (5).
    RecordNotStored,
    /// A read's plan leaves out what reads as zeros (9).
    NoZeroFill,
    /// A chunk's segments stand oldest first (4).
    OldestFirst,
    /// A write is completed twice (8).
    DoubleCompletion,
    /// With `durability: object` a flush is answered once the segment is stored, before its commit (15).
    FlushAtUpload,
    /// With `durability: object` a flush waits for the seal in progress only, whatever is dirty since (15).
    FlushJoinsSeal,
    /// Clean data is punched before the durable map says that it is remote (1).
    PunchBeforeRound,
    /// Clean data is punched while reads that were planned on it are in flight (2).
    PunchUnderReads,
    /// Sectors of a block that lie apart are packed as if they lay together (3).
    SparseIsDense,
    /// What a fenced writer never uploaded is thrown away (6).
    NoSetAside,
    /// A fenced writer leaves its durable map as it is (6).
    NoLastRound,
    /// A commit is made before its segment is stored (7).
    SegmentNotStored,
    /// What failed once is waited for, and never tried again (12).
    NeverRetries,
    /// What LIST shows counts as the whole log of a volume taken over (5).
    ListIsTheEnd,
    /// Dirty data is sealed when there is enough of it, however old it is (14).
    NoAgeLimit,
    /// A write on top of zeros does not count as dirty (16).
    ZerosStayZeros,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 26] = [
        Self::NoSideSync,
        Self::NoMapSync,
        Self::UploadInFlight,
        Self::NoFenceCheck,
        Self::AmbiguousIsWon,
        Self::StaleClean,
        Self::CommitBeforeRound,
        Self::FlushJoinsRunning,
        Self::NoFirstFullRound,
        Self::LateCompletionHides,
        Self::RecordNotStored,
        Self::NoZeroFill,
        Self::OldestFirst,
        Self::DoubleCompletion,
        Self::FlushAtUpload,
        Self::FlushJoinsSeal,
        Self::PunchBeforeRound,
        Self::PunchUnderReads,
        Self::SparseIsDense,
        Self::NoSetAside,
        Self::NoLastRound,
        Self::SegmentNotStored,
        Self::NeverRetries,
        Self::ListIsTheEnd,
        Self::NoAgeLimit,
        Self::ZerosStayZeros,
    ];
}

#[cfg(feature = "simulation")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Takes a safeguard out of every engine of this thread, and puts the one before back.
#[cfg(feature = "simulation")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether the safeguard is missing.
#[cfg(feature = "simulation")]
pub fn is_planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// Whether the safeguard is missing: never.
#[cfg(not(feature = "simulation"))]
pub const fn is_planted(_: Bug) -> bool {
    false
}
