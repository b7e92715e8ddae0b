//! Memory volumes on this node: attached, recovered, detached. They know no store, no log and no state
//! directory.
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
mod shape;
mod table;

use holdfast_memory::PageCodec;
use holdfast_types::VolumeId;

#[cfg(test)]
pub(in crate::node) use local::MemoryLocal;
pub(in crate::node) use table::MemoryTable;

use crate::node::volume::status::NodeVolumeStatus;
use crate::node::{Node, NodeError};

/// Request to attach a memory volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemoryAttach {
    /// The volume.
    pub(crate) volume: VolumeId,
    /// Its size.
    pub(crate) bytes: u64,
    /// Bytes of memory that its content may take; absent: as much as any content needs.
    pub(crate) limit_bytes: Option<u64>,
    /// Codec of its pages.
    pub(crate) codec: PageCodec,
}

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

    /// True if this is a memory volume here.
    pub(crate) fn is_memory(&self, volume: &VolumeId) -> bool {
        self.0.memory.contains(volume)
    }
}
