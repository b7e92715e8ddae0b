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
mod grow;
mod local;
mod present;
mod recover;
mod room;
pub(in crate::node) mod shape;
mod spill_file;
mod spill_room;
mod table;

use holdfast_crds::{MemoryUse, SpillUse};
use holdfast_types::VolumeId;

#[cfg(test)]
pub(in crate::node) use local::MemoryLocal;
pub(in crate::node) use local::spill_file_bytes;
use room::room_bytes;
use spill_room::spill_room_bytes;
pub(in crate::node) use table::MemoryTable;
use table::SpillBytes;

use crate::node::volume::status::NodeVolumeStatus;
use crate::node::{Node, NodeConfig, NodeError};

/// Room of the state disk is reported in steps of this many bytes: it changes with each write of any volume.
const ROOM_STEP_BYTES: u64 = 256 << 20;

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
        MemoryUse { limit_bytes, promised_bytes, used_bytes, spill: self.spill_use() }
    }

    /// None where spill files are neither allowed nor there. Asks the filesystem of the state directory.
    fn spill_use(&self) -> Option<SpillUse> {
        let NodeConfig { memory_spill_bytes: setting_bytes, slab_bytes, .. } = self.0.config;
        let SpillBytes { promised_bytes, used_bytes } = self.0.memory.spill_bytes(None);
        if setting_bytes == 0 && promised_bytes == 0 {
            return None;
        }
        let unfilled_bytes = promised_bytes.saturating_sub(used_bytes);
        // A disk that does not answer has no room.
        let room_bytes = spill_room_bytes(&self.0.dirs.state, slab_bytes, unfilled_bytes).unwrap_or_default();
        let room_bytes = room_bytes / ROOM_STEP_BYTES * ROOM_STEP_BYTES;
        let limit_bytes = setting_bytes.min(promised_bytes.saturating_add(room_bytes));
        Some(SpillUse { limit_bytes, promised_bytes, used_bytes })
    }

    /// True if this is a memory volume here.
    pub(crate) fn is_memory(&self, volume: &VolumeId) -> bool {
        self.0.memory.contains(volume)
    }
}
