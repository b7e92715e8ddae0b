//! Overwrites a full memory volume in random order with pages that do not compress, which leaves most slabs
//! partly used, and prints the cost of compaction:
//! `cargo run --release -p holdfast-memory --example overwrites`.
#![allow(clippy::expect_used, clippy::print_stdout)] // a program that a person runs

use std::hint::black_box;
use std::time::{Duration, Instant};

use holdfast_memory::{Codecs, HeapMemory, MemoryVolume, PAGE_BYTES, PageCodec, PageError, TableHead};

const PAGES: u64 = 256 << 10;

fn main() -> Result<(), PageError> {
    println!("noise before    first ns/page    overwrite ns/page    moved/page    longest us");
    for noisy in [PAGE_BYTES, 3520, 3072, 2048, 1024] {
        overwrite(noisy)?;
    }
    Ok(())
}

/// Fills a volume with pages of which `noisy` bytes are noise, and overwrites them with noise.
fn overwrite(noisy: usize) -> Result<(), PageError> {
    let slabs = (PAGES / 16 + 64) as u32;
    let head = TableHead { pages: PAGES, slabs, codec: PageCodec::Lz4, nonce: 1, spill_pages: 0 };
    let memory = HeapMemory::new(PAGES as usize, slabs as usize, slabs as usize);
    let volume = MemoryVolume::open(memory, &head).expect("a new table is whole");
    let mut codecs = Codecs::default();
    let mut write = |page: u64, noisy: usize| {
        let content = content(page, noisy);
        let began = Instant::now();
        volume.write(&mut codecs, page, black_box(&content))?;
        Ok::<_, PageError>(began.elapsed())
    };
    let mut first = Duration::ZERO;
    for page in 0..PAGES {
        first += write(page, noisy)?;
    }
    let (mut all, mut longest) = (Duration::ZERO, Duration::ZERO);
    for page in shuffled() {
        let time = write(page, PAGE_BYTES)?;
        (all, longest) = (all + time, longest.max(time));
    }
    let nanoseconds = |time: Duration| time.as_nanos() as u64 / PAGES;
    println!(
        "{noisy:>12}    {:>13}    {:>17}    {:>10.2}    {:>10}",
        nanoseconds(first),
        nanoseconds(all),
        volume.figures().moved_pages as f64 / PAGES as f64,
        longest.as_micros(),
    );
    Ok(())
}

fn shuffled() -> Vec<u64> {
    let mut pages: Vec<u64> = (0..PAGES).collect();
    pages.sort_unstable_by_key(|page| mix(mix(*page)));
    pages
}

fn mix(bits: u64) -> u64 {
    (bits ^ bits >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Returns a page of `noisy` bytes of noise and zeros.
fn content(page: u64, noisy: usize) -> Vec<u8> {
    let mut state = page + 1;
    let mut content = vec![0; PAGE_BYTES];
    for chunk in content[..noisy].as_chunks_mut::<8>().0 {
        state = mix(state + 1);
        *chunk = state.to_le_bytes();
    }
    content
}
