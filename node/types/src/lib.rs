//! Basic types of the data plane: sectors, byte lengths, blocks, masks, identifiers, object keys and
//! delays between attempts.
//!
//! Owns: the units that all other crates use, and their checked arithmetic.
//! Does not own: any I/O, any policy.

mod backoff;
mod extent;
mod identity;
pub mod key;
mod lineage;
mod mask;
mod placed;

pub use backoff::{Backoff, Jitter};
pub use extent::{
    BLOCK_BYTES, BLOCK_SECTORS, Block, CHUNK_BLOCKS, CHUNK_SECTORS, Chunk, SECTOR_BYTES, Sector, SectorRange,
};
pub use identity::{Epoch, InvalidSnapshotUid, InvalidVolumeId, Nonce, Seq, SnapshotUid, VolumeId};
pub use lineage::{InvalidSnapshotName, Lineage, SnapshotName};
pub use mask::Mask;
pub use placed::{Place, PlacedId, RunId, SegmentId, Ulid};

/// Milliseconds on a clock that never goes back and that all processes of a host share until the host
/// restarts; only differences are meaningful.
pub type Millis = u64;
