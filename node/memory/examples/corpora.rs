//! Measures codecs and pool on the files of directories: time to write and to read a page, compression ratio,
//! and the memory in addition to the stored bytes.
//!
//! `cargo run --release -p holdfast-memory --example corpora -- /usr/bin /usr/include`
#![allow(clippy::unwrap_used, clippy::print_stdout)] // a program that a person runs

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use holdfast_memory::pool::SLAB_BYTES;
use holdfast_memory::{Codecs, HeapMemory, MemoryFigures, MemoryVolume, PAGE_BYTES, PageCodec, TableHead};

/// Bytes of a corpus, and of one of its files, at most.
const CORPUS_BYTES: usize = 64 << 20;
const FILE_BYTES: usize = 8 << 20;
/// Times that a corpus is written and read; the fastest counts.
const ROUNDS: usize = 3;

fn main() {
    let mut corpora = vec![("zeros".to_owned(), vec![0; CORPUS_BYTES]), ("noise".to_owned(), noise())];
    for directory in std::env::args().skip(1) {
        let corpus = corpus(Path::new(&directory));
        corpora.push((directory, corpus));
    }
    println!(
        "| corpus | pages | codec | write ns/page | read ns/page | ratio | overhead |\n|---|---:|---|---:|---:|---:|---:|"
    );
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
    let mut codecs = Codecs::default();
    codecs.prepare(codec).unwrap();
    let mut volume = MemoryVolume::open(HeapMemory::new(pages, slabs, slabs), &head).unwrap();
    let mut out = vec![0; PAGE_BYTES];
    let (mut write, mut read) = (f64::MAX, f64::MAX);
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        for (at, page) in (0..).zip(corpus.chunks_exact(PAGE_BYTES)) {
            volume.write(&mut codecs, at, page).unwrap();
        }
        write = write.min(begun.elapsed().as_nanos() as f64 / pages as f64);
        let begun = Instant::now();
        for at in 0..pages as u64 {
            volume.read(&mut codecs, at, &mut out).unwrap();
        }
        read = read.min(begun.elapsed().as_nanos() as f64 / pages as f64);
    }
    let MemoryFigures { slot_bytes, slab_bytes, .. } = volume.figures();
    let taken = (slab_bytes + 8 * pages as u64) as f64;
    let overhead = 100.0 * (taken - slot_bytes as f64) / taken;
    println!(
        "| {name} | {pages} | {codec:?} | {write:.0} | {read:.0} | {:.2} | {overhead:.1} % |",
        corpus.len() as f64 / taken
    );
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

/// Whole pages of the files below a directory.
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
