//! Memory volumes on this node: attached, recovered, detached. They know no store and no log, and of the
//! state directory their spill files alone.
//!
//! Owns: the table of memory volumes, and the order of files, ring thread and device for each of these.
//! Does not own: pages and slots (`node/memory`), requests (`node/serve/src/memory.rs`).
//! Invariants: a volume has a record from before its device is added until that is stopped, so a device
//! without one never served. Content goes with the record, and only then.
//! On failure: an attach leaves nothing; a detach may be repeated; a recovery is retried, and the device is
//! paused meanwhile.

mod attach;
mod detach;
mod local;
mod present;
mod recover;
mod room;
pub(in crate::node) mod shape;
mod spill_file;
mod table;

use holdfast_crds::MemoryUse;
use holdfast_types::VolumeId;

#[cfg(test)]
pub(in crate::node) use local::MemoryLocal;
pub(in crate::node) use local::spill_file_bytes;
use room::room_bytes;
pub(in crate::node) use table::MemoryTable;

use crate::node::volume::status::NodeVolumeStatus;
use crate::node::{Node, NodeError};

impl Node {
    /// The memory volumes on this node.
    pub(in crate::node) fn list_memory(&self) -> Vec<NodeVolumeStatus> {
        self.0.memory.list()
    }

    /// Fails for a volume that is a memory volume here: it has no `what`, and `fix` says what to do instead.
    ///
    /// # Errors
    /// [`NodeError::MemoryVolume`].
    pub(crate) fn refuse_memory(
        &self,
        volume: &VolumeId,
        what: &'static str,
        fix: &'static str,
    ) -> Result<(), NodeError> {
        if self.0.memory.contains(volume) {
            return Err(NodeError::MemoryVolume { volume: volume.clone(), what, fix });
        }
        Ok(())
    }

    /// Memory of the node for memory volumes, and disk for their spill files: promised to those that are
    /// here, and used by them.
    pub(crate) fn memory_use(&self) -> MemoryUse {
        let (promised_bytes, used_bytes) = self.0.memory.bytes();
        let limit_bytes = self.0.config.memory_volumes_bytes;
        // The filesystem may have room for less.
        let room_bytes = room_bytes(&self.0.dirs.run, self.0.memory.unused_bytes());
        let limit_bytes = limit_bytes.min(promised_bytes.saturating_add(room_bytes.unwrap_or(u64::MAX)));
        let spill = self.0.memory.spill_use(self.0.config.memory_spill_bytes);
        let spill = Some(spill).filter(|spill| spill.limit_bytes > 0 || spill.promised_bytes > 0);
        MemoryUse { limit_bytes, promised_bytes, used_bytes, spill }
    }

    /// True if this is a memory volume here.
    pub(crate) fn is_memory(&self, volume: &VolumeId) -> bool {
        self.0.memory.contains(volume)
    }
}
