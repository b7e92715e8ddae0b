//! Actions that a volume requests from its caller. Exactly one event answers each, except `Complete` and
//! `Report`.

use holdfast_format::index::{MergePlan, Runs};
use holdfast_format::side::Side;
use holdfast_format::snapshot::Snapshot;
use holdfast_types::{Block, Chunk, Mask, Place, SectorRange, Seq, SnapshotUid};

use crate::event::{Errno, RequestId};
use crate::snapshot::{CutAnswer, SnapshotRefused};

/// The local source of a request's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// A side, at the byte offset of the range itself.
    Side(Side),
    /// Zeros.
    Zeros,
}

/// One write to the durable map's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapWrite {
    /// Byte offset, a multiple of 4096.
    pub offset: u64,
    /// 4096 bytes.
    pub bytes: Vec<u8>,
}

/// The dirty sectors of one block, by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirtyBlock {
    /// The block.
    pub block: Block,
    /// Sectors to take from side A.
    pub a: Mask,
    /// Sectors to take from side B; none of them in `a`.
    pub b: Mask,
}

/// A state change of interest to operators or the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Report {
    /// The data left dirty by the loss of the host is committed: requests are accepted from now on.
    Ready,
    /// Another writer holds the volume; from now on all I/O fails and the sides are kept.
    Fenced,
    /// The local disk failed a write of the map or of a pending record.
    LocalDiskFailed(Errno),
    /// The local disk cannot read data that the store has, and the store serves the read. The range is part
    /// of one request.
    CleanUnreadable(SectorRange),
    /// The local disk cannot read the only copy of data, and the read failed. The range is part of one
    /// request.
    DirtyUnreadable(SectorRange),
    /// The local disk cannot read the only copy of data to upload: nothing is committed until it is
    /// readable or overwritten. Reported once per range.
    UploadUnreadable(SectorRange),
    /// The data that was unreadable, or newer data that replaced it, is committed.
    UploadReadable,
    /// A commit is in the log, and its data is clean.
    Committed(Seq),
    /// The detach record is in the log and the local state is closed.
    Detached,
    /// The device of a fenced writer is removed: its sides may be preserved.
    Preserved {
        /// True if the durable map covers all data of the sides. If false, the map may even be empty.
        complete: bool,
    },
    /// A snapshot is registered in the log.
    SnapshotTaken(Snapshot),
    /// A snapshot was refused.
    SnapshotRefused {
        /// The snapshot.
        uid: SnapshotUid,
        /// The reason.
        why: SnapshotRefused,
    },
    /// State of a cut's snapshot.
    Cut {
        /// The snapshot.
        uid: SnapshotUid,
        /// The answer to the last request, or a later state of the cut.
        answer: CutAnswer,
    },
    /// The volume accepts requests up to this many sectors.
    Grown {
        /// Logical size.
        sectors: u64,
    },
    /// The data with which this node repairs the object store is uploaded and committed.
    Repaired,
}

/// A step for the caller to execute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Fill `range`'s part of the request, `at` bytes into it, from a local file. Answer: `IoCompleted`.
    Read {
        /// The request.
        id: RequestId,
        /// Sectors to read.
        range: SectorRange,
        /// Byte offset in the request.
        at: u32,
        /// The source of the bytes.
        from: Source,
    },
    /// Fill `range` (within one block) from the object store, through a local file. Answer:
    /// `ColdReadCompleted`.
    ReadCold {
        /// The request.
        id: RequestId,
        /// Sectors to read.
        range: SectorRange,
        /// Byte offset in the request.
        at: u32,
        /// The runs that locate the data.
        runs: Runs,
    },
    /// Store the whole request in `side` at the range's own offset. Answer: `IoCompleted`.
    Write {
        /// The request.
        id: RequestId,
        /// Sectors to write.
        range: SectorRange,
        /// The side to write.
        side: Side,
    },
    /// Punch `range` of `side`. Answer: `IoCompleted`.
    Punch {
        /// The request.
        id: RequestId,
        /// Sectors to punch.
        range: SectorRange,
        /// The side to punch.
        side: Side,
    },
    /// Punch `range` of `side`, which is clean and no longer read. Answer: `Evicted`.
    Evict {
        /// Sectors to punch.
        range: SectorRange,
        /// The side to punch.
        side: Side,
    },
    /// Answer the client.
    Complete {
        /// The request.
        id: RequestId,
        /// Outcome of the request.
        result: Result<(), Errno>,
    },
    /// Allocate the live map's bytes of `chunk` (`sector_map::chunk_extent`). Answer: `MapPrepared`.
    PrepareMap {
        /// The chunk.
        chunk: Chunk,
    },
    /// Release the memory of the live map's bytes of `chunk`, which are zeros and not accessed any more.
    /// Answer: `MapReleased`.
    ReleaseMap {
        /// The chunk.
        chunk: Chunk,
    },
    /// Sync the data of a side's file. Answer: `SideSynced`.
    SyncSide {
        /// The side to sync.
        side: Side,
    },
    /// Write all of these to the durable map's file. Answer: one `MapWritten`.
    WriteMap(Vec<MapWrite>),
    /// Sync the durable map's file. Answer: `MapSynced`.
    SyncMap,
    /// Continue work that is too long for one turn of the ring thread in a later one. Answer: `NextTurn`.
    NextTurn,
    /// Wait for [`PAUSE_MS`](crate::limit::PAUSE_MS). Answer: `PauseEnded`, with the current time; no answer
    /// is needed if the process is about to exit.
    Pause,
    /// Read these sectors, build a segment, and store it; retry until it is stored. Answer: `Uploaded`, or
    /// `SidesUnreadable`.
    Upload {
        /// The place in the segment's name.
        place: Place,
        /// The sectors.
        blocks: Vec<DirtyBlock>,
    },
    /// Merge these into one stored run, after all other work. Answer: `Merged`, or `MergeFailed`.
    Merge(Box<MergePlan>),
    /// Store these bytes crash-safe, replacing the previous ones. Answer: `PendingStored`.
    StorePending {
        /// The record's sequence number.
        seq: Seq,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// Store the root of the snapshot that the record at `seq` will register; retry until it is stored.
    /// Answer: `RootStored`, or `RootBarred`.
    StoreRoot {
        /// The record's sequence number.
        seq: Seq,
        /// The root's bytes.
        bytes: Vec<u8>,
    },
    /// Create `log/<seq>` once. Answer: `CreateAnswered`.
    CreateRecord {
        /// The record's sequence number.
        seq: Seq,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// Read `log/<seq>`; retry until the store answers. Answer: `RecordRead`.
    ReadRecord {
        /// The record's sequence number.
        seq: Seq,
    },
    /// Store the checkpoint of `seq`. Answer: `CheckpointWritten`.
    WriteCheckpoint {
        /// The sequence number that it covers.
        seq: Seq,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// Report a state change.
    Report(Report),
}
