//! MemoryFigures of a memory volume, which other threads read.

use holdfast_memory::MemoryFigures;
use holdfast_ring::Errno;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::published_status::ServedCounts;

/// Status that a memory volume publishes.
#[derive(Debug)]
pub struct PublishedMemory {
    /// Published at every tick, never per request.
    shown: Mutex<(MemoryFigures, ServedCounts)>,
    /// Error number of a command of the device's queues that the kernel refused.
    refused: watch::Sender<Option<Errno>>,
}

impl Default for PublishedMemory {
    fn default() -> Self {
        Self { shown: Mutex::default(), refused: watch::Sender::new(None) }
    }
}

impl PublishedMemory {
    /// Figures of the volume and counts of its requests, as of the last tick.
    #[must_use]
    pub fn shown(&self) -> (MemoryFigures, ServedCounts) {
        *self.shown.lock()
    }

    /// Publishes new ones unless a reader holds the old ones: the ring thread does not wait.
    pub(super) fn show(&self, figures: MemoryFigures, served: ServedCounts) {
        if let Some(mut shown) = self.shown.try_lock() {
            *shown = (figures, served);
        }
    }

    /// Publishes that the kernel refused a command of the device's queues.
    pub(super) fn queue_refused(&self, errno: Errno) {
        self.refused.send_replace(Some(errno));
    }

    /// Ends once the kernel has refused a command of the device's queues.
    pub async fn refused(&self) -> Errno {
        let mut refused = self.refused.subscribe();
        let found = refused.wait_for(Option::is_some).await.expect("this holds the sender");
        found.expect("it was just seen")
    }
}
