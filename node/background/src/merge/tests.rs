use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use holdfast_engine::compose::Composition;
use holdfast_engine::index::Runs;
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
