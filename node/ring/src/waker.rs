//! Wake-up of the ring thread by any other thread.
#![allow(unsafe_code)] // eventfd(2) and write(2) on the file it made

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::RingError;

/// Wakes the thread that waits in [`Ring::submit_and_wait`](crate::Ring::submit_and_wait).
///
/// Wakes that arrive before the thread has handled the first count as one: put the message into its queue
/// first, then wake.
#[derive(Clone, Debug)]
pub struct Waker {
    shared: Arc<WakeEvent>,
}

#[derive(Debug)]
struct WakeEvent {
    event: File,
    pending: AtomicBool,
}

impl Waker {
    pub(crate) fn new() -> Result<Self, RingError> {
        // SAFETY: eventfd takes no pointers; its result is checked below.
        let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if raw < 0 {
            return Err(RingError::Eventfd(io::Error::last_os_error()));
        }
        // SAFETY: `raw` is a file descriptor that was just created and has no other owner.
        let event = File::from(unsafe { OwnedFd::from_raw_fd(raw) });
        Ok(Self { shared: Arc::new(WakeEvent { event, pending: AtomicBool::new(false) }) })
    }

    /// Ends the wait of the ring thread, or its next wait. Never blocks.
    pub fn wake(&self) {
        if self.shared.pending.swap(true, Ordering::AcqRel) {
            return;
        }
        // The ring never reads the counter, so each wake adds one to 64 bits: it cannot fill up, and a write
        // of eight bytes to an eventfd that has room cannot fail.
        let written = (&self.shared.event).write(&1u64.to_ne_bytes());
        debug_assert!(matches!(written, Ok(8)), "an eventfd takes a wake: {written:?}");
    }

    /// Re-arms the waker. The ring calls this before it hands out completions, so that it sees later wakes.
    pub(crate) fn acknowledge(&self) {
        self.shared.pending.swap(false, Ordering::AcqRel);
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.shared.event.as_raw_fd()
    }
}
