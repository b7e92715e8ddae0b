//! Compressors of a node: the number of block batches read and compressed for uploads in parallel.
//!
//! Owns: the buffers and the state of each compressor.
//! Does not own: the memory of their output, which belongs to the upload (`upload_memory.rs`), and the
//! threads.
//! Invariants: permits bound the batches packed in parallel, except small uploads, and the idle compressors.
//! A compressor is free once its batch is packed, even while its upload waits for its store. The permit of a
//! batch is free while its sectors are searched for unreadable ones.
//! On failure: the compressor of a panicked batch is not used again.

use std::sync::Arc;
use std::thread;

use holdfast_format::segment::SegmentBuilder;
use holdfast_types::BLOCK_BYTES;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

#[repr(C, align(4096))]
pub(crate) struct BlockBuffer(pub(crate) [u8; BLOCK_BYTES as usize]);

/// A compressor, with a buffer for one block.
pub(crate) struct Compressor {
    pub(crate) buffer: Box<BlockBuffer>,
    /// Empty between two batches.
    pub(crate) builder: SegmentBuilder,
}

impl Compressor {
    fn new() -> Self {
        let buffer = Box::new(BlockBuffer([0; BLOCK_BYTES as usize]));
        Self { buffer, builder: SegmentBuilder::default() }
    }
}

/// Permit to pack a batch.
pub(crate) type PackPermit = OwnedSemaphorePermit;

/// The compressors shared by the uploads of a node.
pub struct Compressors {
    /// Maximum number in use at once.
    count: usize,
    permits: Arc<Semaphore>,
    spare: Mutex<Vec<Compressor>>,
}

impl Compressors {
    /// Creates `count` permits, at least one.
    pub fn new(count: usize) -> Self {
        let count = count.max(1);
        Self { count, permits: Arc::new(Semaphore::new(count)), spare: Mutex::default() }
    }

    /// Returns the maximum number in use at once.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Borrows a compressor, waiting until one is free.
    pub(crate) async fn borrow(self: &Arc<Self>) -> Borrowed {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        self.borrowed(Some(permit.expect("the semaphore is never closed")))
    }

    /// Borrows a compressor if one is free.
    pub(crate) fn try_borrow(self: &Arc<Self>) -> Option<Borrowed> {
        Some(self.borrowed(Some(Arc::clone(&self.permits).try_acquire_owned().ok()?)))
    }

    /// Borrows a compressor without waiting: for a small upload, and for the search for unreadable sectors.
    pub(crate) fn borrow_at_once(self: &Arc<Self>) -> Borrowed {
        self.borrowed(None)
    }

    fn borrowed(self: &Arc<Self>, permit: Option<PackPermit>) -> Borrowed {
        let compressor = self.spare.lock().pop().unwrap_or_else(Compressor::new);
        Borrowed { compressors: Arc::clone(self), compressor: Some(compressor), permit }
    }
}

/// A compressor in use, returned when this is dropped.
pub(crate) struct Borrowed {
    compressors: Arc<Compressors>,
    /// `None` once this is dropped.
    compressor: Option<Compressor>,
    permit: Option<PackPermit>,
}

impl Borrowed {
    /// Returns the compressor, and the permit, which may be released before the compressor.
    pub(crate) fn with_permit(&mut self) -> (&mut Compressor, &mut Option<PackPermit>) {
        (self.compressor.as_mut().expect("it is in use"), &mut self.permit)
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // The compressor would contain half of a batch.
        if thread::panicking() {
            return;
        }
        let mut spare = self.compressors.spare.lock();
        if spare.len() < self.compressors.count {
            spare.extend(self.compressor.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// Regression: it was returned with the frames of the panicked batch.
    #[test]
    fn a_compressor_that_panicked_is_not_used_again() {
        let compressors = Arc::new(Compressors::new(1));
        drop(compressors.try_borrow().expect("it is free"));
        assert_eq!(compressors.spare.lock().len(), 1);
        let borrowed = compressors.try_borrow().expect("it is free");
        let panicked = catch_unwind(AssertUnwindSafe(move || {
            let _borrowed = borrowed;
            panic!("in the middle of a batch");
        }));
        assert!(panicked.is_err() && compressors.spare.lock().is_empty());
        assert!(compressors.try_borrow().is_some(), "its permit is free");
    }
}
