//! Measures hits of foyer's disk cache. Prints a line for each row: I/O engine, bytes of a value, gets in
//! flight, gets a second, microseconds of processor time of a get.
//!
//! `foyer-hits DIR SECONDS [workers]`: the cache is in `DIR/foyer`; each row takes `SECONDS`. io_uring reads
//! its files on the thread of the engine, or with `workers` and tmpfs on worker threads of the kernel. `cargo
//! e2e bench cache-hits` compares the rows with those of `node/serve/examples/slab_hits.rs`.
//!
//! The cache is set up as in foyer's README, with direct I/O. The engine of blocks, its I/O engines and the
//! runtime have their defaults: one thread of io_uring with 64 entries, and a worker of tokio for each
//! processor. The allocator is that of foyer's own benchmark: with the C library's, gets of 128 KiB take
//! twice as long or more. A get is a load from the store: it does less than `HybridCache::get`, which looks
//! into the memory tier first, loads in a task and inserts the value there. A loaded value is checked, copied
//! and owned by the caller, as with `get`.

use std::fs;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use foyer::{
    BlockEngineConfig, DefaultHasher, DeviceBuilder, FsDeviceBuilder, HybridCache, HybridCacheBuilder,
    HybridCacheProperties, IoEngineConfig, Load, PsyncIoEngineConfig, RawFile, RecoverMode, Store,
    UringIoEngineConfig,
};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::time::{ClockId, clock_gettime};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Bytes of all values, as in the compared volume.
const BYTES: u64 = 512 << 20;
/// Gets in flight.
const DEPTHS: [u64; 3] = [1, 16, 64];
/// Lengths of values.
const LENGTHS: [usize; 2] = [128 << 10, 4096];
/// Unit of content.
const SECTOR_BYTES: usize = 4096;
/// Bytes that are inserted before a wait: with more than 16 MiB in its queue, foyer drops entries.
const QUEUED_BYTES: usize = 4 << 20;
/// Time before a row is measured.
const WARM_UP: Duration = Duration::from_millis(250);
/// One of so many gets is verified completely.
const VERIFIED: u64 = 1024;

type Values = Store<u64, Vec<u8>, DefaultHasher, HybridCacheProperties>;

/// An I/O engine of foyer.
#[derive(Debug, Clone, Copy)]
enum Engine {
    Uring,
    Psync,
}

impl Engine {
    const ALL: [Self; 2] = [Self::Uring, Self::Psync];

    const fn name(self) -> &'static str {
        match self {
            Self::Uring => "uring",
            Self::Psync => "psync",
        }
    }

    fn config(self) -> Box<dyn IoEngineConfig> {
        match self {
            Self::Uring => UringIoEngineConfig::new().boxed(),
            Self::Psync => PsyncIoEngineConfig::new().boxed(),
        }
    }
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(dir), Some(seconds)) = (arguments.next(), arguments.next()) else {
        bail!("usage: foyer-hits DIR SECONDS [workers]");
    };
    let with_workers = arguments.next().is_some_and(|argument| argument == "workers");
    let (dir, time) = (Path::new(&dir).join("foyer"), Duration::from_secs_f64(seconds.parse()?));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        for bytes in LENGTHS {
            for engine in Engine::ALL {
                let filled = Filled::new(&dir, engine, bytes, with_workers).await?;
                for depth in DEPTHS {
                    let Speed { a_second, worked_us } = filled.measure(depth, time).await?;
                    println!("{} {bytes} {depth} {a_second:.0} {worked_us:.3}", engine.name());
                }
                filled.cache.close().await?;
                drop(filled);
                fs::remove_dir_all(&dir)?;
            }
        }
        Ok(())
    })
}

/// Returns the value of a key. Sectors have the same content as in the compared volume: each repeats its
/// number plus one.
fn value(key: u64, bytes: usize) -> Vec<u8> {
    let sectors = (bytes / SECTOR_BYTES) as u64;
    let words = (key * sectors..(key + 1) * sectors).flat_map(|sector| [sector + 1; SECTOR_BYTES / 8]);
    words.flat_map(u64::to_le_bytes).collect()
}

/// The speed of gets.
struct Speed {
    a_second: f64,
    /// Microseconds of processor time of this process for each.
    worked_us: f64,
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// A cache that has a value for each key.
struct Filled {
    cache: HybridCache<u64, Vec<u8>>,
    keys: u64,
    bytes: usize,
}

impl Filled {
    async fn new(dir: &Path, engine: Engine, bytes: usize, with_workers: bool) -> Result<Self> {
        let keys = BYTES / bytes as u64;
        // An entry has a header, and begins at a page; its place in an index of its own is the most it takes.
        let entry = bytes + 2 * SECTOR_BYTES;
        let capacity = keys as usize * entry + (128 << 20);
        let device = FsDeviceBuilder::new(dir).with_capacity(capacity).with_direct(true).build()?;
        let cache = HybridCacheBuilder::new()
            .memory(1)
            .storage()
            .with_io_engine_config(engine.config())
            .with_engine_config(BlockEngineConfig::new(device))
            .with_recover_mode(RecoverMode::None)
            .build()
            .await?;
        let filled = Self { cache, keys, bytes };
        if !with_workers {
            filled.read_at_once()?;
        }
        for key in 0..keys {
            filled.cache.storage_writer(key).force().insert(value(key, bytes));
            if (key + 1) % (QUEUED_BYTES / bytes) as u64 == 0 {
                filled.cache.storage().wait().await;
            }
        }
        filled.cache.storage().wait().await;
        for key in 0..keys {
            let found = load(filled.cache.storage(), key).await?;
            ensure!(found == value(key, bytes), "the value of {key} has other bytes");
        }
        Ok(filled)
    }

    /// Makes io_uring read the files of the cache without worker threads, like that of the compared program:
    /// file systems of disks do it, tmpfs needs this flag (`io_file_get_flags` in `io_uring/rsrc.c`).
    fn read_at_once(&self) -> Result<()> {
        let device = self.cache.storage().device();
        for partition in 0..device.partitions() {
            let partition = device.partition(u32::try_from(partition)?);
            let (RawFile(file), _) = partition.translate(0);
            // SAFETY: the partition has the file open.
            let file = unsafe { BorrowedFd::borrow_raw(file) };
            fcntl_setfl(file, fcntl_getfl(file)? | OFlags::NONBLOCK)?;
        }
        Ok(())
    }

    /// Measures `depth` tasks with a get each.
    async fn measure(&self, depth: u64, time: Duration) -> Result<Speed> {
        let ends = Arc::new(AtomicBool::new(false));
        let mut tasks = Vec::new();
        for task in 0..depth {
            let count = Arc::new(AtomicU64::new(0));
            let gets = Gets {
                store: self.cache.storage().clone(),
                keys: self.keys,
                bytes: self.bytes,
                random: task,
                count: Arc::clone(&count),
                ends: Arc::clone(&ends),
            };
            tasks.push((count, tokio::spawn(gets.run())));
        }
        let counted = |tasks: &[(Arc<AtomicU64>, _)]| {
            tasks.iter().map(|(count, _)| count.load(Ordering::Relaxed)).sum::<u64>()
        };
        // Not by a timer of the runtime, whose workers are busy.
        std::thread::sleep(WARM_UP);
        let (before, begun, worked) = (counted(&tasks), Instant::now(), processor_time());
        std::thread::sleep(time);
        let (passed, worked) = (begun.elapsed(), processor_time() - worked);
        let gets = (counted(&tasks) - before) as f64;
        ends.store(true, Ordering::Relaxed);
        for (_, task) in tasks {
            task.await??;
        }
        Ok(Speed { a_second: gets / passed.as_secs_f64(), worked_us: worked.as_secs_f64() * 1e6 / gets })
    }
}

/// A task that gets random keys, one after another.
struct Gets {
    store: Values,
    keys: u64,
    bytes: usize,
    random: u64,
    count: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
}

impl Gets {
    async fn run(mut self) -> Result<()> {
        self.random = self.random.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(1);
        while !self.ends.load(Ordering::Relaxed) {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key = (self.random >> 33) % self.keys;
            let found = load(&self.store, key).await?;
            let first = key * (self.bytes / SECTOR_BYTES) as u64 + 1;
            let begins = found.first_chunk::<8>().context("a value of some bytes")?;
            let is_right = found.len() == self.bytes && u64::from_le_bytes(*begins) == first;
            ensure!(is_right, "the value of {key} has other bytes");
            if self.count.fetch_add(1, Ordering::Relaxed).is_multiple_of(VERIFIED) {
                ensure!(found == value(key, self.bytes), "the value of {key} has other bytes");
            }
        }
        Ok(())
    }
}

/// Gets a value from the disk. Fails if it is not there, or still in memory.
async fn load(store: &Values, key: u64) -> Result<Vec<u8>> {
    match store.load(&key).await? {
        Load::Entry { value, .. } => Ok(value),
        Load::Piece { .. } => bail!("the value of {key} is in memory"),
        Load::Throttled => bail!("the read of {key} was throttled"),
        Load::Miss => bail!("the value of {key} is not in the cache"),
    }
}
