//! Measures the time in which a successor opens a memory volume of 64 GiB whose pages are all stored: it maps
//! the table and the slabs, files in memory, and reads the table. One thread does this and never waits, so
//! its elapsed time is its processor time if a processor is free.
//!
//! `cargo run --release -p holdfast-serve --example recover`
#![allow(unsafe_code)] // maps memory of its own
#![allow(clippy::print_stdout)] // a program that a person runs, and a benchmark

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use holdfast_memory::pool::{CLASS_BYTES, PageSlot, SLAB_BYTES};
use holdfast_memory::word::{Form, Word};
use holdfast_memory::{HEAD_BYTES, MemoryVolume, PAGE_BYTES, PageCodec, TableHead};
use holdfast_serve::MemoryFiles;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::time::{ClockId, clock_gettime};

const PAGES: u64 = (64 << 30) / PAGE_BYTES as u64;
/// Length of each stored page in units of [`CLASS_BYTES`]: half a page.
const CLASS: u8 = 32;
/// Slots of a slab.
const SLOTS: u64 = (SLAB_BYTES / (CLASS_BYTES * CLASS as usize)) as u64;
const SLABS: u32 = (PAGES / SLOTS) as u32;
/// Number of times that each table is opened; the fastest counts.
const ROUNDS: usize = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let mut most = Duration::ZERO;
    // The step is a prime, which scatters the pages of a slab.
    for (order, step) in [("in order", 1), ("scattered", 1_000_003)] {
        let [processor, passed] = measure(step)?;
        println!("slots {order}: {} ms, {} ms passed", processor.as_millis(), passed.as_millis());
        most = most.max(processor);
    }
    println!("memory_recover_ms_64gib {}", most.as_millis());
    Ok(())
}

/// Returns the processor time of this thread.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).expect("it is below 10^9"))
}

/// Returns the processor time and the elapsed time to open a table whose page N has slot `N * step`.
fn measure(step: u64) -> Result<[Duration; 2], Box<dyn Error>> {
    let word = |page: u64| {
        let slot = page * step % PAGES;
        let unit = slot / SLOTS * (SLAB_BYTES / CLASS_BYTES) as u64 + slot % SLOTS * u64::from(CLASS);
        Word::Stored(Form::Lz4, PageSlot::at(CLASS, unit).expect("a slot")).bits()
    };
    let words: Vec<u8> = (0..PAGES).flat_map(|page| word(page).to_le_bytes()).collect();
    let in_memory = || memfd_create("volume", MemfdFlags::CLOEXEC).map(File::from);
    let (table, slabs) = (in_memory()?, in_memory()?);
    table.write_all_at(&words, HEAD_BYTES as u64)?;
    slabs.set_len(u64::from(SLABS) * SLAB_BYTES as u64)?;
    let head = TableHead { pages: PAGES, slabs: SLABS, codec: PageCodec::Lz4, nonce: 1, spill_pages: 0 };
    let mut fastest = [Duration::MAX; 2];
    for _ in 0..ROUNDS {
        let slabs = slabs.try_clone()?;
        let (begun, used) = (Instant::now(), processor_time());
        // SAFETY: only this program uses the files, which are in memory. No slab is touched.
        let files = unsafe { MemoryFiles::map(&table, slabs, SLABS) }?;
        let volume = MemoryVolume::open(files, &head)?;
        fastest = [fastest[0].min(processor_time() - used), fastest[1].min(begun.elapsed())];
        assert_eq!(volume.figures().compressed_pages, PAGES, "each page is found");
    }
    Ok(fastest)
}
