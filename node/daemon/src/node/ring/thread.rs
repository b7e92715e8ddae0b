//! Start of the ring threads. The process ends if one of them fails.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use holdfast_serve::limit::RING_MESSAGES;
use holdfast_serve::{RingThread, SharedFiles};
use tokio::sync::mpsc;

use crate::node::error::NodeError;
use crate::node::exit_on_panic::{ExitOnPanic, end_process};
use crate::node::ring::handle::RingHandle;

/// Starts a ring thread that reads from these shared files, and whose ring has `lock` open. At its end it
/// returns the last descriptor of its ring. Drop that only after the thread has ended: before Linux 6.15 the
/// kernel may hand a request to a living thread whose ring is being closed, and then waits for its answer
/// permanently (`docs/kernels.md`).
///
/// # Errors
/// [`NodeError::RingThread`], [`NodeError::RingSetup`].
pub(in crate::node) fn spawn(
    number: usize,
    files: SharedFiles<File>,
    lock: File,
) -> Result<(RingHandle, JoinHandle<Option<OwnedFd>>), NodeError> {
    let (inbox, messages) = mpsc::channel(RING_MESSAGES);
    let (ready, started) = sync_channel(1);
    let thread = std::thread::Builder::new().name(format!("ring-{number}")).spawn(move || {
        let made = RingThread::new(&files, &lock, messages);
        // Only the ring keeps it locked.
        drop(lock);
        match made {
            Ok(mut thread) => {
                drop(ready.send(Ok((thread.waker(), thread.figures()))));
                let _alone = ExitOnPanic("a ring thread");
                match thread.run() {
                    Ok(ring) => Some(ring),
                    Err(error) => {
                        // Devices stay quiesced; a restarted daemon recovers them.
                        tracing::error!(error = &error as &dyn std::error::Error, "the I/O ring failed");
                        end_process();
                    }
                }
            }
            Err(error) => {
                drop(ready.send(Err(error)));
                None
            }
        }
    });
    let thread = thread.map_err(NodeError::RingThread)?;
    let made = started.recv().map_err(|_panicked| NodeError::RingLost)?;
    let (waker, figures) = made.map_err(NodeError::RingSetup)?;
    Ok((RingHandle::new(inbox, waker, figures), thread))
}
