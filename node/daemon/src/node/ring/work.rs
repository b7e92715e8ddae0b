//! What a volume on a ring thread asks of the runtime.

use holdfast_engine::manifest::Layers;
use holdfast_types::SectorRange;

use crate::node::store::block_cache::SlabSlot;

/// A piece of background work.
#[derive(Debug)]
pub(in crate::node) enum Work {
    /// Get a range, which lies in one block, into the slab; again when the disk cannot read the slot it was in.
    Cold {
        ticket: u32,
        range: SectorRange,
        layers: Layers,
        unreadable: Option<SlabSlot>,
    },
    Other(holdfast_background::Work),
}
