use std::collections::BTreeMap;

use bytes::Bytes;
use futures::FutureExt;
use holdfast_format::segment::SegmentBuilder;
use holdfast_objects::{MemoryStore, ReadyParts};
use holdfast_types::{Place, Seq};

use super::*;

/// Stores a segment of `frames` frames.
fn stored(frames: u64) -> (MemoryStore, Runs) {
    let (store, lineage) = (MemoryStore::new(), Lineage::of("v".parse().unwrap()));
    let mut builder = SegmentBuilder::default();
    for block in 0..frames {
        builder.push(Block(block), Mask(1), &[7; 4096]);
    }
    let (segment, object) = builder.finish(SegmentId::new(Place::until(Seq(1)), 1, [0; 10]));
    let mut parts = ReadyParts::from(Bytes::from(object));
    store.put_segment(&lineage.segment_key(segment.id), &mut parts).now_or_never().unwrap().unwrap();
    (store, Runs::new(lineage.into(), [Run::Segment(segment.into())]))
}

/// Regression: an index larger than a cache shard's share (there were four shards per CPU) was fetched for
/// every read: 12 MiB with 8 CPUs, 3 MiB with 32.
#[test]
fn an_index_is_fetched_once_however_large() {
    const FRAMES: u64 = 12_000;
    let (store, runs) = stored(FRAMES);
    let index_bytes = FRAMES * 48;
    for (cache_bytes, what) in
        [(2 * index_bytes, "half the cache"), (index_bytes / 4, "four times the cache")]
    {
        let indexes = Indexes::new(4096, cache_bytes);
        let before = store.counts().get;
        for block in 0..100 {
            let composed = indexes.compose(&store, Block(block), Mask::FULL, &runs);
            assert_eq!(composed.now_or_never().unwrap().unwrap().pieces.len(), 1);
        }
        assert_eq!(store.counts().get - before, 1, "an index of {what}");
    }
}

/// A store that caches the parts that were read.
struct Near {
    store: MemoryStore,
    kept: std::sync::Mutex<BTreeMap<(String, u64), Bytes>>,
}

impl IndexSource for Near {
    async fn kept(&self, key: &str, range: Range<u64>) -> Option<Bytes> {
        self.kept.lock().unwrap().get(&(key.to_owned(), range.start)).cloned()
    }

    async fn stored(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.store.get_range(key, range).await
    }

    async fn keep(&self, key: &str, range: Range<u64>, bytes: Bytes) {
        self.kept.lock().unwrap().insert((key.to_owned(), range.start), bytes);
    }
}

/// The local disk may damage a cached part: no read fails, and the part is fetched from the store.
#[test]
fn a_kept_part_that_is_damaged_is_requested() {
    let (store, runs) = stored(3);
    let near = Near { store, kept: std::sync::Mutex::default() };
    let read = || {
        let indexes = Indexes::new(16, 1 << 20);
        let composed = indexes.compose(&near, Block(2), Mask::FULL, &runs).now_or_never().unwrap();
        assert_eq!(composed.unwrap().pieces.len(), 1);
        near.store.counts().get
    };
    assert_eq!([read(), read()], [1, 1], "the second one is kept");
    for kept in near.kept.lock().unwrap().values_mut() {
        *kept = Bytes::from(vec![0; kept.len()]);
    }
    assert_eq!([read(), read()], [2, 2]);
}

/// Damaged data from the store is not cached.
#[test]
fn a_part_that_the_store_damaged_is_requested_again() {
    let (store, runs) = stored(3);
    let segment = match runs.iter().next() {
        Some(Run::Segment(segment)) => segment.id,
        _ => unreachable!(),
    };
    let key = runs.lineage().segment_key(segment);
    let whole = store.get(&key, 1 << 20).now_or_never().unwrap().unwrap();
    let near = Near { store, kept: std::sync::Mutex::default() };
    let put = |bytes: Vec<u8>| {
        let mut parts = ReadyParts::from(Bytes::from(bytes));
        near.store.put_segment(&key, &mut parts).now_or_never().unwrap().unwrap();
    };
    put(vec![0; whole.len()]);
    let indexes = Indexes::new(16, 1 << 20);
    let read = || indexes.compose(&near, Block(2), Mask::FULL, &runs).now_or_never().unwrap();
    assert!(matches!(read(), Err(ObjectError::Index { .. })));
    put(whole.to_vec());
    assert!(read().is_ok());
}
