//! Published status: figures and state that a volume's ring thread publishes to other threads.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use holdfast_engine::snapshot::{CutAnswer, SnapshotRefused};
use holdfast_engine::volume::Status;
use holdfast_format::snapshot::Snapshot;
use holdfast_ring::Errno;
use holdfast_types::{Seq, SnapshotUid};
use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};

use crate::io_limits::LimitStatus;
use crate::latency::Latencies;
use crate::writer_state::WriterState;

/// Answers to requests for snapshots that wait for their receivers; one that misses some asks again.
const WAITING_ANSWERS: usize = 64;

/// Answer of the volume's writer to a request for a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotAnswer {
    /// It is registered.
    Taken(Snapshot),
    /// It is not taken.
    Refused(SnapshotUid, SnapshotRefused),
    /// Of its cut.
    Cut(SnapshotUid, CutAnswer),
}

/// Counts of the I/O served since this process attached or recovered the volume. They only grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServedCounts {
    /// Read requests.
    pub reads: u64,
    /// Write requests.
    pub writes: u64,
    /// Flush requests.
    pub flushes: u64,
    /// Discard and write-zeroes requests.
    pub discards: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Reads of blocks that were in the object store only.
    pub cold_reads: u64,
    /// Those of them whose block was known to be in the slab.
    pub slab_hits: u64,
    /// Reads that the local disk failed, whether or not the store could serve them.
    pub local_read_errors: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Pieces of background work that waited to be begun at a time, at most.
    pub max_waiting_work: u64,
    /// Durations of requests; none of a memory volume, which answers each at once.
    pub latencies: Latencies,
}

impl ServedCounts {
    /// Requests of all kinds.
    pub(crate) const fn requests(&self) -> u64 {
        self.reads + self.writes + self.flushes + self.discards
    }
}

/// Status that one volume publishes.
pub struct PublishedStatus {
    /// Figures of the planner and of the requests, published at every tick, never per request.
    shown: Mutex<(Status, ServedCounts, LimitStatus)>,
    reported: Box<dyn Fn(WriterState) + Send + Sync>,
    /// Number of repairs of damage in the store.
    repairs: watch::Sender<u64>,
    snapshots: broadcast::Sender<SnapshotAnswer>,
    /// Places of the registered snapshots, ascending; none while the log is not known.
    registered: watch::Sender<Arc<[Seq]>>,
    /// Sectors that the volume has, once it has grown.
    sectors: watch::Sender<u64>,
    /// Error number of a command of the device's queues that the kernel refused.
    refused: watch::Sender<Option<Errno>>,
    /// Bytes that the sides hold, as last measured.
    pub cached_bytes: AtomicU64,
}

impl PublishedStatus {
    /// The published status of a volume whose writer's state goes to `reported`.
    pub fn new(reported: impl Fn(WriterState) + Send + Sync + 'static) -> Self {
        Self {
            shown: Mutex::default(),
            reported: Box::new(reported),
            repairs: watch::Sender::new(0),
            snapshots: broadcast::Sender::new(WAITING_ANSWERS),
            registered: watch::Sender::new(Arc::default()),
            sectors: watch::Sender::new(0),
            refused: watch::Sender::new(None),
            cached_bytes: AtomicU64::default(),
        }
    }

    /// Figures of the planner, as of the last tick.
    pub fn status(&self) -> Status {
        self.shown.lock().0
    }

    /// Counts of requests, as of the last tick.
    pub fn served(&self) -> ServedCounts {
        self.shown.lock().1
    }

    /// Limits in effect, as of the last change, and their delays, as of the last tick.
    pub fn limits(&self) -> LimitStatus {
        self.shown.lock().2
    }

    /// Publishes new figures unless a reader holds the old ones: the ring thread does not wait.
    pub fn show(&self, status: Status, served: ServedCounts, limits: LimitStatus) {
        if let Some(mut shown) = self.shown.try_lock() {
            *shown = (status, served, limits);
        }
    }

    /// Publishes how the volume's writer is.
    pub fn report(&self, writer: WriterState) {
        (self.reported)(writer);
    }

    /// Publishes that damage in the store was repaired.
    pub fn repaired(&self) {
        self.repairs.send_modify(|count| *count += 1);
    }

    /// Publishes the places of the registered snapshots.
    pub fn snapshots_registered(&self, places: Arc<[Seq]>) {
        self.registered.send_replace(places);
    }

    /// The places of the registered snapshots, ascending, at the last answer about one or later; none while
    /// the log is not known.
    pub fn registered_snapshots(&self) -> Arc<[Seq]> {
        Arc::clone(&self.registered.borrow())
    }

    /// Publishes the answer to a request for a snapshot.
    pub fn snapshot_answered(&self, answer: SnapshotAnswer) {
        // No receiver may wait any more: a request that is repeated is answered again.
        let _receivers = self.snapshots.send(answer);
    }

    /// Receives every answer from now on.
    pub fn snapshot_answers(&self) -> broadcast::Receiver<SnapshotAnswer> {
        self.snapshots.subscribe()
    }

    /// Publishes that requests to this many sectors may come.
    pub fn grown(&self, sectors: u64) {
        self.sectors.send_replace(sectors);
    }

    /// Ends once the volume has grown to this many sectors or more. Returns how many it has.
    pub async fn reach_sectors(&self, wanted: u64) -> u64 {
        let mut sectors = self.sectors.subscribe();
        *sectors.wait_for(|has| *has >= wanted).await.expect("the status itself holds the sender")
    }

    /// Publishes that the kernel refused a command of the device's queues.
    pub fn queue_refused(&self, errno: Errno) {
        self.refused.send_replace(Some(errno));
    }

    /// Ends once the kernel has refused a command of the device's queues.
    pub async fn refused(&self) -> Errno {
        let mut refused = self.refused.subscribe();
        let found = refused.wait_for(Option::is_some).await.expect("the status itself holds the sender");
        found.expect("it was just seen")
    }

    /// Receives every repair from now on.
    pub fn repairs(&self) -> watch::Receiver<u64> {
        self.repairs.subscribe()
    }
}
