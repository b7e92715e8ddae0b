//! Purposes of the operations in a ring.
//!
//! Each travels with its entry and comes back with its completion ([`holdfast_ring::Ring::end`]): a command
//! of a device's queue, or something done to a file for a volume.

use holdfast_engine::event::RequestId;
use holdfast_format::side::Side;
use holdfast_types::Chunk;
use holdfast_ublk::QueueCommand;

use crate::work::ColdRead;

/// The ring of a ring thread.
pub type Ring = holdfast_ring::Ring<InFlight>;
/// A queue of a device on it.
pub type Queue = holdfast_ublk::Queue<VolumeKey>;

/// Identifies one stay of a volume on a ring thread: what comes late for an earlier one is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeKey {
    /// Its place in the thread's table.
    pub(super) index: u16,
    pub(super) serial: u32,
}

/// An operation in a ring, and whose it is.
#[derive(Debug)]
pub enum InFlight {
    /// A tag that the kernel has.
    Command(QueueCommand<VolumeKey>),
    /// An operation on a file.
    File {
        /// The volume that it is for.
        volume: VolumeKey,
        /// Its purpose.
        operation: FileOperation,
    },
}

impl From<QueueCommand<VolumeKey>> for InFlight {
    fn from(command: QueueCommand<VolumeKey>) -> Self {
        Self::Command(command)
    }
}

/// Something done to a file of a volume, or to one that all volumes read from.
#[derive(Debug)]
pub enum FileOperation {
    /// Moves a part of a request.
    Move {
        /// The request.
        request: RequestId,
        /// Length of the part.
        len_bytes: u32,
        /// False for a part of a read.
        is_write: bool,
    },
    /// Copies a part of a read out of the slab.
    CopyCold(Box<ColdRead>),
    /// Punches a hole for a request.
    Punch {
        /// The request.
        request: RequestId,
    },
    /// Punches a hole where clean data was evicted.
    Evict,
    /// Makes the data of a side durable.
    SyncSide(Side),
    /// Writes a piece of the durable map.
    WriteMap,
    /// Makes the durable map durable.
    SyncMap,
    /// Allocates the live map's memory of a chunk.
    PrepareLive(Chunk),
    /// Gives the live map's memory of a chunk back.
    ReleaseLive(Chunk),
    /// Allocates the chunk's place in the durable map.
    PrepareDurable(Chunk),
    /// Does nothing: the turn after the one that asked for it.
    NextTurn,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of a ring writes and reads one for each operation.
    #[test]
    fn an_operation_is_small() {
        assert!(size_of::<InFlight>() <= 32, "{}", size_of::<InFlight>());
    }
}
