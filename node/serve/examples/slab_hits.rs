//! Measures hits of the node's cache as a ring thread answers them, and reads of the same file by a ring that
//! does nothing else. Prints a line for each row: kind, bytes of a read, reads in flight, reads a second,
//! microseconds of processor time of a read.
//!
//! `slab_hits DIR SECONDS [workers]`: the slab is a file in `DIR`, opened as the daemon opens it; each row
//! takes `SECONDS`. io_uring reads it on the ring's thread, or with `workers` and tmpfs on worker threads of
//! the kernel. `cargo e2e bench cache-hits` compares the rows with those of foyer.
//!
//! The ring thread, its io_uring and its planner are the shipped ones. Its device has no driver: the next
//! request of a tag arrives as soon as the previous one has ended. Each request has memory of its own, so a
//! read copies its bytes as for a program. This thread also draws the requests, and does the work that the
//! runtime does for hits every 250 ms, both of which the daemon's ring threads do not.

use std::env;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use files::{in_memory, read_at_once};
use holdfast_ring::{FixedTransfer, HeapBuffer, IoResult, Ring, RingOperation, RingOptions};
use holdfast_serve::{Message, PublishedStatus, ServedCounts};
use holdfast_types::{BLOCK_BYTES, BLOCK_SECTORS, SECTOR_BYTES};
use holdfast_ublk::{FakeDevice, FakeRequest, Operation, Transport};
use rustix::time::{ClockId, clock_gettime};
use served::{FakeServed, FakeSetup, slab_bytes};
use volume::FakeVolume;

#[path = "fake/files.rs"]
mod files;
#[path = "fake/served.rs"]
mod served;
#[path = "fake/volume.rs"]
mod volume;

/// Sectors of the volume, all of them in the slab: 512 MiB.
const SECTORS: u64 = 1 << 17;
/// Reads in flight.
const DEPTHS: [u16; 3] = [1, 16, 64];
/// Lengths of reads in sectors: a block, and a page.
const LENGTHS: [u32; 2] = [BLOCK_SECTORS as u32, 1];
/// Time between ticks, as in the daemon.
const TICK: Duration = Duration::from_millis(250);
/// Times that all blocks are read before the first row: a block may take the place of another one among the
/// known ones, which has to be found again.
const PASSES: u32 = 3;

fn main() -> io::Result<()> {
    holdfast_ring::raise_open_file_limit()?;
    let mut arguments = env::args().skip(1);
    let (Some(dir), Some(seconds)) = (arguments.next(), arguments.next()) else {
        return Err(io::Error::other("usage: slab_hits DIR SECONDS [workers]"));
    };
    let with_workers = arguments.next().is_some_and(|argument| argument == "workers");
    let time = Duration::from_secs_f64(seconds.parse().map_err(io::Error::other)?);
    let slab = open_slab(Path::new(&dir), with_workers)?;
    for depth in DEPTHS {
        let mut hits = Hits::new(slab.try_clone()?, depth)?;
        let mut bare = BareRing::new(&slab, depth)?;
        for sectors in LENGTHS {
            row("slab", sectors, depth, hits.measure(sectors, time)?);
            row("ring", sectors, depth, bare.measure(sectors, time)?);
        }
    }
    Ok(())
}

#[allow(clippy::print_stdout, reason = "its output is read by its caller")]
fn row(kind: &str, sectors: u32, depth: u16, Speed { reads, passed, worked }: Speed) {
    let (bytes, count) = (u64::from(sectors) * SECTOR_BYTES, reads as f64);
    let (a_second, worked_us) = (count / passed.as_secs_f64(), worked.as_secs_f64() * 1e6 / count);
    println!("{kind} {bytes} {depth} {a_second:.0} {worked_us:.3}");
}

/// A measured number of reads.
struct Speed {
    reads: u64,
    passed: Duration,
    /// Processor time of this process.
    worked: Duration,
}

/// Start of a measurement.
struct Watch {
    begun: Instant,
    worked: Duration,
}

impl Watch {
    fn start() -> Self {
        Self { begun: Instant::now(), worked: processor_time() }
    }

    fn stop(&self, reads: u64) -> Speed {
        Speed { reads, passed: self.begun.elapsed(), worked: processor_time() - self.worked }
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

/// Makes the slab, with direct I/O like the daemon. Without a flag, io_uring reads a file on tmpfs with
/// worker threads, other than one on the file system of a disk.
fn open_slab(dir: &Path, with_workers: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).custom_flags(libc::O_DIRECT);
    let opened = options.open(dir.join("slab.data"));
    let slab =
        opened.map_err(|error| io::Error::other(format!("direct I/O in {}: {error}", dir.display())))?;
    slab.set_len(slab_bytes(SECTORS))?;
    Ok(if with_workers { slab } else { read_at_once(slab) })
}

/// Returns the content of sectors from `start` on: each repeats its number plus one.
fn content(start: u64, sectors: u64) -> Vec<u8> {
    let words = (start..start + sectors).flat_map(|sector| [sector + 1; SECTOR_BYTES as usize / 8]);
    words.flat_map(u64::to_le_bytes).collect()
}

/// A volume whose blocks are all in the slab and known to the ring thread.
struct Hits {
    served: FakeServed,
    published: Arc<PublishedStatus>,
    /// Memory of the requests: [`BLOCK_BYTES`] for each tag.
    memory: File,
    depth: u16,
    /// Number of verified reads.
    verified: u64,
}

impl Hits {
    fn new(slab: File, depth: u16) -> io::Result<Self> {
        let memory = in_memory(u64::from(depth) * BLOCK_BYTES);
        let (new, published) = FakeVolume::stored(SECTORS).message(depth)?;
        let (registered, kept) = (memory.try_clone()?, slab.try_clone()?);
        let setup = FakeSetup {
            transport: Transport::ZeroCopy,
            has_batches: false,
            depth,
            max_io_bytes: BLOCK_BYTES as u32,
            sectors: SECTORS,
            first: Operation::Read,
            register: Box::new(move |memory, ring| memory.register_apart(ring, &registered)),
            slab,
            keep: Box::new(move |block, slot| {
                let block = HeapBuffer::from_slice(&content(block.0 * BLOCK_SECTORS, BLOCK_SECTORS));
                kept.write_all_at(&block, slot.offset_bytes()).expect("the directory has room");
            }),
        };
        let mut served = FakeServed::open(setup, new)?;
        for _ in 0..PASSES {
            served.fill(Operation::Read)?;
        }
        Ok(Self { served, published, memory, depth, verified: 0 })
    }

    /// Measures reads of so many sectors. Fails if one was no hit.
    fn measure(&mut self, sectors: u32, time: Duration) -> io::Result<Speed> {
        self.verify(sectors)?;
        self.run(sectors, TICK)?;
        let (before, watch) = (self.counts()?, Watch::start());
        let mut after = before;
        while watch.begun.elapsed() < time {
            self.run(sectors, TICK)?;
            after = self.counts()?;
        }
        let reads = after.reads - before.reads;
        let speed = watch.stop(reads);
        self.served.serve()?;
        self.verify(sectors)?;
        let hits = after.slab_hits - before.slab_hits;
        let cold = after.cold_reads - before.cold_reads;
        if after.errors > 0 || (hits, cold) != (reads, reads) {
            let errors = after.errors;
            return Err(io::Error::other(format!("{reads} reads: {hits} of {cold} hits, {errors} errors")));
        }
        Ok(speed)
    }

    /// Serves reads at random places, each followed by the next one of its tag.
    fn run(&mut self, sectors: u32, time: Duration) -> io::Result<()> {
        let begun = Instant::now();
        while begun.elapsed() < time {
            self.served.load(Operation::Read, sectors)?;
            self.served.thread.turn().map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// Does the work of a tick, and returns the counts that the ring thread then publishes.
    fn counts(&mut self) -> io::Result<ServedCounts> {
        self.served.send(Message::Tick)?;
        self.served.work();
        Ok(self.published.served())
    }

    /// Verifies the bytes of a read of each tag.
    fn verify(&mut self, sectors: u32) -> io::Result<()> {
        let bytes = sectors as usize * SECTOR_BYTES as usize;
        let starts: Vec<u64> = (0..u64::from(self.depth))
            .map(|tag| {
                let places = SECTORS / u64::from(sectors);
                (self.verified + tag).wrapping_mul(0x9e37_79b9_7f4a_7c15) % places * u64::from(sectors)
            })
            .collect();
        self.memory.write_all_at(&vec![0; usize::from(self.depth) * BLOCK_BYTES as usize], 0)?;
        for (tag, &start_sector) in (0..self.depth).zip(&starts) {
            let request = FakeRequest { operation: Operation::Read, start_sector, sectors };
            self.served.device.set(tag, Some(request));
        }
        self.served.serve()?;
        for (tag, start) in (0_u64..).zip(starts) {
            let mut found = vec![0; bytes];
            self.memory.read_exact_at(&mut found, tag * BLOCK_BYTES)?;
            if found != content(start, sectors.into()) {
                return Err(io::Error::other(format!("a read of sector {start} has other bytes")));
            }
        }
        self.verified += u64::from(self.depth);
        Ok(())
    }
}

/// A read of a [`BareRing`].
struct BareRead {
    tag: u16,
}

impl RingOperation for BareRead {
    fn to_word(&self) -> Option<u64> {
        Some(self.tag.into())
    }

    fn from_word(word: u64) -> Self {
        Self { tag: word as u16 }
    }
}

/// A ring whose thread reads from the slab and does nothing else.
struct BareRing {
    ring: Ring<BareRead>,
    transfers: Vec<FixedTransfer>,
    random: u64,
}

impl BareRing {
    fn new(slab: &File, depth: u16) -> io::Result<Self> {
        let mut ring = Ring::new(&RingOptions::default()).map_err(io::Error::other)?;
        let file = ring.register_file(slab.as_fd()).map_err(io::Error::other)?;
        let memory = FakeDevice::new(depth, BLOCK_BYTES as u32, false)?.memory();
        memory.register_apart(&ring, &in_memory(u64::from(depth) * BLOCK_BYTES))?;
        let transfer = |buffer_index| FixedTransfer {
            file,
            file_offset_bytes: 0,
            buffer_index,
            buffer_offset_bytes: memory.begins_at(),
            len_bytes: 0,
        };
        Ok(Self { ring, transfers: (0..depth).map(transfer).collect(), random: 1 })
    }

    /// Measures reads of so many sectors.
    fn measure(&mut self, sectors: u32, time: Duration) -> io::Result<Speed> {
        let bytes = sectors * SECTOR_BYTES as u32;
        let mut completions = Vec::new();
        for tag in 0..self.transfers.len() {
            self.transfers[tag].len_bytes = bytes;
            self.read(tag as u16);
        }
        let (watch, mut reads, mut in_flight) = (Watch::start(), 0, self.transfers.len());
        while in_flight > 0 {
            self.ring.submit_and_wait(None, &mut completions).map_err(io::Error::other)?;
            let continues = watch.begun.elapsed() < time;
            for completion in completions.drain(..) {
                let Some((BareRead { tag }, IoResult(read))) = self.ring.end_word(completion) else {
                    continue;
                };
                if u32::try_from(read) != Ok(bytes) {
                    return Err(io::Error::other(format!("a read ended with {read}")));
                }
                reads += 1;
                if continues {
                    self.read(tag);
                } else {
                    in_flight -= 1;
                }
            }
        }
        Ok(watch.stop(reads))
    }

    /// Begins the next read of a tag, at a random place.
    fn read(&mut self, tag: u16) {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let transfer = &mut self.transfers[usize::from(tag)];
        let places = SECTORS * SECTOR_BYTES / u64::from(transfer.len_bytes);
        transfer.file_offset_bytes = (self.random >> 33) % places * u64::from(transfer.len_bytes);
        self.ring.read_fixed(transfer, BareRead { tag });
    }
}
