//! Growth of a memory volume that is served: its files, its record, its ring thread, its device, in this
//! order.
//!
//! 1. the limits of the node and the room of its filesystems are checked, and the volume counts with its new
//!    shape from here on;
//! 2. the files are made long enough;
//! 3. the record says the new shape, and then the head of the table: a daemon that restarts from here on
//!    recovers it and does the rest;
//! 4. the ring thread uses the new shape;
//! 5. the kernel is told: requests to the new sectors come from then on.
//!
//! On failure: the volume serves as before. The same request, or one for more, continues.

use std::sync::Arc;
use std::time::Instant;

use holdfast_memory::MemoryGrowth;
use holdfast_memory::pool::PoolExtension;
use holdfast_serve::Message;
use holdfast_types::{SECTOR_BYTES, VolumeId};

use super::room::check_room;
use super::table::BegunGrowth;
use crate::node::exit_on_panic::ExitOnPanic;
use crate::node::run_blocking::blocking;
use crate::node::{Attached, GrowTo, Node, NodeError};

impl Node {
    /// Makes a memory volume that is served larger, or its limits higher. Again it changes nothing. It
    /// continues where the caller waits no longer.
    ///
    /// # Errors
    /// [`NodeError::Size`]; [`NodeError::MemoryShrinks`]; [`NodeError::MemoryLimit`];
    /// [`NodeError::MemorySpill`]; [`NodeError::MemorySpillRoom`]; [`NodeError::MemoryRoom`];
    /// [`NodeError::MemoryVolume`] where the kernel cannot resize a device in use;
    /// [`NodeError::NotAttached`], or what its state refuses.
    #[tracing::instrument(name = "grow_memory", skip_all, fields(%volume, bytes = to.bytes))]
    pub(crate) async fn grow_memory(&self, volume: &VolumeId, to: GrowTo) -> Result<Attached, NodeError> {
        let begun = self.0.memory.begin_growth(volume, |from| from.grown(volume, &to))?;
        let (node, volume) = (self.clone(), volume.clone());
        let grown = self.0.tasks.run(async move {
            let _alone = ExitOnPanic("the growth of a memory volume");
            let grown = node.try_grow_memory(&volume, &begun).await;
            node.0.memory.end_growth(&volume);
            grown
        });
        grown.await.map_err(|_stopped| NodeError::RingLost)?
    }

    async fn try_grow_memory(&self, volume: &VolumeId, begun: &BegunGrowth) -> Result<Attached, NodeError> {
        let started = Instant::now();
        let &BegunGrowth { ref present, device, from, to, promised_bytes, spill } = begun;
        let kernel = Arc::clone(self.0.devices.kernel());
        if to.pages > from.pages {
            let asked = Arc::clone(&kernel);
            if !blocking(move || Ok(asked.can_resize(device.transport())?)).await? {
                return Err(NodeError::MemoryVolume {
                    volume: volume.clone(),
                    what: "growth of its size on this kernel (Linux 6.16 and newer have it)",
                    fix: "Detach it and attach a larger one; its content goes with the detach",
                });
            }
        }
        if to != from {
            let more_bytes = to.file_bytes() - from.file_bytes();
            if more_bytes > 0 {
                self.check_memory_limit(volume, &to)?;
                let (named, run_dir) = (volume.clone(), self.0.dirs.run.clone());
                blocking(move || check_room(&run_dir, &named, more_bytes, promised_bytes)).await?;
            }
            self.check_memory_spill(volume, from.spill_bytes(), to.spill_bytes(), spill).await?;
            let (local, record) = (present.local.clone(), present.record.clone());
            let head = to.head(record.nonce);
            let growth = blocking(move || {
                local.lengthen(&head)?;
                let memory = local.commit_growth(record, &head)?;
                let slabs = PoolExtension::new(from.slabs, to.slabs);
                Ok(MemoryGrowth { memory, pages: to.pages, slabs, spill_pages: to.spill_pages })
            });
            let growth = Box::new(growth.await?);
            let former = present.ring.call(|done| Message::GrowMemory { key: present.key, growth, done });
            let former = former.await?.map_err(|why| present.refused(why))?;
            present.identity.lock().shape = to;
            // It takes long to unmap what has much content.
            blocking(move || Ok(drop(former))).await?;
        }
        present.grow_device(&kernel, device).await?;
        tracing::info!(
            from_bytes = from.pages * SECTOR_BYTES,
            bytes = to.pages * SECTOR_BYTES,
            took_us = started.elapsed().as_micros(),
            "a memory volume grew"
        );
        Ok(present.attached_by(device))
    }
}
