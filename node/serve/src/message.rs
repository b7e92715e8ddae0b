//! Messages to a ring thread and its answers.

use std::fs::File;
use std::sync::Arc;

use holdfast_engine::event::{Errno, Event};
use holdfast_engine::settings::RuntimeSettings;
use holdfast_ring::RingError;
use holdfast_ublk::{Device, QueueError};
use tokio::sync::{mpsc, oneshot};

use crate::io_limits::IoLimits;
use crate::label::Label;
use crate::live_map::LiveMap;
use crate::memory::new_volume::NewMemoryVolume;
use crate::operation::{VolumeKey, VolumeRing};
use crate::planned::Planned;
use crate::published_status::PublishedStatus;
use crate::volume_queue::VolumeQueue;
use crate::work::{BackgroundWork, ColdRead};
use holdfast_background::SlabBlock;

/// Function that opens the queues of a device on a ring thread, for the volume of a key.
pub type OpenQueues =
    Box<dyn FnOnce(&mut VolumeRing, VolumeKey) -> Result<Vec<VolumeQueue>, QueueError> + Send>;

/// A volume for a ring thread.
pub struct NewVolume {
    /// Its planner.
    pub planned: Planned,
    /// Its limits.
    pub limits: IoLimits,
    /// The label of its log lines.
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
    /// Reserved room on the ring, dropped once the thread has released the volume.
    pub place: Box<dyn Send>,
}

/// Reason why a ring thread refused a message about a volume.
#[derive(Debug, thiserror::Error)]
pub enum RingRefusal {
    /// The thread has released the volume.
    #[error("its ring thread has released it")]
    Gone,
    /// The thread releases the volume once its file operations in flight have ended.
    #[error("it is being released from its ring")]
    Removing,
    /// The volume's queues are still open.
    #[error("its queues are open")]
    Armed,
    /// A queue could not be opened or closed, or a file could not be removed from the ring.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

impl From<RingError> for RingRefusal {
    fn from(error: RingError) -> Self {
        Self::Queue(error.into())
    }
}

/// Channel by which a ring thread answers.
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
    /// Opens and serves the queues of a volume's device; a memory volume needs [`Arm`](Self::Arm) too.
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
    /// Offers the queues of a memory volume to the kernel. A separate message, so that no thread has armed
    /// queues if another one cannot open its own.
    Arm {
        /// The volume.
        key: VolumeKey,
        /// Receives the answer.
        done: Reply,
    },
    /// Releases a stopped device, once the kernel has returned all its tags.
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
    /// Changes the settings and limits of a volume, and publishes those in effect.
    Configure {
        /// The volume.
        key: VolumeKey,
        /// Its new settings.
        settings: RuntimeSettings,
        /// Its new limits.
        limits: IoLimits,
        /// Receives the answer.
        done: Reply,
    },
    /// Grows a volume with a longer mapping of its live map. For a volume that it has released, the thread
    /// drops this message and those below.
    Grow {
        /// The volume.
        key: VolumeKey,
        /// The longer mapping.
        live_map: Box<LiveMap>,
        /// Its new number of sectors.
        sectors: u64,
    },
    /// An event for the planner of a volume.
    Event {
        /// The volume.
        key: VolumeKey,
        /// The event.
        event: Event,
    },
    /// Ends the fetch of a block.
    Cold {
        /// The volume.
        key: VolumeKey,
        /// The part of a read that waited for it.
        read: Box<ColdRead>,
        /// The block in its slot, or the error of the fetch.
        found: Result<SlabBlock, Errno>,
    },
    /// Performs the work that depends on time.
    Tick,
    /// Makes all volumes, including later ones, commit soon, until the message is sent with false.
    CommitSoon(bool),
    /// Removes the limits of all volumes, including later ones: the host shuts down and must write its dirty
    /// memory.
    DropLimits,
    /// Leaves all requests to the successor and ends the thread.
    Leave,
}
