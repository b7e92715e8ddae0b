//! Work that a volume on a ring thread asks of the runtime.

use std::sync::Arc;

use holdfast_background::{PassedReads, SlabSlot, WeakSlabSlot};
use holdfast_engine::event::RequestId;
use holdfast_format::index::Runs;
use holdfast_types::SectorRange;

/// A part of a read that comes out of the object store. It is with the runtime while its block is fetched, in
/// the ring while it is copied out of the slab.
#[derive(Debug)]
pub struct ColdRead {
    /// The request.
    pub request: RequestId,
    /// Sectors that are read; they lie in one block.
    pub range: SectorRange,
    /// Start of the range within the request, in bytes.
    pub at: u32,
    /// The runs that say where the block is.
    pub runs: Runs,
    /// Of the 128 blocks after that of `range` those, the next one in the lowest bit, that are not wholly on
    /// the local disk. Only with the last part of the request that is work: nothing is fetched ahead of
    /// others.
    pub remote_after: Option<u128>,
    /// Reads before this one that were answered without work.
    pub passed: Vec<PassedReads>,
    /// Slot of the block in the slab, held to the end of the copy. In work: the slot that the disk could not
    /// read.
    pub slot: Option<SlabSlot>,
    /// A slot could not be read before.
    pub again: bool,
}

impl ColdRead {
    /// One of which nothing was found or noted yet.
    #[must_use]
    pub const fn of(request: RequestId, range: SectorRange, at: u32, runs: Runs) -> Self {
        let passed = Vec::new();
        Self { request, range, at, runs, remote_after: None, passed, slot: None, again: false }
    }
}

/// A piece of background work.
#[derive(Debug)]
pub enum BackgroundWork {
    /// Get a block into the slab; again when the disk cannot read the slot it was in.
    Cold(Box<ColdRead>),
    /// Keep these blocks in the slab longer: they were read without work.
    Used(UsedBlocks),
    /// Work of commits.
    Other(holdfast_background::Work),
}

/// Blocks that were read without work.
#[derive(Debug)]
pub struct UsedBlocks {
    /// Their slots, none of which is held.
    pub slots: Vec<WeakSlabSlot>,
    /// Held until the slab has heard of them: a volume sends no others meanwhile.
    pub in_progress: Arc<()>,
}
