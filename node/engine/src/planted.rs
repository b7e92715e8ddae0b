//! Safeguards that a simulation takes out, one at a time, to show that it would notice: of the engine and of the background
//! work.
//!
//! Without the feature `simulation` nothing can be taken out, and the compiler drops every question. With it a bug must
//! still be planted at run time, in the thread that runs the engine: a build that has the feature only because the
//! simulation was built beside it behaves as one without. A test over `cargo metadata` lets only `node/sim` ask for
//! the feature.

/// A safeguard that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bug {
    /// A round does not sync the sides.
    NoSideSync,
    /// A round does not sync the durable map.
    NoMapSync,
    /// A side is uploaded while writes to it are in flight.
    UploadInFlight,
    /// Another writer's record in the log is not noticed.
    NoFenceCheck,
    /// An ambiguous PUT counts as one that succeeded.
    AmbiguousIsWon,
    /// Clean data is trusted at every attach.
    StaleClean,
    /// A side is uploaded and committed without a round before.
    CommitBeforeRound,
    /// A flush joins the round that is running.
    FlushJoinsRunning,
    /// The first round after a takeover takes the predecessor's writes for synced.
    NoFirstFullRound,
    /// A late completion on the sealed side hides newer data in the active one.
    LateCompletionHides,
    /// A record is sent before it is stored locally.
    RecordNotStored,
    /// A read's plan leaves out what reads as zeros.
    NoZeroFill,
    /// A chunk's segments stand oldest first.
    OldestFirst,
    /// A write is completed twice.
    DoubleCompletion,
    /// With `durability: object` a flush is answered once the segment is stored, before its commit.
    FlushAtUpload,
    /// With `durability: object` a flush waits for the seal in progress only, whatever is dirty since.
    FlushJoinsSeal,
    /// Clean data is punched before the durable map says that it is remote.
    PunchBeforeRound,
    /// Clean data is punched while reads that were planned on it are in flight.
    PunchUnderReads,
    /// Sectors of a block that lie apart are packed as if they lay together.
    SparseIsDense,
    /// What a fenced writer never uploaded is thrown away.
    NotPreserved,
    /// A fenced writer leaves its durable map as it is.
    NoLastRound,
    /// A commit is made before its segment is stored.
    SegmentNotStored,
    /// What failed once is waited for, and never tried again.
    NeverRetries,
    /// Uploads to all stores wait in one queue.
    OneQueue,
    /// An upload keeps its memory while it waits to try again.
    MemoryKeptInBackoff,
    /// A checkpoint counts as written only once what it replaces is deleted.
    NeedsDeletes,
    /// What LIST shows counts as the whole log of a volume taken over.
    ListIsTheEnd,
    /// What the local disk cannot read of a seal is left out of its segment.
    SkipUnreadable,
    /// Dirty data is sealed when there is enough of it, however old it is.
    NoAgeLimit,
    /// A sync that succeeds vouches for what one before it failed to sync.
    BelievesRetriedSync,
    /// A commit of a writer that does not believe its disk leaves what the disk has in force.
    NothingIsVoid,
    /// A write on top of zeros does not count as dirty.
    ZerosStayZeros,
    /// Attach records are trimmed too.
    TrimmedAttach,
    /// Whether the place of a record that was created had been trimmed is not looked up.
    NoTrimCheck,
    /// The checksum of a frame's bytes is not looked at.
    NoFrameChecksum,
    /// A read fails for damage anywhere in its block.
    WholeBlockFails,
    /// Permission to replace one writer is taken for permission to replace any.
    IgnoresExpectedEpoch,
    /// A node whose local state is gone attaches as if it had held nothing.
    SilentAbsent,
    /// Local data that lacks what its own writer committed counts as the volume's newest.
    TrustsOlderState,
    /// Local data of another volume of the same name counts as this one's.
    TrustsOtherStore,
    /// A device is taken by its number alone, without its tag.
    DeviceByNumber,
    /// The number of a device is cleared from the volume's record after the device was deleted.
    RecordAfterDeletion,
    /// A volume leaves its ring while the kernel has its device.
    DetachUnderDevice,
    /// The slab's index may hold every slot: none is left for what is fetched.
    IndexFillsSlab,
    /// A slot of the slab that is no longer used is free twice.
    SlotFreedTwice,
    /// A starting daemon deletes every unserved device that it has no record of.
    SweepsAll,
    /// A FUA write completes once its data is stored.
    FuaCompletesEarly,
    /// A FUA write joins the round that is running when its data is stored.
    FuaJoinsRunning,
    /// With `durability: object` a FUA write completes once the local disk has it.
    FuaIsLocal,
    /// A round syncs the sides for its first pages only.
    LaterPagesUnsynced,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 50] = [
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
        Self::NotPreserved,
        Self::NoLastRound,
        Self::SegmentNotStored,
        Self::NeverRetries,
        Self::NeedsDeletes,
        Self::OneQueue,
        Self::MemoryKeptInBackoff,
        Self::ListIsTheEnd,
        Self::SkipUnreadable,
        Self::NoAgeLimit,
        Self::BelievesRetriedSync,
        Self::NothingIsVoid,
        Self::ZerosStayZeros,
        Self::TrimmedAttach,
        Self::NoTrimCheck,
        Self::NoFrameChecksum,
        Self::WholeBlockFails,
        Self::IgnoresExpectedEpoch,
        Self::SilentAbsent,
        Self::TrustsOlderState,
        Self::TrustsOtherStore,
        Self::DeviceByNumber,
        Self::RecordAfterDeletion,
        Self::DetachUnderDevice,
        Self::SweepsAll,
        Self::FuaCompletesEarly,
        Self::FuaJoinsRunning,
        Self::FuaIsLocal,
        Self::IndexFillsSlab,
        Self::SlotFreedTwice,
        Self::LaterPagesUnsynced,
    ];

    /// Whether the safeguard is about what the volumes of a host share: only several of them notice.
    pub const fn is_shared(self) -> bool {
        self.breaks() >= 25 || matches!(self, Self::IndexFillsSlab | Self::SlotFreedTwice)
    }

    /// The number of the invariant that an engine without the safeguard breaks, in `docs/invariants.md`.
    pub const fn breaks(self) -> u8 {
        match self {
            Self::NoSideSync
            | Self::CommitBeforeRound
            | Self::FlushJoinsRunning
            | Self::FuaCompletesEarly
            | Self::FuaJoinsRunning
            | Self::LaterPagesUnsynced
            | Self::NoFirstFullRound
            | Self::PunchBeforeRound
            | Self::BelievesRetriedSync
            | Self::NothingIsVoid => 1,
            Self::PunchUnderReads => 2,
            Self::SparseIsDense | Self::NoFrameChecksum | Self::SlotFreedTwice => 3,
            Self::StaleClean | Self::LateCompletionHides | Self::OldestFirst | Self::SkipUnreadable => 4,
            Self::RecordNotStored | Self::ListIsTheEnd => 5,
            Self::NotPreserved | Self::NoLastRound => 6,
            Self::SegmentNotStored => 7,
            Self::DoubleCompletion => 8,
            Self::NoZeroFill => 9,
            Self::UploadInFlight => 10,
            Self::NoFenceCheck | Self::AmbiguousIsWon | Self::TrimmedAttach | Self::NoTrimCheck => 11,
            Self::NeverRetries | Self::NeedsDeletes | Self::IndexFillsSlab => 12,
            Self::OneQueue | Self::MemoryKeptInBackoff => 25,
            Self::NoMapSync => 13,
            Self::NoAgeLimit => 14,
            Self::FlushAtUpload | Self::FlushJoinsSeal | Self::FuaIsLocal => 15,
            Self::ZerosStayZeros => 16,
            Self::WholeBlockFails => 17,
            Self::TrustsOlderState => 18,
            Self::IgnoresExpectedEpoch | Self::SilentAbsent => 19,
            Self::TrustsOtherStore => 20,
            Self::DeviceByNumber | Self::RecordAfterDeletion | Self::DetachUnderDevice | Self::SweepsAll => {
                26
            }
        }
    }
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
