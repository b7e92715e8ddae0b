//! Work that a volume on a ring thread requests from the runtime.

use std::sync::Arc;

use holdfast_background::{PassedReads, SlabSlot, WeakSlabSlot};
use holdfast_engine::event::RequestId;
use holdfast_format::index::Runs;
use holdfast_types::SectorRange;

/// A part of a read whose data is in the object store. The runtime owns this value while it fetches the
/// block, the ring while it copies the data out of the slab.
#[derive(Debug)]
pub struct ColdRead {
    /// The request.
    pub request: RequestId,
    /// Sectors to read, all in one block.
    pub range: SectorRange,
    /// Start of the range within the request, in bytes.
    pub at: u32,
    /// The runs that locate the block.
    pub runs: Runs,
    /// The blocks among the 128 after that of `range` that are not wholly on the local disk; the lowest bit
    /// is the next block. Set only in the last part of the request that needs background work: nothing is
    /// fetched ahead of the other parts.
    pub remote_after: Option<u128>,
    /// Earlier reads that were answered without background work.
    pub passed: Vec<PassedReads>,
    /// Slot of the block in the slab, held until the end of the copy. In background work: the slot that the
    /// disk could not read.
    pub slot: Option<SlabSlot>,
    /// True if the disk already failed to read a slot.
    pub again: bool,
}

impl ColdRead {
    /// Creates a part about which nothing is known yet.
    #[must_use]
    pub const fn of(request: RequestId, range: SectorRange, at: u32, runs: Runs) -> Self {
        let passed = Vec::new();
        Self { request, range, at, runs, remote_after: None, passed, slot: None, again: false }
    }
}

/// A piece of background work.
#[derive(Debug)]
pub enum BackgroundWork {
    /// Fetch a block into the slab, again if the disk could not read its slot.
    Cold(Box<ColdRead>),
    /// Keep these blocks in the slab longer: they were read without background work.
    Used(UsedBlocks),
    /// Work of commits.
    Other(holdfast_background::Work),
}

/// Blocks that were read without background work.
#[derive(Debug)]
pub struct UsedBlocks {
    /// Their slots, not held.
    pub slots: Vec<WeakSlabSlot>,
    /// Held until the slab has processed the report; until then the volume sends no other report.
    pub in_progress: Arc<()>,
}
