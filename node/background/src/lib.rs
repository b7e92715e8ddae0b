//! Background work of a volume, off its ring thread: uploads, log records, checkpoints, cold reads, attaches.
//!
//! Owns: the order of requests to the store and to local files, the choice of requests to retry, and the
//! delays in between.
//! Does not own: sending requests. The store, the local files, time and randomness are traits, so that the
//! node daemon and the simulation run the same code.
//! Runs on: any executor that polls its futures; it does not depend on a runtime.
//! On failure: work that the volume waits for is retried until it succeeds; an unreachable store delays it.

mod attach;
mod backoff;
mod cold;
mod compressors;
mod fetches;
mod first_reads;
mod joined_gets;
mod known_blocks;
mod line_limit;
mod local;
mod manifest;
mod merge;
mod merge_turns;
#[cfg(test)]
mod scripted_time;
mod slab_slot;
mod slots;
mod streams;
mod upload;
mod upload_memory;
mod upload_parts;
mod work;

pub use attach::{Acquired, AttachError, Preserved, acquire, is_kept};
pub use cold::{ColdError, ColdLines, retry_while_unavailable};
pub use compressors::Compressors;
pub use fetches::{BlockReader, Fetches, StoredFrames};
pub use first_reads::FirstReads;
pub use joined_gets::JoinedGets;
pub use known_blocks::{KnownBlocks, SlabBlock};
pub use line_limit::{LineLimit, Rest};
pub use local::{Environment, LocalState, Sides};
pub use manifest::load_manifest;
pub use merge_turns::MergeTurns;
pub use slab_slot::{SlabSlot, WeakSlabSlot};
pub use slots::{AheadCounts, NoSlot, OldCounts, Slot, SlotTable, Unkept};
pub use streams::{ColdPart, MAX_WINDOW, PassedReads, PassedStreams, Streams};
pub use upload::{BLOCK_ALIGNMENT, SideReader, UnreadableSectors, UploadBatch};
pub use upload_memory::{StoreKey, UploadMemory};
pub use work::{Background, Pools, Tidy, Work};
