//! A memory volume on a ring thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_ring::Errno;
use holdfast_serve::{Message, PublishedMemory, RingRefusal, VolumeKey};
use holdfast_types::{SECTOR_BYTES, VolumeId};
use holdfast_ublk::Device;
use parking_lot::Mutex;

use super::local::{MemoryLocal, MemoryRecord};
use super::shape::{MemoryIdentity, MemoryShape};
use crate::node::device::kernel::Devices;
use crate::node::ring::handle::RingHandle;
use crate::node::run_blocking::blocking;
use crate::node::{Attached, NodeError};

/// A memory volume on a ring thread.
pub(super) struct PresentMemory {
    pub(super) volume: VolumeId,
    pub(super) local: MemoryLocal,
    /// Changes when it grows, once the ring thread serves the new shape.
    pub(super) identity: Mutex<MemoryIdentity>,
    /// The shape that its record has, from which a growth begins. It is ahead of that of `identity` where a
    /// growth failed after its record was written.
    pub(super) recorded: Mutex<MemoryShape>,
    /// Sectors of its device, which grows last.
    pub(super) device_sectors: AtomicU64,
    /// The record of its attach, with the size that it had then.
    pub(super) record: MemoryRecord,
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
            epoch: self.record.epoch,
            bytes: self.device_sectors.load(Ordering::Relaxed) * SECTOR_BYTES,
            displaced: None,
        }
    }

    /// Its shape.
    pub(super) fn shape(&self) -> MemoryShape {
        self.identity.lock().shape
    }

    /// Makes the device as large as the volume. Again it changes nothing.
    pub(super) async fn grow_device(
        self: &Arc<Self>,
        kernel: &Arc<dyn Devices>,
        device: Device,
    ) -> Result<(), NodeError> {
        let (kernel, present, sectors) = (Arc::clone(kernel), Arc::clone(self), self.shape().pages);
        blocking(move || {
            if present.device_sectors.load(Ordering::Relaxed) < sectors {
                kernel.resize(device, sectors)?;
                present.device_sectors.store(sectors, Ordering::Relaxed);
            }
            Ok(())
        })
        .await
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

    pub(super) fn refused(&self, why: RingRefusal) -> NodeError {
        let volume = self.volume.clone();
        match why {
            RingRefusal::Gone | RingRefusal::Removing => NodeError::NotOnRing(volume),
            RingRefusal::Armed => NodeError::StillArmed(volume),
            RingRefusal::Queue(error) => NodeError::Queue(error),
        }
    }
}
