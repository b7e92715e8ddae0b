//! What a volume asks of the world off its ring thread: uploads, log records, checkpoints, cold reads, attaches.
//!
//! Owns: the order of requests to the store and to local files, what is tried again and how long is waited in between.
//! Does not own: how a request is made. The store, the local files, time and chance are traits, so that the node daemon
//! and the simulation run the same code.
//! Runs on: whatever polls its futures; it knows no runtime.
//! On failure: work whose outcome the volume waits for is tried until it is done; a store that is away delays.

mod attach;
mod backoff;
mod cold;
mod line_limit;
mod local;
mod manifest;
#[cfg(test)]
mod scripted_time;
mod slots;
mod upload;
mod upload_memory;
mod work;

pub use attach::{AttachError, Preserved, Won, win};
pub use cold::{ColdError, ColdLines, Indexes, fetch, patiently};
pub use line_limit::LineLimit;
pub use local::{FoundMap, LocalState, Sides, TimeAndChance};
pub use manifest::load_manifest;
pub use slots::{Slot, SlotTable};
pub use upload::{BLOCK_ALIGNMENT, SegmentBuild, SideReader, Unreadable};
pub use upload_memory::{StoreKey, UploadMemory};
pub use work::{Background, Pools, Tidy, Work};
