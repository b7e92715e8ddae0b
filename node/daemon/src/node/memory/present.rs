//! A memory volume on a ring thread.

use std::sync::Arc;

use holdfast_ring::Errno;
use holdfast_serve::{Message, PublishedMemory, RingRefusal, VolumeKey};
use holdfast_types::{SECTOR_BYTES, VolumeId};
use holdfast_ublk::Device;

use super::local::MemoryLocal;
use super::shape::MemoryIdentity;
use crate::node::device::kernel::Devices;
use crate::node::ring::handle::RingHandle;
use crate::node::run_blocking::blocking;
use crate::node::{Attached, NodeError};

/// A memory volume on a ring thread.
pub(super) struct PresentMemory {
    pub(super) volume: VolumeId,
    pub(super) local: MemoryLocal,
    pub(super) identity: MemoryIdentity,
    /// Number of its attach.
    pub(super) epoch: u64,
    pub(super) ring: RingHandle,
    pub(super) key: VolumeKey,
    pub(super) published: Arc<PublishedMemory>,
}

impl PresentMemory {
    /// The volume with a device that serves its requests.
    pub(super) fn attached_by(&self, device: Device) -> Attached {
        Attached {
            device_path: device.block_path(),
            transport: device.transport(),
            epoch: self.epoch,
            bytes: self.identity.shape.pages * SECTOR_BYTES,
            displaced: None,
        }
    }

    /// Arms the queues of a device that was added, or whose recovery was begun.
    pub(super) async fn arm(&self, kernel: &Arc<dyn Devices>, device: Device) -> Result<(), NodeError> {
        let kernel = Arc::clone(kernel);
        let queues = blocking(move || Ok(kernel.open(device)?)).await?;
        let opened = self.ring.call(|done| Message::Open { key: self.key, device, queues, done }).await?;
        opened.map_err(|why| self.refused(why))
    }

    /// The outcome of a command that waits for the device's queues, or the refusal of those by the kernel.
    pub(super) async fn unless_refused(
        &self,
        device: Device,
        command: impl Future<Output = Result<(), NodeError>>,
    ) -> Result<(), NodeError> {
        let refused = |source: Errno| NodeError::QueueRefused { id: device.id(), source };
        tokio::select! {
            ended = command => ended,
            source = self.published.refused() => Err(refused(source)),
        }
    }

    /// Takes the queues of a stopped device from the ring. Again it changes nothing.
    pub(super) async fn close(&self) -> Result<(), NodeError> {
        match self.ring.call(|done| Message::Close { key: self.key, done }).await? {
            // A detach that failed later took it off the ring.
            Ok(()) | Err(RingRefusal::Gone) => Ok(()),
            Err(why @ (RingRefusal::Removing | RingRefusal::Armed | RingRefusal::Queue(_))) => {
                Err(self.refused(why))
            }
        }
    }

    /// Takes the volume off its ring, which unmaps its files. Again it changes nothing.
    pub(super) async fn leave_ring(&self) -> Result<(), NodeError> {
        match self.ring.call(|done| Message::Remove { key: self.key, done }).await? {
            Ok(()) | Err(RingRefusal::Gone) => Ok(()),
            Err(why @ (RingRefusal::Removing | RingRefusal::Armed | RingRefusal::Queue(_))) => {
                Err(self.refused(why))
            }
        }
    }

    fn refused(&self, why: RingRefusal) -> NodeError {
        let volume = self.volume.clone();
        match why {
            RingRefusal::Gone | RingRefusal::Removing => NodeError::NotOnRing(volume),
            RingRefusal::Armed => NodeError::StillArmed(volume),
            RingRefusal::Queue(error) => NodeError::Queue(error),
        }
    }
}
