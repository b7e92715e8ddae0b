//! Attach, recovery and detach of memory volumes on this node. They use no store and no log, and only their
//! spill files in the state directory.
//!
//! Owns: the table of memory volumes, and for each of them the order of files, ring thread and device.
//! Does not own: pages and slots (`node/memory`), requests (`node/serve/src/memory.rs`).
//! Invariants: a volume has a record from before its device is added until after the device is stopped, so a
//! device without one never served. Content is dropped together with the record, and only then.
//! On failure: an attach leaves nothing behind; a detach may be retried; a recovery is retried, while the
//! device is paused.

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
use holdfast_ublk::Transport;

#[cfg(test)]
pub(in crate::node) use local::MemoryLocal;
pub(in crate::node) use local::{check_attached, spill_file_bytes};
use room::room_bytes;
use spill_room::spill_room_bytes;
pub(in crate::node) use table::MemoryTable;
use table::SpillBytes;

use crate::node::volume::status::NodeVolumeStatus;
use crate::node::{Node, NodeConfig, NodeError, TransportChoice};

/// The transport of memory volumes: the daemon needs access to the data, which the kernel copies.
const NEEDED: TransportChoice = TransportChoice::Only(Transport::KernelCopy);
/// Free space of the state disk is reported in steps of this many bytes, because any write changes it.
const ROOM_STEP_BYTES: u64 = 256 << 20;

impl Node {
    /// Returns the memory volumes on this node.
    pub(in crate::node) fn list_memory(&self) -> Vec<NodeVolumeStatus> {
        self.0.memory.list()
    }

    /// Fails if the volume is a memory volume here: it has no `what`, and `fix` names the alternative.
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

    /// Returns the node's memory for memory volumes and disk space for their spill files: promised to
    /// existing volumes, and used by them. Without ublk there is no room for more. Queries the kernel and the
    /// state directory's disk, and may block.
    pub(crate) fn memory_use(&self) -> MemoryUse {
        let (promised_bytes, used_bytes) = self.0.memory.bytes();
        // An attach would be refused, and a pod of a claim bound to this node would wait forever.
        let has_ublk = self.0.devices.kernel().transport(NEEDED).is_ok();
        let room_bytes = if has_ublk {
            // The filesystem may have less space than the setting.
            room_bytes(&self.0.dirs.run, self.0.memory.unused_bytes()).unwrap_or(u64::MAX)
        } else {
            0
        };
        let limit_bytes = self.0.config.memory_volumes_bytes.min(promised_bytes.saturating_add(room_bytes));
        MemoryUse { limit_bytes, promised_bytes, used_bytes, spill: self.spill_use(has_ublk) }
    }

    /// Returns `None` if spill files are neither permitted nor present. Queries the state directory's disk.
    fn spill_use(&self, has_ublk: bool) -> Option<SpillUse> {
        let NodeConfig { memory_spill_bytes: setting_bytes, slab_bytes, .. } = self.0.config;
        let SpillBytes { promised_bytes, used_bytes } = self.0.memory.spill_bytes(None);
        if setting_bytes == 0 && promised_bytes == 0 {
            return None;
        }
        let unfilled_bytes = promised_bytes.saturating_sub(used_bytes);
        // A disk that does not respond has no space.
        let room_bytes = match spill_room_bytes(&self.0.dirs.state, slab_bytes, unfilled_bytes) {
            Ok(room_bytes) if has_ublk => room_bytes,
            Ok(_) | Err(_) => 0,
        };
        let room_bytes = room_bytes / ROOM_STEP_BYTES * ROOM_STEP_BYTES;
        let limit_bytes = setting_bytes.min(promised_bytes.saturating_add(room_bytes));
        Some(SpillUse { limit_bytes, promised_bytes, used_bytes })
    }

    /// Returns true if this is a memory volume here.
    pub(crate) fn is_memory(&self, volume: &VolumeId) -> bool {
        self.0.memory.contains(volume)
    }
}
