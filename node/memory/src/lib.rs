//! Memory volumes: pages of 4 KiB, compressed in memory that outlives the process.
//!
//! Owns: the table of pages ([`word`]), the pool of slots ([`pool`]), the codecs ([`codec`]), the order of
//! stores by which a page is replaced (`stored_pages.rs`), the lock that the threads of a volume's queues
//! share ([`volume`]), and the order of requests during disk operations for some of them ([`SpillRequests`]).
//! [`head`], [`word`] and `docs/formats/memory-volume.md` show the byte layouts.
//! Does not own: the memory itself ([`PageMemory`]), files, devices, threads, time.
//! Runs on: the ring threads of the volume's queues.
//! Invariants: the process may end between any two stores; its successor then finds each page whole, as
//! before the write or as after it, and no slot shared or lost.
//! On failure: a write without room fails and leaves its page unchanged.

pub mod codec;
mod compaction;
mod disk_run;
mod figures;
mod growth;
pub mod head;
mod memory;
mod page_error;
pub mod pool;
mod same_filled;
mod spill_requests;
mod stored_pages;
pub mod volume;
pub mod word;

pub use codec::{Codecs, PageCodec};
pub use disk_run::{DiskOperation, DiskRun};
pub use figures::MemoryFigures;
pub use growth::MemoryGrowth;
pub use head::{HEAD_BYTES, HeadError, TableHead};
pub use memory::{HeapMemory, NoRoom, PageMemory};
pub use page_error::{PageError, RecoverError};
pub use spill_requests::{SpillEnd, SpillRequest, SpillRequests};
pub use volume::MemoryVolume;

/// Bytes of a page: the unit of the table, and the logical block of the device.
pub const PAGE_BYTES: usize = 4096;
