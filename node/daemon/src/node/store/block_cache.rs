//! The slab: the node's file of fetched blocks, shared by all its volumes.
//!
//! Owns: the file. Which slot holds which content is [`holdfast_background::SlotTable`]'s; a content is
//! written before it is published, and never changes while anybody holds a [`SlabSlot`]. The table is not
//! kept across a restart: a fresh daemon trusts no slot.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdfast_background::{Slot, SlotTable};
use holdfast_engine::compose::ContentKey;
use holdfast_ring::HeapBuffer;
use holdfast_types::BLOCK_BYTES;

use crate::node::error::NodeError;
use crate::node::local::file::open_direct;
use crate::node::run_blocking::run_blocking;

/// Slots beyond the index's own capacity: blocks being filled or read while they are evicted.
const SPARE_SLOTS: u32 = 64;
/// Parts of the index with a lock each. Fixed, so that its capacity does not depend on the number of CPUs.
const INDEX_SHARDS: usize = 8;

/// Path of the slab's file in a state directory.
pub(in crate::node) fn slab_path(state_dir: &Path) -> PathBuf {
    state_dir.join("slab.data")
}

/// The slab.
pub(crate) struct BlockSlab {
    file: Arc<File>,
    table: SlotTable,
}

/// A block in the slab; it stays while this is held.
#[derive(Clone, Debug)]
pub(crate) struct SlabSlot(Slot);

impl SlabSlot {
    /// Offset of the block's first byte in the slab's file.
    pub(crate) fn offset_bytes(&self) -> u64 {
        u64::from(self.0.number()) * BLOCK_BYTES
    }
}

impl BlockSlab {
    /// Opens the slab's file with room for `bytes` (at least a few hundred blocks) and trusts nothing in it.
    pub(crate) fn open(path: &Path, bytes: u64) -> Result<Self, NodeError> {
        let slots = u32::try_from(bytes / BLOCK_BYTES).unwrap_or(u32::MAX).max(4 * SPARE_SLOTS);
        let file = open_direct(path, u64::from(slots) * BLOCK_BYTES)?;
        Ok(Self { file: Arc::new(file), table: SlotTable::new(slots, SPARE_SLOTS, INDEX_SHARDS) })
    }

    /// The file, for reading slots through a ring.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// The slot of this content; `fetch` makes the block's bytes when it is in none. Fetches of one content
    /// coalesce.
    pub(crate) async fn slot<E>(
        &self,
        key: &ContentKey,
        fetch: impl Future<Output = Result<HeapBuffer, E>>,
    ) -> Result<SlabSlot, E>
    where
        E: From<std::io::Error>,
    {
        let write = |slot: Slot, block: HeapBuffer| async move {
            let (file, offset) = (Arc::clone(&self.file), SlabSlot(slot.clone()).offset_bytes());
            let written =
                run_blocking(move || std::os::unix::fs::FileExt::write_all_at(&*file, &block, offset)).await;
            if written.is_err() {
                slot.set_failed();
            }
            written?;
            Ok(slot)
        };
        self.table.slot(key, fetch, write).await.map(SlabSlot)
    }

    /// The disk cannot read this slot: its content is fetched again, into another.
    pub(crate) fn forget(&self, slot: &SlabSlot) {
        self.table.forget(&slot.0);
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::unix::fs::FileExt;

    use holdfast_engine::compose::{Layer, compose};
    use holdfast_types::{Block, Mask, Place, SegmentId, Seq};

    use super::*;

    fn key(fill: u8) -> ContentKey {
        let mut builder = holdfast_engine::segment::SegmentBuilder::default();
        builder.push(Block(0), Mask(1), &[fill; 4096]);
        let (segment, object) = builder.finish(SegmentId::new(Place::until(Seq(1)), 1, [fill; 10]));
        let at = segment.index_offset as usize;
        let index = &object[at..at + segment.index_bytes as usize];
        let index = holdfast_engine::segment::FrameIndex::decode(index).unwrap();
        compose(Block(0), Mask::FULL, [Layer::Segment(segment.id, &index)]).key
    }

    fn block(fill: u8) -> HeapBuffer {
        HeapBuffer::from_slice(&vec![fill; BLOCK_BYTES as usize])
    }

    #[tokio::test]
    async fn a_held_slot_keeps_its_bytes_while_others_change() {
        let dir = tempfile::tempdir().unwrap();
        let slab = BlockSlab::open(&dir.path().join("slab"), 0).unwrap();
        let held = slab.slot::<io::Error>(&key(1), async { Ok(block(1)) }).await.unwrap();
        for fill in 2..=255u8 {
            for _ in 0..2 {
                slab.slot::<io::Error>(&key(fill), async { Ok(block(fill)) }).await.unwrap();
            }
        }
        let mut found = block(0);
        slab.file().read_exact_at(&mut found, held.offset_bytes()).unwrap();
        assert!(found.iter().all(|byte| *byte == 1));
    }

    #[tokio::test]
    async fn an_unreadable_slot_is_filled_again_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let slab = BlockSlab::open(&dir.path().join("slab"), 0).unwrap();
        let bad = slab.slot::<io::Error>(&key(1), async { Ok(block(1)) }).await.unwrap();
        slab.forget(&bad);
        let fresh = slab.slot::<io::Error>(&key(1), async { Ok(block(1)) }).await.unwrap();
        assert_ne!(fresh.offset_bytes(), bad.offset_bytes());
        // Invalidated again, late: the fresh one stays.
        slab.forget(&bad);
        let bad_offset = bad.offset_bytes();
        drop(bad);
        let again = slab.slot::<io::Error>(&key(1), async { unreachable!("it is there") }).await.unwrap();
        assert_eq!(again.offset_bytes(), fresh.offset_bytes());
        let other = slab.slot::<io::Error>(&key(2), async { Ok(block(2)) }).await.unwrap();
        assert_ne!(other.offset_bytes(), bad_offset, "it is the last to be used again");
    }

    #[tokio::test]
    async fn a_hit_fetches_nothing_and_failures_are_not_cached() {
        let dir = tempfile::tempdir().unwrap();
        let slab = BlockSlab::open(&dir.path().join("slab"), 0).unwrap();
        let failed = slab.slot(&key(1), async { Err(io::Error::other("away")) }).await;
        assert!(failed.is_err());
        let first = slab.slot::<io::Error>(&key(1), async { Ok(block(1)) }).await.unwrap();
        let again = slab.slot::<io::Error>(&key(1), async { unreachable!("it is there") }).await.unwrap();
        assert_eq!(first.offset_bytes(), again.offset_bytes());
    }
}
