//! Traits for the differences between a node and a simulated host.

use std::error::Error;
use std::io;
use std::time::Duration;

use holdfast_engine::durable_map::{FoundMap, Header};
use holdfast_engine::sector_map::Restore;
use holdfast_engine::settings::Pending;
use holdfast_types::Epoch;

use crate::UploadBatch;

/// The only source of time and randomness for this code.
pub trait Environment: Send + Sync {
    /// Waits for `time`.
    fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send;

    /// Returns milliseconds of a monotonic clock, for durations.
    fn now_ms(&self) -> u64;

    /// Returns milliseconds since 1970, for display and names. The clock may be set at any time.
    fn unix_ms(&self) -> u64;

    /// Returns random bytes.
    fn random<const N: usize>(&self) -> [u8; N];
}

/// The local files of an attached volume, for its background work.
pub trait Sides: Send + Sync {
    /// Reads and compresses a batch of an upload, with [`UploadBatch::pack`], and returns it. Several may be
    /// in progress.
    fn pack(&self, batch: UploadBatch) -> impl Future<Output = UploadBatch> + Send;

    /// Runs a computation of some milliseconds without delaying other work.
    fn compute<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = T> + Send;

    /// Makes a log record crash-safe, replacing the last one, in space reserved by the attach: the commit
    /// that permits evicting data must not need space.
    ///
    /// # Errors
    /// The local disk's; the volume retries.
    fn store_pending(&self, pending: Pending) -> impl Future<Output = io::Result<()>> + Send;
}

/// The local files of a volume that is being attached, with exclusive access.
pub trait LocalState: Send + Sync {
    /// Error type of the local files.
    type Error: Error + Send + Sync + 'static;
    /// Type of the open files.
    type Files: Send + Sync;

    /// Syncs the durable map and reads it in parts, because it may be larger than memory. Returns `None` if
    /// the volume was never here. Data read without the sync may be lost in the next power cut, so no write
    /// to the other slot may depend on it.
    ///
    /// # Errors
    /// The local disk's, or the map is damaged.
    fn read_map(&self) -> impl Future<Output = Result<Option<FoundMap>, Self::Error>> + Send;

    /// Preserves the files as data that the writer of `epoch` never uploaded (invariant 6).
    ///
    /// # Errors
    /// The local disk's.
    fn preserve(&self, epoch: Epoch) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Discards the files, which contain none of the volume's newest data.
    ///
    /// # Errors
    /// The local disk's.
    fn discard(&self) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Opens the files, creates or grows them to `sectors`, with a live map of the durable map's pages
    /// selected by `restore`, and reserves all space that the volume needs. A failure here fences no writer.
    ///
    /// # Errors
    /// The local disk's, or the map is damaged.
    fn open(
        &self,
        sectors: u64,
        restore: Option<Restore>,
    ) -> impl Future<Output = Result<Self::Files, Self::Error>> + Send;

    /// Writes the durable map's header with `generation` and syncs it.
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
