//! Prefetch lists: the cost of a fork's first reads with and without the list of its snapshot.

use std::path::Path;
use std::time::Duration;

use holdfast_format::prefetch_list::PrefetchList;
use holdfast_log::{Creation, provision, read_prefetch_list, snapshot_detached, store_prefetch_list};
use holdfast_types::{BLOCK_SECTORS, Nonce, SnapshotName, SnapshotUid, VolumeId};
use tokio::time::Instant;

use super::in_order::{Node, Reader, SLAB_BYTES};
use super::*;
use crate::node::volume::fork_start::{FirstReadWork, ForkStart};

/// Blocks of the volume: 64 MiB.
const BLOCKS: u64 = 512;
/// Blocks that a boot reads, a few of them neighbours.
const BOOT: u64 = 300;

/// Returns the blocks of a boot in their order, each once.
fn boot() -> Vec<u64> {
    let mut place = 1u64;
    let mut blocks = Vec::new();
    while blocks.len() < BOOT as usize {
        place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let block = (place >> 33) % BLOCKS;
        if !blocks.contains(&block) {
            blocks.push(block);
        }
    }
    blocks
}

/// Creates an image with a snapshot, and two forks of it, whose names it returns.
async fn forks(reader: &Reader) -> (SnapshotName, [VolumeId; 2]) {
    let (objects, nonce) = (&reader.node.store, Nonce([1; 16]));
    let image: VolumeId = "image".parse().unwrap();
    provision(objects, &image, Creation::plain(BLOCKS * BLOCK_SECTORS, nonce, 0)).await.unwrap();
    let taken = snapshot_detached(objects, &image, SnapshotUid([2; 16]), nonce, 0).await.unwrap();
    let snapshot = SnapshotName { volume: image, seq: taken.seq };
    let forks = ["first", "second"].map(|name| name.parse::<VolumeId>().unwrap());
    for fork in &forks {
        let creation = Creation { source: Some(snapshot.clone()), ..Creation::plain(0, nonce, 0) };
        provision(objects, fork, creation).await.unwrap();
    }
    (snapshot, forks)
}

/// A fork on a node that never read anything of it.
struct Fork {
    reader: Reader,
    start: Arc<ForkStart>,
    name: VolumeId,
}

impl Fork {
    /// Attaches `name` to a node with an empty slab, whose store is the one of `reader`.
    async fn on_another_node(mut reader: Reader, dir: &Path, name: &VolumeId) -> Self {
        reader.settle().await;
        let (slab, indexes) =
            (BlockSlab::open(&dir.join("slab"), SLAB_BYTES).unwrap(), Indexes::new(16, 1 << 20));
        let node = Arc::try_unwrap(reader.node).ok().expect("no task of the reader is left");
        let cold = ColdReads::new(slab, Arc::new(indexes));
        let reader = Reader::of(Arc::new(Node { cold, ..node }));
        Self { reader, start: Arc::default(), name: name.clone() }
    }

    /// Reads a block, like the volume's background work.
    async fn read(&mut self, block: u64) {
        let range = SectorRange::new(block * BLOCK_SECTORS + 3, 1);
        let first = self.start.read(range, &self.reader.node.runs);
        if let Some(FirstReadWork { prefetch: Some(runs) }) = first {
            let (node, ahead) = (Arc::clone(&self.reader.node), Arc::clone(&self.reader.volume));
            let (start, name) = (Arc::clone(&self.start), self.name.clone());
            self.reader.spawn(async move {
                start.prefetch(&runs, &node.cold, (&name, &node.store, &ahead)).await;
            });
        }
        self.reader.read(range).await.into_iter().for_each(|slot| drop(slot.unwrap()));
    }

    /// Reads the blocks of a boot one after another. Returns its requests and its time.
    async fn boot(&mut self) -> (u64, Duration) {
        let (gets, begun) = (self.reader.gets(), Instant::now());
        for block in boot() {
            self.read(block).await;
        }
        let time = begun.elapsed();
        self.reader.settle().await;
        (self.reader.gets() - gets, time)
    }

    /// Ends the recording.
    async fn end_recording(self) -> Reader {
        self.start.store_list(&self.reader.node.cold, &self.reader.node.store).await;
        self.reader
    }
}

/// 300 blocks in random order, with one request at a time, 20 ms from the store: the first fork waits for
/// each; the second one, on another node, is served by the prefetch.
#[tokio::test(start_paused = true)]
async fn a_later_fork_waits_for_few_requests() {
    let (home, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let reader = Reader::new(home.path(), BLOCKS, Some(80_000_000)).await;
    let (snapshot, [first, second]) = forks(&reader).await;
    let mut fork = Fork { reader, start: Arc::default(), name: first };
    let (first_gets, first_time) = fork.boot().await;
    let figures = fork.reader.node.cold.read_ahead();
    assert_eq!((figures.used_lists, figures.stored_lists), (0, 0));
    let node = Arc::clone(&fork.reader.node);
    let reader = fork.end_recording().await;
    assert_eq!(node.cold.read_ahead().stored_lists, 1);
    let list = read_prefetch_list(&node.store, &snapshot).await.unwrap().expect("it is stored");
    assert_eq!(list.blocks().map(|block| block.0).collect::<Vec<_>>(), boot());
    drop(node);
    let mut fork = Fork::on_another_node(reader, elsewhere.path(), &second).await;
    let (gets, time) = fork.boot().await;
    println!(
        "{BOOT} blocks: {first_gets} GETs and {first_time:?} without a list, {gets} and {time:?} with it"
    );
    assert!(time < first_time / 10 && gets < first_gets / 2);
    let figures = fork.reader.node.cold.read_ahead();
    assert_eq!((figures.used_lists, figures.stored_lists), (1, 0));
    assert!(figures.blocks.fetched <= BOOT && figures.blocks.unused == 0, "{figures:?}");
    // A list is not replaced.
    fork.end_recording().await;
}

/// A check of a file system is no boot: the next fork is recorded instead.
#[tokio::test(start_paused = true)]
async fn a_fork_that_reads_little_stores_no_list() {
    let dir = tempfile::tempdir().unwrap();
    let reader = Reader::new(dir.path(), BLOCKS, None).await;
    let (snapshot, [name, _]) = forks(&reader).await;
    let mut fork = Fork { reader, start: Arc::default(), name };
    for block in 0..10 {
        fork.read(block * 7).await;
    }
    fork.reader.settle().await;
    let reader = fork.end_recording().await;
    assert_eq!(read_prefetch_list(&reader.node.store, &snapshot).await.unwrap(), None);
}

/// A prefetch takes its permits when others return them, and leaves others theirs.
#[tokio::test(start_paused = true)]
async fn a_list_waits_while_others_prefetch() {
    let (dir, most) = (tempfile::tempdir().unwrap(), BLOCKS_AHEAD as u32);
    let reader = Reader::new(dir.path(), BLOCKS, None).await;
    let (snapshot, _) = forks(&reader).await;
    let Node { cold, store, runs } = &*reader.node;
    let list = PrefetchList::new(snapshot, (0..BLOCKS).map(Block));
    let held = Arc::clone(&cold.blocks_ahead).acquire_many_owned(most).await.unwrap();
    let fetch = cold.fetch_list(store, &reader.volume, &list, runs);
    let mut fetch = std::pin::pin!(fetch);
    let early = tokio::time::timeout(Duration::from_secs(1), &mut fetch).await;
    assert!(early.is_err() && cold.read_ahead().blocks.fetched == 0, "no permit is free");
    drop(held);
    fetch.await;
    assert_eq!(cold.read_ahead().blocks.fetched, BLOCKS);
    assert_eq!(cold.blocks_ahead.available_permits(), BLOCKS_AHEAD);
}

/// An unreachable store ends the prefetch, and fails no read for good.
#[tokio::test(start_paused = true)]
async fn an_unreachable_store_ends_a_list() {
    let dir = tempfile::tempdir().unwrap();
    let reader = Reader::new(dir.path(), BLOCKS, None).await;
    let (snapshot, _) = forks(&reader).await;
    let Node { cold, store, runs } = &*reader.node;
    reader.node.store.near.go_away();
    let list = PrefetchList::new(snapshot, (0..BLOCKS).map(Block));
    cold.fetch_list(store, &reader.volume, &list, runs).await;
    assert_eq!(cold.read_ahead().blocks.fetched, 0);
    assert_eq!(cold.blocks_ahead.available_permits(), BLOCKS_AHEAD);
    reader.node.store.near.heal();
    let lines = ColdLines::default();
    drop(cold.block(store, &lines, SectorRange::new(5, 1), runs, Among::Both).await.unwrap());
}

/// A small slab is not filled with blocks of a list: they would push each other out unread.
#[tokio::test(start_paused = true)]
async fn a_list_takes_half_of_the_unread_part_of_a_slab() {
    let dir = tempfile::tempdir().unwrap();
    let reader = Reader::new(dir.path(), BLOCKS, None).await;
    let (snapshot, _) = forks(&reader).await;
    let Node { store, runs, .. } = &*reader.node;
    let small = tempfile::tempdir().unwrap();
    let slab = BlockSlab::open(&small.path().join("slab"), 64 << 20).unwrap();
    let cold = ColdReads::new(slab, Arc::new(Indexes::new(16, 1 << 20)));
    let list = PrefetchList::new(snapshot, (0..BLOCKS).map(Block));
    cold.fetch_list(store, &cold.volume(StoreKey(0)), &list, runs).await;
    let AheadCounts { fetched, unused, .. } = cold.read_ahead().blocks;
    assert_eq!((fetched, unused), (cold.slab.unread_most() / 2, 0));
    assert!((32..=64).contains(&fetched), "{fetched}");
}

/// Of two forks that were recorded at the same time, the first one stores its list. The other one stores
/// nothing later, either.
#[tokio::test(start_paused = true)]
async fn a_list_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let reader = Reader::new(dir.path(), BLOCKS, None).await;
    let (snapshot, [name, _]) = forks(&reader).await;
    let earlier = PrefetchList::new(snapshot.clone(), [Block(4)]);
    let mut fork = Fork { reader, start: Arc::default(), name };
    for block in 0..40 {
        fork.read(block * 2).await;
    }
    fork.reader.settle().await;
    let (node, start) = (Arc::clone(&fork.reader.node), Arc::clone(&fork.start));
    assert!(store_prefetch_list(&node.store, &earlier).await.unwrap());
    fork.end_recording().await;
    assert_eq!(read_prefetch_list(&node.store, &snapshot).await.unwrap(), Some(earlier));
    assert_eq!(node.cold.read_ahead().stored_lists, 0);
    assert!(start.read(SectorRange::new(7, 1), &node.runs).is_none(), "it is not recorded again");
}

/// Regression, found in review: three lists of a store took all of its permits, and readers in order had no
/// read-ahead.
#[tokio::test(start_paused = true)]
async fn many_lists_leave_permits_to_readers_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let reader = Reader::new(dir.path(), BLOCKS, Some(1_000_000)).await;
    let (snapshot, _) = forks(&reader).await;
    let Node { cold, store, runs } = &*reader.node;
    // The same blocks would be fetched once.
    let lists =
        (0..8).map(|number| PrefetchList::new(snapshot.clone(), (number * 60..number * 60 + 60).map(Block)));
    let lists: Vec<PrefetchList> = lists.collect();
    let fetches = join_all(lists.iter().map(|list| cold.fetch_list(store, &reader.volume, list, runs)));
    let mut fetches = std::pin::pin!(fetches);
    let mut free = Vec::new();
    while tokio::time::timeout(Duration::from_millis(30), &mut fetches).await.is_err() {
        free.push(cold.room(&reader.volume.store).map_or(0, |[node, _]| node.num_permits()));
    }
    assert!(free.len() > 8 && free.iter().all(|permits| *permits >= LIST_STEP), "{free:?}");
    assert_eq!(cold.read_ahead().blocks.fetched, 480);
}
