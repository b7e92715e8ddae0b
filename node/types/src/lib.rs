//! Leaf words of the data plane: sectors, byte lengths, blocks, masks, identifiers and object keys.
//!
//! Owns: the units every other crate speaks in and their checked arithmetic.
//! Does not own: any I/O, any policy.

mod extent;
mod identity;
pub mod key;
mod mask;

pub use extent::{
    BLOCK_BYTES, BLOCK_SECTORS, Block, CHUNK_BLOCKS, CHUNK_SECTORS, Chunk, SECTOR_BYTES, Sector, SectorRange,
};
pub use identity::{Epoch, InvalidVolumeId, Nonce, SegmentId, Seq, VolumeId};
pub use mask::Mask;
