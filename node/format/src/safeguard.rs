//! Safeguards: lines of code without which some interleaving loses data.
//!
//! The simulation removes one safeguard at a time, to show that it would notice the loss. Without the feature
//! `simulation` safeguards cannot be removed, and the compiler drops every check. With the feature, a
//! safeguard is removed only at run time, in the thread that runs the engine, so a build that has the feature
//! only because the simulation was built, too, behaves like a build without it. A test over `cargo metadata`
//! allows only `node/sim` to request the feature.

/// A safeguard, named by the property that it ensures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Safeguard {
    /// A round syncs the sides before it writes the map.
    SyncSidesBeforeMap,
    /// A round syncs the durable map before it completes its flushes.
    SyncMapBeforeAnswer,
    /// A side is uploaded once no write to it is in flight.
    UploadStillSides,
    /// The direct path of a write is taken only while no seal is in progress.
    DirectWhileOpen,
    /// Another writer's record in the log fences this one.
    NoticeOtherWriters,
    /// An ambiguous PUT is resolved by reading the key.
    ReadBackAmbiguous,
    /// An attach trusts clean data only of a state that was closed clean.
    CleanOnlyIfClosed,
    /// A round makes a seal durable before its upload and commit.
    RoundBeforeCommit,
    /// A flush takes part in a round that begins after it.
    FlushInNextRound,
    /// The first round after a takeover covers the previous process's writes.
    FirstRoundIsFull,
    /// A late completion on the sealed side does not hide newer data in the active one.
    ActiveSideIsNewest,
    /// A record is stored locally before it is sent.
    StoreRecordFirst,
    /// The newest segment is first in the list of runs.
    NewestSegmentFirst,
    /// With `durability: object` a flush is answered after the commit, not once the segment is stored.
    FlushAfterCommit,
    /// With `durability: object` a flush waits for the seal that covers all dirty data, not only for the
    /// one in progress.
    FlushInNextSeal,
    /// Clean data is punched after the durable map says that it is remote.
    RoundBeforePunch,
    /// Clean data is punched after the reads that were planned on it end.
    ReadsBeforePunch,
    /// Sectors of a block are packed from their positions in the block.
    PackByMask,
    /// Data that a fenced writer never uploaded is preserved.
    PreserveFenced,
    /// A fenced writer brings its durable map up to date.
    LastRoundOfFenced,
    /// A segment is stored before the commit that names it.
    SegmentBeforeCommit,
    /// Failed work is retried after a wait.
    RetryFailed,
    /// A checkpoint counts as written before the records that it replaces are deleted.
    CheckpointBeforeDeletes,
    /// Uploads wait in a separate queue for each store.
    QueueByStore,
    /// An upload releases its memory while it waits to retry.
    FreeMemoryInBackoff,
    /// A takeover reads the log beyond what LIST shows.
    ProbeBeyondList,
    /// A seal that the local disk cannot read completely is not committed.
    CommitOnlyAllRead,
    /// Dirty data is sealed at its age limit, regardless of its amount.
    SealByAge,
    /// A failed sync is remembered: a later successful one does not cover the same data.
    RememberFailedSync,
    /// A commit after a failed sync names the invalid sides.
    InvalidateUnsynced,
    /// A write on top of zeros counts as dirty.
    WriteEndsZeros,
    /// Attach records are not truncated.
    KeepAttachRecords,
    /// After a record was created, its writer checks that its position had not been truncated.
    CheckTruncation,
    /// The bytes of a frame are compared with its checksum.
    CheckFrameChecksum,
    /// After finding damage in a block, a read retries with only its own sectors.
    ReadOnlyWanted,
    /// Permission to replace a writer counts for the epoch it names.
    CheckExpectedEpoch,
    /// A node that lost its local state does not attach as if the state was empty.
    RefuseAbsentState,
    /// Local data that lacks commits of its own writer is not the volume's newest.
    RejectOlderState,
    /// Local data with records that the log has lost is not the volume's newest.
    RejectLostRecords,
    /// Local data of another volume of the same name is not this one's.
    RejectOtherStore,
    /// A device is recovered only if its tag is the volume's.
    CheckDeviceTag,
    /// The number of a device is cleared from the volume's record before the device is deleted.
    ClearRecordFirst,
    /// A volume leaves its ring only after the kernel has deleted its device.
    DetachAfterDevice,
    /// A starting daemon deletes only unserved devices of its own installation.
    SweepOnlyOwn,
    /// A FUA write completes once its data is durable, not once it is stored.
    FuaIsDurable,
    /// A FUA write takes part in a round that begins after its data is stored.
    FuaInNextRound,
    /// With `durability: object` a FUA write completes after a commit.
    FuaWaitsForCommit,
    /// The slab's index leaves slots free for blocks that are being fetched.
    SpareSlots,
    /// An unused slot of the slab is freed only once.
    FreeSlotOnce,
    /// A slot of the slab that an earlier process filled is compared with its proof before it is read.
    ProveOldSlots,
    /// A block that a commit may have changed no longer counts as cached in the slab.
    ForgetChangedBlocks,
    /// For a block in the slab, only the sectors that the slot has are read.
    KnowHeldSectors,
    /// A fetch whose earlier attempt received some frames requests only the others.
    FetchTheRest,
    /// After its create record is stored, a fork checks that its snapshot was not forgotten.
    AskIfForgotten,
    /// The result of a fork's check is stored in its log before the fork is reported.
    StoreVerdict,
    /// Objects that a fork reads are not deleted.
    ForksKeepObjects,
    /// A sweep keeps objects whose place the log has not passed.
    SweepPassedPlaces,
    /// A sweep keeps objects that a snapshot names.
    SweepKeepsSnapshots,
    /// A sweep lists the volumes again after it read the marks of forgotten snapshots.
    SweepListsAgain,
    /// The ids in a run of an ancestor count from that ancestor.
    CountFromOwner,
    /// A round syncs the sides for each group of its pages.
    SyncEachGroup,
    /// The place in an object's name is not before the record that adds the object.
    PlaceBeyondRecord,
    /// A record names the chunks that hold data from then on, unless the chunk ranges of its segment name
    /// them exactly.
    NameHeldChunks,
    /// No record closes the place of a merge that is in progress or waits to be carried.
    CheckMergePlace,
    /// A merge is carried only if the list has its inputs; runs that a record in flight may merge are not
    /// chosen again.
    CarryFreshMerge,
    /// A merge reads all runs that it replaces.
    MergeNeighbours,
    /// A merge reads them newest first.
    MergeInOrder,
    /// A merge omits zeros only if its oldest run is the oldest of the list.
    MergeKeepsZeros,
    /// A relocated frame is named at its new location.
    NameMovedFrame,
    /// The visible sectors of a relocated frame are moved, not the first ones.
    MoveVisible,
    /// A read that fails because runs were merged since is planned again.
    PlanMergedReads,
    /// The output of a merge is an object of its own volume, and no record adds another volume's.
    AddOnlyOwn,
    /// After a commit the policy is called for a merge.
    MergeWhenDue,
    /// Entries of the journal count for pages whose slots are older.
    ReplayOnlyNewer,
    /// The journal is overwritten once the slots of its pages have its content.
    KeepJournal,
    /// The journal is filled after a round of this process made every page durable in its slots.
    JournalAfterFullRound,
    /// Memory of the live map is released only without a write in flight.
    ReleaseStillChunks,
    /// Memory of the live map is reused after it was released.
    PrepareReleased,
    /// After a commit of both sides, older copies of sectors become clean before newer ones.
    ClearOlderFirst,
    /// A page of the durable map records how much of the log its writer knew.
    PagesNameRecords,
    /// A snapshot waits for the seal that covers all completed data.
    SnapshotAfterSeal,
    /// The root of a snapshot is stored before the record that registers it.
    RootBeforeRecord,
    /// Writes wait from the point of a cut until its release.
    HoldUntilRelease,
    /// The point of a cut is after the writes that were in flight.
    CutIsStill,
    /// The snapshot of a cut is refused if only the record of a later seal could register it.
    ExactCut,
    /// The control plane extends a log only while no writer does.
    ControlOnlyDetached,
    /// A serving volume has a larger size only once its log has that size.
    GrowInLogFirst,
    /// A live map that is larger than in its header keeps its size over a restart.
    ResumeAsGrown,
    /// A flush in a round also waits for a commit if `durability` becomes `object` before its answer.
    FlushInRoundWaits,
    /// After a failed sync, a flush that waits for a commit does so even if `durability` changes.
    CommitAfterFailedSync,
    /// The root of a detach record names all runs.
    RootNamesAllRuns,
    /// A page whose slot a failed round may have torn is written to that slot again.
    RewriteTornSlot,
    /// The control plane checks that the position of its snapshot had not been truncated.
    CheckSnapshotPlace,
    /// A root at the position of a snapshot counts only if it is the snapshot's.
    CompareRoots,
    /// A snapshot is not registered at a position with the mark of another one.
    LookForMark,
    /// The content of a page of a memory volume is in its slot before a word names it.
    StoreSlotFirst,
    /// A slot of a memory volume is free again once no word names it.
    FreeSlotAfterWord,
    /// A used slot of a memory volume is not allocated again.
    TakeSlotOnce,
    /// A page of a memory volume that is being replaced does not move.
    KeepReplacedPage,
    /// The disk has a page of a memory volume before its word says so.
    SpillBeforeWord,
    /// The slot of a page that is being written to the disk stays allocated until the word names the disk.
    KeepSlotWhileSpilling,
    /// A request to a memory volume waits while the disk serves another one for the same pages.
    WaitForDisk,
}

impl Safeguard {
    /// All safeguards.
    pub const ALL: [Self; 102] = [
        Self::SyncSidesBeforeMap,
        Self::SyncMapBeforeAnswer,
        Self::UploadStillSides,
        Self::DirectWhileOpen,
        Self::NoticeOtherWriters,
        Self::ReadBackAmbiguous,
        Self::CleanOnlyIfClosed,
        Self::RoundBeforeCommit,
        Self::FlushInNextRound,
        Self::FirstRoundIsFull,
        Self::ActiveSideIsNewest,
        Self::StoreRecordFirst,
        Self::NewestSegmentFirst,
        Self::FlushAfterCommit,
        Self::FlushInNextSeal,
        Self::RoundBeforePunch,
        Self::ReadsBeforePunch,
        Self::PackByMask,
        Self::PreserveFenced,
        Self::LastRoundOfFenced,
        Self::SegmentBeforeCommit,
        Self::RetryFailed,
        Self::CheckpointBeforeDeletes,
        Self::QueueByStore,
        Self::FreeMemoryInBackoff,
        Self::ProbeBeyondList,
        Self::CommitOnlyAllRead,
        Self::SealByAge,
        Self::RememberFailedSync,
        Self::InvalidateUnsynced,
        Self::WriteEndsZeros,
        Self::KeepAttachRecords,
        Self::CheckTruncation,
        Self::CheckFrameChecksum,
        Self::ReadOnlyWanted,
        Self::CheckExpectedEpoch,
        Self::RefuseAbsentState,
        Self::RejectOlderState,
        Self::RejectLostRecords,
        Self::RejectOtherStore,
        Self::CheckDeviceTag,
        Self::ClearRecordFirst,
        Self::DetachAfterDevice,
        Self::SweepOnlyOwn,
        Self::FuaIsDurable,
        Self::FuaInNextRound,
        Self::FuaWaitsForCommit,
        Self::SpareSlots,
        Self::FreeSlotOnce,
        Self::ProveOldSlots,
        Self::ForgetChangedBlocks,
        Self::KnowHeldSectors,
        Self::FetchTheRest,
        Self::SyncEachGroup,
        Self::PlaceBeyondRecord,
        Self::NameHeldChunks,
        Self::CheckMergePlace,
        Self::CarryFreshMerge,
        Self::MergeNeighbours,
        Self::MergeInOrder,
        Self::MergeKeepsZeros,
        Self::NameMovedFrame,
        Self::MoveVisible,
        Self::PlanMergedReads,
        Self::AddOnlyOwn,
        Self::MergeWhenDue,
        Self::ReplayOnlyNewer,
        Self::KeepJournal,
        Self::JournalAfterFullRound,
        Self::ReleaseStillChunks,
        Self::PrepareReleased,
        Self::ClearOlderFirst,
        Self::PagesNameRecords,
        Self::SnapshotAfterSeal,
        Self::RootBeforeRecord,
        Self::HoldUntilRelease,
        Self::CutIsStill,
        Self::ExactCut,
        Self::ControlOnlyDetached,
        Self::AskIfForgotten,
        Self::StoreVerdict,
        Self::ForksKeepObjects,
        Self::SweepPassedPlaces,
        Self::SweepKeepsSnapshots,
        Self::SweepListsAgain,
        Self::CountFromOwner,
        Self::GrowInLogFirst,
        Self::ResumeAsGrown,
        Self::FlushInRoundWaits,
        Self::CommitAfterFailedSync,
        Self::RootNamesAllRuns,
        Self::RewriteTornSlot,
        Self::CheckSnapshotPlace,
        Self::CompareRoots,
        Self::LookForMark,
        Self::StoreSlotFirst,
        Self::FreeSlotAfterWord,
        Self::TakeSlotOnce,
        Self::KeepReplacedPage,
        Self::SpillBeforeWord,
        Self::KeepSlotWhileSpilling,
        Self::WaitForDisk,
    ];

    /// Returns true if the safeguard concerns state shared by the volumes of a host or a store: its absence
    /// shows, or shows often, only with several volumes.
    pub const fn is_shared(self) -> bool {
        matches!(self.upholds(), 25 | 26)
            || matches!(
                self,
                Self::SpareSlots
                    | Self::FreeSlotOnce
                    | Self::ProveOldSlots
                    | Self::ForgetChangedBlocks
                    | Self::KnowHeldSectors
                    | Self::AskIfForgotten
            )
    }

    /// Returns true if the safeguard belongs to memory volumes, which have a separate simulation.
    pub const fn is_of_memory(self) -> bool {
        self.upholds() == 33
    }

    /// Returns the number of the invariant that fails without the safeguard, in `docs/invariants.md`.
    pub const fn upholds(self) -> u8 {
        match self {
            Self::SyncSidesBeforeMap
            | Self::RoundBeforeCommit
            | Self::FlushInNextRound
            | Self::FirstRoundIsFull
            | Self::RoundBeforePunch
            | Self::RememberFailedSync
            | Self::InvalidateUnsynced
            | Self::FuaIsDurable
            | Self::FuaInNextRound
            | Self::SyncEachGroup
            | Self::ReplayOnlyNewer
            | Self::KeepJournal
            | Self::JournalAfterFullRound
            | Self::CommitAfterFailedSync => 1,
            Self::ReadsBeforePunch
            | Self::ReleaseStillChunks
            | Self::PrepareReleased
            | Self::ForgetChangedBlocks
            | Self::KnowHeldSectors => 2,
            Self::PackByMask
            | Self::CheckFrameChecksum
            | Self::FreeSlotOnce
            | Self::ProveOldSlots
            | Self::MoveVisible => 3,
            Self::CleanOnlyIfClosed
            | Self::ActiveSideIsNewest
            | Self::NewestSegmentFirst
            | Self::NameHeldChunks
            | Self::CommitOnlyAllRead
            | Self::ClearOlderFirst
            | Self::FetchTheRest => 4,
            Self::StoreRecordFirst | Self::ProbeBeyondList | Self::ControlOnlyDetached => 5,
            Self::PreserveFenced | Self::LastRoundOfFenced => 6,
            Self::SegmentBeforeCommit | Self::NameMovedFrame | Self::PlanMergedReads => 7,
            Self::UploadStillSides | Self::DirectWhileOpen => 10,
            Self::NoticeOtherWriters
            | Self::ReadBackAmbiguous
            | Self::KeepAttachRecords
            | Self::CheckTruncation
            | Self::CarryFreshMerge
            | Self::RootNamesAllRuns => 11,
            Self::RetryFailed | Self::CheckpointBeforeDeletes | Self::SpareSlots => 12,
            Self::SyncMapBeforeAnswer | Self::RewriteTornSlot => 13,
            Self::SealByAge => 14,
            Self::FlushAfterCommit
            | Self::FlushInNextSeal
            | Self::FuaWaitsForCommit
            | Self::FlushInRoundWaits => 15,
            Self::WriteEndsZeros => 16,
            Self::ReadOnlyWanted => 17,
            Self::RejectOlderState | Self::RejectLostRecords | Self::PagesNameRecords => 18,
            Self::CheckExpectedEpoch | Self::RefuseAbsentState => 19,
            Self::RejectOtherStore => 20,
            Self::QueueByStore | Self::FreeMemoryInBackoff => 25,
            Self::CheckDeviceTag | Self::ClearRecordFirst | Self::DetachAfterDevice | Self::SweepOnlyOwn => {
                26
            }
            Self::MergeWhenDue => 21,
            Self::PlaceBeyondRecord | Self::CheckMergePlace => 27,
            Self::MergeNeighbours | Self::MergeInOrder | Self::MergeKeepsZeros => 28,
            Self::SnapshotAfterSeal
            | Self::RootBeforeRecord
            | Self::CheckSnapshotPlace
            | Self::CompareRoots
            | Self::LookForMark => 29,
            Self::SweepPassedPlaces | Self::SweepKeepsSnapshots => 22,
            Self::AskIfForgotten
            | Self::StoreVerdict
            | Self::SweepListsAgain
            | Self::ForksKeepObjects
            | Self::CountFromOwner
            | Self::AddOnlyOwn => 30,
            Self::GrowInLogFirst | Self::ResumeAsGrown => 31,
            Self::HoldUntilRelease | Self::CutIsStill | Self::ExactCut => 32,
            Self::StoreSlotFirst
            | Self::FreeSlotAfterWord
            | Self::TakeSlotOnce
            | Self::KeepReplacedPage
            | Self::SpillBeforeWord
            | Self::KeepSlotWhileSpilling
            | Self::WaitForDisk => 33,
        }
    }
}

#[cfg(feature = "simulation")]
thread_local! {
    static MISSING: std::cell::Cell<Option<Safeguard>> = const { std::cell::Cell::new(None) };
}

/// Removes a safeguard from every engine of this thread, and restores the previous one.
#[cfg(feature = "simulation")]
pub fn take_out(safeguard: Option<Safeguard>) {
    MISSING.set(safeguard);
}

/// Returns true if the safeguard is in place.
#[cfg(feature = "simulation")]
pub fn safeguard(safeguard: Safeguard) -> bool {
    MISSING.get() != Some(safeguard)
}

/// Returns true: the safeguard is in place.
#[cfg(not(feature = "simulation"))]
pub const fn safeguard(_: Safeguard) -> bool {
    true
}
