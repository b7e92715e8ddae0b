//! Measures uploads against a simulated remote store, without a VM or S3 server: the seals of one volume and
//! of several, compared with a serial upload in the same run.
//!
//! ```sh
//! cargo run --release --example uploads                 # 30 ms a request, 80 MB/s a connection
//! cargo run --release --example uploads -- 20 80 256    # 20 ms, 80 MB/s, 256 MiB of upload memory
//! ```
//! Reading, compression, checksums, the memory ledger and the request order are the daemon's code; the store
//! sleeps. Times depend on the host: only the ratios to the serial upload are portable. Each row is a line of
//! JSON; `cargo e2e bench distant-store` compares them with its bars.
#![allow(clippy::print_stdout, reason = "its output is its rows")]

use std::fs::File;
use std::io::{self, Write};
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use futures::future::join_all;
use holdfast_background::{
    Background, Compressors, Environment, Pools, SideReader, Sides, StoreKey, UploadBatch, UploadMemory, Work,
};
use holdfast_engine::action::DirtyBlock;
use holdfast_engine::event::{CreateAnswer, Event};
use holdfast_engine::settings::Pending;
use holdfast_format::segment::SegmentBuilder;
use holdfast_format::side::Side;
use holdfast_log::Indexes;
use holdfast_objects::ObjectStore;
use holdfast_types::{BLOCK_BYTES, Block, Mask, Place, SectorRange, SegmentId, Seq};
use rustix::time::{ClockId, clock_gettime};
use store::DistantStore;

mod store;

/// Dirty data of a seal, in blocks: 64 MiB, the default of `data.seal_size`.
const SEAL_BLOCKS: u64 = 512;
/// Consecutive seals per volume: 4 GiB of eight volumes.
const SEALS: u64 = 8;
/// Equals the daemon's.
const PART_BYTES: usize = 8 << 20;
/// Approximate size of a commit record, in bytes.
const RECORD_BYTES: usize = 500;

/// Wall-clock time of the host.
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

/// A volume's data file.
#[derive(Clone)]
struct DataFile(Arc<File>);

impl SideReader for DataFile {
    fn read(&self, _side: Side, range: SectorRange, buffer: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(buffer, range.start.byte_offset())
    }
}

impl Sides for DataFile {
    async fn pack(&self, mut batch: UploadBatch) -> UploadBatch {
        let sides = self.clone();
        self.compute(move || {
            batch.pack(&sides);
            batch
        })
        .await
    }

    async fn compute<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        tokio::task::spawn_blocking(work).await.expect("no work panics")
    }

    async fn store_pending(&self, _pending: Pending) -> io::Result<()> {
        Ok(())
    }
}

/// Contents of the data file.
#[derive(Debug, Clone, Copy)]
enum Contents {
    /// This program, repeated: compresses about as well as libraries.
    Program,
    /// Incompressible.
    Noise,
}

impl Contents {
    fn write(self) -> Result<DataFile> {
        let mut file = tempfile::tempfile().context("create the data file")?;
        let program = std::env::current_exe().and_then(std::fs::read).context("read this program")?;
        let mut bytes: Vec<u8> =
            program.iter().copied().cycle().take((SEAL_BLOCKS * BLOCK_BYTES) as usize).collect();
        if let Self::Noise = self {
            let mut state = 1_u64;
            for word in bytes.as_chunks_mut::<8>().0 {
                // xorshift64: George Marsaglia, "Xorshift RNGs", 2003.
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                *word = state.to_le_bytes();
            }
        }
        file.write_all(&bytes).context("write the data file")?;
        Ok(DataFile(Arc::new(file)))
    }
}

/// Returns the dirty blocks of a seal, with these dirty sectors in each.
fn dirty(mask: Mask) -> Vec<DirtyBlock> {
    (0..SEAL_BLOCKS).map(|block| DirtyBlock { block: Block(block), a: mask, b: Mask::EMPTY }).collect()
}

/// Figures of one row.
#[derive(Debug, Clone, Copy)]
struct Measured {
    seconds: f64,
    cpu_seconds: f64,
    /// Dirty bytes.
    bytes: f64,
    requests: u64,
    sent_bytes: u64,
    memory_bytes: u64,
    /// Peak growth of the resident set.
    resident_bytes: u64,
}

impl Measured {
    fn rate(&self) -> f64 {
        self.bytes / self.seconds
    }
}

/// Settings of a run.
struct Options {
    round_trip: Duration,
    bytes_per_second: f64,
    memory_bytes: u64,
}

impl Options {
    fn store(&self) -> DistantStore {
        DistantStore::new(self.round_trip, self.bytes_per_second)
    }
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns a line of this process's status, in bytes.
fn status_bytes(name: &str) -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("read the status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).context("no such line")?;
    let kib: u64 = line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().context("a size")?;
    Ok(kib << 10)
}

/// Measures `work`, which sends to `store`.
async fn measure(
    volumes: u64,
    store: &DistantStore,
    work: impl Future<Output = Result<u64>>,
) -> Result<Measured> {
    // Resets the peak of the resident set: proc_pid_clear_refs(5).
    std::fs::write("/proc/self/clear_refs", "5").context("reset the peak")?;
    let resident = status_bytes("VmRSS")?;
    let (begun, cpu) = (Instant::now(), cpu_seconds());
    let memory_bytes = work.await?;
    let (requests, sent_bytes) = store.counts();
    Ok(Measured {
        seconds: begun.elapsed().as_secs_f64(),
        cpu_seconds: cpu_seconds() - cpu,
        bytes: (volumes * SEALS * SEAL_BLOCKS * BLOCK_BYTES) as f64,
        requests,
        sent_bytes,
        memory_bytes,
        resident_bytes: status_bytes("VmHWM")?.saturating_sub(resident),
    })
}

/// Uploads each seal with one thread and one request, followed by its record.
async fn serially(store: &DistantStore, data: &DataFile) -> Result<u64> {
    for seq in 0..SEALS {
        let data = data.clone();
        let make = move || {
            let mut builder = SegmentBuilder::default();
            let mut buffer = vec![0; BLOCK_BYTES as usize];
            for DirtyBlock { block, a, .. } in dirty(Mask::FULL) {
                let range = SectorRange::new(block.first_sector().0, u64::from(a.count()));
                data.read(Side::A, range, &mut buffer)?;
                builder.push(block, a, &buffer);
            }
            let (_segment, object) = builder.finish(SegmentId::new(Place::until(Seq(seq)), 1, [7; 10]));
            io::Result::Ok(object)
        };
        let object = tokio::task::spawn_blocking(make).await.context("make a segment")??;
        store.put_whole(Bytes::from(object)).await;
        let record = Bytes::from(vec![0; RECORD_BYTES]);
        let _created = store.create("record", record).await.context("create a record")?;
    }
    Ok(0)
}

/// Uploads the seals of `volumes` volumes like the daemon. Returns the peak of the upload memory.
async fn as_the_daemon(
    volumes: u64,
    options: &Options,
    store: &Arc<DistantStore>,
    data: &DataFile,
) -> Result<u64> {
    let upload_memory = UploadMemory::new(options.memory_bytes, PART_BYTES);
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let pools = Pools {
        indexes: Arc::new(Indexes::new(64, 1 << 26)),
        upload_memory: upload_memory.clone(),
        compressors: Arc::new(Compressors::new(2 * processors)),
        merging: Arc::default(),
    };
    let volume = async |number: u64| {
        let name = format!("v{number}").parse().context("name a volume")?;
        let objects = Arc::clone(store) as Arc<dyn ObjectStore>;
        let background = Background::new(name, (StoreKey(0), objects), data.clone(), HostTime, pools.clone());
        for seq in 1..=SEALS {
            let upload = Work::Upload { place: Place::until(Seq(seq)), blocks: dirty(Mask::FULL) };
            let (uploaded, _) = background.perform(upload).await;
            ensure!(matches!(uploaded, Event::Uploaded(_)), "{uploaded:?}");
            let record = Work::CreateRecord { seq: Seq(seq), bytes: vec![0; RECORD_BYTES] };
            let (created, _) = background.perform(record).await;
            ensure!(matches!(created, Event::CreateAnswered(CreateAnswer::Created)), "{created:?}");
        }
        Ok(())
    };
    join_all((0..volumes).map(volume)).await.into_iter().collect::<Result<()>>()?;
    Ok(upload_memory.peak_bytes())
}

fn print(name: &str, measured: &Measured, serial: &Measured) {
    println!(
        "{{\"row\":\"{name}\",\"mb_per_second\":{:.0},\"vs_serial\":{:.2},\"mb_per_cpu_second\":{:.0},\
         \"cpus\":{:.2},\"requests\":{},\"sent_per_dirty\":{:.2},\"upload_memory_mib\":{:.0},\
         \"resident_mib\":{:.0}}}",
        measured.rate() / 1e6,
        measured.rate() / serial.rate(),
        measured.bytes / measured.cpu_seconds / 1e6,
        measured.cpu_seconds / measured.seconds,
        measured.requests,
        measured.sent_bytes as f64 / measured.bytes,
        measured.memory_bytes as f64 / f64::from(1 << 20),
        measured.resident_bytes as f64 / f64::from(1 << 20),
    );
}

#[tokio::main]
async fn main() -> Result<()> {
    let numbers: Vec<u64> = std::env::args()
        .skip(1)
        .map(|word| word.parse().with_context(|| format!("{word} is no number")))
        .collect::<Result<_>>()?;
    let number = |at: usize, usual| numbers.get(at).copied().unwrap_or(usual);
    let options = Options {
        round_trip: Duration::from_millis(number(0, 30)),
        bytes_per_second: number(1, 80) as f64 * 1e6,
        memory_bytes: number(2, 256) << 20,
    };
    for contents in [Contents::Program, Contents::Noise] {
        let data = contents.write()?;
        let store = options.store();
        let serial = measure(1, &store, serially(&store, &data)).await?;
        print(&format!("{contents:?} serially"), &serial, &serial);
        for volumes in [1, 8] {
            let store = Arc::new(options.store());
            let uploads = as_the_daemon(volumes, &options, &store, &data);
            let measured = measure(volumes, &store, uploads).await?;
            print(&format!("{contents:?} of {volumes}"), &measured, &serial);
        }
    }
    Ok(())
}
