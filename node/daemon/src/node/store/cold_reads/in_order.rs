//! The cost of reading in order what is in the store alone: requests, and time by a clock that only the store
//! moves. So the figures are the same on any host.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::join_all;
use holdfast_format::index::Run;
use holdfast_format::segment::SegmentBuilder;
use holdfast_objects::{
    CreateError, Created, MemoryStore, Page, Parts, ReadyParts, SegmentError, StoreError, Suffix,
};
use holdfast_types::{BLOCK_SECTORS, Block, Lineage, Place, SECTOR_BYTES, SegmentId, Seq};
use tokio::time::Instant;

use super::*;

/// Bytes of the volume, and of each of its segments.
const VOLUME_BYTES: u64 = 64 << 20;
const SEAL_BYTES: u64 = 16 << 20;
/// Time until the store's first byte.
const ROUND_TRIP: Duration = Duration::from_millis(20);
/// Bytes that a connection carries in a second.
const CONNECTION: u64 = 80_000_000;

/// A store at the end of a long line.
#[derive(Debug)]
struct FarStore {
    near: MemoryStore,
    /// Bytes that each connection carries in a second; none for any number.
    bytes_a_second: Option<u64>,
}

#[async_trait]
impl ObjectStore for FarStore {
    async fn get(&self, key: &str, max_bytes: u64) -> Result<Bytes, StoreError> {
        self.near.get(key, max_bytes).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let micros = self.bytes_a_second.map_or(0, |rate| (range.end - range.start) * 1_000_000 / rate);
        tokio::time::sleep(ROUND_TRIP + Duration::from_micros(micros)).await;
        self.near.get_range(key, range).await
    }

    async fn get_suffix(&self, key: &str, len: u64) -> Result<Suffix, StoreError> {
        self.near.get_suffix(key, len).await
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<Created, CreateError> {
        self.near.create(key, body).await
    }

    async fn put_segment(&self, key: &str, parts: &mut dyn Parts) -> Result<(), SegmentError> {
        self.near.put_segment(key, parts).await
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        self.near.list(prefix, start_after, limit).await
    }

    async fn delete(&self, keys: &[&str]) -> Result<(), StoreError> {
        self.near.delete(keys).await
    }
}

/// Bytes that no compression makes shorter, others for each `seed`.
fn noise(seed: u64) -> Vec<u8> {
    let mut word = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = (0..BLOCK_BYTES / 8).flat_map(|_| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word.to_le_bytes()
    });
    words.collect()
}

/// A volume of [`VOLUME_BYTES`] that was written from its first block to its last.
async fn written(bytes_a_second: Option<u64>) -> (FarStore, Runs) {
    let (near, lineage) = (MemoryStore::new(), Lineage::of("v".parse().unwrap()));
    let mut runs = Vec::new();
    for seal in 0..VOLUME_BYTES / SEAL_BYTES {
        let mut builder = SegmentBuilder::default();
        for block in (seal * SEAL_BYTES / BLOCK_BYTES)..((seal + 1) * SEAL_BYTES / BLOCK_BYTES) {
            builder.push(Block(block), Mask::FULL, &noise(block));
        }
        let (segment, object) = builder.finish(SegmentId::new(Place::until(Seq(seal + 1)), seal, [1; 10]));
        let mut parts = ReadyParts::from(Bytes::from(object));
        near.put_segment(&lineage.segment_key(segment.id), &mut parts).await.unwrap();
        runs.insert(0, Run::Segment(segment.into()));
    }
    (FarStore { near, bytes_a_second }, Runs::new(lineage.into(), runs))
}

/// The cost of one pass over the volume.
struct Cost {
    gets: u64,
    time: Duration,
}

impl Cost {
    fn mib_a_second(&self) -> f64 {
        (VOLUME_BYTES >> 20) as f64 / self.time.as_secs_f64()
    }
}

/// Reads the volume in order, one request of `bytes` after the other.
async fn read_in_order(dir: &Path, bytes: u64, bytes_a_second: Option<u64>) -> Cost {
    let (store, runs) = written(bytes_a_second).await;
    let slab = BlockSlab::open(&dir.join("slab"), 2 * VOLUME_BYTES).unwrap();
    let cold = ColdReads::new(slab, Arc::new(Indexes::new(16, 1 << 20)));
    let (lines, begun) = (ColdLines::default(), Instant::now());
    for first in (0..VOLUME_BYTES / SECTOR_BYTES).step_by((bytes / SECTOR_BYTES) as usize) {
        let request = SectorRange::new(first, bytes / SECTOR_BYTES);
        let pieces = request.split_at_multiples(BLOCK_SECTORS);
        let reads = pieces.map(|piece| cold.block(&store, &lines, piece, &runs, Among::Both));
        join_all(reads).await.into_iter().for_each(|slot| drop(slot.unwrap()));
    }
    Cost { gets: store.near.counts().get, time: begun.elapsed() }
}

/// Requests and round trips of 64 MiB in order, with 128 KiB and 1 MiB in flight.
#[tokio::test(start_paused = true)]
async fn reading_in_order_takes_few_requests_and_round_trips() {
    let dir = tempfile::tempdir().unwrap();
    for (bytes, round_trips) in [(128 << 10, 513), (1 << 20, 65)] {
        let cost = read_in_order(dir.path(), bytes, None).await;
        let passed = cost.time.as_millis() / ROUND_TRIP.as_millis();
        assert_eq!((cost.gets, passed), (516, round_trips), "{bytes} bytes a request");
    }
}

/// The speed at 20 ms and 80 MB/s a connection.
#[tokio::test(start_paused = true)]
async fn reading_in_order_keeps_a_long_line_busy() {
    let dir = tempfile::tempdir().unwrap();
    for (bytes, least) in [(128 << 10, 5.0), (1 << 20, 40.0)] {
        let cost = read_in_order(dir.path(), bytes, Some(CONNECTION)).await;
        let speed = cost.mib_a_second();
        println!("{bytes} bytes a request: {speed:.1} MiB/s, {} GETs", cost.gets);
        assert!(speed > least, "{speed:.1} MiB/s with {bytes} bytes a request");
    }
}
