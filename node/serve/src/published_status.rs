//! Published status: figures and state that a volume's ring thread publishes to other threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use holdfast_engine::snapshot::{CutAnswer, SnapshotRefused};
use holdfast_engine::volume::Status;
use holdfast_format::snapshot::Snapshot;
use holdfast_ring::KernelErrno;
use holdfast_types::{Seq, SnapshotUid};
use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};

use crate::io_limits::LimitStatus;
use crate::latency::Latencies;
use crate::writer_state::WriterState;

/// Maximum answers about snapshots that wait for their receivers; a receiver that misses some repeats its
/// request.
const WAITING_ANSWERS: usize = 64;

/// Answer of the volume's writer to a request for a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotAnswer {
    /// The snapshot is registered.
    Taken(Snapshot),
    /// The snapshot was refused.
    Refused(SnapshotUid, SnapshotRefused),
    /// Answer about the snapshot's cut.
    Cut(SnapshotUid, CutAnswer),
}

/// A state change that a volume's ring thread reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingReport {
    /// The writer's new state.
    Writer(WriterState),
    /// The device was stopped, or its FUSE connection has ended: the device gets no more requests.
    DeviceEnded,
}

/// Counts of the I/O served since this process attached or recovered the volume. They never decrease.
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
    /// Reads of blocks that were only in the object store.
    pub cold_reads: u64,
    /// Cold reads whose block was known to be in the slab.
    pub slab_hits: u64,
    /// Reads that failed on the local disk, whether or not the store could serve them.
    pub local_read_errors: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Largest number of pieces of background work that waited at a time.
    pub max_waiting_work: u64,
    /// Durations of requests.
    pub latencies: Latencies,
}

impl ServedCounts {
    /// Returns the number of requests of all kinds.
    pub(crate) const fn requests(&self) -> u64 {
        self.reads + self.writes + self.flushes + self.discards
    }
}

/// Status that one volume publishes.
pub struct PublishedStatus {
    /// Figures of the planner and of the requests, published at every tick, never per request.
    shown: Mutex<(Status, ServedCounts, LimitStatus)>,
    reported: Box<dyn Fn(RingReport) + Send + Sync>,
    /// Number of repairs of damage in the store.
    repairs: watch::Sender<u64>,
    snapshots: broadcast::Sender<SnapshotAnswer>,
    /// Log positions of the registered snapshots, ascending; empty while the log is unknown.
    registered: watch::Sender<Arc<[Seq]>>,
    /// Sectors of the volume, once it has grown.
    sectors: watch::Sender<u64>,
    /// Error number of a command of the device's queues that the kernel refused.
    refused: watch::Sender<Option<KernelErrno>>,
    has_device_ended: AtomicBool,
    /// Bytes on the sides, as last measured.
    pub cached_bytes: AtomicU64,
}

impl PublishedStatus {
    /// Creates the status of a volume; `reported` receives the ring thread's reports, and must not block.
    pub fn new(reported: impl Fn(RingReport) + Send + Sync + 'static) -> Self {
        Self {
            shown: Mutex::default(),
            reported: Box::new(reported),
            repairs: watch::Sender::new(0),
            snapshots: broadcast::Sender::new(WAITING_ANSWERS),
            registered: watch::Sender::new(Arc::default()),
            sectors: watch::Sender::new(0),
            refused: watch::Sender::new(None),
            has_device_ended: AtomicBool::default(),
            cached_bytes: AtomicU64::default(),
        }
    }

    /// Returns the figures of the planner, as of the last tick.
    pub fn status(&self) -> Status {
        self.shown.lock().0
    }

    /// Returns the counts of requests, as of the last tick.
    pub fn served(&self) -> ServedCounts {
        self.shown.lock().1
    }

    /// Returns the limits in effect, as of the last change, and their delays, as of the last tick.
    pub fn limits(&self) -> LimitStatus {
        self.shown.lock().2
    }

    /// Publishes new figures unless another thread is reading the old ones: the ring thread does not wait.
    pub fn show(&self, status: Status, served: ServedCounts, limits: LimitStatus) {
        if let Some(mut shown) = self.shown.try_lock() {
            *shown = (status, served, limits);
        }
    }

    /// Publishes the state of the volume's writer.
    pub fn report(&self, writer: WriterState) {
        (self.reported)(RingReport::Writer(writer));
    }

    /// Publishes that the volume's device was stopped, or its connection has ended, during a detach or
    /// otherwise.
    pub fn device_ended(&self) {
        self.has_device_ended.store(true, Ordering::SeqCst);
        (self.reported)(RingReport::DeviceEnded);
    }

    /// Returns true once the volume's device was stopped, or its connection has ended.
    pub fn has_device_ended(&self) -> bool {
        self.has_device_ended.load(Ordering::SeqCst)
    }

    /// Publishes a repair of damage in the store.
    pub fn repaired(&self) {
        self.repairs.send_modify(|count| *count += 1);
    }

    /// Publishes the log positions of the registered snapshots.
    pub fn snapshots_registered(&self, places: Arc<[Seq]>) {
        self.registered.send_replace(places);
    }

    /// Returns the log positions of the registered snapshots, ascending, as of the last answer about one or
    /// later; empty while the log is unknown.
    pub fn registered_snapshots(&self) -> Arc<[Seq]> {
        Arc::clone(&self.registered.borrow())
    }

    /// Publishes the answer to a request for a snapshot.
    pub fn snapshot_answered(&self, answer: SnapshotAnswer) {
        // A missing receiver is no error: a repeated request gets another answer.
        let _receivers = self.snapshots.send(answer);
    }

    /// Subscribes to all further answers.
    pub fn snapshot_answers(&self) -> broadcast::Receiver<SnapshotAnswer> {
        self.snapshots.subscribe()
    }

    /// Publishes that the volume accepts requests to this many sectors.
    pub fn grown(&self, sectors: u64) {
        self.sectors.send_replace(sectors);
    }

    /// Waits until the volume has at least this many sectors. Returns their number.
    pub async fn reach_sectors(&self, wanted: u64) -> u64 {
        let mut sectors = self.sectors.subscribe();
        *sectors.wait_for(|has| *has >= wanted).await.expect("the status itself holds the sender")
    }

    /// Publishes that the kernel refused a command of the device's queues.
    pub fn queue_refused(&self, errno: KernelErrno) {
        self.refused.send_replace(Some(errno));
    }

    /// Waits until the kernel has refused a command of the device's queues.
    pub async fn refused(&self) -> KernelErrno {
        let mut refused = self.refused.subscribe();
        let errno = refused.wait_for(Option::is_some).await.expect("the status itself holds the sender");
        errno.expect("it was just seen")
    }

    /// Subscribes to all further repairs.
    pub fn repairs(&self) -> watch::Receiver<u64> {
        self.repairs.subscribe()
    }
}
