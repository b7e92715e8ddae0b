//! The virtual clock of a world, and the time of day on its hosts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_types::Millis;

/// A clock that the processes of a world can read.
#[derive(Default)]
pub(crate) struct Clock {
    now: Arc<AtomicU64>,
    /// The time of day on every host at zero of the clock, for processes started from here on.
    unix_ms_at_zero: u64,
}

impl Clock {
    pub(crate) fn now(&self) -> Millis {
        self.now.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, now: Millis) {
        self.now.store(now, Ordering::Relaxed);
    }

    /// Returns the counter of the clock, for a process.
    pub(crate) fn counter(&self) -> &Arc<AtomicU64> {
        &self.now
    }

    pub(crate) fn unix_ms_at_zero(&self) -> u64 {
        self.unix_ms_at_zero
    }

    pub(crate) fn set_time_of_day(&mut self, unix_ms_at_zero: u64) {
        self.unix_ms_at_zero = unix_ms_at_zero;
    }
}
