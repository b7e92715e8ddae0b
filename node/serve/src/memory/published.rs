//! Figures of a memory volume, which other threads read.

use std::sync::atomic::{AtomicBool, Ordering};

use holdfast_memory::MemoryFigures;
use holdfast_ring::KernelErrno;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::published_status::ServedCounts;

/// Status that a memory volume publishes.
#[derive(Debug)]
pub struct PublishedMemory {
    /// Figures of the volume, published at every tick, never per request.
    figures: Mutex<MemoryFigures>,
    /// Counts of requests, also published at every tick, by number of the ring thread among those of the
    /// volume.
    served: Box<[Mutex<ServedCounts>]>,
    /// Error number of a command of the device's queues that the kernel refused.
    refused: watch::Sender<Option<KernelErrno>>,
    has_device_ended: AtomicBool,
}

impl PublishedMemory {
    /// Creates the status of a volume that `threads` ring threads serve.
    #[must_use]
    pub fn new(threads: u16) -> Self {
        let served = (0..threads).map(|_| Mutex::default()).collect();
        Self {
            figures: Mutex::default(),
            served,
            refused: watch::Sender::new(None),
            has_device_ended: AtomicBool::default(),
        }
    }

    /// Returns the figures of the volume, as of the last tick.
    #[must_use]
    pub fn figures(&self) -> MemoryFigures {
        *self.figures.lock()
    }

    /// Returns the counts of its requests, as of the last tick.
    #[must_use]
    pub fn served(&self) -> ServedCounts {
        self.served.iter().fold(ServedCounts::default(), |sum, served| {
            let one = *served.lock();
            let mut latencies = sum.latencies;
            latencies.merge(&one.latencies);
            ServedCounts {
                reads: sum.reads + one.reads,
                writes: sum.writes + one.writes,
                flushes: sum.flushes + one.flushes,
                discards: sum.discards + one.discards,
                read_bytes: sum.read_bytes + one.read_bytes,
                written_bytes: sum.written_bytes + one.written_bytes,
                errors: sum.errors + one.errors,
                latencies,
                // A memory volume has no other counts.
                ..sum
            }
        })
    }

    /// Publishes the figures of the volume, unless another thread is reading the old ones: a ring thread does
    /// not wait.
    pub(super) fn show_figures(&self, figures: impl FnOnce() -> MemoryFigures) {
        if let Some(mut shown) = self.figures.try_lock() {
            *shown = figures();
        }
    }

    /// Publishes the figures of a volume that grew.
    pub fn grew(&self, figures: impl FnOnce() -> MemoryFigures) {
        let mut shown = self.figures.lock();
        *shown = figures();
    }

    /// Publishes the counts of a ring thread, in the same way.
    pub(super) fn show_served(&self, thread: u16, served: ServedCounts) {
        if let Some(mut shown) = self.served[usize::from(thread)].try_lock() {
            *shown = served;
        }
    }

    /// Publishes that the volume's device was stopped, during a detach or otherwise.
    pub fn device_ended(&self) {
        self.has_device_ended.store(true, Ordering::Relaxed);
    }

    /// Returns true once the volume's device was stopped.
    #[must_use]
    pub fn has_device_ended(&self) -> bool {
        self.has_device_ended.load(Ordering::Relaxed)
    }

    /// Publishes that the kernel refused a command of the device's queues.
    pub(super) fn queue_refused(&self, errno: KernelErrno) {
        self.refused.send_replace(Some(errno));
    }

    /// Waits until the kernel has refused a command of the device's queues.
    pub async fn refused(&self) -> KernelErrno {
        let mut refused = self.refused.subscribe();
        let errno = refused.wait_for(Option::is_some).await.expect("this value holds the sender");
        errno.expect("it was just seen")
    }
}
