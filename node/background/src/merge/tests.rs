mod changes;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use holdfast_engine::event::Event;
use holdfast_engine::settings::Pending;
use holdfast_format::chunk_set::ChunkSet;
use holdfast_format::compose::Composition;
use holdfast_format::index::{Runs, policy};
use holdfast_format::manifest::Manifest;
use holdfast_format::record::{Body, Merge, Record};
use holdfast_format::segment::{SegmentBuilder, SegmentRef};
use holdfast_format::side::SideSet;
use holdfast_format::snapshot::SnapshotChange;
use holdfast_log::sweep::{SweepMemory, SweepOptions, sweep};
use holdfast_objects::{ErrorKind, Fault, MAX_PARTS, MemoryStore, ReadyParts, UnfinishedUpload, Verb};
use holdfast_types::key::ObjectKey;
use holdfast_types::{
    BLOCK_BYTES, BLOCK_SECTORS, Block, Epoch, Mask, Nonce, Place, SegmentId, Seq, VolumeId,
};

use super::*;
use crate::scripted_time::ScriptedTime;
use crate::{Compressors, Fetches, Pools, StoreKey, UploadBatch, UploadMemory, Work};
use holdfast_log::Indexes;

/// Merges do not need local data files.
struct NoSides;

impl Sides for NoSides {
    async fn pack(&self, _batch: UploadBatch) -> UploadBatch {
        unreachable!("nothing is uploaded")
    }

    async fn compute<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        work()
    }

    async fn store_pending(&self, _pending: Pending) -> std::io::Result<()> {
        unreachable!("nothing is committed")
    }
}

pub(crate) fn volume() -> VolumeId {
    "v".parse().unwrap()
}

fn pools() -> Pools {
    Pools {
        indexes: Arc::new(Indexes::new(64, 1 << 20)),
        upload_memory: UploadMemory::new(1 << 20, 20_000),
        compressors: Arc::new(Compressors::new(2)),
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

/// Stores a run of level 0 with one sector in every `step`-th of some blocks.
fn segment(store: &MemoryStore, number: u8, step: usize) -> Run {
    let mut builder = SegmentBuilder::default();
    for block in (0..4000).step_by(step) {
        builder.push(Block(block), Mask(1 << (number % 3)), &[number; 4096]);
    }
    let (segment, object) =
        builder.finish(SegmentId::new(Place::until(Seq(u64::from(number))), 1, [number; 10]));
    let key = ObjectKey::Segment(volume(), segment.id).to_string();
    let mut parts = ReadyParts::from(Bytes::from(object));
    store.put_segment(&key, &mut parts).now_or_never().unwrap().unwrap();
    Run::Segment(Arc::new(segment))
}

fn listed(runs: &[Run]) -> Runs {
    Runs::new(Arc::new(Lineage::of(volume())), runs)
}

fn plan(inputs: &[Run], is_oldest: bool) -> MergePlan {
    MergePlan {
        kind: MergeKind::Level,
        place: Place::first_merge(Epoch(1)),
        level: 1,
        inputs: listed(inputs),
        is_oldest,
    }
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

/// Returns five segments, newest first, and the list after two merges, the second of which reads pages.
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

/// Found in a long run: the cache kept the indexes of all segments that had been merged, up to its limit of
/// 256 MiB, and the memory of a busy node grew for hours.
#[test]
fn the_indexes_of_merged_runs_leave_the_cache() {
    let store = MemoryStore::new();
    let (before, _) = lists(&store);
    let work = work(&store, |_wait| {});
    let (plan, other) = (plan(&before[1..4], false), plan(&before[3..], true));
    let perform = |work_of| work.perform(work_of).now_or_never().expect("the store answers").0;
    let indexes = &work.pools.indexes;
    read(indexes, &store, 7, &before[..1]);
    let rest = indexes.bytes();
    read(indexes, &store, 7, &before[4..]);
    perform(Work::Merge(Box::new(other)));
    let Event::Merged { output, .. } = perform(Work::Merge(Box::new(plan.clone()))) else { panic!("merged") };
    let (newest, oldest) = (before[1].id(), before[3].id());
    let merges = vec![Merge { newest, oldest, output: (*output).clone() }];
    let all = indexes.bytes();
    let body = Body::Change {
        segments: Vec::new(),
        chunks: ChunkSet::default(),
        invalidated: SideSet::NONE,
        generation: 1,
        merges,
        closed: Place::default(),
        snapshots: SnapshotChange::default(),
        sectors: None,
    };
    let record =
        Record { volume: volume(), seq: Seq(9), epoch: Epoch(1), nonce: Nonce::default(), unix_ms: 0, body };
    perform(Work::CreateRecord { seq: Seq(9), bytes: record.encode() });
    let gets = store.counts().get;
    read(indexes, &store, 7, &before[..1]);
    read(indexes, &store, 7, &before[4..]);
    read(indexes, &store, 7, &[Run::Merged(Arc::new(*output))]);
    assert_eq!(store.counts().get, gets + 1, "the others stay, and one page of the output is read");
    assert!(rest < indexes.bytes() && indexes.bytes() < all, "{rest}, {} of {all}", indexes.bytes());
    read(indexes, &store, 7, &before[1..2]);
    assert_eq!(store.counts().get, gets + 2, "the inputs left");
}

/// The limit for a first cold read: the head and a page of each merged run, the index of each segment.
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
    assert_eq!(store.counts().get - begin, 4, "a chunk outside of all chunk ranges");
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

/// Only trusted after confirmation; the list then does not change.
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

/// Detected before any part of the output was created.
#[test]
fn a_missing_input_ends_a_merge_before_its_first_part() {
    let store = MemoryStore::new();
    let inputs: Vec<Run> = (1..4).rev().map(|number| segment(&store, number, 1)).collect();
    let key = ObjectKey::Segment(volume(), SegmentId(inputs[2].id())).to_string();
    store.delete(&[&key]).now_or_never().unwrap().unwrap();
    let (work, before) = (work(&store, |_wait| {}), store.counts().put);
    let ended = work.merge(&plan(&inputs, true)).now_or_never().expect("waits take no time");
    assert_eq!((ended, store.counts().put), (Err(inputs[2].id()), before));
}

/// Regression: an object with more parts than the store accepts was created again and again.
#[test]
fn an_output_that_the_store_refuses_ends_a_merge() {
    let store = MemoryStore::new();
    let inputs = [segment(&store, 2, 1), segment(&store, 1, 1)];
    store.fail_always(Verb::Put, Fault::Before(ErrorKind::Invalid));
    let work = work(&store, |_wait| {});
    let ended = work.merge(&plan(&inputs, true)).now_or_never().expect("waits take no time");
    assert_eq!((ended, work.time.waits.lock().len()), (Err(inputs[1].id()), 1));
}

/// Regression: a merge into the base takes hours; those of levels and of other volumes waited for it.
#[test]
fn a_merge_into_the_base_delays_no_merge_of_levels() {
    let store = MemoryStore::new();
    let inputs = [segment(&store, 2, 1), segment(&store, 1, 1)];
    let work = work(&store, |_wait| {});
    let base = work.pools.merging.of(MergeKind::Base, StoreKey(0));
    let _turn = base.try_lock().expect("no other merge");
    let of = |kind| MergePlan { kind, ..plan(&inputs, true) };
    assert!(work.merge(&of(MergeKind::Base)).now_or_never().is_none());
    assert!(work.merge(&of(MergeKind::Level)).now_or_never().is_some());
}

/// Regression: a merge with hanging requests blocked the merges of all other stores of the node.
#[test]
fn a_merge_does_not_wait_for_one_of_another_store() {
    let store = MemoryStore::new();
    let inputs = [segment(&store, 2, 1), segment(&store, 1, 1)];
    let work = work(&store, |_wait| {});
    for kind in [MergeKind::Level, MergeKind::Base] {
        let plan = MergePlan { kind, ..plan(&inputs, true) };
        let other = work.pools.merging.of(kind, StoreKey(1));
        let _turn = other.try_lock().expect("no other merge");
        assert!(work.merge(&plan).now_or_never().is_some());
    }
}

/// Regression: beyond 156 GiB, parts of 16 MiB were too many.
#[test]
fn parts_grow_with_the_output() {
    let run = |bytes| {
        let id = RunId::new(Place::until(Seq(1)), 1, [1; 10]);
        let (head_offset, head_bytes) = (0, 1);
        let chunks = holdfast_format::chunk_ranges::ChunkRanges::default();
        Run::Merged(Arc::new(RunRef { id, level: 2, bytes, head_offset, head_bytes, sectors: 5, chunks }))
    };
    let usual = 16 << 20;
    for (bytes, expected) in [(1 << 20, usual), (60 << 30, usual), (600 << 30, 128_849_019)] {
        let part = part_bytes(&plan(&[run(bytes), run(0)], true), usual);
        assert_eq!(part, expected);
        assert!(part as u64 * MAX_PARTS >= 2 * bytes);
    }
}

/// Returns the content of a block as composed by the list.
pub(crate) fn content(indexes: &Indexes, store: &MemoryStore, block: u64, runs: &[Run]) -> Vec<u8> {
    let plan = read(indexes, store, block, runs);
    let fetches = Fetches::new(|| vec![0; BLOCK_BYTES as usize]);
    let fetched = fetches.reader().block(store, &Lineage::of(volume()), &plan).now_or_never();
    fetched.unwrap().unwrap().to_vec()
}

/// Returns noise.
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

/// Stores a run of level 0 with the first sector of each of `blocks`, with its own noise.
fn noise(store: &MemoryStore, number: u64, blocks: &[u64]) -> Run {
    let mut builder = SegmentBuilder::default();
    for block in blocks {
        builder.push(Block(*block), Mask(1), &sector(number, *block));
    }
    let (segment, object) = builder.finish(SegmentId::new(Place::until(Seq(number)), number, [1; 10]));
    let key = ObjectKey::Segment(volume(), segment.id).to_string();
    store.put_segment(&key, &mut ReadyParts::from(Bytes::from(object))).now_or_never().unwrap().unwrap();
    Run::Segment(Arc::new(segment))
}

/// A volume as committed by its writer.
pub(crate) struct WrittenVolume {
    pub(crate) store: MemoryStore,
    pub(crate) log: Manifest,
    place: Place,
}

impl WrittenVolume {
    pub(crate) fn new(blocks: u64) -> Self {
        let (log, place) = (Manifest::empty(volume()), Place::first_merge(Epoch(1)));
        let mut written = Self { store: MemoryStore::new(), log, place };
        let sectors = blocks * BLOCK_SECTORS;
        written.record(Epoch(0), Body::create(sectors));
        written.record(Epoch(1), Body::Attach { sectors, node: "n".to_owned(), displaced: None });
        written
    }

    fn record(&mut self, epoch: Epoch, body: Body) {
        let seq = self.log.seq().next();
        let record = Record { volume: volume(), seq, epoch, nonce: Nonce([1; 16]), unix_ms: 0, body };
        self.log.apply(&record).unwrap();
        let (key, bytes) = (ObjectKey::Log(volume(), seq).to_string(), record.encode().into());
        let _created = self.store.create(&key, bytes).now_or_never().unwrap().unwrap();
    }

    fn change(&mut self, segments: Vec<SegmentRef>, merges: Vec<Merge>) {
        let (chunks, snapshots) = (ChunkSet::default(), SnapshotChange::default());
        let (invalidated, generation, closed) = (SideSet::NONE, 1, self.place);
        let body = Body::Change {
            segments,
            chunks,
            invalidated,
            generation,
            merges,
            closed,
            snapshots,
            sectors: None,
        };
        self.record(Epoch(1), body);
    }

    /// Commits noise.
    pub(crate) fn commit(&mut self, blocks: &[u64]) {
        let run = noise(&self.store, self.log.seq().0 + 1, blocks);
        self.add(&run);
    }

    /// Commits a segment, and runs the merges that the policy requests until none is due.
    pub(crate) fn add(&mut self, run: &Run) {
        let Run::Segment(segment) = run else { unreachable!() };
        self.change(vec![SegmentRef::clone(segment)], vec![]);
        let work = work(&self.store, |_wait| {});
        loop {
            let runs = self.log.runs().clone();
            let shapes: Vec<_> = runs.iter().map(|run| Some(run.shape())).collect();
            let Some(policy::Choice { kind, level, inputs }) =
                policy::next_merges(&shapes).into_iter().next()
            else {
                return;
            };
            let is_oldest = inputs.end == runs.len();
            let (newest, oldest) = (runs[inputs.start].id(), runs[inputs.end - 1].id());
            let plan = MergePlan {
                kind,
                place: self.place,
                level,
                inputs: runs.with(runs[inputs].to_vec()),
                is_oldest,
            };
            let output = work.merge(&plan).now_or_never().unwrap().unwrap();
            self.place = self.place.next();
            self.change(vec![], vec![Merge { newest, oldest, output }]);
        }
    }

    /// Returns the bytes of all segments, and of all objects, of the volume after a sweep.
    fn swept(&self) -> (u64, u64) {
        let options = SweepOptions { grace: Duration::ZERO, dry_run: false, most: u64::MAX };
        let mut memory = SweepMemory::default();
        let report = sweep(&self.store, &mut memory, options).now_or_never().unwrap().unwrap();
        assert!(report.skipped.is_empty() && report.garbage == report.deleted, "{report:?}");
        let segments = self.store.keys().into_iter().filter(|key| key.contains("/segments/"));
        (segments.map(|key| size(&self.store, &key)).sum(), report.kept.bytes)
    }
}

/// Returns the keys and sizes of the segments that a list names.
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

/// Regression: overwrites each block ten times on average, with sweeps. Without relocation almost every
/// segment kept a live block: the bucket held 6 times the live data. While a merge had a position far ahead
/// of the log, sweeps kept the objects that later merges had replaced.
#[test]
fn random_overwrites_give_space_back() {
    const BLOCKS: u64 = 4_000;
    const COMMIT: u64 = 40;
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % BLOCKS
    };
    let (mut written, live) = (WrittenVolume::new(BLOCKS), (BLOCKS * 4096) as f64);
    let (mut newest, mut most, mut uploaded, mut left) = (BTreeMap::new(), 0.0, 0, (0, 0));
    let mut stored_before: BTreeSet<String> = BTreeSet::new();
    for first in (0..11 * BLOCKS).step_by(COMMIT as usize) {
        // Once in order, then at random.
        let blocks: BTreeSet<u64> = if first < BLOCKS {
            (first..first + COMMIT).collect()
        } else {
            (0..COMMIT).map(|_| random()).collect()
        };
        let number = written.log.seq().0 + 1;
        newest.extend(blocks.iter().map(|block| (*block, number)));
        written.commit(&blocks.into_iter().collect::<Vec<_>>());
        let stored: BTreeSet<String> = written.store.keys().into_iter().collect();
        let data = stored.difference(&stored_before).filter(|key| !key.contains("/log/"));
        uploaded += data.map(|key| size(&written.store, key)).sum::<u64>();
        stored_before = stored;
        if first >= BLOCKS && number.is_multiple_of(16) {
            left = written.swept();
            most = f64::max(most, left.1 as f64 / live);
        }
    }
    let (segments, all) = (left.0 as f64 / live, left.1 as f64 / live);
    let uploaded = uploaded as f64 / (11.0 * live);
    println!(
        "after a sweep {all:.2} times what is live ({segments:.2} without indexes and log), before at most {most:.2}; \
         uploaded {uploaded:.2} times"
    );
    assert!(all <= 2.3 && most <= 2.9 && uploaded <= 1.45, "{all:.2}, {most:.2}, {uploaded:.2}");
    let indexes = Indexes::new(64, 1 << 20);
    for (block, number) in newest {
        let whole = content(&indexes, &written.store, block, written.log.runs());
        assert!(whole[..4096] == sector(number, block), "block {block}");
    }
}

/// Regression: a discard has few entries: its space was only freed once half of the volume was rewritten.
#[test]
fn a_discard_gives_space_back() {
    const BLOCKS: u64 = 10_000;
    let mut written = WrittenVolume::new(BLOCKS);
    for first in (0..1000).step_by(100) {
        written.commit(&(first..first + 100).collect::<Vec<_>>());
    }
    let (before, _) = written.swept();
    assert!(before > 1000 * 4096);
    // All written blocks except the last hundred.
    let mut builder = SegmentBuilder::default();
    for block in (0..BLOCKS).filter(|block| !(900..1000).contains(block)) {
        builder.push(Block(block), Mask::FULL, &[0; 128 << 10]);
    }
    let (segment, object) = builder.finish(SegmentId::new(Place::until(Seq(1 << 20)), 1, [2; 10]));
    let key = ObjectKey::Segment(volume(), segment.id).to_string();
    let mut parts = ReadyParts::from(Bytes::from(object));
    written.store.put_segment(&key, &mut parts).now_or_never().unwrap().unwrap();
    written.add(&Run::Segment(Arc::new(segment)));
    let (segments, all) = written.swept();
    assert!(segments < 110 * 4096 && all < 120 * 4096, "{segments} and {all} bytes are left");
    let indexes = Indexes::new(64, 1 << 20);
    for block in [0, 899, 900, 999, 1000] {
        let whole = content(&indexes, &written.store, block, written.log.runs());
        assert_eq!(whole.iter().any(|byte| *byte != 0), (900..1000).contains(&block), "block {block}");
    }
}

fn size(store: &MemoryStore, key: &str) -> u64 {
    store.get_suffix(key, 1).now_or_never().unwrap().unwrap().size_bytes
}

/// Returns two runs of a level, the older of which names a sparse segment, and the key of that.
fn with_sparse_segment(store: &MemoryStore) -> (Vec<Run>, String) {
    let blocks: Vec<u64> = (0..100).collect();
    let old = noise(store, 1, &blocks);
    let key = ObjectKey::Segment(volume(), SegmentId(old.id())).to_string();
    (vec![noise(store, 2, &blocks[..90]), old], key)
}

fn relocating(inputs: &[Run]) -> MergePlan {
    MergePlan { kind: MergeKind::Base, level: 2, ..plan(inputs, true) }
}

#[test]
fn the_rest_of_a_sparse_segment_is_relocated() {
    let store = MemoryStore::new();
    let (before, sparse) = with_sparse_segment(&store);
    let kept = merge(&store, &plan(&before, true));
    assert_eq!(named(&store, &[kept]).len(), 2, "a merge of a level does not relocate");
    let puts = store.counts().put;
    let after = [merge(&store, &relocating(&before))];
    assert_eq!(store.counts().put - puts, 2, "the run, and a segment of what was left");
    let segments = named(&store, &after);
    assert!(segments.len() == 2 && !segments.contains_key(&SegmentId(before[1].id())), "{segments:?}");
    let (indexes, gets) = (Indexes::new(64, 1 << 20), store.counts().get);
    store.delete(&[&sparse]).now_or_never().unwrap().unwrap();
    for block in 0..100 {
        let number = if block < 90 { 2 } else { 1 };
        assert!(content(&indexes, &store, block, &after)[..4096] == sector(number, block), "block {block}");
    }
    assert!(store.counts().get - gets <= 104);
}

/// A store that is unreachable at the end of a merge does not void all relocations.
#[test]
fn the_next_attempt_reuses_relocated_segments() {
    let store = MemoryStore::new();
    let (inputs, _) = with_sparse_segment(&store);
    let (work, mut relocation) = (work(&store, |_wait| {}), None);
    let mut names = Vec::new();
    for expected_puts in [2, 1] {
        let puts = store.counts().put;
        let run = work.merge_once(&relocating(&inputs), &mut relocation).now_or_never().unwrap().unwrap();
        assert_eq!(store.counts().put - puts, expected_puts);
        names.push(named(&store, &[Run::Merged(Arc::new(run))]));
    }
    assert_eq!(names[0], names[1]);
}

/// Creates two segments, mostly hidden by a third. Some frames keep one sector in their middle, others two,
/// so that a block has frames of both.
fn with_hidden_sectors(store: &MemoryStore) -> Vec<Run> {
    let mut inputs = Vec::new();
    for (number, mask) in [(1, 0b1111), (2, 0b0111)] {
        let mut builder = SegmentBuilder::default();
        for block in 0..50 {
            let bytes: Vec<u8> =
                sectors_of(Mask(mask)).flat_map(|at| sector(number * 10 + at, block)).collect();
            builder.push(Block(block), Mask(mask), &bytes);
        }
        inputs.insert(0, finished(store, builder, number));
    }
    let mut builder = SegmentBuilder::default();
    for block in 0..50 {
        let mask = Mask(if block < 5 { 0b0101 } else { 0b1111 });
        let bytes: Vec<u8> = sectors_of(mask).flat_map(|at| sector(30 + at, block)).collect();
        builder.push(Block(block), mask, &bytes);
    }
    inputs.insert(0, finished(store, builder, 3));
    inputs
}

fn sectors_of(mask: Mask) -> impl Iterator<Item = u64> {
    (0..32).filter(move |bit| mask.contains(*bit)).map(u64::from)
}

/// Regression: copied unchanged, partly overwritten frames used several times the space of their readable
/// data.
#[test]
fn relocated_sectors_of_a_block_become_one_frame() {
    let store = MemoryStore::new();
    let inputs = with_hidden_sectors(&store);
    let after = [merge(&store, &relocating(&inputs))];
    let segments = named(&store, &after);
    assert_eq!(segments.len(), 2, "one of what was left, and the newest");
    let moved = segments.iter().find(|(id, _)| id.place().seq().is_none()).expect("there is a new one");
    assert!((10 * 4096..11 * 4096).contains(moved.1), "ten sectors are left: {moved:?}");
    let indexes = Indexes::new(64, 1 << 20);
    for block in 0..5 {
        let plan = read(&indexes, &store, block, &after);
        let masks: Vec<(u32, u32)> =
            plan.pieces.iter().map(|piece| (piece.frame.mask.0, piece.visible.0)).collect();
        assert_eq!(masks, [(0b0101, 0b0101), (0b1010, 0b1010)]);
        let whole = content(&indexes, &store, block, &after);
        let found = [0, 1, 2, 3].map(|at| whole[at * 4096..(at + 1) * 4096].to_vec());
        let expected = [30, 21, 32, 13].map(|number| sector(number, block));
        assert!(found == expected, "block {block}");
    }
}

/// The rest of a frame may be zeros, next to overwritten sectors.
#[test]
fn zeros_in_a_relocated_frame_stay_zeros() {
    let store = MemoryStore::new();
    let mut builder = SegmentBuilder::default();
    for block in 0..50 {
        builder.push(Block(block), Mask(0b11), &[sector(1, block), vec![0; 4096]].concat());
    }
    let old = finished(&store, builder, 1);
    let newest = noise(&store, 2, &(0..50).collect::<Vec<_>>());
    let mut builder = SegmentBuilder::default();
    for block in 1..50 {
        builder.push(Block(block), Mask(0b10), &sector(3, block));
    }
    let after = [merge(&store, &relocating(&[finished(&store, builder, 3), newest, old]))];
    let whole = content(&Indexes::new(64, 1 << 20), &store, 0, &after);
    assert!(whole[..4096] == sector(2, 0) && whole[4096..].iter().all(|byte| *byte == 0));
}

/// Regression: frames of several sectors, some of them overwritten. While a frame counted as live until all
/// of it was hidden, and was copied whole, the bucket held 3.3 times the live data.
#[test]
fn random_overwrites_in_large_commits_give_space_back() {
    const BLOCKS: u64 = 1024;
    const SECTORS: u64 = BLOCKS * BLOCK_SECTORS;
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % SECTORS
    };
    let (mut written, live) = (WrittenVolume::new(BLOCKS), (SECTORS * 4096) as f64);
    let (mut newest, mut most) = (BTreeMap::new(), 0.0);
    for commit in 0..24 {
        let mut masks: BTreeMap<u64, Mask> = BTreeMap::new();
        for nth in 0..SECTORS / 4 {
            let sector = if commit < 4 { commit * SECTORS / 4 + nth } else { random() };
            let mask = masks.entry(sector / BLOCK_SECTORS).or_insert(Mask::EMPTY);
            *mask = mask.union(Mask(1 << (sector % BLOCK_SECTORS)));
            newest.insert(sector, commit);
        }
        let mut builder = SegmentBuilder::default();
        for (block, mask) in masks {
            let bytes: Vec<u8> =
                sectors_of(mask).flat_map(|at| sector(commit, block * BLOCK_SECTORS + at)).collect();
            builder.push(Block(block), mask, &bytes);
        }
        let seq = written.log.seq().0 + 1;
        written.add(&finished(&written.store, builder, seq));
        if commit >= 8 {
            most = f64::max(most, written.swept().1 as f64 / live);
        }
    }
    println!("after sweeps at most {most:.2} times what is live");
    assert!(most <= 2.3, "{most:.2}");
    let indexes = Indexes::new(64, 1 << 20);
    for block in 0..BLOCKS {
        let plan = read(&indexes, &written.store, block, written.log.runs());
        let segments: BTreeSet<SegmentId> = plan.pieces.iter().map(|piece| piece.segment).collect();
        assert_eq!(segments.len(), plan.pieces.len(), "no segment has two frames of a block");
        let whole = content(&indexes, &written.store, block, written.log.runs());
        for (at, found) in whole.chunks(4096).enumerate() {
            let number = block * BLOCK_SECTORS + at as u64;
            assert!(found == sector(newest[&number], number), "sector {number}");
        }
    }
}

/// Only trusted after confirmation.
#[test]
fn a_damaged_segment_is_merged_without_relocation() {
    let store = MemoryStore::new();
    let (inputs, sparse) = with_sparse_segment(&store);
    // The last frames are the live ones.
    store.corrupt(&sparse, |bytes| bytes[95 * 4096] ^= 1);
    let work = work(&store, |_wait| {});
    let merged = work.merge(&relocating(&inputs)).now_or_never().expect("waits take no time").unwrap();
    assert_eq!(work.time.waits.lock().len(), 1);
    let after = [Run::Merged(Arc::new(merged))];
    assert!(named(&store, &after).contains_key(&SegmentId(inputs[1].id())));
}

/// Creates two groups of sparse segments, newest first, some of the second group damaged, and returns the
/// keys of those.
fn with_damaged_segments(store: &MemoryStore, damaged: usize) -> (Vec<Run>, Vec<String>) {
    let blocks = |number: u64| (number * 10..number * 10 + 10).collect::<Vec<u64>>();
    let old: Vec<Run> = (0..128).map(|number| noise(store, number + 1, &blocks(number))).collect();
    let keys: Vec<String> = old[128 - damaged..]
        .iter()
        .map(|run| ObjectKey::Segment(volume(), SegmentId(run.id())).to_string())
        .collect();
    // The last frame of each is live.
    let newest: Vec<u64> = (0..128).flat_map(|number| blocks(number)[..9].to_vec()).collect();
    let mut runs = vec![noise(store, 1000, &newest)];
    runs.extend(old.into_iter().rev());
    (runs, keys)
}

/// Regression: objects of an archive class are rejected, and lost objects are missing: each such segment made
/// the merge relocate everything before it again, and leave those copies in the bucket.
#[test]
fn damaged_segments_do_not_relocate_the_others_again() {
    let puts = |damaged| {
        let store = MemoryStore::new();
        let (inputs, keys) = with_damaged_segments(&store, damaged);
        for key in &keys {
            store.corrupt(key, |bytes| bytes[9 * 4096] ^= 1);
        }
        let before = store.counts().put;
        let merged = merge(&store, &relocating(&inputs));
        assert_eq!(named(&store, &[merged]).len(), 3 + damaged);
        store.counts().put - before
    };
    assert_eq!(puts(0), 3, "a segment for each group, and the run");
    let found = [1, 2, 4, 8].map(puts);
    assert!(found.iter().all(|puts| *puts <= 6), "{found:?} PUTs");
}

/// Regression: written in random sectors, then sequentially, repeatedly: an entry of a whole block hides 32,
/// and merges of levels keep one per block. The entries above thus never reach half of the base's: the base,
/// none of whose frames is readable, stayed in the bucket permanently.
#[test]
fn sequential_overwrites_give_space_back() {
    const BLOCKS: u64 = 64;
    let mut written = WrittenVolume::new(BLOCKS);
    for number in 0..64 {
        let mut builder = SegmentBuilder::default();
        for block in (0..BLOCKS).filter(|block| block % 2 == number % 2) {
            builder.push(Block(block), Mask(1 << (number / 2)), &sector(number + 1, block));
        }
        let seq = written.log.seq().0 + 1;
        written.add(&finished(&written.store, builder, seq));
    }
    let base = written.log.runs().last().unwrap().clone();
    assert_eq!((written.log.runs().len(), base.shape().sectors), (1, 32 * BLOCKS));
    let live = (BLOCKS * (128 << 10)) as f64;
    let mut stored = Vec::new();
    for round in 0..24 {
        for block in 0..BLOCKS {
            let mut builder = SegmentBuilder::default();
            let bytes: Vec<u8> = (0..32).flat_map(|at| sector(1000 + round * 32 + at, block)).collect();
            builder.push(Block(block), Mask::FULL, &bytes);
            let seq = written.log.seq().0 + 1;
            written.add(&finished(&written.store, builder, seq));
        }
        stored.push(format!("{:.1}", written.swept().0 as f64 / live));
    }
    let is_there = written.log.runs().iter().any(|run| run.id() == base.id());
    assert!(
        !is_there,
        "nothing of the oldest run is read since round 1; stored for what is live: {stored:?}"
    );
}

/// Stores the run of level 0 of a builder.
fn finished(store: &MemoryStore, builder: SegmentBuilder, number: u64) -> Run {
    let (segment, object) = builder.finish(SegmentId::new(Place::until(Seq(number)), number, [1; 10]));
    let key = ObjectKey::Segment(volume(), segment.id).to_string();
    store.put_segment(&key, &mut ReadyParts::from(Bytes::from(object))).now_or_never().unwrap().unwrap();
    Run::Segment(Arc::new(segment))
}

/// A store that denies reads of one object: it was moved to an archive class (`InvalidObjectState`), or its
/// encryption key is gone. A server that lost its parts answers 503 to each request.
#[derive(Debug)]
struct OneDenied {
    store: MemoryStore,
    key: String,
    /// Keys whose next read is rejected once.
    refused_once: parking_lot::Mutex<Vec<String>>,
}

#[async_trait]
impl ObjectStore for OneDenied {
    async fn get(&self, key: &str, max_bytes: u64) -> Result<Bytes, StoreError> {
        self.store.get(key, max_bytes).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        if key == self.key {
            return Err(StoreError::Denied {
                code: "InvalidObjectState".to_owned(),
                source: "archived".into(),
            });
        }
        let once = {
            let mut keys = self.refused_once.lock();
            keys.iter().position(|other| other == key).map(|at| keys.remove(at))
        };
        if once.is_some() {
            return Err(StoreError::Refused { code: "InternalProxyError".to_owned(), source: "once".into() });
        }
        self.store.get_range(key, range).await
    }

    async fn get_suffix(&self, key: &str, len: u64) -> Result<holdfast_objects::Suffix, StoreError> {
        self.store.get_suffix(key, len).await
    }

    async fn create(
        &self,
        key: &str,
        body: Bytes,
    ) -> Result<holdfast_objects::Created, holdfast_objects::CreateError> {
        self.store.create(key, body).await
    }

    async fn put_segment(&self, key: &str, parts: &mut dyn Parts) -> Result<(), SegmentError> {
        self.store.put_segment(key, parts).await
    }

    async fn list(
        &self,
        prefix: &str,
        start_after: Option<&str>,
        limit: usize,
    ) -> Result<holdfast_objects::Page, StoreError> {
        self.store.list(prefix, start_after, limit).await
    }

    async fn delete(&self, keys: &[&str]) -> Result<(), StoreError> {
        self.store.delete(keys).await
    }

    async fn unfinished_uploads(&self, prefix: &str) -> Result<Vec<UnfinishedUpload>, StoreError> {
        self.store.unfinished_uploads(prefix).await
    }

    async fn abort_upload(&self, upload: &UnfinishedUpload) -> Result<(), StoreError> {
        self.store.abort_upload(upload).await
    }
}

/// Regression: a merge reads data only to relocate it. One unreadable segment, with all other requests
/// answered, made each merge into the base restart without end.
#[test]
fn a_segment_that_the_store_denies_is_merged_without_relocation() {
    let store = MemoryStore::new();
    let old: Vec<u64> = (0..100).collect();
    let inputs = [noise(&store, 2, &old[..90]), noise(&store, 1, &old)];
    // Each of level 1: the merge into the base reads pages, and no index of the segment.
    let inputs = [
        merge(&store, &plan(&[noise(&store, 3, &[1]), inputs[0].clone()], false)),
        merge(&store, &plan(&[noise(&store, 4, &[200]), inputs[1].clone()], true)),
    ];
    let key = ObjectKey::Segment(volume(), SegmentId::new(Place::until(Seq(1)), 1, [1; 10])).to_string();
    assert!(store.keys().contains(&key));
    let denied = OneDenied { store: store.clone(), key, refused_once: parking_lot::Mutex::default() };
    let objects = (StoreKey(0), Arc::new(denied) as Arc<dyn ObjectStore>);
    let time = ScriptedTime::new(|wait| assert!(wait < 1000, "the merge began {wait} times"));
    let work = Background::new(volume(), objects, NoSides, time, pools());
    let merged = work.merge(&relocating(&inputs)).now_or_never().expect("waits take no time");
    assert!(merged.is_ok());
}

/// Regression: rejections of two segments, which name no object, counted as a confirmation.
#[test]
fn a_segment_that_is_refused_once_is_relocated() {
    let store = MemoryStore::new();
    let blocks: Vec<u64> = (0..200).collect();
    let newest: Vec<u64> = blocks.iter().copied().filter(|block| block % 100 < 90).collect();
    let (a, b) = (noise(&store, 1, &blocks[..100]), noise(&store, 2, &blocks[100..]));
    let key_of = |run: &Run| ObjectKey::Segment(volume(), SegmentId(run.id())).to_string();
    // Of level 1, so that none of their indexes are read.
    let older = merge(&store, &plan(&[b.clone(), a.clone()], true));
    let inputs = [noise(&store, 3, &newest), older];
    let refused_once = parking_lot::Mutex::new(vec![key_of(&a), key_of(&b)]);
    let denied = OneDenied { store: store.clone(), key: String::new(), refused_once };
    let objects = (StoreKey(0), Arc::new(denied) as Arc<dyn ObjectStore>);
    let work = Background::new(volume(), objects, NoSides, ScriptedTime::new(|_wait| {}), pools());
    let merged = work.merge(&relocating(&inputs)).now_or_never().expect("waits take no time").unwrap();
    let named = named(&store, &[Run::Merged(Arc::new(merged))]);
    let stay = [&a, &b].map(|run| named.contains_key(&SegmentId(run.id())));
    assert_eq!(stay, [false, false], "each was refused once");
}
