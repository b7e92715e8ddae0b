//! A memory volume on its ring threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_memory::{MemoryGrowth, MemoryVolume};
use holdfast_ring::KernelErrno;
use holdfast_serve::{MemoryFiles, Message, OpenQueues, PublishedMemory, Reply, RingRefusal, VolumeKey};
use holdfast_types::{SECTOR_BYTES, VolumeId};
use holdfast_ublk::Device;
use parking_lot::Mutex;

use super::local::{MemoryLocal, MemoryRecord};
use super::shape::{MemoryIdentity, MemoryShape};
use crate::node::device::kernel::Devices;
use crate::node::ring::handle::RingHandle;
use crate::node::run_blocking::blocking;
use crate::node::{Attached, NodeError};

/// A ring thread that has queues of a volume.
pub(super) struct ServingThread {
    pub(super) ring: RingHandle,
    /// The volume's key on that thread.
    pub(super) key: VolumeKey,
}

/// A memory volume on its ring threads.
pub(super) struct PresentMemory {
    pub(super) volume: VolumeId,
    pub(super) local: MemoryLocal,
    /// Changes with a growth, once the new shape is served.
    pub(super) identity: Mutex<MemoryIdentity>,
    /// The recorded shape, from which a growth starts. It is ahead of that of `identity` after a growth that
    /// failed once its record was written.
    pub(super) recorded: Mutex<MemoryShape>,
    /// Sectors of its device, which grows last.
    pub(super) device_sectors: AtomicU64,
    /// The record of its attach, with the size at that time.
    pub(super) record: MemoryRecord,
    /// The threads that share the queues of its device, in this order.
    pub(super) threads: Vec<ServingThread>,
    /// Its pages, until it has left its rings.
    pub(super) pages: Mutex<Option<Arc<MemoryVolume<MemoryFiles>>>>,
    pub(super) published: Arc<PublishedMemory>,
}

impl PresentMemory {
    /// Returns the volume as attached through this device.
    pub(super) fn attached_by(&self, device: Device) -> Attached {
        Attached {
            device_path: device.block_path(),
            transport: device.transport(),
            epoch: self.record.epoch,
            bytes: self.device_sectors.load(Ordering::Relaxed) * SECTOR_BYTES,
            displaced: None,
        }
    }

    /// Returns its shape.
    pub(super) fn shape(&self) -> MemoryShape {
        self.identity.lock().shape
    }

    /// Grows the device to the volume's size. Repeating it is a no-op.
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

    /// Opens the queues of a new device, or of one in recovery, on all threads, and arms them. If a thread
    /// does not open its queues, all threads close theirs. If one does not arm them, all queues stay open.
    pub(super) async fn arm(&self, kernel: &Arc<dyn Devices>, device: Device) -> Result<(), NodeError> {
        let (kernel, threads) = (Arc::clone(kernel), u16::try_from(self.threads.len()));
        let threads = threads.expect("a device has few queues");
        let queues = blocking(move || Ok(kernel.open(device, threads)?)).await?;
        if let Err(error) = self.open(device, queues).await {
            // A retry opens the device again, which the kernel permits to one process at a time.
            self.close().await?;
            return Err(error);
        }
        for ServingThread { ring, key } in &self.threads {
            let armed = ring.call(|done| Message::Arm { key: *key, done }).await?;
            armed.map_err(|why| self.refused(why))?;
        }
        Ok(())
    }

    /// Opens each thread's queues. None is armed yet.
    async fn open(&self, device: Device, queues: Vec<OpenQueues>) -> Result<(), NodeError> {
        for (ServingThread { ring, key }, queues) in self.threads.iter().zip(queues) {
            let opened = ring.call(|done| Message::Open { key: *key, device, queues, done }).await?;
            opened.map_err(|why| self.refused(why))?;
        }
        Ok(())
    }

    /// Grows the volume. Returns its files as previously mapped; `None` if it has left its rings.
    pub(super) fn grow(&self, growth: MemoryGrowth<MemoryFiles>) -> Option<MemoryFiles> {
        let pages = self.pages.lock().clone()?;
        let former = pages.grow(growth);
        self.published.grew(|| pages.figures());
        Some(former)
    }

    /// Returns the result of a command that depends on the device's queues, or their rejection by the kernel.
    pub(super) async fn unless_refused(
        &self,
        device: Device,
        command: impl Future<Output = Result<(), NodeError>>,
    ) -> Result<(), NodeError> {
        let refused = |source: KernelErrno| NodeError::QueueRefused { id: device.id(), source };
        tokio::select! {
            ended = command => ended,
            source = self.published.refused() => Err(refused(source)),
        }
    }

    /// Closes the queues of a stopped device on its rings. Repeating it is a no-op.
    pub(super) async fn close(&self) -> Result<(), NodeError> {
        self.end_on_each(|key, done| Message::Close { key, done }).await
    }

    /// Removes the volume from its rings, and unmaps its files. Repeating it is a no-op.
    pub(super) async fn leave_rings(&self) -> Result<(), NodeError> {
        self.end_on_each(|key, done| Message::Remove { key, done }).await?;
        // Unmapping a lot of content takes long.
        let pages = self.pages.lock().take();
        blocking(move || {
            drop(pages);
            Ok(())
        })
        .await
    }

    /// Sends each thread a message that ends its work for the volume, even after an error of another thread.
    async fn end_on_each(&self, message: impl Fn(VolumeKey, Reply) -> Message) -> Result<(), NodeError> {
        let mut ended = Ok(());
        for ServingThread { ring, key } in &self.threads {
            let one = match ring.call(|done| message(*key, done)).await {
                // An earlier detach removed it from the ring and failed afterwards.
                Ok(Ok(()) | Err(RingRefusal::Gone)) => Ok(()),
                Ok(Err(why)) => Err(self.refused(why)),
                Err(lost) => Err(lost),
            };
            ended = ended.and(one);
        }
        ended
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
