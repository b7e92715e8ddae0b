//! Work that a volume on a ring thread asks of the runtime.

use holdfast_engine::event::RequestId;
use holdfast_format::index::Runs;
use holdfast_types::SectorRange;

use crate::node::store::block_cache::SlabSlot;

/// A part of a read that comes out of the object store. It is with the runtime while its block is fetched, in
/// the ring while it is copied out of the slab.
#[derive(Debug)]
pub(in crate::node) struct ColdRead {
    pub(in crate::node) request: RequestId,
    /// Sectors that are read; they lie in one block.
    pub(in crate::node) range: SectorRange,
    /// Start of the range within the request, in bytes.
    pub(in crate::node) at: u32,
    pub(in crate::node) runs: Runs,
    /// Slot of the block in the slab, held to the end of the copy. In work: the slot that the disk could not
    /// read.
    pub(in crate::node) slot: Option<SlabSlot>,
    /// A slot could not be read before.
    pub(in crate::node) again: bool,
}

/// A piece of background work.
#[derive(Debug)]
pub(in crate::node) enum BackgroundWork {
    /// Get a block into the slab; again when the disk cannot read the slot it was in.
    Cold(Box<ColdRead>),
    Other(holdfast_background::Work),
}
