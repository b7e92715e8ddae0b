//! Events that a volume handles.

use holdfast_format::index::RunRef;
use holdfast_format::index::policy::MergeKind;
use holdfast_format::manifest::Manifest;
use holdfast_format::segment::SegmentRef;
use holdfast_format::side::Side;
use holdfast_types::{Chunk, PlacedId, SectorRange, Seq, SnapshotUid};

use crate::settings::Settings;

/// A client request's place in the device: `queue * depth + tag`. Unique among the requests in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(pub u32);

/// An operation that a client requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// Fill the request with the range's bytes.
    Read,
    /// Store the request's bytes in the range.
    Write,
    /// Store the request's bytes in the range, and make them durable before the request completes (FUA).
    WriteFua,
    /// Make every completed write durable.
    Flush,
    /// The client no longer needs the range; it reads as zeros afterwards.
    Discard,
    /// The range reads as zeros afterwards.
    WriteZeroes,
}

impl Op {
    /// Returns true for the operations that store the request's bytes.
    pub const fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::WriteFua)
    }
}

/// A positive error number of the kernel (`errno`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

/// Reason why a chunk of the map was not prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unprepared {
    /// The live map has no memory for it: the run directory is full.
    RunDir(Errno),
    /// The durable map has no place for it.
    Disk(Errno),
}

impl Errno {
    /// Input/output error. Source: `asm-generic/errno-base.h`, as the others.
    pub const EIO: Self = Self(5);
    /// No space left on the device.
    pub const ENOSPC: Self = Self(28);
    /// Read-only file system.
    pub const EROFS: Self = Self(30);
    /// Invalid argument.
    pub const EINVAL: Self = Self(22);
}

/// The answer of a create-once PUT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CreateAnswer {
    /// This PUT made the object.
    Created,
    /// The object was there, made by whomever.
    Exists,
    /// Ambiguous: a time-out, a lost connection.
    Ambiguous,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The client asks. `range` is empty for a flush.
    Request {
        /// Its place.
        id: RequestId,
        /// The operation.
        op: Op,
        /// Its sectors.
        range: SectorRange,
    },
    /// One `Read`, `Write` or `Punch` of a request ended; a short transfer is an error.
    IoCompleted {
        /// The request.
        id: RequestId,
        /// Outcome.
        result: Result<(), Errno>,
    },
    /// One `ReadCold` of a request ended.
    ColdReadCompleted {
        /// The request.
        id: RequestId,
        /// Outcome; an error is permanent.
        result: Result<(), Errno>,
    },
    /// One `Evict` ended.
    Evicted {
        /// Outcome.
        result: Result<(), Errno>,
    },
    /// The space of the volume's sides was measured again.
    Space {
        /// Bytes they hold beyond the volume's share of the node's cache: to be evicted.
        excess_bytes: u64,
        /// Bytes that may still be written before the next measurement.
        room_bytes: u64,
    },
    /// `PrepareMap` ended.
    MapPrepared {
        /// The chunk.
        chunk: Chunk,
        /// Outcome; on failure the volume asks for it again at the next tick.
        result: Result<(), Unprepared>,
    },
    /// `ReleaseMap` ended. Where it failed the memory stays, and is used when the chunk is prepared again.
    MapReleased {
        /// The chunk.
        chunk: Chunk,
    },
    /// `SyncSide` ended.
    SideSynced {
        /// The side.
        side: Side,
        /// Outcome.
        result: Result<(), Errno>,
    },
    /// All of a `WriteMap` ended.
    MapWritten {
        /// Outcome.
        result: Result<(), Errno>,
    },
    /// `SyncMap` ended.
    MapSynced {
        /// Outcome.
        result: Result<(), Errno>,
    },
    /// The manifest was read after a takeover of running state.
    ManifestLoaded(Box<Manifest>),
    /// A turn after the one that asked for `NextTurn`.
    NextTurn,
    /// `Upload` ended: the segment is in the store.
    Uploaded(SegmentRef),
    /// `Upload` ended: the local disk cannot read these sectors of what was to be uploaded, of which there is
    /// at least one; there may be more. Nothing is stored.
    SidesUnreadable(Vec<SectorRange>),
    /// `Merge` ended: the run is in the store.
    Merged {
        /// Kind of the merge.
        kind: MergeKind,
        /// The run.
        output: Box<RunRef>,
    },
    /// `Merge` ended without a run; nothing is stored.
    MergeFailed {
        /// Kind of the merge.
        kind: MergeKind,
        /// The input that is damaged, or the oldest where the store refused the output: it takes part in no
        /// other merge.
        barred: PlacedId,
    },
    /// A snapshot of all that has completed is wanted. Answer: [`crate::action::Report::SnapshotTaken`], or
    /// `SnapshotRefused`. Asked for again it is answered again; the answer of one that a dead process was
    /// asked for comes only then.
    Snapshot {
        /// Tells it from others.
        uid: SnapshotUid,
        /// Places of snapshots that were forgotten, ascending: they are registered no longer.
        forgotten: Vec<Seq>,
    },
    /// The snapshot of a cut is waited for. Answer: the same; it is refused (`Missed`) where none waits to be
    /// registered and none is.
    AwaitCut {
        /// The snapshot.
        uid: SnapshotUid,
    },
    /// A snapshot at one point with those of other volumes is about to be wanted. Answer, as of the two that
    /// follow: [`crate::action::Report::Cut`], which here comes once what is dirty is committed.
    PrepareCut {
        /// The snapshot.
        uid: SnapshotUid,
        /// Places of snapshots that were forgotten, ascending: they are registered no longer.
        forgotten: Vec<Seq>,
    },
    /// Writes wait from here on, [`crate::limit::HOLD_MS`] at most, and the snapshot is wanted.
    Cut {
        /// The snapshot.
        uid: SnapshotUid,
    },
    /// All volumes of the cut are held, or it has failed: writes continue.
    ReleaseCut {
        /// The snapshot.
        uid: SnapshotUid,
    },
    /// `StoreRoot` ended: the root is in the store.
    RootStored,
    /// `StoreRoot` ended: another root is in its place, which another history of the bucket left.
    RootBarred,
    /// `StorePending` ended.
    PendingStored {
        /// Outcome.
        result: Result<(), Errno>,
    },
    /// `CreateRecord` was answered.
    CreateAnswered(CreateAnswer),
    /// `ReadRecord` was answered: the bytes there, or nothing.
    RecordRead {
        /// The record's place.
        seq: Seq,
        /// The bytes found there; `None` if there are none.
        bytes: Option<Vec<u8>>,
    },
    /// `WriteCheckpoint` ended.
    CheckpointWritten {
        /// As of which seq.
        seq: Seq,
        /// True if the checkpoint is in the store.
        written: bool,
    },
    /// The device is gone and takes no more requests: commit what is dirty and release the volume. A fenced
    /// writer commits nothing, but its durable map is brought up to date
    /// ([`crate::action::Report::Preserved`]). A detach that comes again gets the same report again.
    Detach,
    /// The volume is to have this many sectors. Its files and the memory of its live map are long enough.
    /// Answer: [`crate::action::Report::Grown`] once the log says so; none where the volume is fenced or
    /// released before.
    Grow {
        /// Logical size, [`holdfast_format::limit::MAX_SECTORS`] at most.
        sectors: u64,
    },
    /// The volume has these settings from here on. Flushes that are not answered yet keep what the new ones
    /// promise; those that were answered keep what they promised.
    Configure(Settings),
    /// While true, dirty data is sealed at [`crate::limit::COMMIT_SOON_BYTES`] and
    /// [`crate::limit::COMMIT_SOON_AGE_MS`] at the latest; the settings stay as they are.
    CommitSoon(bool),
    /// Something in the object store is damaged. Answer: [`crate::action::Report::Repaired`], at
    /// once where the volume is fenced.
    Repair {
        /// The bytes stored for these sectors are lost: what of them is clean here is stored again.
        ranges: Vec<SectorRange>,
        /// Part of the log is lost: a checkpoint is made that replaces it.
        checkpoint: bool,
    },
    /// The pause is over: writes that the pace delays are looked at again.
    PauseEnded,
    /// Time passed; sent at least once a second.
    Tick,
}
