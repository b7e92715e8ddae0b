//! Cold reads: a block of the object store, through the slab.

use std::sync::Arc;

use holdfast_background::{ColdError, ColdLines, Indexes, fetch, retry_while_unavailable};
use holdfast_engine::index::Runs;
use holdfast_objects::ObjectStore;
use holdfast_ring::HeapBuffer;
use holdfast_types::{BLOCK_BYTES, SectorRange};

use crate::node::clock::NodeTime;
use crate::node::store::block_cache::{BlockSlab, SlabSlot};

/// The node's cold reads.
pub(crate) struct ColdReads {
    slab: BlockSlab,
    indexes: Arc<Indexes>,
}

impl ColdReads {
    pub(crate) fn new(slab: BlockSlab, indexes: Arc<Indexes>) -> Self {
        Self { slab, indexes }
    }

    /// The disk cannot read what is in `slot`.
    pub(crate) fn forget(&self, slot: &SlabSlot) {
        self.slab.forget(slot);
    }

    /// The slab slot of `range`'s block that holds at least `range` as `runs` compose it.
    ///
    /// # Errors
    /// [`ColdError`] only where asking again cannot help.
    pub(crate) async fn block(
        &self,
        objects: &dyn ObjectStore,
        lines: &ColdLines,
        range: SectorRange,
        runs: &Runs,
    ) -> Result<SlabSlot, ColdError> {
        retry_while_unavailable(&NodeTime, lines, range, |wanted| async move {
            let plan = self.indexes.compose(objects, range.start.block(), wanted, runs).await?;
            let whole = async {
                let mut whole = HeapBuffer::zeroed(BLOCK_BYTES as usize);
                fetch(objects, runs.lineage(), &plan, &mut whole).await?;
                Ok(whole)
            };
            self.slab.slot(&plan.key, whole).await
        })
        .await
    }
}
