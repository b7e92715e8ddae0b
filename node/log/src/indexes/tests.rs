use bytes::Bytes;
use futures::FutureExt;
use holdfast_format::segment::SegmentBuilder;
use holdfast_objects::{MemoryStore, ReadyParts};
use holdfast_types::{Place, Seq};

use super::*;

/// A segment of `frames` frames, in a store.
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

/// An index that did not fit the share of one part of the cache, of which there were four for each CPU, was
/// fetched for every read: 12 MiB with 8 CPUs, 3 MiB with 32.
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
