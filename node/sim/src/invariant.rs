//! Invariants, by number. `docs/invariants.md` describes each and the code that upholds it.

use std::cell::Cell;

thread_local! {
    /// The invariant of an imminent panic.
    static BROKEN: Cell<Option<Invariant>> = const { Cell::new(None) };
}

/// Takes the invariant of the current panic, once; `None` if it is an assertion.
pub(crate) fn take_broken() -> Option<Invariant> {
    BROKEN.take()
}

/// An invariant that the simulation checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Invariant {
    /// Data covered by a FLUSH survives a crash of the process and of the host.
    FlushedSurvives = 1,
    /// A read sees a write that no later one replaced, across crashes of the process.
    ReadsTheNewest = 2,
    /// A read never sees bytes that were never written there.
    NeverForeignBytes = 3,
    /// An attach elsewhere finds exactly what the last commit captured.
    StoreIsAPrefix = 4,
    /// A fenced writer changes nothing, and only a writer that was replaced is fenced.
    FencedChangesNothing = 5,
    /// Data that a fenced writer never uploaded is preserved; a writer's own data is never moved away.
    FencedIsKept = 6,
    /// Nothing the log refers to is missing.
    NothingReferencedIsMissing = 7,
    /// Every request is completed once, and fails only with a cause.
    CompletedOnce = 8,
    /// The pieces of a read tile it.
    ReadsAreTiled = 9,
    /// Writes and punches store their own range, on a side that is not being uploaded.
    StoresItsOwnRange = 10,
    /// Each record follows from those before it; checkpoints of one seq are equal, regardless of their
    /// writers.
    LogIsAChain = 11,
    /// Without further failures, everything comes to rest.
    ComesToRest = 12,
    /// Synced data is found intact.
    SyncedIsWhole = 13,
    /// While the store answers, no write waits longer for its commit than the limit and the duration of a
    /// commit.
    CommittedInTime = 14,
    /// With `durability: object`, data covered by a successful FLUSH survives the loss of the node.
    ObjectFlushSurvivesNode = 15,
    /// Uncommitted data counts as dirty.
    DirtyIsCounted = 16,
    /// Every corrupted object in the store is named, and affects exactly the readers that a scrub reports.
    CorruptionIsNamed = 17,
    /// Local data that lacks commits of its own writer is never mistaken for the volume's newest.
    OlderStateIsNeverUploaded = 18,
    /// An attached writer is replaced only by its own node with its data, or with permission that names
    /// its epoch; then the attach names the replaced writer.
    TakeoverNamesItsVictim = 19,
    /// Local data of another volume of the same name is never mistaken for this one's.
    OneVolumeOneState = 20,
    /// A due merge of index runs is part of the volume some commits later.
    DepthIsBounded = 21,
    /// No object is deleted that a volume or a snapshot names, or that a later record may name.
    NothingNeededIsDeleted = 22,
    /// At rest, a sweep deletes all garbage.
    GarbageGoes = 23,
    /// An unresponsive store delays only its own volumes.
    StoresAreIndependent = 25,
    /// No volume serves, recovers or deletes a device that is not its own, and none is forgotten.
    DevicesAreOwn = 26,
    /// An object is added to the volume by a record at its place or before it.
    PlaceIsKept = 27,
    /// Merges of runs change neither the content of a block nor its key.
    MergeSaysTheSame = 28,
    /// A registered snapshot permanently keeps the content captured by its commit, and everything that had
    /// completed before its request.
    SnapshotIsItsCut = 29,
    /// A fork has the content of its snapshot while the fork exists.
    ForkIsItsSnapshot = 30,
    /// A volume has a size once its log says so, and keeps it.
    SizeIsKept = 31,
    /// The snapshot of a cut whose writes waited until the release has the volume's content at that time.
    CutIsOnePoint = 32,
    /// A page of a memory volume is whole: either before or after a write.
    MemoryPageIsWhole = 33,
}

impl Invariant {
    /// All invariants, in order of their numbers.
    pub const ALL: [Self; 32] = [
        Self::FlushedSurvives,
        Self::ReadsTheNewest,
        Self::NeverForeignBytes,
        Self::StoreIsAPrefix,
        Self::FencedChangesNothing,
        Self::FencedIsKept,
        Self::NothingReferencedIsMissing,
        Self::CompletedOnce,
        Self::ReadsAreTiled,
        Self::StoresItsOwnRange,
        Self::LogIsAChain,
        Self::ComesToRest,
        Self::SyncedIsWhole,
        Self::CommittedInTime,
        Self::ObjectFlushSurvivesNode,
        Self::DirtyIsCounted,
        Self::CorruptionIsNamed,
        Self::OlderStateIsNeverUploaded,
        Self::TakeoverNamesItsVictim,
        Self::OneVolumeOneState,
        Self::DepthIsBounded,
        Self::NothingNeededIsDeleted,
        Self::GarbageGoes,
        Self::StoresAreIndependent,
        Self::DevicesAreOwn,
        Self::PlaceIsKept,
        Self::MergeSaysTheSame,
        Self::SnapshotIsItsCut,
        Self::ForkIsItsSnapshot,
        Self::SizeIsKept,
        Self::CutIsOnePoint,
        Self::MemoryPageIsWhole,
    ];

    /// Returns the invariant's number in `docs/invariants.md`.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Ends the run unless `holds`; `why` describes the violation.
    #[track_caller]
    pub(crate) fn check(self, holds: bool, why: impl FnOnce() -> String) {
        if !holds {
            self.broken(&why());
        }
    }

    /// Ends the run with a violation.
    #[track_caller]
    pub(crate) fn broken(self, why: &str) -> ! {
        BROKEN.set(Some(self));
        panic!("invariant {} ({self:?}): {why}", self.number())
    }
}
