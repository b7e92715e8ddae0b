//! Growth of a served memory volume: its files, its record, its pages, its device, in this order.
//!
//! 1. the volume counts with its new shape, if the node's limits permit that; the filesystems' free space is
//!    checked;
//! 2. the files are extended;
//! 3. the new shape is written to the record, and then to the head of the table: a daemon that restarts from
//!    here on recovers it and completes the growth;
//! 4. the ring threads use the new shape;
//! 5. the kernel grows the device: requests to the new sectors may arrive from then on.
//!
//! On failure: the volume serves as before. A growth that failed before its record was written is undone;
//! afterwards the next growth, to the same shape or a larger one, resumes it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use holdfast_memory::MemoryGrowth;
use holdfast_memory::pool::PoolExtension;
use holdfast_types::{SECTOR_BYTES, VolumeId};

use super::room::check_room;
use super::table::BegunGrowth;
use crate::node::exit_on_panic::ExitOnPanic;
use crate::node::run_blocking::blocking;
use crate::node::{Attached, GrowTo, Node, NodeError, sectors_of};

impl Node {
    /// Increases the size or the limits of a served memory volume. Repeating it is a no-op. It continues even
    /// if the caller stops waiting.
    ///
    /// # Errors
    /// [`NodeError::Size`]; [`NodeError::MemoryShrinks`]; [`NodeError::MemoryLimit`];
    /// [`NodeError::MemorySpill`]; [`NodeError::MemorySpillRoom`]; [`NodeError::MemoryRoom`];
    /// [`NodeError::MemoryDeviceCannotGrow`], with the requested limits applied; [`NodeError::NotAttached`],
    /// or a conflict with its state.
    #[tracing::instrument(name = "grow_memory", skip_all, fields(%volume, bytes = to.bytes))]
    pub(crate) async fn grow_memory(&self, volume: &VolumeId, to: GrowTo) -> Result<Attached, NodeError> {
        sectors_of(to.bytes)?;
        let device = self.0.memory.growing_device(volume)?;
        let kernel = Arc::clone(self.0.devices.kernel());
        let can_resize = blocking(move || Ok(kernel.can_resize(device.transport())?)).await?;
        let begun = self.0.memory.begin_growth(volume, |from, others| {
            // The limits of a full volume can be raised on every kernel.
            let max_bytes = if can_resize { u64::MAX } else { from.pages * SECTOR_BYTES };
            let grown = from.grown(volume, &GrowTo { bytes: to.bytes.min(max_bytes), ..to })?;
            self.check_memory_limits(volume, (Some(from), &grown), others)?;
            Ok(grown)
        })?;
        let (node, named) = (self.clone(), volume.clone());
        let grown = self.0.tasks.run(async move {
            let _alone = ExitOnPanic("the growth of a memory volume");
            let grown = node.try_grow_memory(&named, &begun).await;
            node.0.memory.end_growth(&named);
            grown
        });
        let attached = grown.await.map_err(|_stopped| NodeError::RingLost)??;
        if attached.bytes < to.bytes {
            return Err(NodeError::MemoryDeviceCannotGrow(volume.clone()));
        }
        Ok(attached)
    }

    async fn try_grow_memory(&self, volume: &VolumeId, begun: &BegunGrowth) -> Result<Attached, NodeError> {
        let started = Instant::now();
        let &BegunGrowth { ref present, device, from, to, promised_bytes, spill } = begun;
        let serves = present.shape();
        if to != serves {
            let more_bytes = to.file_bytes() - from.file_bytes();
            if more_bytes > 0 {
                let (named, run_dir) = (volume.clone(), self.0.dirs.run.clone());
                blocking(move || check_room(&run_dir, &named, more_bytes, promised_bytes)).await?;
            }
            self.check_spill_disk(volume, to.spill_bytes() - from.spill_bytes(), spill).await?;
            let growing = Arc::clone(present);
            let growth = blocking(move || {
                let (record, is_recorded) = (growing.record.clone(), AtomicBool::new(false));
                let heads = [from, to].map(|shape| shape.head(record.nonce));
                let memory = growing.local.grow(record, (&heads[0], &heads[1]), &is_recorded);
                if is_recorded.into_inner() {
                    *growing.recorded.lock() = to;
                }
                let slabs = PoolExtension::new(serves.slabs, to.slabs);
                Ok(MemoryGrowth { memory: memory?, pages: to.pages, slabs, spill_pages: to.spill_pages })
            });
            let (growth, grown) = (growth.await?, Arc::clone(present));
            blocking(move || {
                // Unmapping a lot of content takes long.
                let former = grown.grow(growth).ok_or(NodeError::NotOnRing(grown.volume.clone()))?;
                grown.identity.lock().shape = to;
                drop(former);
                Ok(())
            })
            .await?;
        }
        present.grow_device(self.0.devices.kernel(), device).await?;
        tracing::info!(
            from_bytes = from.pages * SECTOR_BYTES,
            bytes = to.pages * SECTOR_BYTES,
            took_us = started.elapsed().as_micros(),
            "a memory volume grew"
        );
        Ok(present.attached_by(device))
    }
}
