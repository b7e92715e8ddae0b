//! Small commits of many volumes of one node, through the real client: `cargo e2e bench distant-store` runs
//! it, optimised. Local files are left out.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use futures::future::join_all;
use holdfast_background::{
    Background, Compressors, Environment, Pools, SideReader, Sides, StoreKey, UploadBatch, UploadMemory, Work,
};
use holdfast_engine::{
    action::DirtyBlock,
    event::{CreateAnswer, Event},
    settings::Pending,
};
use holdfast_format::side::Side;
use holdfast_log::Indexes;
use holdfast_objects::ObjectStore;
use holdfast_types::{Block, Mask, Place, SectorRange, Seq};

use crate::server::Server;

const VOLUMES: u64 = 1_000;
/// Commits of each volume, the next one at once after the previous one.
const COMMITS: u64 = 5;
/// The store's time for a request.
const ROUND_TRIP_MS: u64 = 50;
/// Approximate size of a commit record.
const RECORD_BYTES: usize = 500;

/// This host's clock.
struct HostTime;

impl Environment for HostTime {
    async fn sleep(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    fn now_ms(&self) -> u64 {
        0
    }

    fn unix_ms(&self) -> u64 {
        1
    }

    fn random<const N: usize>(&self) -> [u8; N] {
        [7; N]
    }
}

/// Data files whose bytes do not compress.
#[derive(Clone)]
struct Noise(u64);

impl SideReader for Noise {
    fn read(&self, _side: Side, _range: SectorRange, buffer: &mut [u8]) -> io::Result<()> {
        let mut state = self.0;
        for word in buffer.as_chunks_mut::<8>().0 {
            // xorshift64: George Marsaglia, "Xorshift RNGs", 2003.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *word = state.to_le_bytes();
        }
        Ok(())
    }
}

impl Sides for Noise {
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

/// Prints commits per second, and the longest commit of those that began at the same time.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures an optimised build: cargo e2e bench distant-store"]
async fn commits_of_a_thousand_volumes() {
    let server = Server::start().await;
    server.round_trip_ms.store(ROUND_TRIP_MS, Ordering::Relaxed);
    let store = Arc::new(server.store().await);
    let pools = Pools {
        indexes: Arc::new(Indexes::new(64, 1 << 26)),
        upload_memory: UploadMemory::new(256 << 20, 8 << 20),
        compressors: Arc::new(Compressors::new(4)),
        merging: Arc::default(),
    };
    let volume = async |number: u64| {
        let name = format!("v{number}").parse().unwrap();
        let objects = Arc::clone(&store) as Arc<dyn ObjectStore>;
        let sides = Noise(number + 1);
        let background = Background::new(name, (StoreKey(0), objects), sides, HostTime, pools.clone());
        let (begun, mut first) = (Instant::now(), None);
        for seq in (1..=COMMITS).map(Seq) {
            let dirty =
                DirtyBlock { block: Block(number), a: Mask::of(SectorRange::new(0, 1)), b: Mask::EMPTY };
            let upload = Work::Upload { place: Place::until(seq), blocks: vec![dirty] };
            let (uploaded, _) = background.perform(upload).await;
            assert!(matches!(uploaded, Event::Uploaded(_)), "{uploaded:?}");
            let record = Work::CreateRecord { seq, bytes: vec![0; RECORD_BYTES] };
            let (created, _) = background.perform(record).await;
            assert!(matches!(created, Event::CreateAnswered(CreateAnswer::Created)), "{created:?}");
            first.get_or_insert(begun.elapsed());
        }
        first.unwrap()
    };
    let begun = Instant::now();
    let firsts = join_all((0..VOLUMES).map(volume)).await;
    let (took, longest) = (begun.elapsed().as_secs_f64(), firsts.into_iter().max().unwrap());
    println!(
        "{{\"commits_per_second\":{:.1},\"longest_of_first_seconds\":{:.3},\"requests_in_flight\":{}}}",
        (VOLUMES * COMMITS) as f64 / took,
        longest.as_secs_f64(),
        server.peak(),
    );
}
