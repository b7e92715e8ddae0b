//! Traits of what differs between a node and a simulated host.

use std::error::Error;
use std::io;
use std::time::Duration;

use holdfast_engine::durable_map::{FoundMap, Header};
use holdfast_engine::sector_map::Restore;
use holdfast_engine::settings::Pending;
use holdfast_types::Epoch;

use crate::UploadBatch;

/// Time and chance, which no code may take from elsewhere.
pub trait Environment: Send + Sync {
    /// Waits.
    fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send;

    /// Milliseconds of a clock that is never set: by it durations are measured.
    fn now_ms(&self) -> u64;

    /// Milliseconds since 1970, for people and names. The clock may be set at any time.
    fn unix_ms(&self) -> u64;

    /// Random bytes.
    fn random<const N: usize>(&self) -> [u8; N];
}

/// The local files of an attached volume, as its background work needs them.
pub trait Sides: Send + Sync {
    /// Reads and compresses a batch of an upload, with [`UploadBatch::pack`], and hands it back. Several are
    /// in progress at once.
    fn pack(&self, batch: UploadBatch) -> impl Future<Output = UploadBatch> + Send;

    /// Computes for some milliseconds, where that delays nothing else.
    fn compute<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = T> + Send;

    /// Keeps a log record through a crash, in place of the last one, in room that the attach took: the commit
    /// that lets data be evicted must not need room.
    ///
    /// # Errors
    /// The local disk's; the volume retries.
    fn store_pending(&self, pending: Pending) -> impl Future<Output = io::Result<()>> + Send;
}

/// The local files of a volume that is being attached. Nothing else uses them.
pub trait LocalState: Send + Sync {
    /// Error of the local files.
    type Error: Error + Send + Sync + 'static;
    /// The open files.
    type Files: Send + Sync;

    /// Syncs the durable map and reads it, part by part: it may be larger than memory. `None` when the volume
    /// was never here. What is read without the sync may be gone after the next power cut, and does not
    /// justify a write to the other slot.
    ///
    /// # Errors
    /// The local disk's, or that the map is damaged.
    fn read_map(&self) -> impl Future<Output = Result<Option<FoundMap>, Self::Error>> + Send;

    /// Preserves the files as the data that the writer of `epoch` never uploaded (invariant 6).
    ///
    /// # Errors
    /// The local disk's.
    fn preserve(&self, epoch: Epoch) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Discards the files: nothing in them is the volume's newest data.
    ///
    /// # Errors
    /// The local disk's.
    fn discard(&self) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Opens the files, makes or grows them for `sectors`, with a live map that holds the pages of the
    /// durable one as `restore` says, and all the room that such a volume needs. A failure here fences no
    /// writer.
    ///
    /// # Errors
    /// The local disk's, or that the map is damaged.
    fn open(
        &self,
        sectors: u64,
        restore: Option<Restore>,
    ) -> impl Future<Output = Result<Self::Files, Self::Error>> + Send;

    /// Writes the durable map's header as `generation` and syncs it.
    ///
    /// # Errors
    /// The local disk's.
    fn write_header(
        &self,
        files: &Self::Files,
        header: &Header,
        generation: u64,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;
}
