//! What a volume's ring thread shows to everybody else.

use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_engine::volume::Status;
use holdfast_ring::Errno;
use parking_lot::Mutex;
use tokio::sync::watch;

/// How far a volume has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// What the host's loss left dirty is being committed.
    Recovering,
    /// Requests are served.
    Ready,
    /// Another writer holds the volume.
    Fenced,
    /// The detach record is in the log.
    Detached,
    /// Another writer holds the volume and the device is gone.
    Kept {
        /// The durable map tells what the sides hold.
        whole: bool,
    },
}

/// Figures of what was done, which only grow, written by the ring thread at every tick, never per request; and what is
/// held, as last measured.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) discards: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) written_bytes: AtomicU64,
    pub(crate) cold_reads: AtomicU64,
    pub(crate) local_read_errors: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) most_waiting_work: AtomicU64,
    pub(crate) cached_bytes: AtomicU64,
}

/// One volume's board.
#[derive(Debug)]
pub(crate) struct Board {
    status: Mutex<Status>,
    phase: watch::Sender<Phase>,
    /// How often what was damaged in the store was repaired.
    repairs: watch::Sender<u64>,
    /// Why the kernel refused a command of the device's queues.
    refused: watch::Sender<Option<Errno>>,
    pub(crate) counters: Counters,
}

impl Board {
    pub(crate) fn new() -> Self {
        Self {
            status: Mutex::default(),
            phase: watch::Sender::new(Phase::Recovering),
            repairs: watch::Sender::new(0),
            refused: watch::Sender::new(None),
            counters: Counters::default(),
        }
    }

    pub(crate) fn status(&self) -> Status {
        *self.status.lock()
    }

    /// Publishes new figures unless a reader holds the old ones: the ring thread does not wait.
    pub(crate) fn show(&self, status: Status) {
        if let Some(mut shown) = self.status.try_lock() {
            *shown = status;
        }
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    pub(crate) fn repaired(&self) {
        self.repairs.send_modify(|count| *count += 1);
    }

    pub(crate) fn queue_refused(&self, errno: Errno) {
        self.refused.send_replace(Some(errno));
    }

    /// Ends once the kernel has refused a command of the device's queues.
    pub(crate) async fn refused(&self) -> Errno {
        let mut refused = self.refused.subscribe();
        let found = refused.wait_for(Option::is_some).await.expect("the board itself holds the sender");
        found.expect("it was just seen")
    }

    /// Hears of every repair from now on.
    pub(crate) fn repairs(&self) -> watch::Receiver<u64> {
        self.repairs.subscribe()
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Waits until the phase is one that `wanted` names.
    pub(crate) async fn reach(&self, wanted: impl Fn(Phase) -> bool) -> Phase {
        let mut phases = self.phase.subscribe();
        *phases.wait_for(|phase| wanted(*phase)).await.expect("the board itself holds the sender")
    }
}

impl Counters {
    pub(crate) fn get(counter: &AtomicU64) -> u64 {
        counter.load(Ordering::Relaxed)
    }
}
