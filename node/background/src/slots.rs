//! Contents of the slots of the node's slab.
//!
//! Owns: the numbers of the slots, the free slots, and the index from contents to slots. Does not own: the
//! slab's file. A slot's content is written before it is published, and never changes while a [`Slot`] is
//! held.
//! Runs on: whatever polls its futures.

use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use holdfast_engine::compose::ContentKey;
use holdfast_engine::safeguard::{
    Safeguard::{FreeSlotOnce, SpareSlots},
    safeguard,
};
use parking_lot::Mutex;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, UnitWeighter};
use tokio::sync::Semaphore;

/// The keys are checksums, so no seed is needed; the same contents leave the index in the same order in every
/// process.
type Hasher = BuildHasherDefault<DefaultHasher>;

/// A slot with a content; it keeps both while this is held.
#[derive(Clone, Debug)]
pub struct Slot(Arc<OwnedSlot>);

impl Slot {
    /// Its place in the slab, counted in blocks.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Records that the disk failed a write or a read of it: it is the last to be used again.
    pub fn set_failed(&self) {
        self.0.failed.store(true, Ordering::Relaxed);
    }
}

#[derive(Debug)]
struct OwnedSlot {
    number: u32,
    key: ContentKey,
    failed: AtomicBool,
    free: Arc<FreeSlots>,
}

impl Drop for OwnedSlot {
    fn drop(&mut self) {
        if !safeguard(FreeSlotOnce) {
            self.free.give_back(self.number, false);
        }
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
        let mut numbers = self.numbers.lock();
        let place = if failed { 0 } else { numbers.len() };
        numbers.insert(place, number);
        drop(numbers);
        self.count.add_permits(1);
    }

    async fn take(&self) -> u32 {
        self.count.acquire().await.expect("the semaphore is never closed").forget();
        let mut numbers = self.numbers.lock();
        numbers.pop().expect("there is a number for each permit")
    }
}

/// Index from contents to slots. It never holds all slots: each that is filled evicts one before the free
/// slots run out.
pub struct SlotTable {
    index: Cache<ContentKey, Slot, UnitWeighter, Hasher>,
    free: Arc<FreeSlots>,
}

impl SlotTable {
    /// A table of `slots`, which are all free, with an index of at most `shards` parts for all but `spare` of
    /// them: those are for blocks that are being filled, or read while they are evicted.
    ///
    /// # Panics
    /// If the index could hold more than that.
    pub fn new(slots: u32, spare: u32, shards: usize) -> Self {
        let spare = if safeguard(SpareSlots) { spare } else { 0 };
        let most = (slots - spare) as usize;
        // The cache has parts of at least 32, as many as a power of two says, and rounds the share of each
        // up.
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
        let index =
            Cache::with_options(options, UnitWeighter, Hasher::default(), DefaultLifecycle::default());
        assert!(
            index.capacity() + u64::from(spare) <= u64::from(slots),
            "an index of {} slots leaves none of {slots} free",
            index.capacity()
        );
        Self { index, free: Arc::new(FreeSlots::new(slots)) }
    }

    /// The slot of this content. When there is none, `fetch` makes the content and `write` puts it into a
    /// free slot. Fetches of one content coalesce.
    ///
    /// # Errors
    /// Those of `fetch` and `write`; nothing is kept of them.
    pub async fn slot<B, E, W>(
        &self,
        key: &ContentKey,
        fetch: impl Future<Output = Result<B, E>>,
        write: impl FnOnce(Slot, B) -> W,
    ) -> Result<Slot, E>
    where
        W: Future<Output = Result<Slot, E>>,
    {
        self.index
            .get_or_insert_async(key, async {
                let content = fetch.await?;
                let number = self.free.take().await;
                let (failed, free) = (AtomicBool::new(false), Arc::clone(&self.free));
                write(Slot(Arc::new(OwnedSlot { number, key: *key, failed, free })), content).await
            })
            .await
    }

    /// Forgets a slot that the disk cannot read: its content is fetched again, into another.
    pub fn forget(&self, slot: &Slot) {
        slot.set_failed();
        self.index.remove_if(&slot.0.key, |held| Arc::ptr_eq(&held.0, &slot.0));
    }

    /// Contents that are in a slot.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// True if no content is in a slot.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use futures::FutureExt;
    use holdfast_engine::compose::{Layer, compose};
    use holdfast_engine::segment::{FrameIndex, SegmentBuilder};
    use holdfast_types::{Block, Mask, Place, SegmentId, Seq};

    use super::*;

    const SPARE: u32 = 64;

    /// Names of contents that are all different.
    fn keys(count: u64) -> Vec<ContentKey> {
        let mut builder = SegmentBuilder::default();
        for number in 0..count {
            builder.push(Block(number), Mask(1), &[number + 1; 512].map(u64::to_le_bytes).concat());
        }
        let (segment, object) = builder.finish(SegmentId::new(Place::until(Seq(1)), 1, [0; 10]));
        let at = segment.index_offset as usize;
        let index = &object[at..at + segment.index_bytes as usize];
        let index = FrameIndex::decode(index).unwrap();
        (0..count)
            .map(|number| compose(Block(number), Mask::FULL, [Layer::Segment(segment.id, &index)]).key)
            .collect()
    }

    /// Fills slots until each of `keys` was asked for once; says how many were filled before one could not
    /// be.
    fn fill(table: &SlotTable, keys: &[ContentKey]) -> usize {
        let fill = |key| {
            let write = |slot, ()| std::future::ready(Ok::<_, io::Error>(slot));
            table.slot(key, std::future::ready(Ok(())), write).now_or_never()
        };
        keys.iter().take_while(|key| fill(key).is_some_and(|slot| slot.is_ok())).count()
    }

    /// On nodes of 17 CPUs and more the index could hold every slot of the slab: then no miss found a free
    /// one, and each cold read of the node waited until the daemon was restarted.
    #[test]
    fn misses_are_served_on_any_number_of_cpus() {
        let tiny = 4 * SPARE;
        let keys = keys(3 * 8192);
        for cpus in [1, 2, 16, 17, 32, 64, 512] {
            for slots in [tiny, tiny + 1, 1000, 4096, 5003, 8191, 8192] {
                let table = SlotTable::new(slots, SPARE, 4 * cpus);
                let due = &keys[..3 * slots as usize];
                assert_eq!(fill(&table, due), due.len(), "{slots} slots, {cpus} CPUs");
                let held = table.len() as u64;
                assert!(
                    held * 10 >= u64::from(slots) * 7,
                    "{held} of {slots} slots are used with {cpus} CPUs"
                );
            }
        }
        assert_eq!(SlotTable::new(32_768, SPARE, 8).index.num_shards(), 8);
    }

    /// Two takers that waited at once could miss one of two slots that were given back.
    #[test]
    fn each_slot_that_comes_back_wakes_a_taker() {
        let free = FreeSlots::new(2);
        let (one, other) = (free.take().now_or_never().unwrap(), free.take().now_or_never().unwrap());
        let mut takers = [Box::pin(free.take()), Box::pin(free.take())];
        assert!(takers.iter_mut().all(|taker| taker.now_or_never().is_none()));
        free.give_back(one, false);
        free.give_back(other, true);
        let taken = takers.each_mut().map(|taker| taker.now_or_never());
        assert_eq!(taken, [Some(one), Some(other)]);
    }
}
