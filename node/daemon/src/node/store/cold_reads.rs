//! Cold reads: a block of the object store, through the slab.

use std::sync::Arc;

use holdfast_background::{ColdError, ColdLines, Fetches, retry_while_unavailable};
use holdfast_format::index::Runs;
use holdfast_log::Indexes;
use holdfast_objects::ObjectStore;
use holdfast_ring::HeapBuffer;
use holdfast_types::{BLOCK_BYTES, Mask, SectorRange};

use crate::node::clock::NodeTime;
use crate::node::store::block_cache::{Among, BlockSlab};
use holdfast_serve::SlabSlot;

/// The node's cold reads.
pub(crate) struct ColdReads {
    slab: BlockSlab,
    indexes: Arc<Indexes>,
    fetches: Fetches<HeapBuffer>,
}

impl ColdReads {
    pub(crate) fn new(slab: BlockSlab, indexes: Arc<Indexes>) -> Self {
        let fetches = Fetches::new(|| HeapBuffer::zeroed(BLOCK_BYTES as usize));
        Self { slab, indexes, fetches }
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
        let reader = &self.fetches.reader();
        retry_while_unavailable(&NodeTime, lines, range, |wanted| async move {
            let block = self.indexes.compose(objects, range.start.block(), wanted, runs).await?;
            let plan = block.for_range(Mask::of(range));
            let whole = || reader.block(objects, runs.lineage(), &plan);
            self.slab.slot(&plan.key, among, whole).await
        })
        .await
    }
}

#[cfg(test)]
mod in_order;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bytes::Bytes;
    use futures::FutureExt;
    use futures::future::{join, join_all};
    use holdfast_format::index::Run;
    use holdfast_format::segment::SegmentBuilder;
    use holdfast_objects::{Fault, Gate, MemoryStore, ReadyParts, Verb};
    use holdfast_types::{Block, Lineage, Place, SegmentId, Seq};

    use super::*;
    use crate::node::tests::host::SmallTmpfs;

    /// A store with a volume of which one sector was written.
    fn written() -> (MemoryStore, Runs) {
        let (store, lineage) = (MemoryStore::new(), Lineage::of("v".parse().unwrap()));
        let mut builder = SegmentBuilder::default();
        builder.push(Block(0), Mask(1), &[7; 4096]);
        let (segment, object) = builder.finish(SegmentId::new(Place::until(Seq(1)), 1, [0; 10]));
        let mut parts = ReadyParts::from(Bytes::from(object));
        store.put_segment(&lineage.segment_key(segment.id), &mut parts).now_or_never().unwrap().unwrap();
        (store, Runs::new(lineage.into(), [Run::Segment(segment.into())]))
    }

    fn cold_reads(dir: &Path) -> ColdReads {
        ColdReads::new(BlockSlab::open(&dir.join("slab"), 0).unwrap(), Arc::new(Indexes::new(16, 1 << 20)))
    }

    #[tokio::test]
    async fn a_read_of_what_was_never_written_requests_an_index_alone() {
        let ((store, runs), dir) = (written(), tempfile::tempdir().unwrap());
        let cold = cold_reads(dir.path());
        for (sector, requests) in [(1, 1), (9, 1), (0, 2), (9, 2)] {
            let (lines, range) = (ColdLines::default(), SectorRange::new(sector, 1));
            cold.block(&store, &lines, range, &runs, Among::Both).await.unwrap();
            assert_eq!(store.counts().get, requests, "sector {sector}");
        }
    }

    /// Each of them fetched the block, one after the other.
    #[tokio::test]
    async fn readers_of_a_block_share_its_fetch_on_a_full_disk() {
        let Some(tmpfs) = SmallTmpfs::mount(1 << 20) else { return };
        let ((store, runs), cold, gate) = (written(), cold_reads(&tmpfs.path()), Gate::new());
        tmpfs.fill();
        let (lines, range) = (ColdLines::default(), SectorRange::new(0, 1));
        let read = |among| cold.block(&store, &lines, range, &runs, among);
        cold.indexes.compose(&store, Block(0), Mask::FULL, &runs).await.unwrap();
        store.fail_next(Verb::Get, Fault::Hold(gate.clone()));
        let readers = [Among::Both, Among::Memory].repeat(4).into_iter().map(read);
        let released = async {
            gate.arrival().await;
            gate.release();
        };
        for slot in join(join_all(readers), released).await.0 {
            assert!(slot.unwrap().is_in_memory());
        }
        assert_eq!(store.counts().get, 2, "one of the index, one of the frame");
    }
}
