//! Attaches a memory volume: place on a ring thread, files, record, device, in this order.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use holdfast_crds::ByteSize;
use holdfast_memory::pool::SLAB_BYTES;
use holdfast_serve::{Label, Message, NewMemoryVolume, PublishedMemory, QueueShare};
use holdfast_service::chain;
use holdfast_types::{Epoch, VolumeId};
use holdfast_ublk::{Device, DeviceSpec};
use parking_lot::Mutex;

use super::NEEDED;
use super::detach::delete_device;
use super::local::{MemoryLocal, MemoryRecord, OpenedMemory};
use super::present::{PresentMemory, ServingThread};
use super::room::check_room;
use super::shape::{
    DEPTH, MAX_IO_BYTES, MAX_ZERO_BYTES, MOST_QUEUES, MemoryAttach, MemoryIdentity, MemoryShape,
};
use super::spill_room::check_spill_room;
use super::table::{MemoryState, OthersMost, SpillBytes};
use crate::node::exit_on_panic::ExitOnPanic;
use crate::node::local::file::random;
use crate::node::ring::room::RingNeed;
use crate::node::run_blocking::blocking;
use crate::node::volume::device::or_gone;
use crate::node::{Attached, Node, NodeConfig, NodeError};

impl Node {
    /// Attaches a memory volume, all zeros, and returns its device, ready for use. For an attached one,
    /// returns the existing device.
    ///
    /// # Errors
    /// [`NodeError::Size`]; [`NodeError::Busy`]; [`NodeError::RingsFull`]; [`NodeError::MemoryLimit`];
    /// [`NodeError::MemorySpill`]; [`NodeError::MemorySpillRoom`]; [`NodeError::MemoryRoom`];
    /// [`NodeError::MemoryLeft`]: the volume is not attached. [`NodeError::MemoryDiffers`] if it is attached
    /// with another size, limit or codec.
    #[tracing::instrument(name = "attach_memory", skip_all, fields(volume = %request.volume, device))]
    pub(crate) async fn attach_memory(&self, request: MemoryAttach) -> Result<Attached, NodeError> {
        let _alone = ExitOnPanic("an attach of a memory volume");
        let volume = request.volume.clone();
        let shape = MemoryShape::of(&request)?;
        if let Some((attached, device)) = self.0.memory.reserve(&volume, &shape)? {
            self.check_device(&volume, device).await?;
            return Ok(attached);
        }
        // Files of this name may exist from another attach.
        if let Err(error) = self.check_memory_name(&volume).await {
            self.0.memory.forget(&volume);
            return Err(error);
        }
        let attached = self.try_attach_memory(request, shape).await;
        if attached.is_err() && !self.0.memory.is_stopping(&volume) {
            // The error was logged; the caller gets that of the attach.
            let _removed = self.abandon_memory(&volume).await;
        }
        attached
    }

    /// Fails if this name, or its files, belong to another volume. An attach of an object store's volume
    /// checks this after it has reserved its name, too: of two concurrent ones, at least one sees the other.
    async fn check_memory_name(&self, volume: &VolumeId) -> Result<(), NodeError> {
        if self.0.volumes.contains(volume) {
            return Err(NodeError::Busy { volume: volume.clone(), doing: "attached from an object store" });
        }
        self.refuse_left_memory(volume).await
    }

    /// Fails if the maximum of the volume rises from `from` to `to`, and exceeds the node's limits,
    /// considering the other volumes. Of two concurrent attaches, each counts the other.
    pub(super) fn check_memory_limits(
        &self,
        volume: &VolumeId,
        (from, to): (Option<&MemoryShape>, &MemoryShape),
        others: OthersMost,
    ) -> Result<(), NodeError> {
        let NodeConfig { memory_volumes_bytes, memory_spill_bytes, .. } = self.0.config;
        let has = |of: fn(&MemoryShape) -> u64| from.map_or(0, of);
        let (max_bytes, left_bytes) =
            (to.max_bytes(), memory_volumes_bytes.saturating_sub(others.memory_bytes));
        if max_bytes > left_bytes.max(has(MemoryShape::max_bytes)) {
            return Err(NodeError::MemoryLimit {
                volume: volume.clone(),
                most: ByteSize(max_bytes).rounded(),
                left: ByteSize(left_bytes).rounded(),
                limit: ByteSize(memory_volumes_bytes),
            });
        }
        let (max_bytes, left_bytes) =
            (to.spill_bytes(), memory_spill_bytes.saturating_sub(others.spill_bytes));
        if max_bytes > left_bytes.max(has(MemoryShape::spill_bytes)) {
            return Err(NodeError::MemorySpill {
                volume: volume.clone(),
                most: ByteSize(max_bytes).rounded(),
                left: ByteSize(left_bytes).rounded(),
                limit: ByteSize(memory_spill_bytes),
            });
        }
        Ok(())
    }

    /// Fails if the state disk has no space for another `more_bytes` of spill files; `spill`: current use and
    /// maximum of all of them. Does not query the disk for 0 bytes.
    pub(super) async fn check_spill_disk(
        &self,
        volume: &VolumeId,
        more_bytes: u64,
        spill: SpillBytes,
    ) -> Result<(), NodeError> {
        if more_bytes == 0 {
            return Ok(());
        }
        let unfilled_bytes = spill.promised_bytes.saturating_sub(spill.used_bytes);
        let (named, state_dir) = (volume.clone(), self.0.dirs.state.clone());
        let slab_bytes = self.0.config.slab_bytes;
        blocking(move || check_spill_room(&state_dir, &named, more_bytes, slab_bytes, unfilled_bytes)).await
    }

    async fn try_attach_memory(
        &self,
        request: MemoryAttach,
        shape: MemoryShape,
    ) -> Result<Attached, NodeError> {
        let begun = Instant::now();
        let volume = &request.volume;
        self.check_memory_room(volume, &shape).await?;
        let kernel = Arc::clone(self.0.devices.kernel());
        let transport = blocking({
            let kernel = Arc::clone(&kernel);
            move || kernel.transport(NEEDED).map_err(NodeError::MemoryNeedsUblk)
        })
        .await?;
        let nonce = u64::from_le_bytes(random());
        let (head, pages) = (shape.head(nonce), shape.pages);
        let local = MemoryLocal::new(&self.0.dirs, volume);
        let tag = self.0.installation.tag(volume, nonce).0;
        let record = MemoryRecord::new(tag, pages, nonce, (request.epoch, request.owner.clone()));
        let opened = blocking({
            let (local, record) = (local.clone(), record.clone());
            move || {
                let opened = local.create(&head)?;
                local.remember(&record)?;
                Ok(opened)
            }
        });
        let queues = queues_of(&shape, self.0.rings.count().min(kernel.max_queues()));
        let present = self.add_memory(volume, local, record, opened.await?, (pages, queues)).await?;
        let spec = DeviceSpec {
            id: None,
            sectors: pages,
            queues,
            depth: DEPTH / queues,
            max_io_bytes: MAX_IO_BYTES,
            max_zero_bytes: MAX_ZERO_BYTES,
            transport,
            tag,
        };
        let added = Arc::clone(&kernel);
        let device = blocking(move || Ok(added.add(&spec)?)).await?;
        tracing::Span::current().record("device", device.id());
        let started = async {
            present.arm(&kernel, device).await?;
            let starts = Arc::clone(&kernel);
            present.unless_refused(device, blocking(move || Ok(starts.start(device)?))).await
        };
        if let Err(error) = started.await {
            self.withdraw_memory(volume, &present, device).await;
            return Err(error);
        }
        self.0.memory.set(volume, MemoryState::Serving(device));
        let attached = present.attached_by(device);
        tracing::info!(
            %volume,
            device = %attached.device_path.display(),
            bytes = attached.bytes,
            took_us = begun.elapsed().as_micros(),
            "the device of a memory volume serves"
        );
        Ok(attached)
    }

    /// Fails if the node's limits, the state disk or the run directory have no room for a new memory volume.
    async fn check_memory_room(&self, volume: &VolumeId, shape: &MemoryShape) -> Result<(), NodeError> {
        self.check_memory_limits(volume, (None, shape), self.0.memory.others_most(volume))?;
        let others = self.0.memory.spill_bytes(Some(volume));
        self.check_spill_disk(volume, shape.spill_bytes(), others).await?;
        let promised_bytes = self.0.memory.promised_bytes(volume);
        let (named, run_dir, file_bytes) = (volume.clone(), self.0.dirs.run.clone(), shape.file_bytes());
        blocking(move || check_room(&run_dir, &named, file_bytes, promised_bytes)).await
    }

    /// Removes the device of a memory volume that did not start. On failure, the volume stays for a detach.
    async fn withdraw_memory(&self, volume: &VolumeId, present: &PresentMemory, device: Device) {
        let kernel = self.0.devices.kernel();
        let stops = Arc::clone(kernel);
        let stopped = blocking(move || Ok(or_gone(stops.stop(device))?)).await;
        // The kernel returns the tags of a stopped device only.
        let ended = match stopped {
            Ok(()) => present.close().await,
            failed => failed,
        };
        if let Err(left) = ended {
            tracing::error!(
                %volume, device = device.id(), error = chain(&left),
                "the attach of a memory volume failed, and so did the removal of its device; detach it"
            );
            self.0.memory.set(volume, MemoryState::Stopping(device));
            return;
        }
        delete_device(&self.0.tasks, kernel, device).await;
    }

    /// Adds an opened memory volume to the ring threads that share the queues of its device. `device`: its
    /// sectors and queues.
    pub(super) async fn add_memory(
        &self,
        volume: &VolumeId,
        local: MemoryLocal,
        record: MemoryRecord,
        opened: OpenedMemory,
        (device_sectors, queues): (u64, u16),
    ) -> Result<Arc<PresentMemory>, NodeError> {
        let OpenedMemory { volume: opened, spill_file } = opened;
        let places = match spill_file {
            None => self.0.rings.reserve_shares(queues, 0)?,
            // All of its requests must be ordered by one thread.
            Some(_) => vec![self.0.rings.reserve(RingNeed(u32::from(queues) + 1))?],
        };
        let figures = opened.figures();
        let slabs = figures.limit_bytes / SLAB_BYTES as u64;
        let slabs = u32::try_from(slabs).expect("its head says how many");
        let spill_pages = figures.spill_limit_pages;
        let shape = MemoryShape { pages: record.sectors, slabs, codec: opened.codec(), spill_pages };
        let (identity, recorded) =
            (Mutex::new(MemoryIdentity { shape, owner: record.owner.clone() }), Mutex::new(shape));
        let threads = u16::try_from(places.len()).expect("a device has few queues");
        let (pages, published) = (Arc::new(opened), Arc::new(PublishedMemory::new(threads)));
        let mut present = PresentMemory {
            volume: volume.clone(),
            local,
            identity,
            recorded,
            device_sectors: AtomicU64::new(device_sectors),
            record,
            threads: Vec::new(),
            pages: Mutex::new(Some(Arc::clone(&pages))),
            published: Arc::clone(&published),
        };
        let mut spill_file = spill_file;
        for (share, (ring, place)) in QueueShare::each(threads).zip(places) {
            let new = NewMemoryVolume {
                volume: Arc::clone(&pages),
                share,
                spill_file: spill_file.take(),
                label: Arc::new(Label::new(volume.clone(), Epoch(0))),
                published: Arc::clone(&published),
                place: Box::new(place),
            };
            // A ring rejects only spill files, in which case there is no other thread.
            let added = ring.call(|done| Message::AddMemory { volume: Box::new(new), done }).await?;
            let key = added.map_err(|error| NodeError::Queue(error.into()))?;
            present.threads.push(ServingThread { ring, key });
        }
        let present = Arc::new(present);
        self.0.memory.add_present(volume, Arc::clone(&present));
        Ok(present)
    }

    /// Removes the remains of a failed attach, whose device, if any, is stopped.
    pub(super) async fn abandon_memory(&self, volume: &VolumeId) -> Result<(), NodeError> {
        let left = async {
            if let Some(present) = self.0.memory.present(volume) {
                present.leave_rings().await?;
            }
            let local = MemoryLocal::new(&self.0.dirs, volume);
            blocking(move || local.remove()).await
        };
        if let Err(error) = left.await {
            tracing::error!(
                %volume, error = chain(&error),
                "the attach of a memory volume failed, and so did the removal of its files; detach it"
            );
            self.0.memory.set(volume, MemoryState::Abandoned);
            return Err(error);
        }
        self.0.memory.forget(volume);
        Ok(())
    }
}

/// Returns the number of queues of a new device that may have `most`. With a spill file, all requests must be
/// ordered by one queue.
fn queues_of(shape: &MemoryShape, most: u16) -> u16 {
    if shape.spill_pages > 0 { 1 } else { most.min(MOST_QUEUES) }
}
