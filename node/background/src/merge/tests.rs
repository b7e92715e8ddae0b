use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use holdfast_engine::compose::Composition;
use holdfast_engine::index::{Runs, policy};
use holdfast_engine::segment::SegmentBuilder;
use holdfast_engine::volume::Pending;
use holdfast_objects::{ErrorKind, Fault, MemoryStore, ReadyParts, Verb};
use holdfast_types::key::ObjectKey;
use holdfast_types::{Block, Mask, SegmentId, Seq, VolumeId};

use super::*;
use crate::scripted_time::ScriptedTime;
use crate::{Indexes, Pools, SegmentBuild, StoreKey, UnreadableSectors, UploadMemory};

/// Merges need no sides.
struct NoSides;

impl Sides for NoSides {
    type Error = std::io::Error;

    async fn next_part(&self, _build: SegmentBuild) -> (SegmentBuild, Result<Part, UnreadableSectors>) {
        unreachable!("nothing is uploaded")
    }

    async fn compute<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        work()
    }

    async fn store_pending(&self, _pending: Pending) -> std::io::Result<()> {
        unreachable!("nothing is committed")
    }
}

fn volume() -> VolumeId {
    "v".parse().unwrap()
}

fn pools() -> Pools {
    Pools {
        indexes: Arc::new(Indexes::new(64, 1 << 20)),
        upload_memory: UploadMemory::new(1 << 20, 20_000),
        merging: Arc::default(),
    }
}

fn work<F: Fn(usize) + Send + Sync>(
    store: &MemoryStore,
    meanwhile: F,
) -> Background<NoSides, ScriptedTime<F>> {
    let objects = (StoreKey(0), Arc::new(store.clone()) as Arc<dyn ObjectStore>);
    Background::new(volume(), objects, NoSides, ScriptedTime::new(meanwhile), pools())
}

/// A run of level 0 of one sector in every `step`-th of some blocks, stored.
fn segment(store: &MemoryStore, number: u8, step: usize) -> Run {
    let mut builder = SegmentBuilder::default();
    for block in (0..4000).step_by(step) {
        builder.push(Block(block), Mask(1 << (number % 3)), &[number; 4096]);
    }
    let (segment, object) = builder.finish(SegmentId::new(Seq(u64::from(number)), 1, [number; 10]));
    let key = ObjectKey::Segment(volume(), segment.id).to_string();
    let mut parts = ReadyParts::from(Bytes::from(object));
    store.put_segment(&key, &mut parts).now_or_never().unwrap().unwrap();
    Run::Segment(Arc::new(segment))
}

fn listed(runs: &[Run]) -> Runs {
    Runs::new(Arc::new(Lineage::of(volume())), runs)
}

fn plan(inputs: &[Run], is_oldest: bool) -> MergePlan {
    MergePlan { kind: MergeKind::Level, place: Seq(100), level: 1, inputs: listed(inputs), is_oldest }
}

fn merge(store: &MemoryStore, plan: &MergePlan) -> Run {
    let merged = work(store, |_wait| {}).merge(plan).now_or_never().expect("the store answers");
    Run::Merged(Arc::new(merged.expect("its inputs are sound")))
}

fn read(indexes: &Indexes, store: &MemoryStore, block: u64, runs: &[Run]) -> Composition {
    let runs = listed(runs);
    let composed = indexes.compose(store, Block(block), Mask::FULL, &runs);
    composed.now_or_never().unwrap().unwrap()
}

/// Five segments, newest first, and the list after two merges of which the second reads pages.
fn lists(store: &MemoryStore) -> (Vec<Run>, Vec<Run>) {
    let before: Vec<Run> = (1..6).rev().map(|number| segment(store, number, usize::from(number))).collect();
    let middle = merge(store, &plan(&before[1..4], false));
    let after = vec![before[0].clone(), merge(store, &plan(&[middle, before[4].clone()], true))];
    (before, after)
}

#[test]
fn blocks_read_the_same_before_and_after_a_merge() {
    let store = MemoryStore::new();
    let (before, after) = lists(&store);
    let Run::Merged(merged) = &after[1] else { unreachable!() };
    assert!(merged.bytes > 100_000, "it has pages and parts: {}", merged.bytes);
    let indexes = Indexes::new(64, 1 << 20);
    for block in 0..4100 {
        let [before, after] = [&before, &after].map(|runs| read(&indexes, &store, block, runs));
        assert_eq!((before.pieces, before.key), (after.pieces, after.key), "block {block}");
    }
}

/// The bar of a first cold read: the head and a page of each merged run, the index of each segment.
#[test]
fn a_first_cold_read_takes_two_requests_a_merged_run() {
    let store = MemoryStore::new();
    let (_before, after) = lists(&store);
    let indexes = Indexes::new(64, 1 << 20);
    let begin = store.counts().get;
    read(&indexes, &store, 7, &after);
    assert_eq!(store.counts().get - begin, 3);
    read(&indexes, &store, 8, &after);
    assert_eq!(store.counts().get - begin, 3, "what was read is kept");
    read(&indexes, &store, 3999, &after);
    assert_eq!(store.counts().get - begin, 4, "another page");
    read(&indexes, &store, 100_000, &after);
    assert_eq!(store.counts().get - begin, 4, "a chunk outside of all fences");
}

#[test]
fn a_merge_waits_for_its_store() {
    let store = MemoryStore::new();
    let inputs = [segment(&store, 2, 1), segment(&store, 1, 1)];
    for verb in [Verb::Get, Verb::Put] {
        store.fail_always(verb, Fault::Before(ErrorKind::Unavailable));
        let healing = store.clone();
        let work = work(&store, move |wait| {
            if wait == 3 {
                healing.heal();
            }
        });
        let merged = work.merge(&plan(&inputs, true)).now_or_never().expect("waits take no time");
        assert!(merged.is_ok());
        assert_eq!(work.time.waits.lock().len(), 3);
        assert!(work.time.waits.lock().iter().all(|wait| *wait <= Duration::from_secs(10)));
    }
}

/// Believed only when it was found twice; the list stays as it is then.
#[test]
fn a_damaged_input_ends_a_merge() {
    let store = MemoryStore::new();
    let inputs = [segment(&store, 3, 1), segment(&store, 2, 1)];
    let merged = merge(&store, &plan(&inputs, false));
    let oldest = segment(&store, 1, 1);
    let key = ObjectKey::Run(volume(), RunId(merged.id())).to_string();
    store.corrupt(&key, |bytes| bytes[70_000] ^= 1);
    let before = store.keys();
    let work = work(&store, |_wait| {});
    let plan = plan(&[merged.clone(), oldest], true);
    let ended = work.merge(&plan).now_or_never().expect("waits take no time");
    assert_eq!((ended, work.time.waits.lock().len(), store.keys()), (Err(merged.id()), 1, before));
}

/// Found before any part of the output was made.
#[test]
fn a_missing_input_ends_a_merge_before_its_first_part() {
    let store = MemoryStore::new();
    let inputs: Vec<Run> = (1..4).rev().map(|number| segment(&store, number, 1)).collect();
    let key = ObjectKey::Segment(volume(), SegmentId(inputs[2].id())).to_string();
    store.delete(&key).now_or_never().unwrap().unwrap();
    let (work, before) = (work(&store, |_wait| {}), store.counts().put);
    let ended = work.merge(&plan(&inputs, true)).now_or_never().expect("waits take no time");
    assert_eq!((ended, store.counts().put), (Err(inputs[2].id()), before));
}

/// An object with more parts than the store takes was made again and again.
#[test]
fn an_output_that_the_store_refuses_ends_a_merge() {
    let store = MemoryStore::new();
    let inputs = [segment(&store, 2, 1), segment(&store, 1, 1)];
    store.fail_always(Verb::Put, Fault::Before(ErrorKind::Invalid));
    let work = work(&store, |_wait| {});
    let ended = work.merge(&plan(&inputs, true)).now_or_never().expect("waits take no time");
    assert_eq!((ended, work.time.waits.lock().len()), (Err(inputs[1].id()), 1));
}

/// A merge into the base takes hours; those of levels and of other volumes waited for it.
#[test]
fn a_merge_of_a_level_does_not_wait_for_one_into_the_base() {
    let store = MemoryStore::new();
    let inputs = [segment(&store, 2, 1), segment(&store, 1, 1)];
    let work = work(&store, |_wait| {});
    let _base = work.pools.merging.of(MergeKind::Base).try_lock().expect("no other merge");
    let of = |kind| MergePlan { kind, ..plan(&inputs, true) };
    assert!(work.merge(&of(MergeKind::Base)).now_or_never().is_none());
    assert!(work.merge(&of(MergeKind::Level)).now_or_never().is_some());
}

/// Parts of 16 MiB were too many from 156 GiB on.
#[test]
fn parts_grow_with_the_output() {
    let run = |bytes| {
        let id = RunId::new(Seq(1), 1, [1; 10]);
        let (head_offset, head_bytes, entries) = (0, 1, 1);
        let chunks = holdfast_engine::fence::Fence::default();
        Run::Merged(Arc::new(RunRef { id, level: 2, bytes, head_offset, head_bytes, entries, chunks }))
    };
    let usual = 16 << 20;
    for (bytes, expected) in [(1 << 20, usual), (60 << 30, usual), (600 << 30, 128_849_019)] {
        let part = part_bytes(&plan(&[run(bytes), run(0)], true), usual);
        assert_eq!(part, expected);
        assert!(part as u64 * MAX_PARTS >= 2 * bytes);
    }
}

/// Content of a block as the list composes it.
fn content(indexes: &Indexes, store: &MemoryStore, block: u64, runs: &[Run]) -> Vec<u8> {
    let plan = read(indexes, store, block, runs);
    let mut bytes = vec![0; 128 << 10];
    crate::fetch(store, &Lineage::of(volume()), &plan, &mut bytes).now_or_never().unwrap().unwrap();
    bytes
}

/// Noise.
fn sector(number: u64, block: u64) -> Vec<u8> {
    let mut state = (number << 32 | block).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..512).flat_map(|_| next()).collect()
}

/// A run of level 0 of the first sector of each of `blocks`, with noise of its own.
fn noise(store: &MemoryStore, number: u64, blocks: &[u64]) -> Run {
    let mut builder = SegmentBuilder::default();
    for block in blocks {
        builder.push(Block(*block), Mask(1), &sector(number, *block));
    }
    let (segment, object) = builder.finish(SegmentId::new(Seq(number), number, [1; 10]));
    let key = ObjectKey::Segment(volume(), segment.id).to_string();
    store.put_segment(&key, &mut ReadyParts::from(Bytes::from(object))).now_or_never().unwrap().unwrap();
    Run::Segment(Arc::new(segment))
}

/// Merges as the policy says, until none is due.
fn settle(store: &MemoryStore, runs: &mut Vec<Run>) {
    let work = work(store, |_wait| {});
    loop {
        let shapes: Vec<_> = runs.iter().map(|run| Some(run.shape())).collect();
        let Some(choice) = policy::next_merges(&shapes).into_iter().next() else { return };
        let is_oldest = choice.inputs.end == runs.len();
        let (kind, level, inputs) = (choice.kind, choice.level, listed(&runs[choice.inputs.clone()]));
        let plan = MergePlan { kind, place: Seq(1 << 40), level, inputs, is_oldest };
        let merged = work.merge(&plan).now_or_never().unwrap().unwrap();
        runs.splice(choice.inputs, [Run::Merged(Arc::new(merged))]);
    }
}

/// Keys and sizes of the segments that a list names.
fn named(store: &MemoryStore, runs: &[Run]) -> BTreeMap<SegmentId, u64> {
    let indexes = Indexes::new(64, 1 << 20);
    let mut named = BTreeMap::new();
    for run in runs {
        match run {
            Run::Segment(segment) => drop(named.insert(segment.id, segment.bytes)),
            Run::Merged(run) => {
                let head = indexes.head(store, &Lineage::of(volume()), run).now_or_never().unwrap().unwrap();
                named.extend(head.segments().iter().map(|segment| (segment.id, segment.bytes)));
            }
        }
    }
    named
}

/// Ten times each block on average, in commits of a hundredth. Without relocation almost every segment kept
/// some block that nothing had overwritten: the bucket held 6 times what was live.
#[test]
fn random_overwrites_give_space_back() {
    const BLOCKS: u64 = 4_000;
    const COMMIT: usize = 40;
    let (store, mut runs) = (MemoryStore::new(), Vec::new());
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % BLOCKS
    };
    let (mut number, mut most) = (0, 0.0);
    let mut newest = BTreeMap::new();
    while number < 11 * BLOCKS / COMMIT as u64 {
        let first = number * COMMIT as u64;
        // Once in order, then at random.
        let blocks: BTreeSet<u64> = if first < BLOCKS {
            (first..first + COMMIT as u64).collect()
        } else {
            (0..COMMIT).map(|_| random()).collect()
        };
        let blocks: Vec<u64> = blocks.into_iter().collect();
        number += 1;
        runs.insert(0, noise(&store, number, &blocks));
        newest.extend(blocks.iter().map(|block| (*block, number)));
        settle(&store, &mut runs);
        if first >= BLOCKS {
            let stored: u64 = named(&store, &runs).values().sum();
            most = f64::max(most, stored as f64 / (BLOCKS * 4096) as f64);
        }
    }
    let live = (BLOCKS * 4096) as f64;
    let stored = named(&store, &runs).values().sum::<u64>() as f64 / live;
    let all = store.keys().into_iter().filter(|key| key.contains("/segments/"));
    let bytes: u64 = all.map(|key| size(&store, &key)).sum();
    let uploaded = bytes as f64 / (11.0 * live);
    println!("{stored:.2} times what is live, before at most {most:.2}; uploaded {uploaded:.2} times");
    assert!(stored <= 2.3 && most <= 2.8 && uploaded <= 1.45, "{stored:.2}, {most:.2}, {uploaded:.2}");
    let indexes = Indexes::new(64, 1 << 20);
    for (block, number) in newest {
        assert!(content(&indexes, &store, block, &runs)[..4096] == sector(number, block), "block {block}");
    }
}

fn size(store: &MemoryStore, key: &str) -> u64 {
    store.get_suffix(key, 1).now_or_never().unwrap().unwrap().size_bytes
}

/// Two runs of a level, of which the older names a segment with little left, and its key.
fn with_sparse_segment(store: &MemoryStore) -> (Vec<Run>, String) {
    let blocks: Vec<u64> = (0..100).collect();
    let old = noise(store, 1, &blocks);
    let key = ObjectKey::Segment(volume(), SegmentId(old.id())).to_string();
    (vec![noise(store, 2, &blocks[..90]), old], key)
}

fn relocating(inputs: &[Run]) -> MergePlan {
    MergePlan { level: RELOCATING_LEVEL, ..plan(inputs, true) }
}

#[test]
fn the_rest_of_a_sparse_segment_is_relocated() {
    let store = MemoryStore::new();
    let (before, sparse) = with_sparse_segment(&store);
    let kept = merge(&store, &plan(&before, true));
    assert_eq!(named(&store, &[kept]).len(), 2, "runs of lower levels are merged as they are");
    let puts = store.counts().put;
    let after = [merge(&store, &relocating(&before))];
    assert_eq!(store.counts().put - puts, 2, "the run, and a segment of what was left");
    let segments = named(&store, &after);
    assert!(segments.len() == 2 && !segments.contains_key(&SegmentId(before[1].id())), "{segments:?}");
    let (indexes, gets) = (Indexes::new(64, 1 << 20), store.counts().get);
    store.delete(&sparse).now_or_never().unwrap().unwrap();
    for block in 0..100 {
        let number = if block < 90 { 2 } else { 1 };
        assert!(content(&indexes, &store, block, &after)[..4096] == sector(number, block), "block {block}");
    }
    assert!(store.counts().get - gets <= 104);
}

/// A block's frames in one segment are one: those that come from several go into several.
#[test]
fn frames_of_one_block_are_relocated_apart() {
    let store = MemoryStore::new();
    let blocks: Vec<u64> = (0..50).collect();
    let mut inputs: Vec<Run> = Vec::new();
    for (number, mask) in [(1, 0b100), (2, 0b010)] {
        let mut builder = SegmentBuilder::default();
        for block in &blocks {
            let kept = Mask(0b001 | if *block < 5 { mask } else { 0 });
            builder.push(Block(*block), kept, &sector(number, *block).repeat(kept.count() as usize));
        }
        let (segment, object) = builder.finish(SegmentId::new(Seq(number), number, [1; 10]));
        let key = ObjectKey::Segment(volume(), segment.id).to_string();
        store.put_segment(&key, &mut ReadyParts::from(Bytes::from(object))).now_or_never().unwrap().unwrap();
        inputs.insert(0, Run::Segment(Arc::new(segment)));
    }
    inputs.insert(0, noise(&store, 3, &blocks));
    let after = [merge(&store, &relocating(&inputs))];
    assert_eq!(named(&store, &after).len(), 3, "two of what was left, and the newest");
    let indexes = Indexes::new(64, 1 << 20);
    for block in 0..5 {
        let whole = content(&indexes, &store, block, &after);
        let found = [0, 1, 2].map(|at| whole[at * 4096..(at + 1) * 4096].to_vec());
        assert!(found == [sector(3, block), sector(2, block), sector(1, block)], "block {block}");
    }
}

/// Believed only when it was found twice.
#[test]
fn a_damaged_segment_is_merged_without_relocation() {
    let store = MemoryStore::new();
    let (inputs, sparse) = with_sparse_segment(&store);
    // The last frames are what is left.
    store.corrupt(&sparse, |bytes| bytes[95 * 4096] ^= 1);
    let work = work(&store, |_wait| {});
    let merged = work.merge(&relocating(&inputs)).now_or_never().expect("waits take no time").unwrap();
    assert_eq!(work.time.waits.lock().len(), 1);
    let after = [Run::Merged(Arc::new(merged))];
    assert!(named(&store, &after).contains_key(&SegmentId(inputs[1].id())));
}
