//! Messages to a ring thread, and its answers.

use std::fs::File;
use std::sync::Arc;

use holdfast_engine::event::{Errno, Event};
use holdfast_engine::settings::Settings;
use holdfast_ring::RingError;
use holdfast_ublk::{Device, QueueError};
use tokio::sync::{mpsc, oneshot};

use crate::io_limits::IoLimits;
use crate::label::Label;
use crate::live_map::LiveMap;
use crate::memory::new_volume::NewMemoryVolume;
use crate::operation::{Ring, VolumeKey};
use crate::planned::Planned;
use crate::published_status::PublishedStatus;
use crate::volume_queue::VolumeQueue;
use crate::work::{BackgroundWork, ColdRead};
use holdfast_background::SlabBlock;

/// Opens the queues of a device on a ring thread, for the volume of a key.
pub type OpenQueues = Box<dyn FnOnce(&mut Ring, VolumeKey) -> Result<Vec<VolumeQueue>, QueueError> + Send>;

/// A volume for a ring thread.
pub struct NewVolume {
    /// Its planner.
    pub planned: Planned,
    /// Its limits.
    pub limits: IoLimits,
    /// The name in its log lines.
    pub label: Arc<Label>,
    /// The live map's file, for allocating chunks.
    pub live: File,
    /// Its data files, A and B.
    pub sides: [File; 2],
    /// The durable map.
    pub map: File,
    /// Receives its background work.
    pub work: mpsc::Sender<BackgroundWork>,
    /// Receives its status.
    pub published: Arc<PublishedStatus>,
    /// Reserved room on the ring: dropped once the thread has released the volume.
    pub place: Box<dyn Send>,
}

/// Reason why a ring thread did not do what it was asked to do with a volume.
#[derive(Debug, thiserror::Error)]
pub enum RingRefusal {
    /// The volume was released before.
    #[error("it is not on its ring any more")]
    Gone,
    /// It is released once its file operations in flight have ended.
    #[error("it is being released from its ring")]
    Removing,
    /// The kernel has its queues.
    #[error("its queues are with the kernel")]
    Armed,
    /// A queue could not be opened or closed, or a file not be taken off the ring.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

impl From<RingError> for RingRefusal {
    fn from(error: RingError) -> Self {
        Self::Queue(error.into())
    }
}

/// The way by which a ring thread answers.
pub type Reply = oneshot::Sender<Result<(), RingRefusal>>;

/// A message to a ring thread.
pub enum Message {
    /// Takes a volume onto the thread.
    Add {
        /// The volume.
        volume: Box<NewVolume>,
        /// Receives the answer.
        done: oneshot::Sender<Result<VolumeKey, RingError>>,
    },
    /// Takes a memory volume onto the thread.
    AddMemory {
        /// The volume.
        volume: Box<NewMemoryVolume>,
        /// Receives the answer.
        done: oneshot::Sender<Result<VolumeKey, RingError>>,
    },
    /// Serves the queues of a volume's device from now on; those of a memory volume once they are armed.
    Open {
        /// The volume.
        key: VolumeKey,
        /// Its device.
        device: Device,
        /// Opens its queues.
        queues: OpenQueues,
        /// Receives the answer.
        done: Reply,
    },
    /// Offers the queues of a memory volume to the kernel. Apart, so that no thread has armed queues where
    /// another one cannot open its own.
    Arm {
        /// The volume.
        key: VolumeKey,
        /// Receives the answer.
        done: Reply,
    },
    /// Releases a stopped device, once all its tags are back.
    Close {
        /// The volume.
        key: VolumeKey,
        /// Receives the answer.
        done: Reply,
    },
    /// Releases a volume whose queues are closed.
    Remove {
        /// The volume.
        key: VolumeKey,
        /// Receives the answer.
        done: Reply,
    },
    /// Changes the settings and limits of a volume, and shows them in effect.
    Configure {
        /// The volume.
        key: VolumeKey,
        /// Its settings from then on.
        settings: Settings,
        /// Its limits from then on.
        limits: IoLimits,
        /// Receives the answer.
        done: Reply,
    },
    /// Grows a volume, over a longer mapping of its live map. For a volume that is gone it is dropped, as are
    /// those below.
    Grow {
        /// The volume.
        key: VolumeKey,
        /// The longer mapping.
        live_map: Box<LiveMap>,
        /// Sectors that it is to have.
        sectors: u64,
    },
    /// An event for the planner of a volume.
    Event {
        /// The volume.
        key: VolumeKey,
        /// The event.
        event: Event,
    },
    /// A block was fetched, or could not be.
    Cold {
        /// The volume.
        key: VolumeKey,
        /// The part of a read that waited for it.
        read: Box<ColdRead>,
        /// Its block in a slot, or why it is in none.
        found: Result<SlabBlock, Errno>,
    },
    /// Time passed.
    Tick,
    /// All volumes, also those that come later, commit soon while this is true.
    CommitSoon(bool),
    /// No volume has limits from now on, also none that comes later: the host ends, and what it has in memory
    /// is to be written.
    DropLimits,
    /// Leaves all requests to the successor and ends the thread.
    Leave,
}
