//! Actions that a volume asks its caller for. Each but `Complete` and `Report` is answered by exactly one
//! event.

use holdfast_format::index::{MergePlan, Runs};
use holdfast_format::side::Side;
use holdfast_format::snapshot::Snapshot;
use holdfast_types::{Block, Chunk, Mask, Place, SectorRange, Seq, SnapshotUid};

use crate::event::{Errno, RequestId};
use crate::snapshot::{CutAnswer, SnapshotRefused};

/// A local file that request bytes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// A side, at the byte offset of the range itself.
    Side(Side),
    /// Zeros.
    Zeros,
}

/// One write into the durable map's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MapWrite {
    /// Byte offset, a multiple of 4096.
    pub offset: u64,
    /// 4096 bytes.
    pub bytes: Vec<u8>,
}

/// The dirty sectors of one block, by the side that holds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirtyBlock {
    /// The block.
    pub block: Block,
    /// Sectors to take from side A.
    pub a: Mask,
    /// Sectors to take from side B; none of them in `a`.
    pub b: Mask,
}

/// Something a person or the control plane should know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Report {
    /// The data that the loss of the host left dirty is committed: requests may come.
    Ready,
    /// Another writer holds the volume; all I/O fails from here on and the sides are kept.
    Fenced,
    /// The local disk failed a write of the map or of a pending record.
    LocalDiskFailed(Errno),
    /// The local disk cannot read data that the store has: it is read from there. Which, within one request.
    CleanUnreadable(SectorRange),
    /// The local disk cannot read the only copy of data: the read failed. Which, within one request.
    DirtyUnreadable(SectorRange),
    /// The local disk cannot read the only copy of data that is to be uploaded: nothing is committed before
    /// it is readable, or overwritten. Said once for each range.
    UploadUnreadable(SectorRange),
    /// The data that was unreadable is committed, or the data written there since.
    UploadReadable,
    /// A commit is in the log, and what it holds is clean.
    Committed(Seq),
    /// The detach record is in the log and the local state is closed.
    Detached,
    /// The device of a fenced writer is gone: its sides may be preserved.
    Preserved {
        /// The durable map tells all that they hold. Where it does not, it may even name nothing.
        complete: bool,
    },
    /// A snapshot is registered in the log.
    SnapshotTaken(Snapshot),
    /// A snapshot is not taken.
    SnapshotRefused {
        /// The snapshot.
        uid: SnapshotUid,
        /// The reason.
        why: SnapshotRefused,
    },
    /// State of the cut that this is the snapshot of.
    Cut {
        /// The snapshot.
        uid: SnapshotUid,
        /// The answer to the last request, or what became of the cut since.
        answer: CutAnswer,
    },
    /// Requests to this many sectors may come.
    Grown {
        /// Logical size.
        sectors: u64,
    },
    /// The data with which this node repairs the object store is stored and committed.
    Repaired,
}

/// Something to do.
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
        /// The segments to look in.
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
    /// Make `range` of `side` a hole. Answer: `IoCompleted`.
    Punch {
        /// The request.
        id: RequestId,
        /// Sectors to punch.
        range: SectorRange,
        /// The side to punch.
        side: Side,
    },
    /// Make `range` of `side` a hole: it is clean and nothing reads it any more. Answer: `Evicted`.
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
    /// Give back the memory of the live map's bytes of `chunk`, which are zeros and not touched any more.
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
    /// Write all of these into the durable map's file. Answer: one `MapWritten`.
    WriteMap(Vec<MapWrite>),
    /// Sync the durable map's file. Answer: `MapSynced`.
    SyncMap,
    /// Continue in a later turn of the ring thread with what is too long for one. Answer: `NextTurn`.
    NextTurn,
    /// Wait for [`PAUSE_MS`](crate::limit::PAUSE_MS). Answer: `PauseEnded`, with the time as it is then;
    /// none is needed where the process is about to end.
    Pause,
    /// Read these sectors, make a segment of them, store it; try until it is there. Answer: `Uploaded`, or
    /// `SidesUnreadable`.
    Upload {
        /// The place that the segment is named for.
        place: Place,
        /// The sectors.
        blocks: Vec<DirtyBlock>,
    },
    /// Make one run of these and store it, behind all other work. Answer: `Merged`, or `MergeFailed`.
    Merge(Box<MergePlan>),
    /// Keep these bytes through a crash, in place of the last ones. Answer: `PendingStored`.
    StorePending {
        /// The record's place.
        seq: Seq,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// Store the root of the snapshot that the record at `seq` is about to register; try until it is there.
    /// Answer: `RootStored`, or `RootBarred`.
    StoreRoot {
        /// The record's place.
        seq: Seq,
        /// The root's bytes.
        bytes: Vec<u8>,
    },
    /// Create `log/<seq>` once. Answer: `CreateAnswered`.
    CreateRecord {
        /// The record's place.
        seq: Seq,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// Read `log/<seq>`; try until the store says what is there. Answer: `RecordRead`.
    ReadRecord {
        /// The record's place.
        seq: Seq,
    },
    /// Store the checkpoint of `seq`. Answer: `CheckpointWritten`.
    WriteCheckpoint {
        /// As of which seq.
        seq: Seq,
        /// Its bytes.
        bytes: Vec<u8>,
    },
    /// Tell.
    Report(Report),
}
