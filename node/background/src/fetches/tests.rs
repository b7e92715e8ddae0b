use bytes::Bytes;
use futures::FutureExt;
use futures::future::{join, join_all};
use holdfast_format::index::{Run, Runs};
use holdfast_format::segment::SegmentBuilder;
use holdfast_objects::{ErrorKind, Fault, Gate, MemoryStore, ReadyParts, StoreError, Verb};
use holdfast_types::{BLOCK_BYTES, Block, Place, SectorRange, SegmentId, Seq};

use super::*;
use crate::scripted_time::ScriptedTime;
use crate::{ColdLines, NoSlot, SlotTable, Unkept, retry_while_unavailable};
use holdfast_log::Indexes;

const SEALS: u64 = 10;

/// A volume whose first block was written in [`SEALS`] seals, each with its own sector.
struct Volume {
    store: MemoryStore,
    runs: Runs,
    indexes: Indexes,
    fetches: Fetches<Vec<u8>>,
}

impl Volume {
    fn new() -> Self {
        let (store, lineage) = (MemoryStore::new(), Lineage::of("v".parse().unwrap()));
        let mut runs = Vec::new();
        for seal in 1..=SEALS {
            let mut builder = SegmentBuilder::default();
            builder.push(Block(0), Mask(1 << seal), &[seal as u8; 4096]);
            let (segment, object) = builder.finish(SegmentId::new(Place::until(Seq(seal)), seal, [1; 10]));
            let mut parts = ReadyParts::from(Bytes::from(object));
            store.put_segment(&lineage.segment_key(segment.id), &mut parts).now_or_never().unwrap().unwrap();
            runs.insert(0, Run::Segment(segment.into()));
        }
        let (indexes, fetches) = (Indexes::new(64, 1 << 20), Fetches::new(|| vec![0; BLOCK_BYTES as usize]));
        let volume = Self { store, runs: Runs::new(lineage.into(), runs), indexes, fetches };
        assert_eq!(volume.plan().pieces.len() as u64, SEALS);
        volume
    }

    /// Returns the plan of the whole block; caches its indexes.
    fn plan(&self) -> Composition {
        let plan = self.indexes.compose(&self.store, Block(0), Mask::FULL, &self.runs);
        plan.now_or_never().unwrap().unwrap()
    }

    fn gets(&self) -> u64 {
        self.store.counts().get
    }

    /// Reads the block without real delays.
    async fn read(&self) -> Arc<Vec<u8>> {
        let reader = &self.fetches.reader();
        let time = ScriptedTime::new(|_wait| {});
        retry_while_unavailable(&time, &ColdLines::default(), SectorRange::new(1, 1), |wanted| async move {
            let plan = self.indexes.compose(&self.store, Block(0), wanted, &self.runs).await?;
            reader.block(&self.store, self.runs.lineage(), &plan).await
        })
        .await
        .unwrap()
    }
}

fn assert_whole(block: &[u8]) {
    for (sector, bytes) in (0u64..).zip(block.chunks(4096)) {
        let expected = if (1..=SEALS).contains(&sector) { sector as u8 } else { 0 };
        assert!(bytes.iter().all(|byte| *byte == expected), "sector {sector}");
    }
}

/// Regression: each failure restarted the whole block.
#[test]
fn a_failed_get_costs_its_own_repeat_only() {
    for failures in 1..=SEALS {
        let volume = Volume::new();
        let before = volume.gets();
        // That many requests of the first attempt fail.
        for _ in 0..failures {
            volume.store.fail_next(Verb::Get, Fault::Before(ErrorKind::Unavailable));
        }
        assert_whole(&volume.read().now_or_never().unwrap());
        assert_eq!(volume.gets() - before, SEALS + failures, "{failures} failures");
    }
}

/// Regression: the failed request ended the others in flight.
#[tokio::test]
async fn a_slow_get_outlives_the_failure_of_another() {
    let volume = Volume::new();
    let (before, late) = (volume.gets(), Gate::new());
    volume.store.fail_next(Verb::Get, Fault::Hold(late.clone()));
    volume.store.fail_next(Verb::Get, Fault::Before(ErrorKind::Unavailable));
    let answered = async {
        late.arrival().await;
        late.release();
    };
    assert_whole(&join(volume.read(), answered).await.0);
    assert_eq!(volume.gets() - before, SEALS + 1);
}

/// The same for the indexes that map the block to frames.
#[tokio::test]
async fn a_slow_index_read_outlives_the_failure_of_another() {
    let mut volume = Volume::new();
    volume.indexes = Indexes::new(64, 1 << 20);
    let (before, late) = (volume.gets(), Gate::new());
    volume.store.fail_next(Verb::Get, Fault::Hold(late.clone()));
    volume.store.fail_next(Verb::Get, Fault::Before(ErrorKind::Unavailable));
    let answered = async {
        late.arrival().await;
        late.release();
    };
    assert_whole(&join(volume.read(), answered).await.0);
    assert_eq!(volume.gets() - before, 2 * SEALS + 1);
}

#[test]
fn a_finding_comes_before_an_unavailable_frame() {
    let volume = Volume::new();
    let plan = volume.plan();
    let key = volume.runs.lineage().segment_key(plan.pieces[3].segment);
    volume.store.corrupt(&key, |bytes| bytes[9] ^= 1);
    volume.store.fail_next(Verb::Get, Fault::Before(ErrorKind::Unavailable));
    let reader = volume.fetches.reader();
    for _ in 0..2 {
        let before = volume.gets();
        let read = reader.block(&volume.store, volume.runs.lineage(), &plan).now_or_never().unwrap();
        assert!(
            matches!(read, Err(ColdError::Object(ObjectError::Frame { key: damaged, .. })) if damaged == key)
        );
        assert!(volume.gets() > before, "what is damaged is read again");
    }
    volume.store.corrupt(&key, |bytes| bytes[9] ^= 1);
    let read = reader.block(&volume.store, volume.runs.lineage(), &plan).now_or_never().unwrap();
    assert_whole(&read.unwrap());
}

/// Regression: each reader whose predecessor failed, or was dropped, restarted the whole block.
#[tokio::test]
async fn a_dropped_reader_leaves_what_has_arrived() {
    let volume = Volume::new();
    let (plan, before, late) = (volume.plan(), volume.gets(), Gate::new());
    let (first, second) = (volume.fetches.reader(), volume.fetches.reader());
    let block = |reader: &BlockReader<'_, Vec<u8>>| {
        let read = reader.block(&volume.store, volume.runs.lineage(), &plan);
        read.now_or_never()
    };
    volume.store.fail_next(Verb::Get, Fault::Hold(late));
    assert!(block(&first).is_none(), "a frame is requested when it is dropped");
    let waits = second.block(&volume.store, volume.runs.lineage(), &plan);
    drop(first);
    assert_whole(&waits.await.unwrap());
    assert_eq!(volume.gets() - before, SEALS + 1);
    drop(second);
    assert!(volume.fetches.in_progress.lock().is_empty());
}

/// Regression: each of them fetched the block, sequentially.
#[tokio::test]
async fn readers_share_a_fetch_without_a_slot() {
    const READERS: usize = 8;
    let volume = Volume::new();
    let (plan, before, gate) = (volume.plan(), volume.gets(), Gate::new());
    let table = SlotTable::new(256, 64, 1);
    let readers: Vec<_> = (0..READERS).map(|_| volume.fetches.reader()).collect();
    let reads = readers.iter().map(async |reader| {
        let fetch = reader.block(&volume.store, volume.runs.lineage(), &plan);
        let full = |_slot, block| async { (block, Err(std::io::ErrorKind::StorageFull.into())) };
        table.slot(&plan.key, |_slot, _entry| async { Ok(true) }, fetch, full).await
    });
    volume.store.fail_next(Verb::Get, Fault::Hold(gate.clone()));
    let released = async {
        gate.arrival().await;
        gate.release();
    };
    for unkept in join(join_all(reads), released).await.0 {
        let Err(NoSlot::Unkept(Unkept { content, .. })) = unkept else { panic!("no slot takes it") };
        assert_whole(&content);
    }
    assert_eq!(volume.gets() - before, SEALS);
}

#[test]
fn an_unreachable_store_takes_no_memory() {
    let volume = Volume::new();
    let (plan, reader) = (volume.plan(), volume.fetches.reader());
    volume.store.go_away();
    let read = reader.block(&volume.store, volume.runs.lineage(), &plan).now_or_never().unwrap();
    assert!(matches!(
        read,
        Err(ColdError::Object(ObjectError::Store { source: StoreError::Unavailable(_), .. }))
    ));
    let fetch = volume.fetches.join(plan.key);
    assert!(matches!(&*fetch.arrived.lock(), Arrived::Sectors { block: None, .. }));
}
