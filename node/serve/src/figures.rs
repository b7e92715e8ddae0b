//! Figures of a ring thread, which other threads read.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::operation::VolumeRing;

/// Figures of a ring thread since it was started.
#[derive(Debug, Default)]
pub struct RingFigures {
    max_messages: AtomicU64,
    full_inbox: AtomicU64,
    late_completions: AtomicU64,
    max_operations: AtomicU64,
    unregistered: AtomicU64,
    busy_ticks: AtomicU64,
}

impl RingFigures {
    /// Counts a tick at which a volume was busy, or had been since the previous tick.
    pub(crate) fn was_busy(&self) {
        self.busy_ticks.fetch_add(1, Ordering::Relaxed);
    }

    /// Publishes the counts of the ring thread and its ring.
    pub(crate) fn show(&self, late_completions: u64, ring: &VolumeRing) {
        self.late_completions.store(late_completions, Ordering::Relaxed);
        self.max_operations.store(ring.max_operations().into(), Ordering::Relaxed);
        self.unregistered.store(ring.unregistered(), Ordering::Relaxed);
    }

    /// Records the number of messages that wait for the thread.
    pub fn messages_wait(&self, messages: usize) {
        self.max_messages.fetch_max(messages as u64, Ordering::Relaxed);
    }

    /// Counts a full inbox.
    pub fn inbox_was_full(&self) {
        self.full_inbox.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the current figures.
    pub fn status(&self) -> RingStatus {
        let Self { max_messages, full_inbox, late_completions, max_operations, unregistered, busy_ticks } =
            self;
        RingStatus {
            max_messages: max_messages.load(Ordering::Relaxed),
            full_inbox: full_inbox.load(Ordering::Relaxed),
            late_completions: late_completions.load(Ordering::Relaxed),
            max_operations: max_operations.load(Ordering::Relaxed),
            unregistered: unregistered.load(Ordering::Relaxed),
            busy_ticks: busy_ticks.load(Ordering::Relaxed),
        }
    }
}

/// Figures of a ring thread at a point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RingStatus {
    /// Largest number of messages that waited for the thread at a time.
    pub max_messages: u64,
    /// Times that the inbox was full, and the sender of a message waited or dropped it.
    pub full_inbox: u64,
    /// Completions of an ended operation, a closed queue or a released volume; each is dropped and indicates
    /// a bug.
    pub late_completions: u64,
    /// Largest number of operations in flight at a time.
    pub max_operations: u64,
    /// Requests of devices with zero copy that were copied: another device's request had the buffer, or
    /// memory was short.
    pub unregistered: u64,
    /// Ticks at which a volume with a store was busy, or had been since the previous tick.
    pub busy_ticks: u64,
}
