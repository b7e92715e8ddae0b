//! Cold reads: a block of the object store, through the slab.

use std::sync::Arc;

use holdfast_background::{ColdError, ColdLines, Indexes, fetch, retry_while_unavailable};
use holdfast_engine::index::Runs;
use holdfast_objects::ObjectStore;
use holdfast_ring::HeapBuffer;
use holdfast_types::{BLOCK_BYTES, Mask, SectorRange};

use crate::node::clock::NodeTime;
use crate::node::store::block_cache::{Among, BlockSlab, SlabSlot};

/// The node's cold reads.
pub(crate) struct ColdReads {
    slab: BlockSlab,
    indexes: Arc<Indexes>,
}

impl ColdReads {
    pub(crate) fn new(slab: BlockSlab, indexes: Arc<Indexes>) -> Self {
        Self { slab, indexes }
    }

    /// Blocks that were served from memory because the disk did not take them, or could not read them.
    pub(crate) fn unkept(&self) -> u64 {
        self.slab.unkept()
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
        among: Among,
    ) -> Result<SlabSlot, ColdError> {
        retry_while_unavailable(&NodeTime, lines, range, |wanted| async move {
            let block = self.indexes.compose(objects, range.start.block(), wanted, runs).await?;
            let plan = block.for_range(Mask::of(range));
            let whole = async {
                let mut whole = HeapBuffer::zeroed(BLOCK_BYTES as usize);
                fetch(objects, runs.lineage(), &plan, &mut whole).await?;
                Ok(whole)
            };
            self.slab.slot(&plan.key, among, whole).await
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use holdfast_engine::index::Run;
    use holdfast_engine::segment::SegmentBuilder;
    use holdfast_objects::{MemoryStore, ReadyParts};
    use holdfast_types::{Block, Lineage, Place, SegmentId, Seq};

    use super::*;

    #[tokio::test]
    async fn a_read_of_what_was_never_written_requests_an_index_alone() {
        let (store, lineage) = (MemoryStore::new(), Lineage::of("v".parse().unwrap()));
        let mut builder = SegmentBuilder::default();
        builder.push(Block(0), Mask(1), &[7; 4096]);
        let (segment, object) = builder.finish(SegmentId::new(Place::until(Seq(1)), 1, [0; 10]));
        let mut parts = ReadyParts::from(Bytes::from(object));
        store.put_segment(&lineage.segment_key(segment.id), &mut parts).await.unwrap();
        let runs = Runs::new(lineage.into(), [Run::Segment(segment.into())]);

        let dir = tempfile::tempdir().unwrap();
        let slab = BlockSlab::open(&dir.path().join("slab"), 0).unwrap();
        let cold = ColdReads::new(slab, Arc::new(Indexes::new(16, 1 << 20)));
        for (sector, requests) in [(1, 1), (9, 1), (0, 2), (9, 2)] {
            let (lines, range) = (ColdLines::default(), SectorRange::new(sector, 1));
            cold.block(&store, &lines, range, &runs, Among::Both).await.unwrap();
            assert_eq!(store.counts().get, requests, "sector {sector}");
        }
    }
}
