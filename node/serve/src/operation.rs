//! Purposes of the operations in a ring.
//!
//! Each entry carries its purpose, which its completion returns ([`holdfast_ring::Ring::end`]): a command of
//! a device's queue, or an operation on a file for a volume.

use holdfast_engine::event::RequestId;
use holdfast_format::side::Side;
use holdfast_fuse::FuseCommand;
use holdfast_ring::RingOperation;
use holdfast_types::Chunk;
use holdfast_ublk::QueueCommand;

use crate::work::ColdRead;

/// The ring of a ring thread.
pub type VolumeRing = holdfast_ring::Ring<InFlight>;

/// Identity of one stay of a volume on a ring thread: messages for an earlier stay are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeKey {
    /// Index of the volume in the thread's table.
    pub(super) index: u16,
    /// At most [`VolumeKey::SERIAL`].
    pub(super) serial: u32,
}

impl VolumeKey {
    /// Mask of a serial number.
    pub(super) const SERIAL: u32 = (1 << 30) - 1;

    const fn to_bits(self) -> u64 {
        ((self.serial as u64) << 16) | self.index as u64
    }

    const fn from_bits(bits: u64) -> Self {
        Self { index: bits as u16, serial: (bits >> 16) as u32 & Self::SERIAL }
    }
}

/// An operation in a ring, and its owner.
#[derive(Debug)]
pub enum InFlight {
    /// A command of a queue: for a tag that the kernel has, or with batches for many tags.
    Command(QueueCommand<VolumeKey>),
    /// The wait for FUSE requests.
    Fuse(FuseCommand<VolumeKey>),
    /// An operation on a file.
    File {
        /// The volume.
        volume: VolumeKey,
        /// Its purpose.
        operation: FileOperation,
    },
    /// A run on the spill file of a memory volume.
    Spill {
        /// The volume.
        volume: VolumeKey,
        /// Number of the run in the volume.
        run: u32,
    },
}

impl From<QueueCommand<VolumeKey>> for InFlight {
    fn from(command: QueueCommand<VolumeKey>) -> Self {
        Self::Command(command)
    }
}

impl From<FuseCommand<VolumeKey>> for InFlight {
    fn from(command: FuseCommand<VolumeKey>) -> Self {
        Self::Fuse(command)
    }
}

/// The operations of most requests are words:
///
/// ```text
///  62    61           32 31           16 15         12 11          0
/// +---+-----------------+---------------+-------------+-------------+
/// | 0 |  serial number  |     index     |    queue    |   number    |  a command: a tag, without batches
/// +---+-----------------+---------------+-------------+-------------+
/// | 1 |  serial number  |     index     |          request          |  moves a whole request
/// +---+-----------------+---------------+---------------------------+
/// ```
impl RingOperation for InFlight {
    #[inline]
    fn to_word(&self) -> Option<u64> {
        match self {
            Self::Command(QueueCommand { owner, queue_id, tag }) => {
                let number = (queue_id << TAG_BITS) | tag;
                let fits = *queue_id < 1 << (16 - TAG_BITS) && *tag < 1 << TAG_BITS;
                fits.then_some((owner.to_bits() << 16) | u64::from(number))
            }
            Self::File { volume, operation: FileOperation::MoveWhole { request } } => {
                let number = u16::try_from(request.0).ok()?;
                Some(MOVE | (volume.to_bits() << 16) | u64::from(number))
            }
            Self::Fuse(_) | Self::File { .. } | Self::Spill { .. } => None,
        }
    }

    #[inline]
    fn from_word(word: u64) -> Self {
        let (volume, number) = (VolumeKey::from_bits(word >> 16), word as u16);
        if word & MOVE != 0 {
            let request = RequestId(number.into());
            Self::File { volume, operation: FileOperation::MoveWhole { request } }
        } else {
            let (queue_id, tag) = (number >> TAG_BITS, number & ((1 << TAG_BITS) - 1));
            Self::Command(QueueCommand { owner: volume, queue_id, tag })
        }
    }
}

/// Bits of a tag in a word: a queue has at most 4,096 tags (`UBLK_MAX_QUEUE_DEPTH` in `linux/ublk_cmd.h`).
const TAG_BITS: u32 = 12;
const MOVE: u64 = 1 << 62;

/// An operation on a file of a volume, or on a file from which all volumes read.
#[derive(Debug)]
pub enum FileOperation {
    /// Moves a whole request between its pages and a side.
    MoveWhole {
        /// The request.
        request: RequestId,
    },
    /// Moves a part of a read.
    MovePart {
        /// The request.
        request: RequestId,
        /// Length of the part.
        len_bytes: u32,
        /// True if the move counts towards the volume's share of the disk.
        counts: bool,
    },
    /// Copies a part of a read out of the slab.
    CopyCold(Box<ColdRead>),
    /// Copies a whole read out of a slot that is known to have its block.
    CopyKnown {
        /// The request.
        request: RequestId,
    },
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
    /// Returns the live map's memory of a chunk to the system.
    ReleaseLive(Chunk),
    /// Allocates the chunk's pages in the durable map.
    PrepareDurable(Chunk),
    /// Completes in the next turn, without effect.
    NextTurn,
    /// Completes after a pause, without effect.
    Pause,
    /// Completes after a pause for requests that wait for a limit of the volume.
    LimitPause,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of a ring writes and reads such a value for each operation.
    #[test]
    fn an_operation_is_small() {
        assert!(size_of::<InFlight>() <= 32, "{}", size_of::<InFlight>());
    }

    #[test]
    fn an_operation_is_its_word() {
        let keys = [(0, 0), (7, 9), (u16::MAX, VolumeKey::SERIAL)];
        for owner in keys.map(|(index, serial)| VolumeKey { index, serial }) {
            for (queue_id, tag) in [(0, 0), (3, 127), (15, 4095)] {
                let command = InFlight::Command(QueueCommand { owner, queue_id, tag });
                let word = command.to_word().unwrap();
                assert_eq!(word >> InFlight::WORD_BITS, 0);
                assert_eq!(format!("{:?}", InFlight::from_word(word)), format!("{command:?}"));
            }
            for request in [0, 127, u16::MAX.into()].map(RequestId) {
                let whole = InFlight::File { volume: owner, operation: FileOperation::MoveWhole { request } };
                let word = whole.to_word().unwrap();
                assert_eq!(word >> InFlight::WORD_BITS, 0);
                assert_eq!(format!("{:?}", InFlight::from_word(word)), format!("{whole:?}"));
            }
        }
    }

    /// Truncated to the bits of a word, it would name another operation.
    #[test]
    fn what_fits_no_word_is_none() {
        let owner = VolumeKey { index: 1, serial: 2 };
        for (queue_id, tag) in [(16, 0), (0, 4096)] {
            assert_eq!(InFlight::Command(QueueCommand { owner, queue_id, tag }).to_word(), None);
        }
        let request = RequestId(1 << 16);
        let whole = InFlight::File { volume: owner, operation: FileOperation::MoveWhole { request } };
        assert_eq!(whole.to_word(), None);
        assert_eq!(InFlight::File { volume: owner, operation: FileOperation::NextTurn }.to_word(), None);
    }
}
