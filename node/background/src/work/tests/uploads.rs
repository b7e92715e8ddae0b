//! Uploads of several volumes that share the upload memory, and the work after a checkpoint.

use std::io;

use futures::FutureExt;
use holdfast_format::compose::Composition;
use holdfast_format::index::{Run, Runs};
use holdfast_format::side::Side;
use holdfast_objects::{ErrorKind, Fault, Gate, MemoryStore, Verb};
use holdfast_types::{Block, Lineage, Mask, Place, SectorRange};

use super::super::*;
use crate::{SideReader, UploadBatch};

/// Data files filled with one byte.
struct FilledSides;

impl SideReader for FilledSides {
    fn read(&self, _side: Side, _range: SectorRange, buffer: &mut [u8]) -> io::Result<()> {
        buffer.fill(7);
        Ok(())
    }
}

impl Sides for FilledSides {
    async fn pack(&self, mut batch: UploadBatch) -> UploadBatch {
        batch.pack(self);
        batch
    }

    async fn compute<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        work()
    }

    async fn store_pending(&self, _pending: Pending) -> io::Result<()> {
        Ok(())
    }
}

/// Time that does not pass.
struct FrozenTime;

impl Environment for FrozenTime {
    async fn sleep(&self, _time: Duration) {
        std::future::pending().await
    }

    fn now_ms(&self) -> u64 {
        0
    }

    fn unix_ms(&self) -> u64 {
        0
    }

    fn random<const N: usize>(&self) -> [u8; N] {
        [0; N]
    }
}

/// Returns memory for two uploads of one part.
pub(super) fn pools() -> Pools {
    let upload_memory = UploadMemory::new(2 * (64 << 10) + (400 << 10), 64 << 10);
    Pools {
        indexes: Arc::new(Indexes::new(16, 1 << 20)),
        upload_memory,
        compressors: Arc::new(Compressors::new(2)),
        merging: Arc::default(),
    }
}

fn volume(number: usize, store: (usize, &MemoryStore), pools: &Pools) -> Background<FilledSides, FrozenTime> {
    let id = format!("v{number}").parse().unwrap();
    let store = (StoreKey(store.0), Arc::new(store.1.clone()) as Arc<dyn ObjectStore>);
    Background::new(id, store, FilledSides, FrozenTime, pools.clone())
}

fn upload() -> Work {
    let blocks = vec![DirtyBlock { block: Block(3), a: Mask::FULL, b: Mask::EMPTY }];
    Work::Upload { place: Place::until(Seq(9)), blocks }
}

/// Regression: two volumes of a failed store held all upload permits of the node, even between attempts.
#[test]
fn waiting_uploads_hold_no_memory() {
    let (dead, live, pools) = (MemoryStore::new(), MemoryStore::new(), pools());
    dead.fail_always(Verb::Put, Fault::Before(ErrorKind::Denied));
    let failing: Vec<_> = (0..8).map(|number| volume(number, (0, &dead), &pools)).collect();
    let mut waiting: Vec<_> = failing.iter().map(|volume| Box::pin(volume.perform(upload()))).collect();
    assert!(waiting.iter_mut().all(|upload| upload.now_or_never().is_none()));
    assert_eq!(pools.upload_memory.held_bytes(), 0);
    let done = volume(9, (1, &live), &pools).perform(upload()).now_or_never();
    assert!(matches!(done, Some((Event::Uploaded(_), None))), "{done:?}");
}

/// Regression: after a long outage, a segment had more parts than a store accepts: no attempt ever succeeded.
#[test]
fn a_segment_has_no_more_parts_than_a_store_accepts() {
    let (store, memory) = (MemoryStore::new(), UploadMemory::new(1 << 20, 1));
    let volume = volume(0, (0, &store), &Pools { upload_memory: memory, ..pools() });
    // Parts of one byte: each block's entry alone would need 48.
    let dirty = |block| DirtyBlock { block: Block(block), a: Mask::FULL, b: Mask::EMPTY };
    let work = Work::Upload { place: Place::until(Seq(9)), blocks: (0..300).map(dirty).collect() };
    let done = volume.perform(work).now_or_never();
    assert!(matches!(done, Some((Event::Uploaded(_), None))), "{done:?}");
}

/// The same for a store that accepts requests and does not answer.
#[test]
fn a_silent_store_delays_no_other() {
    let (silent, live, pools) = (MemoryStore::new(), MemoryStore::new(), pools());
    silent.fail_always(Verb::Put, Fault::Hold(Gate::new()));
    let hanging: Vec<_> = (0..8).map(|number| volume(number, (0, &silent), &pools)).collect();
    let mut waiting: Vec<_> = hanging.iter().map(|volume| Box::pin(volume.perform(upload()))).collect();
    assert!(waiting.iter_mut().all(|upload| upload.now_or_never().is_none()));
    assert!(pools.upload_memory.held_bytes() > 0);
    for number in 8..16 {
        let done = volume(number, (1, &live), &pools).perform(upload()).now_or_never();
        assert!(matches!(done, Some((Event::Uploaded(_), None))), "{done:?}");
    }
}

/// Regression: to read back evicted data, a writer fetched the index of its own segment.
#[test]
fn the_index_of_an_own_segment_is_not_fetched() {
    let (store, pools) = (MemoryStore::new(), pools());
    let volume = volume(0, (0, &store), &pools);
    let (Event::Uploaded(segment), None) = volume.perform(upload()).now_or_never().unwrap() else {
        panic!("it is stored")
    };
    let lineage = Arc::new(Lineage::of(volume.volume.clone()));
    let runs = Runs::new(lineage, [Run::Segment(Arc::new(segment))]);
    let composed = pools.indexes.compose(&store, Block(3), Mask::FULL, &runs);
    let Composition { pieces, .. } = composed.now_or_never().unwrap().unwrap();
    assert_eq!((pieces.len(), store.counts().get), (1, 0));
}

/// Regression: the report of a stored checkpoint came after the deletions that it allows.
#[test]
fn a_checkpoint_is_reported_before_deletions() {
    let store = MemoryStore::new();
    let volume = volume(0, (0, &store), &pools());
    store.fail_always(Verb::Delete, Fault::Hold(Gate::new()));
    let mut deleting = Vec::new();
    for seq in 1..=5 {
        let work = Work::WriteCheckpoint { seq: Seq(seq), bytes: vec![1] };
        let (event, tidy) = volume.perform(work).now_or_never().unwrap();
        assert!(matches!(event, Event::CheckpointWritten { written: true, .. }), "{event:?}");
        let mut tidying = Box::pin(volume.tidy(tidy.unwrap()));
        // From the third on, one must be deleted; only one deletion is in progress.
        assert_eq!((&mut tidying).now_or_never().is_none(), seq == 3, "{seq}");
        deleting.push(tidying);
    }
    assert_eq!(store.keys().len(), 5);
}
