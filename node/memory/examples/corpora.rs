//! Measures codecs and pool on the files of directories: time to write and to read a page, by one thread and
//! by one for each processor in parallel, compression ratio, and the memory in addition to the stored bytes.
//!
//! `cargo run --release -p holdfast-memory --example corpora -- /usr/bin /usr/include`
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a program that a person runs

use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use holdfast_memory::pool::SLAB_BYTES;
use holdfast_memory::{Codecs, HeapMemory, MemoryFigures, MemoryVolume, PAGE_BYTES, PageCodec, TableHead};

/// Maximum bytes of a corpus, and of one of its files.
const CORPUS_BYTES: usize = 64 << 20;
const FILE_BYTES: usize = 8 << 20;
/// Number of times that a corpus is written and read; the fastest counts.
const ROUNDS: usize = 3;
/// Passes of each thread over its pages in one measurement, so that the start of threads counts little.
const PASSES: usize = 4;

fn main() {
    let mut corpora = vec![("zeros".to_owned(), vec![0; CORPUS_BYTES]), ("noise".to_owned(), noise())];
    for directory in std::env::args().skip(1) {
        let corpus = corpus(Path::new(&directory));
        corpora.push((directory, corpus));
    }
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    println!(
        "| corpus | pages | codec | write ns/page | read ns/page | write, {threads} threads | read, {threads} threads | ratio | overhead |"
    );
    println!("|---|---:|---|---:|---:|---:|---:|---:|---:|");
    for (name, corpus) in corpora {
        for codec in [PageCodec::Lz4, PageCodec::Zstd] {
            measure(&name, &corpus, codec);
        }
    }
}

fn measure(name: &str, corpus: &[u8], codec: PageCodec) {
    let pages = corpus.len() / PAGE_BYTES;
    let slabs = pages * PAGE_BYTES / SLAB_BYTES + 65;
    let head = TableHead {
        pages: pages as u64,
        slabs: u32::try_from(slabs).unwrap(),
        codec,
        nonce: 1,
        spill_pages: 0,
    };
    let volume = MemoryVolume::open(HeapMemory::new(pages, slabs, slabs), &head).unwrap();
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let [alone, together] = [1, processors].map(|threads| {
        let rounds = (0..ROUNDS).map(|_| round(&volume, corpus, threads));
        rounds.fold([f64::MAX; 2], |best, one| [best[0].min(one[0]), best[1].min(one[1])])
    });
    let MemoryFigures { slot_bytes, slab_bytes, .. } = volume.figures();
    let taken = (slab_bytes + 8 * pages as u64) as f64;
    let overhead = 100.0 * (taken - slot_bytes as f64) / taken;
    println!(
        "| {name} | {pages} | {codec:?} | {:.0} | {:.0} | {:.0} | {:.0} | {:.2} | {overhead:.1} % |",
        alone[0],
        alone[1],
        together[0],
        together[1],
        corpus.len() as f64 / taken
    );
}

/// Writes and reads the corpus once by `threads` threads in parallel. Returns both times in ns a page, from
/// the start of the first thread to the end of the last.
fn round(volume: &MemoryVolume<HeapMemory>, corpus: &[u8], threads: usize) -> [f64; 2] {
    let pages = corpus.len() / PAGE_BYTES;
    let each_page = |work: &(dyn Fn(&mut Codecs, u64) + Sync)| {
        let begun = Instant::now();
        thread::scope(|scope| {
            for first in 0..threads {
                scope.spawn(move || {
                    let mut codecs = Codecs::default();
                    codecs.prepare(volume.codec()).unwrap();
                    for _ in 0..PASSES {
                        (first..pages).step_by(threads).for_each(|at| work(&mut codecs, at as u64));
                    }
                });
            }
        });
        begun.elapsed().as_nanos() as f64 / (pages * PASSES) as f64
    };
    let content = |at: u64| &corpus[at as usize * PAGE_BYTES..][..PAGE_BYTES];
    [
        each_page(&|codecs, at| volume.write(codecs, at, content(at)).unwrap()),
        each_page(&|codecs, at| assert_eq!(volume.read(codecs, at, &mut [0; PAGE_BYTES]), Ok(0))),
    ]
}

fn noise() -> Vec<u8> {
    let mut bits = 88_172_645_463_325_252_u64;
    let mut bytes = vec![0; CORPUS_BYTES];
    for chunk in bytes.as_chunks_mut::<8>().0 {
        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        *chunk = bits.to_le_bytes();
    }
    bytes
}

/// Returns whole pages of the files below a directory.
fn corpus(directory: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut left: Vec<PathBuf> = vec![directory.to_owned()];
    while let Some(path) = left.pop().filter(|_| bytes.len() < CORPUS_BYTES) {
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            left.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        } else if let Ok(content) = fs::read(&path) {
            bytes.extend_from_slice(&content[..content.len().min(FILE_BYTES) / PAGE_BYTES * PAGE_BYTES]);
        }
    }
    bytes.truncate(CORPUS_BYTES);
    bytes
}
