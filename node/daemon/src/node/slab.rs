//! The slab: the node's file of fetched blocks, shared by all its volumes.
//!
//! Owns: which slot holds which content, and which slots are free. A slot's content is written before it is published,
//! and never changes while anybody holds a [`SlabSlot`]. The table is not kept across a restart: a fresh daemon trusts
//! no slot.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use holdfast_engine::compose::ContentKey;
use holdfast_ring::HeapBuffer;
use holdfast_types::BLOCK_BYTES;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, UnitWeighter};
use tokio::sync::Semaphore;

use super::error::NodeError;
use super::local::open_direct;
use super::off_runtime::off_runtime;

/// Slots beyond the index's own capacity: blocks being filled or read while they are evicted.
const SPARE_SLOTS: usize = 64;
/// Parts of the index with a lock each. Fixed, so that its capacity does not depend on the number of CPUs.
const INDEX_SHARDS: usize = 8;

/// The slab.
pub(crate) struct Slab {
    file: Arc<File>,
    table: Table,
}

/// A block in the slab; it stays while this is held.
#[derive(Clone, Debug)]
pub(crate) struct SlabSlot(Arc<OwnedSlot>);

impl SlabSlot {
    /// Where the block's first byte lies in the slab's file.
    pub(crate) fn offset_bytes(&self) -> u64 {
        u64::from(self.0.number) * BLOCK_BYTES
    }
}

#[derive(Debug)]
struct OwnedSlot {
    number: u32,
    key: ContentKey,
    /// The disk failed a write or a read of it: it is the last to be used again.
    failed: AtomicBool,
    free: Arc<FreeSlots>,
}

impl Drop for OwnedSlot {
    fn drop(&mut self) {
        self.free.give_back(self.number, *self.failed.get_mut());
    }
}

#[derive(Debug)]
struct FreeSlots {
    /// The last is used first.
    numbers: Mutex<Vec<u32>>,
    /// A permit for each of them.
    count: Semaphore,
}

impl FreeSlots {
    fn new(slots: u32) -> Self {
        Self { numbers: Mutex::new((0..slots).rev().collect()), count: Semaphore::new(slots as usize) }
    }

    fn give_back(&self, number: u32, failed: bool) {
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let place = if failed { 0 } else { numbers.len() };
        numbers.insert(place, number);
        drop(numbers);
        self.count.add_permits(1);
    }

    async fn take(&self) -> u32 {
        self.count.acquire().await.expect("the semaphore is never closed").forget();
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.pop().expect("there is a number for each permit")
    }
}

/// Which slot holds which content. The index never holds all slots: each that is filled evicts one before the free slots
/// run out.
struct Table {
    index: Cache<ContentKey, SlabSlot>,
    free: Arc<FreeSlots>,
}

impl Table {
    /// A table of `slots`, which are all free, with an index of at most `shards` parts.
    ///
    /// # Panics
    /// When the index could hold more than all but the spare slots.
    fn new(slots: u32, shards: usize) -> Self {
        let most = slots as usize - SPARE_SLOTS;
        // The cache has parts of at least 32, as many as a power of two says, and rounds the share of each up.
        let mut shards = shards.next_power_of_two();
        while shards > 1 && most / shards < 32 {
            shards /= 2;
        }
        let capacity = most - most % shards;
        let options = OptionsBuilder::new()
            .shards(shards)
            .estimated_items_capacity(capacity)
            .weight_capacity(capacity as u64)
            .build()
            .expect("both capacities are set");
        let index = Cache::with_options(
            options,
            UnitWeighter,
            DefaultHashBuilder::default(),
            DefaultLifecycle::default(),
        );
        assert!(
            index.capacity() + SPARE_SLOTS as u64 <= u64::from(slots),
            "an index of {} slots leaves none of {slots} free",
            index.capacity()
        );
        Self { index, free: Arc::new(FreeSlots::new(slots)) }
    }

    /// The slot of this content. When there is none, `fetch` makes the content and `write` puts it into a free slot.
    async fn slot<B, E, W>(
        &self,
        key: &ContentKey,
        fetch: impl Future<Output = Result<B, E>>,
        write: impl FnOnce(SlabSlot, B) -> W,
    ) -> Result<SlabSlot, E>
    where
        W: Future<Output = Result<SlabSlot, E>>,
    {
        self.index
            .get_or_insert_async(key, async {
                let content = fetch.await?;
                let number = self.free.take().await;
                let (failed, free) = (AtomicBool::new(false), Arc::clone(&self.free));
                write(SlabSlot(Arc::new(OwnedSlot { number, key: *key, failed, free })), content).await
            })
            .await
    }
}

impl Slab {
    /// Opens the slab's file with room for `bytes` (at least a few hundred blocks) and trusts nothing in it.
    pub(crate) fn open(path: &Path, bytes: u64) -> Result<Self, NodeError> {
        let slots = u32::try_from(bytes / BLOCK_BYTES).unwrap_or(u32::MAX).max(4 * SPARE_SLOTS as u32);
        let file = open_direct(path, u64::from(slots) * BLOCK_BYTES)?;
        Ok(Self { file: Arc::new(file), table: Table::new(slots, INDEX_SHARDS) })
    }

    /// The file, for reading slots through a ring.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// The slot of this content; `fetch` makes the block's bytes when it is in none. Fetches of one content coalesce.
    pub(crate) async fn slot<E>(
        &self,
        key: &ContentKey,
        fetch: impl Future<Output = Result<HeapBuffer, E>>,
    ) -> Result<SlabSlot, E>
    where
        E: From<std::io::Error>,
    {
        let write = |slot: SlabSlot, block: HeapBuffer| async move {
            let (file, offset) = (Arc::clone(&self.file), slot.offset_bytes());
            let written =
                off_runtime(move || std::os::unix::fs::FileExt::write_all_at(&*file, &block, offset)).await;
            slot.0.failed.store(written.is_err(), Ordering::Relaxed);
            written?;
            Ok(slot)
        };
        self.table.slot(key, fetch, write).await
    }

    /// The disk cannot read this slot: its content is fetched again, into another.
    pub(crate) fn forget(&self, slot: &SlabSlot) {
        slot.0.failed.store(true, Ordering::Relaxed);
        self.table.index.remove_if(&slot.0.key, |held| Arc::ptr_eq(&held.0, &slot.0));
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::unix::fs::FileExt;

    use futures::FutureExt;
    use holdfast_engine::compose::compose;
    use holdfast_types::{Block, Mask, SegmentId};

    use super::*;

    fn key(fill: u8) -> ContentKey {
        let mut builder = holdfast_engine::segment::SegmentBuilder::default();
        builder.push(Block(0), Mask(1), &[fill; 4096]);
        let (segment, object) = builder.finish(SegmentId::new(1, [fill; 10]));
        let at = segment.index_offset as usize;
        let index = &object[at..at + segment.index_bytes as usize];
        let index = holdfast_engine::segment::FrameIndex::decode(index).unwrap();
        compose(Block(0), Mask::FULL, [(&Arc::new(segment), &index)]).key
    }

    /// Names of contents that are all different.
    fn keys(count: u64) -> Vec<ContentKey> {
        let mut builder = holdfast_engine::segment::SegmentBuilder::default();
        for number in 0..count {
            builder.push(Block(number), Mask(1), &[number + 1; 512].map(u64::to_le_bytes).concat());
        }
        let (segment, object) = builder.finish(SegmentId::new(1, [0; 10]));
        let at = segment.index_offset as usize;
        let index = &object[at..at + segment.index_bytes as usize];
        let index = holdfast_engine::segment::FrameIndex::decode(index).unwrap();
        let segment = Arc::new(segment);
        (0..count).map(|number| compose(Block(number), Mask::FULL, [(&segment, &index)]).key).collect()
    }

    /// Fills slots until each of `keys` was asked for once; says how many were filled before one could not be.
    fn fill(table: &Table, keys: &[ContentKey]) -> usize {
        let fill = |key| {
            let write = |slot, ()| std::future::ready(Ok::<_, io::Error>(slot));
            table.slot(key, std::future::ready(Ok(())), write).now_or_never()
        };
        keys.iter().take_while(|key| fill(key).is_some_and(|slot| slot.is_ok())).count()
    }

    /// On nodes of 17 CPUs and more the index could hold every slot of the slab: then no miss found a free one, and each
    /// cold read of the node waited until the daemon was restarted.
    #[test]
    fn misses_are_served_on_any_number_of_cpus() {
        let tiny = 4 * SPARE_SLOTS as u32;
        let keys = keys(3 * 8192);
        for cpus in [1, 2, 16, 17, 32, 64, 512] {
            for slots in [tiny, tiny + 1, 1000, 4096, 5003, 8191, 8192] {
                let table = Table::new(slots, 4 * cpus);
                let due = &keys[..3 * slots as usize];
                assert_eq!(fill(&table, due), due.len(), "{slots} slots, {cpus} CPUs");
                let held = table.index.len() as u64;
                assert!(
                    held * 10 >= u64::from(slots) * 7,
                    "{held} of {slots} slots are used with {cpus} CPUs"
                );
            }
        }
        assert_eq!(Table::new(32_768, INDEX_SHARDS).index.num_shards(), INDEX_SHARDS);
    }

    /// Two takers that waited at once could miss one of two slots that were given back.
    #[tokio::test]
    async fn each_slot_that_comes_back_wakes_a_taker() {
        let free = FreeSlots::new(2);
        let (one, other) = (free.take().await, free.take().await);
        let mut takers = [Box::pin(free.take()), Box::pin(free.take())];
        assert!(takers.iter_mut().all(|taker| taker.now_or_never().is_none()));
        free.give_back(one, false);
        free.give_back(other, true);
        let taken = takers.each_mut().map(|taker| taker.now_or_never());
        assert_eq!(taken, [Some(one), Some(other)]);
    }

    fn block(fill: u8) -> HeapBuffer {
        HeapBuffer::from_slice(&vec![fill; BLOCK_BYTES as usize])
    }

    #[tokio::test]
    async fn a_held_slot_keeps_its_bytes_while_others_come_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let slab = Slab::open(&dir.path().join("slab"), 0).unwrap();
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
    async fn a_slot_that_cannot_be_read_is_filled_anew_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let slab = Slab::open(&dir.path().join("slab"), 0).unwrap();
        let bad = slab.slot::<io::Error>(&key(1), async { Ok(block(1)) }).await.unwrap();
        slab.forget(&bad);
        let fresh = slab.slot::<io::Error>(&key(1), async { Ok(block(1)) }).await.unwrap();
        assert_ne!(fresh.offset_bytes(), bad.offset_bytes());
        // Told of again, late: the fresh one stays.
        slab.forget(&bad);
        let bad_offset = bad.offset_bytes();
        drop(bad);
        let again = slab.slot::<io::Error>(&key(1), async { unreachable!("it is there") }).await.unwrap();
        assert_eq!(again.offset_bytes(), fresh.offset_bytes());
        let other = slab.slot::<io::Error>(&key(2), async { Ok(block(2)) }).await.unwrap();
        assert_ne!(other.offset_bytes(), bad_offset, "it is the last to be used again");
    }

    #[tokio::test]
    async fn a_hit_fetches_nothing_and_a_failed_fetch_is_not_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let slab = Slab::open(&dir.path().join("slab"), 0).unwrap();
        let failed = slab.slot(&key(1), async { Err(io::Error::other("away")) }).await;
        assert!(failed.is_err());
        let first = slab.slot::<io::Error>(&key(1), async { Ok(block(1)) }).await.unwrap();
        let again = slab.slot::<io::Error>(&key(1), async { unreachable!("it is there") }).await.unwrap();
        assert_eq!(first.offset_bytes(), again.offset_bytes());
    }
}
