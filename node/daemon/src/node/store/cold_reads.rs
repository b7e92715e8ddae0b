//! Cold reads: blocks of the object store, served through the slab.
//!
//! Owns: the read-ahead limits for all volumes. Each volume chooses its own blocks
//! ([`holdfast_background::Streams`]).
//! Invariants: a slot is found by the content that a reader's own runs compose, so a prefetched block is only
//! read by readers for which it has that content (3 in `docs/invariants.md`).
//! On failure: prefetches are retried only by the store's client, and a failed joined request does not fail a
//! read: each block is then read separately.

use std::collections::{BTreeMap, HashSet};
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::join_all;
use holdfast_background::{
    AheadCounts, ColdError, ColdLines, ColdPart, Fetches, JoinedGets, OldCounts, PassedReads, SlabBlock,
    SlabSlot, StoreKey, Streams, WeakSlabSlot, retry_while_unavailable,
};
use holdfast_format::compose::Composition;
use holdfast_format::index::Runs;
use holdfast_format::prefetch_list::PrefetchList;
use holdfast_log::{Indexes, join_reads};
use holdfast_objects::ObjectStore;
use holdfast_ring::HeapBuffer;
use holdfast_types::{BLOCK_BYTES, Block, Mask, SectorRange};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::node::clock::NodeTime;
use crate::node::store::block_cache::{Among, BlockSlab};
use crate::node::store::kept_indexes::KeptIndexes;

/// Maximum of concurrently prefetched blocks, for all volumes: 64 MiB of memory, because each is held in its
/// stored and its decoded form.
const BLOCKS_AHEAD: usize = 256;
/// Maximum of concurrent prefetch requests to a store: a third of the permits of reads. Readers have the
/// rest.
const GETS_AHEAD: usize = 16;
/// Maximum of concurrently requested bytes for joined parts of readers' requests, for all volumes: 32 MiB, in
/// KiB.
const JOINED_KIB: usize = 32 << 10;
/// Blocks of a prefetch list that are fetched at a time: at most, and at least unless fewer are left.
const LIST_STEP: usize = 64;
const LEAST_STEP: usize = 16;
/// Blocks of a prefetch list that are ordered by number.
const LIST_PART: usize = 256;
/// Interval at which a prefetch list tries to get permits that other prefetches hold.
const ROOM_EVERY: Duration = Duration::from_millis(20);
/// Minimum number of windows that fit in the unread part of the slab.
const WINDOWS: u64 = 4;

/// Figures of read-ahead, since the process started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReadAheadFigures {
    /// Block counts.
    pub(crate) blocks: AheadCounts,
    /// Bytes requested from stores for them.
    pub(crate) requested_bytes: u64,
    /// Prefetch lists of which blocks were fetched.
    pub(crate) used_lists: u64,
    /// Prefetch lists that were stored.
    pub(crate) stored_lists: u64,
}

/// The node's cold reads.
pub(crate) struct ColdReads {
    slab: Arc<BlockSlab>,
    indexes: Arc<Indexes>,
    fetches: Fetches<HeapBuffer>,
    blocks_ahead: Arc<Semaphore>,
    joined_kib: Semaphore,
    stores: Mutex<BTreeMap<StoreKey, Weak<StoreAhead>>>,
    requested_ahead: AtomicU64,
    used_lists: AtomicU64,
    stored_lists: AtomicU64,
}

/// Limits of prefetches from one store. Exists while a volume of the store is attached.
struct StoreAhead {
    gets: Semaphore,
    /// As many permits as the node's: taken ones are the store's blocks.
    blocks: Arc<Semaphore>,
    /// One permit, for a step of one prefetch list: several would leave no permits to sequential readers.
    list_turn: Semaphore,
    joined: Mutex<JoinedTries>,
}

/// Joined requests for parts of a reader's request: each consecutive failure doubles the number of requests
/// that are not joined.
#[derive(Default)]
struct JoinedTries {
    failures: u32,
    left_out: u32,
}

impl JoinedTries {
    /// Returns true if the next one may be joined.
    fn may_try(&mut self) -> bool {
        let may_try = self.left_out == 0;
        self.left_out = self.left_out.saturating_sub(1);
        may_try
    }

    fn failed(&mut self) {
        self.failures = (self.failures + 1).min(8);
        self.left_out = (1 << self.failures) - 1;
    }
}

impl StoreAhead {
    fn new() -> Self {
        Self {
            gets: Semaphore::new(GETS_AHEAD),
            blocks: Arc::new(Semaphore::new(BLOCKS_AHEAD)),
            list_turn: Semaphore::new(1),
            joined: Mutex::default(),
        }
    }
}

/// The readers of a volume, and the limits of its store.
pub(crate) struct VolumeAhead {
    streams: Mutex<Streams>,
    store: Arc<StoreAhead>,
}

impl VolumeAhead {
    /// Records reads before the next part that had no task.
    pub(crate) fn passed(&self, reads: &[PassedReads]) {
        let mut streams = self.streams.lock();
        reads.iter().for_each(|reads| streams.passed(*reads));
    }
}

/// Blocks to prefetch, and their permits.
pub(crate) struct Ahead {
    blocks: Vec<Block>,
    runs: Runs,
    _room: [OwnedSemaphorePermit; 2],
}

impl ColdReads {
    pub(crate) fn new(slab: BlockSlab, indexes: Arc<Indexes>) -> Self {
        let fetches = Fetches::new(|| HeapBuffer::zeroed(BLOCK_BYTES as usize));
        Self {
            slab: Arc::new(slab),
            indexes,
            fetches,
            blocks_ahead: Arc::new(Semaphore::new(BLOCKS_AHEAD)),
            joined_kib: Semaphore::new(JOINED_KIB),
            stores: Mutex::default(),
            requested_ahead: AtomicU64::new(0),
            used_lists: AtomicU64::new(0),
            stored_lists: AtomicU64::new(0),
        }
    }

    /// Returns the readers of a volume of `store`, with windows that fit in the slab. The key must be the
    /// store's for the lifetime of the result.
    pub(crate) fn volume(&self, store: StoreKey) -> VolumeAhead {
        let mut stores = self.stores.lock();
        stores.retain(|_, held| held.strong_count() > 0);
        let store = stores.get(&store).and_then(Weak::upgrade).unwrap_or_else(|| {
            let new = Arc::new(StoreAhead::new());
            stores.insert(store, Arc::downgrade(&new));
            new
        });
        VolumeAhead { streams: Streams::new(self.slab.unread_most() / WINDOWS).into(), store }
    }

    /// Returns the blocks to prefetch for `part`, the next one that a volume reads, and their permits. The
    /// blocks are chosen from `remote_after`, which has a bit for each of the 128 blocks after the part, the
    /// next one in the lowest bit. Without it the part is only recorded.
    pub(crate) fn ahead_of(
        &self,
        volume: &VolumeAhead,
        part: ColdPart,
        remote_after: Option<u128>,
        runs: &Runs,
    ) -> Option<Ahead> {
        let mut room = remote_after.and_then(|_| self.room(&volume.store));
        let most = room.as_ref().map_or(0, |[node, _store]| node.num_permits() as u64);
        let wanted = volume.streams.lock().read(part, most)?;
        let (next, remote_after) = (part.last_block() + 1, remote_after?);
        let is_remote = |block: &u64| remote_after >> (block - next) & 1 != 0;
        let blocks: Vec<Block> = wanted.filter(is_remote).map(Block).collect();
        if blocks.is_empty() {
            return None;
        }
        // Surplus permits are returned.
        let [node, store] = room.as_mut()?.each_mut().map(|room| room.split(blocks.len()));
        Some(Ahead { blocks, runs: runs.clone(), _room: [node?, store?] })
    }

    /// Acquires permits for the blocks that a volume of `store` may prefetch now: at most half of the free
    /// ones, and at most so many that the store holds three times the number it leaves to others.
    fn room(&self, store: &StoreAhead) -> Option<[OwnedSemaphorePermit; 2]> {
        let free = self.blocks_ahead.available_permits();
        let held = BLOCKS_AHEAD - store.blocks.available_permits();
        let room = (free / 2).min((3 * free).saturating_sub(held) / 4) as u32;
        let node = Arc::clone(&self.blocks_ahead).try_acquire_many_owned(room).ok()?;
        let store = Arc::clone(&store.blocks).try_acquire_many_owned(room).ok()?;
        Some([node, store])
    }

    /// Returns the figures of read-ahead.
    pub(crate) fn read_ahead(&self) -> ReadAheadFigures {
        let [requested_bytes, used_lists, stored_lists] =
            [&self.requested_ahead, &self.used_lists, &self.stored_lists]
                .map(|counter| counter.load(Ordering::Relaxed));
        ReadAheadFigures { blocks: self.slab.ahead(), requested_bytes, used_lists, stored_lists }
    }

    /// Counts a stored prefetch list.
    pub(crate) fn count_stored_list(&self) {
        self.stored_lists.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counts of blocks written to the slab by earlier processes.
    pub(crate) fn old(&self) -> OldCounts {
        self.slab.old()
    }

    /// Returns the number of blocks served from memory because the disk failed to store or read them.
    pub(crate) fn unkept(&self) -> u64 {
        self.slab.unkept()
    }

    /// Drops a slot that the disk cannot read.
    pub(crate) fn forget(&self, slot: &SlabSlot) {
        self.slab.forget(slot);
    }

    /// Records that these blocks were read directly.
    pub(crate) fn used(&self, slots: &[WeakSlabSlot]) {
        self.slab.used(slots);
    }

    /// Returns the slab slot of `range`'s block, which has at least `range` as composed by `runs`.
    ///
    /// # Errors
    /// [`ColdError`] only if a retry cannot help.
    pub(crate) async fn block(
        &self,
        objects: &dyn ObjectStore,
        lines: &ColdLines,
        range: SectorRange,
        runs: &Runs,
        among: Among,
    ) -> Result<SlabBlock, ColdError> {
        let reader = &self.fetches.reader();
        retry_while_unavailable(&NodeTime, lines, range, |wanted| async move {
            let indexes = KeptIndexes { objects, slab: &self.slab };
            let block = self.indexes.compose(&indexes, range.start.block(), wanted, runs).await?;
            let sectors = block.sectors_for(wanted, Mask::of(range));
            let plan = block.for_range(Mask::of(range));
            let whole = || reader.block(objects, runs.lineage(), &plan);
            let slot = self.slab.slot(&plan.key, among, whole).await?;
            Ok(SlabBlock { slot, sectors })
        })
        .await
    }
}

impl ColdReads {
    /// Fetches blocks into the slab before they are read, with one request for adjacent frames of an object.
    /// A concurrent reader waits for this fetch. Only the store's client retries: a failure ends the volume's
    /// streams. If the store does not respond, or the disk stores nothing, only reads detect the end of this
    /// condition.
    pub(crate) async fn fetch_ahead(&self, objects: &dyn ObjectStore, volume: &VolumeAhead, ahead: Ahead) {
        match self.fill_ahead(&volume.store, objects, &ahead).await {
            Ok(0) => {}
            Ok(_) => volume.streams.lock().succeeded(),
            Err(error) => {
                tracing::debug!(error = &error as &dyn Error, "blocks were not fetched ahead");
                volume.streams.lock().failed();
            }
        }
    }

    /// Fetches the blocks of a prefetch list into the slab, as many as half of its unread part holds: earlier
    /// parts of the list first, the blocks of each part by number, so that one request fetches neighbours.
    /// The lists of a store alternate. Ends at the first failure.
    pub(crate) async fn fetch_list(
        &self,
        objects: &dyn ObjectStore,
        volume: &VolumeAhead,
        list: &PrefetchList,
        runs: &Runs,
    ) {
        let most = (self.slab.unread_most() / 2) as usize;
        let mut blocks: Vec<Block> = list.blocks().take(most).collect();
        blocks.chunks_mut(LIST_PART).for_each(<[Block]>::sort_unstable);
        let (mut rest, mut is_used) = (&blocks[..], false);
        while !rest.is_empty() {
            let Ok(_turn) = volume.store.list_turn.acquire().await else { return };
            let room = self.room_for(&volume.store, rest.len()).await;
            let (step, later) = rest.split_at(room[0].num_permits());
            rest = later;
            let ahead = Ahead { blocks: step.to_vec(), runs: runs.clone(), _room: room };
            match self.fill_ahead(&volume.store, objects, &ahead).await {
                Ok(0) => {}
                Ok(_) => {
                    if !std::mem::replace(&mut is_used, true) {
                        self.used_lists.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Err(error) => {
                    tracing::debug!(
                        error = &error as &dyn Error,
                        "the rest of a prefetch list was not fetched"
                    );
                    return;
                }
            }
        }
    }

    /// Acquires permits for the next step of a list with this many blocks left. Waits until enough are free
    /// for a request that fetches neighbours.
    async fn room_for(&self, store: &StoreAhead, rest: usize) -> [OwnedSemaphorePermit; 2] {
        loop {
            if let Some([mut node, mut store]) = self.room(store)
                && node.num_permits() >= rest.min(LEAST_STEP)
                && let count = node.num_permits().min(rest).min(LIST_STEP)
                && let (Some(node), Some(store)) = (node.split(count), store.split(count))
            {
                return [node, store];
            }
            tokio::time::sleep(ROOM_EVERY).await;
        }
    }

    /// Fetches `blocks` into the slab. Returns the number of blocks that were missing before, or the first
    /// error of any.
    async fn fill_ahead(
        &self,
        store: &StoreAhead,
        objects: &dyn ObjectStore,
        Ahead { blocks, runs, _room }: &Ahead,
    ) -> Result<usize, ColdError> {
        let wanted = blocks.iter().map(|block| (*block, Mask::FULL));
        let plans = self.missing(objects, runs, wanted).await?;
        let limit = (&store.gets, &self.requested_ahead);
        let gets = JoinedGets::new(objects, runs.lineage(), &plans, Some(limit));
        let fills = plans.iter().map(async |plan| {
            let reader = self.fetches.reader();
            self.slab.fill_ahead(&plan.key, reader.block(&gets, runs.lineage(), plan)).await
        });
        join_all(fills).await.into_iter().try_for_each(|filled| filled)?;
        Ok(plans.len())
    }

    /// Fetches the data for several reads of one request, if that takes fewer requests to the store. Failed
    /// parts are left to the reads, and all parts while the disk stores nothing: each block would be fetched
    /// twice. No slot is held once it is filled, because other requests may wait for one.
    pub(crate) async fn fetch_joined(
        &self,
        objects: &dyn ObjectStore,
        volume: &VolumeAhead,
        runs: &Runs,
        ranges: &[SectorRange],
    ) {
        if self.slab.is_refused() || !volume.store.joined.lock().may_try() {
            return;
        }
        let wanted = ranges.iter().map(|range| (range.start.block(), Mask::of(*range)));
        let Ok(plans) = self.missing(objects, runs, wanted).await else { return };
        let gets = JoinedGets::new(objects, runs.lineage(), &plans, None);
        if gets.len() >= plans.iter().map(|plan| plan.pieces.len()).sum() {
            return;
        }
        // If the limit is reached, each read fetches its own frame separately.
        let kib = u32::try_from(gets.bytes().div_ceil(1 << 10)).unwrap_or(u32::MAX);
        let Ok(_room) = self.joined_kib.try_acquire_many(kib) else { return };
        let fetches = plans.iter().map(async |plan| {
            let reader = self.fetches.reader();
            self.slab.fill_joined(&plan.key, reader.block(&gets, runs.lineage(), plan)).await
        });
        let fetched: Vec<Result<(), ColdError>> = join_all(fetches).await;
        if fetched.iter().any(Result::is_ok) {
            *volume.store.joined.lock() = JoinedTries::default();
        } else if let Some(Err(error)) = fetched.first() {
            tracing::debug!(error = error as &dyn Error, "parts of a request were not fetched together");
            volume.store.joined.lock().failed();
        }
    }

    /// Returns the blocks with bytes in the wanted sectors that are neither in the slab nor being fetched.
    async fn missing(
        &self,
        objects: &dyn ObjectStore,
        runs: &Runs,
        wanted: impl Iterator<Item = (Block, Mask)>,
    ) -> Result<Vec<Composition>, ColdError> {
        let indexes = &KeptIndexes { objects, slab: &self.slab };
        let plans = wanted.map(async |(block, wanted)| {
            let plan = self.indexes.compose(indexes, block, Mask::FULL, runs).await?;
            Ok(plan.for_range(wanted))
        });
        let (mut plans, mut keys) = (join_reads(plans).await?, HashSet::new());
        // Slots of an earlier process may be invalid: each reader would then fetch its block separately.
        join_all(plans.iter().map(|plan| self.slab.prove(&plan.key))).await;
        plans.retain(|plan| {
            let is_there = self.slab.contains(&plan.key) || self.fetches.is_in_progress(&plan.key);
            // Parts of a request may be in one block, and blocks may have the same content.
            !plan.pieces.is_empty() && !is_there && keys.insert(plan.key)
        });
        Ok(plans)
    }
}

#[cfg(test)]
mod ahead;
#[cfg(test)]
mod in_order;
#[cfg(test)]
mod listed;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
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

    /// Returns a store with a volume in which one sector was written.
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

    /// Regression: a block in the slab still required a request for the index that names it.
    #[tokio::test]
    async fn after_a_restart_a_block_that_was_read_takes_no_request() {
        let ((store, runs), dir) = (written(), tempfile::tempdir().unwrap());
        for old in [0, 2, 2] {
            let cold = cold_reads(dir.path());
            let (lines, range) = (ColdLines::default(), SectorRange::new(0, 1));
            let found = cold.block(&store, &lines, range, &runs, Among::Both).await.unwrap();
            let mut sector = HeapBuffer::zeroed(4096);
            cold.slab.file().read_exact_at(&mut sector, found.slot.offset_bytes()).unwrap();
            assert!(sector.iter().all(|byte| *byte == 7));
            cold.slab.kept().await;
            assert_eq!(store.counts().get, 2, "one of the index, one of the frame");
            assert_eq!(cold.old(), OldCounts { found: old, used: old, refused: 0 });
        }
    }

    /// Regression: each reader fetched the block, one after the other.
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
        for found in join(join_all(readers), released).await.0 {
            assert!(found.unwrap().slot.is_in_memory());
        }
        assert_eq!(store.counts().get, 2, "one of the index, one of the frame");
    }
}
