//! Events that a volume handles.

use holdfast_format::index::RunRef;
use holdfast_format::index::policy::MergeKind;
use holdfast_format::manifest::Manifest;
use holdfast_format::segment::SegmentRef;
use holdfast_format::side::Side;
use holdfast_types::{Chunk, PlacedId, SectorRange, Seq, SnapshotUid};

use crate::settings::RuntimeSettings;

/// A client request's slot in the device: `queue * depth + tag`. Unique among the requests in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(pub u32);

/// An operation that a client requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// Fill the request's memory with the bytes of the range.
    Read,
    /// Store the request's bytes in the range.
    Write,
    /// Store the request's bytes in the range, and make them durable before the request completes (FUA).
    WriteFua,
    /// Make every completed write durable.
    Flush,
    /// Declare the range unneeded; it reads as zeros afterwards.
    Discard,
    /// Make the range read as zeros.
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

/// Reason why a chunk of the map could not be prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unprepared {
    /// The live map has no memory for it: the run directory is full.
    RunDir(Errno),
    /// The durable map has no disk space for it.
    Disk(Errno),
}

impl Errno {
    /// Input/output error. Source of these numbers: `asm-generic/errno-base.h`.
    pub const EIO: Self = Self(5);
    /// No space left on the device.
    pub const ENOSPC: Self = Self(28);
    /// Read-only file system.
    pub const EROFS: Self = Self(30);
    /// Invalid argument.
    pub const EINVAL: Self = Self(22);
}

/// The result of a create-once PUT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CreateAnswer {
    /// This PUT created the object.
    Created,
    /// The object already existed, from any writer.
    Exists,
    /// The result is unknown: a time-out, or a lost connection.
    Ambiguous,
}

/// An input to the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A client sent a request. `range` is empty for a flush.
    Request {
        /// Its id.
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
        /// Bytes of the sides beyond the volume's share of the node's cache, to be evicted.
        excess_bytes: u64,
        /// Bytes that may still be written before the next measurement.
        room_bytes: u64,
    },
    /// `PrepareMap` ended.
    MapPrepared {
        /// The chunk.
        chunk: Chunk,
        /// Outcome; after a failure the volume retries at the next tick.
        result: Result<(), Unprepared>,
    },
    /// `ReleaseMap` ended. If it failed, the memory stays, and is reused when the chunk is prepared again.
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
    /// The manifest was read after a restart took over live state.
    ManifestLoaded(Box<Manifest>),
    /// The next turn of the ring thread, after `NextTurn` was requested.
    NextTurn,
    /// `Upload` ended: the segment is stored.
    Uploaded(SegmentRef),
    /// `Upload` ended: the local disk cannot read these sectors of the data to upload, at least one; more
    /// may be unreadable. Nothing is stored.
    SidesUnreadable(Vec<SectorRange>),
    /// `Merge` ended: the run is stored.
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
        /// The input that is damaged, or the oldest if the store rejected the output: this input is excluded
        /// from further merges.
        barred: PlacedId,
    },
    /// Requests a snapshot of all completed data. Answer: [`crate::action::Report::SnapshotTaken`], or
    /// `SnapshotRefused`. A repeated request is answered again. After a crash of the process, a request is
    /// answered only if it is repeated.
    Snapshot {
        /// Identifies the snapshot.
        uid: SnapshotUid,
        /// Sequence numbers of snapshots that were forgotten, ascending: they are no longer registered.
        forgotten: Vec<Seq>,
    },
    /// Waits for the snapshot of a cut. Answer: as for `Snapshot`; it is refused (`Missed`) if it is
    /// neither registered nor waiting to be.
    AwaitCut {
        /// The snapshot.
        uid: SnapshotUid,
    },
    /// Announces a snapshot at the same point as those of other volumes. Answer, as for the next two:
    /// [`crate::action::Report::Cut`], which for this event comes once a seal in progress is committed, or
    /// otherwise the dirty data.
    PrepareCut {
        /// The snapshot.
        uid: SnapshotUid,
        /// Sequence numbers of snapshots that were forgotten, ascending: they are no longer registered.
        forgotten: Vec<Seq>,
    },
    /// Holds writes from now on, for at most [`crate::limit::HOLD_MS`], and requests the snapshot.
    Cut {
        /// The snapshot.
        uid: SnapshotUid,
    },
    /// All volumes of the cut hold their writes, or it has failed: writes continue.
    ReleaseCut {
        /// The snapshot.
        uid: SnapshotUid,
    },
    /// `StoreRoot` ended: the root is stored.
    RootStored,
    /// `StoreRoot` ended: another root already exists there, from another history of the bucket.
    RootBarred,
    /// `StorePending` ended.
    PendingStored {
        /// Outcome.
        result: Result<(), Errno>,
    },
    /// `CreateRecord` was answered.
    CreateAnswered(CreateAnswer),
    /// `ReadRecord` was answered.
    RecordRead {
        /// The record's sequence number.
        seq: Seq,
        /// The bytes of the record; `None` if it does not exist.
        bytes: Option<Vec<u8>>,
    },
    /// `WriteCheckpoint` ended.
    CheckpointWritten {
        /// The sequence number that it covers.
        seq: Seq,
        /// True if the checkpoint is stored.
        written: bool,
    },
    /// The device is removed and accepts no more requests: commit the dirty data and release the volume. A
    /// fenced writer commits nothing, but its durable map is brought up to date
    /// ([`crate::action::Report::Preserved`]). A repeated detach gets the same report again.
    Detach,
    /// Grows the volume to this many sectors. Its files and the memory of its live map are long enough.
    /// Answer: [`crate::action::Report::Grown`] once the log has the size; none if the volume is fenced or
    /// released first.
    Grow {
        /// Logical size, [`holdfast_format::limit::MAX_SECTORS`] at most.
        sectors: u64,
    },
    /// Applies these settings from now on. Unanswered flushes follow the new settings; answered ones keep
    /// their guarantee.
    Configure(RuntimeSettings),
    /// While true, dirty data is sealed at [`crate::limit::COMMIT_SOON_BYTES`] and
    /// [`crate::limit::COMMIT_SOON_AGE_MS`] at the latest; the settings stay as they are.
    CommitSoon(bool),
    /// Objects in the store are damaged. Answer: [`crate::action::Report::Repaired`], at once if the volume
    /// is fenced.
    Repair {
        /// Sectors whose stored bytes are lost: those that are clean here are stored again.
        ranges: Vec<SectorRange>,
        /// True if part of the log is lost: a new checkpoint replaces it.
        checkpoint: bool,
    },
    /// The pause is over: delayed writes are checked again.
    PauseEnded,
    /// Time passed; sent at least once a second.
    Tick,
}
