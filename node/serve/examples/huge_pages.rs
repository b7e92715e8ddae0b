//! Measures the gain of a memory volume from huge pages: random reads and writes of pages with lz4, in files
//! in memory with and without them. Changes the kernel's setting for such files meanwhile, as root.
//!
//! `cargo run --release -p holdfast-serve --example huge_pages -- /usr/bin`
#![allow(unsafe_code)] // maps memory of its own
#![allow(clippy::print_stdout)] // a program that a person runs

use std::error::Error;
use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Instant;

use holdfast_memory::pool::SLAB_BYTES;
use holdfast_memory::{Codecs, HEAD_BYTES, MemoryVolume, PAGE_BYTES, PageCodec, TableHead};
use holdfast_serve::MemoryFiles;
use rustix::fs::{MemfdFlags, memfd_create};

/// The kernel's setting for files in memory.
const SETTING: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
/// Maximum bytes of the volume, and of a file of the corpus.
const VOLUME_BYTES: usize = 512 << 20;
const FILE_BYTES: usize = 16 << 20;
/// Requests of a measurement.
const REQUESTS: u64 = 200_000;
/// Alternating measurements of each kind; the fastest counts.
const ROUNDS: usize = 4;

type Volume = MemoryVolume<MemoryFiles>;

fn main() -> Result<(), Box<dyn Error>> {
    let corpus = corpus(std::env::args().nth(1).unwrap_or_else(|| "/usr/bin".to_owned()).into());
    let before = fs::read_to_string(SETTING)?;
    let made = ["never", "always"].map(|setting| {
        fs::write(SETTING, setting)?;
        filled(&corpus)
    });
    fs::write(SETTING, before.split(['[', ']']).nth(1).unwrap_or("never"))?;
    let [plain, huge] = made;
    let volumes = [plain?, huge?];
    println!("{} MiB of {} MiB are in huge pages", huge_kib()? >> 10, corpus.len() >> 20);
    let mut best = [[f64::MAX; 2]; 2];
    for _ in 0..ROUNDS {
        for (volume, best) in volumes.iter().zip(&mut best) {
            let ns = measure(volume, &corpus)?;
            *best = [best[0].min(ns[0]), best[1].min(ns[1])];
        }
    }
    for (kind, at) in [("read", 0), ("write", 1)] {
        let [plain, huge] = [best[0][at], best[1][at]];
        println!("{kind}: {plain:.0} ns a page, with huge pages {huge:.0} ns");
        println!("memory_huge_page_gain_{kind} {:.3}", plain / huge);
    }
    Ok(())
}

/// Returns a volume filled with the corpus.
fn filled(corpus: &[u8]) -> Result<Volume, Box<dyn Error>> {
    let pages = corpus.len() / PAGE_BYTES;
    let slabs = corpus.len() / SLAB_BYTES + 65;
    let in_memory = |len: usize| {
        let file = File::from(memfd_create("volume", MemfdFlags::CLOEXEC)?);
        file.set_len(len as u64)?;
        Ok::<_, std::io::Error>(file)
    };
    let (table, slab_file) = (in_memory(HEAD_BYTES + 8 * pages)?, in_memory(slabs * SLAB_BYTES)?);
    let slabs = u32::try_from(slabs)?;
    // SAFETY: only this program uses the files, which are in memory.
    let files = unsafe { MemoryFiles::map(&table, slab_file, slabs) }?;
    let head = TableHead { pages: pages as u64, slabs, codec: PageCodec::Lz4, nonce: 1, spill_pages: 0 };
    let (volume, mut codecs) = (MemoryVolume::open(files, &head)?, Codecs::default());
    for (at, page) in (0..).zip(corpus.chunks_exact(PAGE_BYTES)) {
        volume.write(&mut codecs, at, page)?;
    }
    Ok(volume)
}

/// Returns the times of a random read and of a random write, in ns.
fn measure(volume: &Volume, corpus: &[u8]) -> Result<[f64; 2], Box<dyn Error>> {
    let pages = (corpus.len() / PAGE_BYTES) as u64;
    let (mut codecs, mut bits) = (Codecs::default(), 1_u64);
    let mut random = || {
        bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (bits >> 33) % pages
    };
    let mut page = [0; PAGE_BYTES];
    let begun = Instant::now();
    for _ in 0..REQUESTS {
        volume.read(&mut codecs, random(), &mut page)?;
    }
    let read = begun.elapsed();
    let begun = Instant::now();
    for _ in 0..REQUESTS {
        let from = usize::try_from(random())? * PAGE_BYTES;
        volume.write(&mut codecs, random(), &corpus[from..from + PAGE_BYTES])?;
    }
    Ok([read, begun.elapsed()].map(|time| time.as_nanos() as f64 / REQUESTS as f64))
}

/// Returns the KiB of files in memory that this process has mapped by huge pages.
fn huge_kib() -> Result<u64, Box<dyn Error>> {
    let figures = fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = figures.lines().find_map(|line| line.strip_prefix("ShmemPmdMapped:"));
    Ok(line.ok_or("the kernel shows none")?.trim().trim_end_matches(" kB").parse()?)
}

/// Returns whole pages of the files of a directory.
fn corpus(directory: PathBuf) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(VOLUME_BYTES);
    for path in fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if let Ok(content) = fs::read(&path)
            && bytes.len() < VOLUME_BYTES
        {
            let len = content.len().min(FILE_BYTES).min(VOLUME_BYTES - bytes.len());
            bytes.extend_from_slice(&content[..len / PAGE_BYTES * PAGE_BYTES]);
        }
    }
    bytes
}
