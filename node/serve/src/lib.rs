//! A ring thread, which serves the devices of many volumes on one io_uring.
//!
//! *Owns*: the link between planner and device: it turns the kernel's requests and the ring's completions
//! into events for a volume's planner, and the planner's actions into operations of the ring.
//! *Does not own*: the threads themselves, the room on them, files by path, the object store. The thread
//! sends background work through a channel and receives its results as messages.
//! *Runs on*: one thread per ring ([`RingThread`]); messages, published status and figures cross threads.
//! *On failure*: a broken ring ends [`RingThread::turn`] with its error; the devices stay quiesced.

pub mod clock;
mod figures;
mod idle_ticks;
mod io_limits;
mod label;
pub mod latency;
pub mod limit;
mod live_map;
mod memory;
mod message;
mod operation;
mod planned;
mod published_status;
mod ring_thread;
mod served;
mod throttle;
mod token_bucket;
mod volume_queue;
mod volume_table;
mod work;
mod writer_state;

pub use figures::{RingFigures, RingStatus};
pub use io_limits::{IoLimits, LimitStatus};
pub use label::Label;
pub use live_map::LiveMap;
pub use memory::{MemoryFiles, NewMemoryVolume, PublishedMemory, QueueShare};
pub use message::{Message, NewVolume, OpenQueues, Reply, RingRefusal};
pub use operation::{FileOperation, InFlight, VolumeKey, VolumeRing};
pub use planned::{Planned, Start};
pub use published_status::{PublishedStatus, RingReport, ServedCounts, SnapshotAnswer};
pub use ring_thread::RingThread;
pub use served::SharedFiles;
pub use volume_queue::VolumeQueue;
pub use work::{BackgroundWork, ColdRead, UsedBlocks};
pub use writer_state::WriterState;

#[cfg(test)]
mod logged;
