//! Prefetched blocks: their cost to others, and the bytes that readers get.

use std::os::unix::fs::FileExt;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use holdfast_engine::event::RequestId;
use holdfast_format::index::Run;
use holdfast_format::segment::SegmentBuilder;
use holdfast_objects::{ErrorKind, Fault, Gate, ReadyParts, Verb};
use holdfast_types::{BLOCK_SECTORS, Place, SegmentId, Seq};

use super::in_order::{Node, Reader, SEGMENTS, noise};
use super::*;
use crate::node::tests::host::SmallTmpfs;

/// Blocks of the volume.
const BLOCKS: u64 = 128;

async fn reader() -> Reader {
    let dir = tempfile::tempdir().unwrap();
    Reader::new(dir.path(), BLOCKS, None).await
}

fn block_range(block: u64) -> SectorRange {
    SectorRange::new(block * BLOCK_SECTORS, BLOCK_SECTORS)
}

/// Waits until a request has reached the gate. The clock is paused, so a minute takes no time.
async fn arrival(gate: &Gate) {
    tokio::time::timeout(Duration::from_secs(60), gate.arrival()).await.expect("it is requested ahead");
}

/// Returns the bytes of a block, as a ring reads them.
fn bytes_of(node: &Node, slot: &SlabSlot) -> Vec<u8> {
    let slab = &node.cold.slab;
    let file = if slot.is_in_memory() { slab.memory_file() } else { slab.file() };
    let mut found = HeapBuffer::zeroed(BLOCK_BYTES as usize);
    file.read_exact_at(&mut found, slot.offset_bytes()).unwrap();
    found.to_vec()
}

/// Returns a block as composed by these runs of the volume.
async fn read(node: &Node, runs: &Runs, block: u64) -> Result<Vec<u8>, ColdError> {
    let (lines, range) = (ColdLines::default(), block_range(block));
    let found = node.cold.block(&node.store, &lines, range, runs, Among::Both).await?;
    Ok(bytes_of(node, &found.slot))
}

/// Page faults of a mapped file: the kernel reads 128 KiB around each, which span two blocks. In addition,
/// longer requests at random offsets.
#[tokio::test(start_paused = true)]
async fn random_reads_fetch_nothing_ahead() {
    let mut reader = reader().await;
    let mut place = 1u64;
    let mut blocks = std::collections::BTreeSet::new();
    for sectors in [BLOCK_SECTORS, 8 * BLOCK_SECTORS].repeat(40) {
        place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let request = SectorRange::new((place >> 33) % ((BLOCKS - 9) * BLOCK_SECTORS), sectors);
        blocks.extend(request.split_at_multiples(BLOCK_SECTORS).map(|piece| piece.start.block().0));
        reader.read(request).await.into_iter().for_each(|slot| drop(slot.unwrap()));
    }
    reader.settle().await;
    assert_eq!(reader.node.cold.read_ahead(), ReadAheadFigures::default());
    assert!(reader.gets() < SEGMENTS + blocks.len() as u64, "neighbours of a request come together");
}

#[tokio::test(start_paused = true)]
async fn a_read_of_one_block_is_one_request_and_of_eight_too() {
    let mut reader = reader().await;
    drop(reader.read(SectorRange::new(300, 1)).await);
    let one = SEGMENTS + 1;
    assert_eq!(reader.gets(), one, "the indexes and a frame");
    for (start, sectors, more) in [(301, 1, 0), (64 * 32, 256, 1), (100 * 32 + 7, 32, 2)] {
        let read = reader.read(SectorRange::new(start, sectors)).await;
        assert!(read.iter().all(Result::is_ok));
        assert_eq!(reader.gets() - one, more, "{sectors} sectors at {start}");
    }
}

/// A reader whose block is being prefetched waits for that, and requests nothing.
#[tokio::test(start_paused = true)]
async fn a_reader_joins_what_is_fetched_ahead() {
    let mut reader = reader().await;
    reader.read_blocks(0..3).await;
    // The window of 3..7 is requested.
    let before = reader.gets();
    reader.read_blocks(3..5).await;
    reader.settle().await;
    let after = reader.gets();
    assert!(after - before <= 2, "the window, and the next one: {}", after - before);
    let AheadCounts { fetched, used, unused } = reader.node.cold.read_ahead().blocks;
    assert_eq!((fetched, used, unused), (9, 2, 0));
}

/// A detaching volume drops its prefetches. Another one that waited fetches the block itself.
#[tokio::test(start_paused = true)]
async fn a_detach_leaves_other_readers_their_blocks() {
    let mut first = reader().await;
    let mut fork = Reader::of(Arc::clone(&first.node));
    let gate = Gate::new();
    first.read_blocks(0..2).await;
    first.node.store.near.fail_next(Verb::Get, Fault::Delay(Duration::ZERO));
    first.node.store.near.fail_next(Verb::Get, Fault::Hold(gate.clone()));
    first.read_blocks(2..3).await;
    arrival(&gate).await;
    let mut joined = Box::pin(fork.read_blocks(4..5));
    assert!(joined.as_mut().now_or_never().is_none(), "its block is requested");
    first.detach();
    joined.await;
    assert_eq!(first.node.cold.blocks_ahead.available_permits(), BLOCKS_AHEAD);
}

/// Regression: a failed window was requested again by each read, without limit.
#[tokio::test(start_paused = true)]
async fn an_unreachable_store_is_not_asked_ahead_again() {
    let mut reader = reader().await;
    reader.read_blocks(0..5).await;
    reader.settle().await;
    let before = reader.gets();
    reader.node.store.near.go_away();
    // These blocks exist. Each failure ends the stream for a longer time.
    for _ in 0..20 {
        let read = reader.read_blocks(5..12);
        tokio::time::timeout(Duration::from_secs(60), read).await.expect("they are in the slab");
        reader.settle().await;
    }
    let failed = reader.gets() - before;
    assert!((1..=5).contains(&failed), "{failed} requests ahead of 140 reads");
    // A read of a missing block waits for the store, and only that block is requested.
    for _ in 0..20 {
        let waits = reader.read(block_range(100));
        assert!(tokio::time::timeout(Duration::from_millis(25), waits).await.is_err());
    }
    reader.settle().await;
    assert_eq!(reader.gets() - before - failed, 20);
    reader.node.store.near.heal();
    reader.read_blocks(12..80).await;
    assert!(reader.gets() - before < 50);
}

/// A damaged frame fails the read of its block, but no other read that shared the request.
#[tokio::test(start_paused = true)]
async fn a_damaged_frame_fails_its_own_block_alone() {
    let mut reader = reader().await;
    let key = reader.node.store.near.keys().remove(0);
    let plan = |block| {
        reader.node.cold.indexes.compose(&reader.node.store, Block(block), Mask::FULL, &reader.node.runs)
    };
    let damaged = plan(5).await.unwrap().pieces[0].frame.offset as usize;
    reader.node.store.near.corrupt(&key, |bytes| bytes[damaged] ^= 1);
    reader.read_blocks(0..5).await;
    assert!(reader.read(block_range(5)).await[0].is_err());
    reader.read_blocks(6..20).await;
    let node = &reader.node;
    assert!(read(node, &node.runs, 6).await.unwrap() == noise(6));
    // One request for several blocks, by a reader that knows none of them.
    let mut reader = Reader::of(Arc::clone(&reader.node));
    let parts = reader.read(SectorRange::new(0, 8 * BLOCK_SECTORS)).await;
    let failed: Vec<bool> = parts.iter().map(Result::is_err).collect();
    assert_eq!(failed, [false, false, false, false, false, true, false, false]);
}

/// Invariant 3: a prefetched block has the content of the volume at that time. After a commit changed the
/// block, readers of the volume get the new bytes, and readers of a snapshot the old ones.
#[tokio::test(start_paused = true)]
async fn a_commit_hides_what_was_fetched_ahead() {
    let mut reader = reader().await;
    let lineage = reader.node.runs.lineage().clone();
    let gate = Gate::new();
    reader.read_blocks(0..2).await;
    reader.node.store.near.fail_next(Verb::Get, Fault::Delay(Duration::ZERO));
    reader.node.store.near.fail_next(Verb::Get, Fault::Hold(gate.clone()));
    reader.read_blocks(2..3).await;
    arrival(&gate).await;
    // Blocks 3 to 6 are requested when 4 is written, and when this is committed.
    let mut builder = SegmentBuilder::default();
    builder.push(Block(4), Mask(1), &[9; 4096]);
    let (segment, object) = builder.finish(SegmentId::new(Place::until(Seq(9)), 9, [1; 10]));
    let mut parts = ReadyParts::from(Bytes::from(object));
    reader.node.store.near.put_segment(&lineage.segment_key(segment.id), &mut parts).await.unwrap();
    let mut newer: Vec<Run> = reader.node.runs.to_vec();
    newer.insert(0, Run::Segment(segment.into()));
    let newer = reader.node.runs.with(newer);
    gate.release();
    reader.settle().await;
    let node = &reader.node;
    assert_eq!(node.cold.read_ahead().blocks.fetched, 4);
    let mut expected = noise(4);
    expected[..4096].fill(9);
    assert!(read(node, &newer, 4).await.unwrap() == expected);
    assert!(read(node, &node.runs, 4).await.unwrap() == noise(4));
    assert!(read(node, &newer, 5).await.unwrap() == noise(5));
}

/// Returns all prefetches for a reader of 200 blocks in order.
fn all_ahead(node: &Node, volume: &VolumeAhead) -> Vec<Ahead> {
    let parts = (0..200).map(|number| ColdPart {
        request: RequestId((number % 4) as u32),
        at_bytes: 0,
        range: block_range(number),
    });
    parts.filter_map(|part| node.cold.ahead_of(volume, part, Some(u128::MAX), &node.runs)).collect()
}

/// Regardless of its number of volumes, an unresponsive store leaves a quarter to others; all permits return.
#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_leaves_room_to_others() {
    let silent = reader().await;
    let Node { cold, .. } = &*silent.node;
    let volumes: Vec<VolumeAhead> = (0..32).map(|_| cold.volume(StoreKey(1))).collect();
    let held: Vec<Ahead> = volumes.iter().flat_map(|volume| all_ahead(&silent.node, volume)).collect();
    let left = cold.blocks_ahead.available_permits();
    assert!((BLOCKS_AHEAD / 4..BLOCKS_AHEAD / 2).contains(&left), "{left} left");
    let answering = cold.volume(StoreKey(2));
    let steps = all_ahead(&silent.node, &answering);
    assert!(steps[0].blocks.len() >= 4, "a window begins");
    drop((held, steps));
    assert_eq!(cold.blocks_ahead.available_permits(), BLOCKS_AHEAD);
}

/// The next store may get the same address.
#[tokio::test(start_paused = true)]
async fn a_store_that_has_gone_leaves_no_limits() {
    let reader = reader().await;
    let Node { cold, .. } = &*reader.node;
    let one = cold.volume(StoreKey(1));
    let held = one.store.gets.try_acquire_many(GETS_AHEAD as u32).unwrap();
    assert!(Arc::ptr_eq(&one.store, &cold.volume(StoreKey(1)).store), "volumes of a store share its limits");
    drop(held);
    drop(one);
    let _other = cold.volume(StoreKey(2));
    assert_eq!(cold.stores.lock().keys().collect::<Vec<_>>(), [&StoreKey(0), &StoreKey(2)]);
}

/// Local blocks, and those beyond the end of the device, are not fetched.
#[tokio::test(start_paused = true)]
async fn blocks_that_are_local_are_not_fetched_ahead() {
    let reader = reader().await;
    let Node { cold, runs, store } = &*reader.node;
    for number in 0..3u64 {
        let range = block_range(number);
        let part = ColdPart { request: RequestId(number as u32), at_bytes: 0, range };
        let Some(ahead) = cold.ahead_of(&reader.volume, part, Some(0b1010), runs) else { continue };
        assert_eq!((number, &ahead.blocks[..]), (2, &[Block(4), Block(6)][..]));
        cold.fetch_ahead(store, &reader.volume, ahead).await;
        assert_eq!(cold.read_ahead().blocks.fetched, 2);
        return;
    }
    panic!("three blocks in order are a stream");
}

/// A failed prefetch fails no read, and ends the stream: the next one starts after six requests.
#[tokio::test(start_paused = true)]
async fn a_failure_ends_the_stream_and_fails_no_read() {
    for failure in [ErrorKind::NotFound, ErrorKind::Throttled, ErrorKind::Denied, ErrorKind::Corrupt] {
        let mut reader = reader().await;
        reader.read_blocks(0..2).await;
        reader.node.store.near.fail_next(Verb::Get, Fault::Delay(Duration::ZERO));
        reader.node.store.near.fail_next(Verb::Get, Fault::Before(failure));
        reader.read_blocks(2..3).await;
        reader.settle().await;
        reader.read_blocks(3..8).await;
        reader.settle().await;
        assert_eq!(reader.node.cold.read_ahead().blocks, AheadCounts::default());
        reader.read_blocks(8..9).await;
        reader.settle().await;
        assert_eq!(reader.node.cold.read_ahead().blocks.fetched, 4);
    }
}

/// Regression: each request held the slots of its finished blocks while it waited for others: a deadlock.
#[tokio::test]
async fn many_large_requests_end_on_a_full_disk() {
    let Some(tmpfs) = SmallTmpfs::mount(1 << 20) else { return };
    let reader = Reader::new(&tmpfs.path(), 512, None).await;
    tmpfs.fill();
    let Node { cold, runs, store } = &*reader.node;
    let lines = ColdLines::default();
    let requests = (0..64).map(async |request| {
        let blocks: Vec<SectorRange> = (request * 8..request * 8 + 8).map(block_range).collect();
        cold.fetch_joined(store, &reader.volume, runs, &blocks).await;
        let reads = blocks.iter().map(async |range| {
            assert!(cold.block(store, &lines, *range, runs, Among::Both).await.unwrap().slot.is_in_memory());
        });
        join_all(reads).await;
    });
    tokio::time::timeout(Duration::from_secs(60), join_all(requests)).await.expect("all of them end");
    // The disk stores nothing, so nothing is fetched twice.
    let before = reader.gets();
    let blocks: Vec<SectorRange> = (0..8).map(block_range).collect();
    cold.fetch_joined(store, &reader.volume, runs, &blocks).await;
    assert_eq!(reader.gets(), before);
}

/// Regression: an unreachable store with many volumes held the bytes of all their requests.
#[tokio::test(start_paused = true)]
async fn the_bytes_of_joined_requests_are_limited() {
    let reader = reader().await;
    let Node { cold, runs, store } = &*reader.node;
    let blocks: Vec<SectorRange> = (0..8).map(block_range).collect();
    let most = cold.joined_kib.try_acquire_many(JOINED_KIB as u32 - 1000).unwrap();
    cold.fetch_joined(store, &reader.volume, runs, &blocks).await;
    assert_eq!(reader.gets(), SEGMENTS, "the indexes");
    drop(most);
    cold.fetch_joined(store, &reader.volume, runs, &blocks).await;
    assert_eq!(reader.gets(), SEGMENTS + 1);
    assert_eq!(cold.joined_kib.available_permits(), JOINED_KIB);
}

/// Regression: each large read from a store that fails joined requests waited for one in vain.
#[tokio::test(start_paused = true)]
async fn joined_requests_that_fail_are_tried_less_often() {
    let mut reader = reader().await;
    reader.read_blocks(0..1).await;
    let Node { cold, runs, store } = &*reader.node;
    let blocks: Vec<SectorRange> = (8..16).map(block_range).collect();
    let mut tries = Vec::new();
    for _ in 0..12 {
        store.near.fail_next(Verb::Get, Fault::Before(ErrorKind::Throttled));
        let before = reader.gets();
        cold.fetch_joined(store, &reader.volume, runs, &blocks).await;
        tries.push(reader.gets() - before);
    }
    assert_eq!(tries, [1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0]);
}

/// On a full disk, readers get their blocks from memory, as they arrive; prefetching soon stops.
#[tokio::test]
async fn a_full_disk_ends_the_window() {
    let Some(tmpfs) = SmallTmpfs::mount(1 << 20) else { return };
    let mut reader = Reader::new(&tmpfs.path(), BLOCKS, None).await;
    tmpfs.fill();
    reader.read_blocks(0..40).await;
    reader.settle().await;
    assert_eq!(reader.node.cold.read_ahead().blocks, AheadCounts::default());
    assert!(reader.gets() < SEGMENTS + 40 + 8, "{} requests for 40 blocks", reader.gets());
    let node = &reader.node;
    assert!(read(node, &node.runs, 41).await.unwrap() == noise(41));
}

/// The blocks after a part are looked up in the map once per request, for its last part: other parts move no
/// window, otherwise its blocks would count as fetched.
#[tokio::test(start_paused = true)]
async fn a_part_before_the_end_of_its_request_moves_no_window() {
    let reader = reader().await;
    let Node { cold, runs, .. } = &*reader.node;
    let ahead = |number: u64, remote_after| {
        let part = ColdPart { request: RequestId(number as u32), at_bytes: 0, range: block_range(number) };
        cold.ahead_of(&reader.volume, part, remote_after, runs).map(|ahead| ahead.blocks[0])
    };
    assert!((0..8).all(|number| ahead(number, None).is_none()));
    assert_eq!(ahead(8, Some(u128::MAX)), Some(Block(9)), "the parts were noted, and nothing was skipped");
}
