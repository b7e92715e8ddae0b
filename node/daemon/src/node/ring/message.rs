//! Messages to a ring thread, and its answers.

use std::fs::File;
use std::sync::Arc;

use holdfast_engine::event::{Errno, Event};
use holdfast_engine::settings::Settings;
use holdfast_ring::RingError;
use holdfast_ublk::{Device, QueueError};
use tokio::sync::{mpsc, oneshot};

use crate::node::local::live_map::LiveMap;
use crate::node::ring::label::Label;
use crate::node::ring::operation::{Queue, Ring, VolumeKey};
use crate::node::ring::planned::Planned;
use crate::node::ring::published_status::PublishedStatus;
use crate::node::ring::room::ReservedPlace;
use crate::node::ring::work::{BackgroundWork, ColdRead};
use crate::node::store::block_cache::SlabSlot;

/// Opens the queues of a device on a ring thread, for the volume of a key.
pub(in crate::node) type OpenQueues =
    Box<dyn FnOnce(&mut Ring, VolumeKey) -> Result<Vec<Queue>, QueueError> + Send>;

/// A volume for a ring thread.
pub(in crate::node) struct NewVolume {
    pub(in crate::node) planned: Planned,
    /// Of its log lines.
    pub(in crate::node) label: Arc<Label>,
    /// The live map's file, for allocating chunks.
    pub(in crate::node) live: File,
    pub(in crate::node) sides: [File; 2],
    pub(in crate::node) map: File,
    pub(in crate::node) work: mpsc::Sender<BackgroundWork>,
    pub(in crate::node) published: Arc<PublishedStatus>,
    /// Free again once the thread has released the volume.
    pub(in crate::node) place: ReservedPlace,
}

/// Reason why a ring thread did not do what it was asked to do with a volume.
#[derive(Debug, thiserror::Error)]
pub(in crate::node) enum RingRefusal {
    /// The volume was released before.
    #[error("it is not on its ring any more")]
    Gone,
    /// It is released once its file operations in flight have ended.
    #[error("it is being released from its ring")]
    Removing,
    /// The kernel has its queues.
    #[error("its queues are with the kernel")]
    Armed,
    #[error(transparent)]
    Queue(#[from] QueueError),
}

impl From<RingError> for RingRefusal {
    fn from(error: RingError) -> Self {
        Self::Queue(error.into())
    }
}

/// The way by which a ring thread answers.
pub(in crate::node) type Reply = oneshot::Sender<Result<(), RingRefusal>>;

/// A message to a ring thread.
pub(in crate::node) enum Message {
    Add {
        volume: Box<NewVolume>,
        done: oneshot::Sender<Result<VolumeKey, RingError>>,
    },
    /// Serves the queues of a volume's device from now on.
    Open {
        key: VolumeKey,
        device: Device,
        queues: OpenQueues,
        done: Reply,
    },
    /// Releases a stopped device, once all its tags are back.
    Close {
        key: VolumeKey,
        done: Reply,
    },
    /// Releases a volume whose queues are closed.
    Remove {
        key: VolumeKey,
        done: Reply,
    },
    /// Changes the settings of a volume, and shows them in effect.
    Configure {
        key: VolumeKey,
        settings: Settings,
        done: Reply,
    },
    /// Grows a volume, over a longer mapping of its live map. For a volume that is gone it is dropped, as are
    /// those below.
    Grow {
        key: VolumeKey,
        live_map: Box<LiveMap>,
        sectors: u64,
    },
    Event {
        key: VolumeKey,
        event: Event,
    },
    Cold {
        key: VolumeKey,
        read: Box<ColdRead>,
        slot: Result<SlabSlot, Errno>,
    },
    Tick,
    /// All volumes, also those that come later, commit soon while this is true.
    CommitSoon(bool),
    Leave,
}
