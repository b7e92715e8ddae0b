//! Measures how long a successor takes to open the table of a volume of 64 GiB, whose pages are all stored.
//!
//! `cargo run --release -p holdfast-memory --example recover`
#![allow(clippy::print_stdout)] // a program that a person runs

use std::ops::Range;
use std::time::Instant;

use holdfast_memory::pool::{CLASS_BYTES, PageSlot, SLAB_BYTES};
use holdfast_memory::word::{Form, Word};
use holdfast_memory::{MemoryVolume, NoRoom, PAGE_BYTES, PageCodec, PageMemory, TableHead};

const VOLUME_BYTES: u64 = 64 << 30;
/// Length of each stored page in units of [`CLASS_BYTES`]: half of it.
const CLASS: u8 = 32;
/// The fastest of so many counts.
const ROUNDS: usize = 3;

/// A table without contents, which an open does not read.
#[derive(Debug)]
struct WordTable(Vec<u64>);

impl PageMemory for &WordTable {
    fn word(&self, page: u64) -> u64 {
        self.0[page as usize]
    }

    fn set_word(&mut self, _page: u64, _word: u64) {
        unreachable!("an open writes no word")
    }

    fn bytes(&self, _offset: u64, _len: usize) -> &[u8] {
        unreachable!("an open reads no content")
    }

    fn write(&mut self, _offset: u64, _bytes: &[u8]) {
        unreachable!("an open writes no content")
    }

    fn take_slab(&mut self, _slab: u32) -> Result<(), NoRoom> {
        unreachable!("an open takes no slab")
    }

    fn give_back(&mut self, _slabs: Range<u32>) {}
}

fn main() {
    let pages = VOLUME_BYTES / PAGE_BYTES as u64;
    // A prime, so that the pages of a slab lie anywhere.
    for (order, step) in [("in order", 1), ("scattered", 1_000_003)] {
        println!("slots {order}: {} ms", open_milliseconds(pages, step));
    }
}

/// Page N has slot `N * step`.
fn open_milliseconds(pages: u64, step: u64) -> u128 {
    let slots = (SLAB_BYTES / (CLASS_BYTES * usize::from(CLASS))) as u64;
    let slabs = u32::try_from(pages / slots).expect("the volume has fewer");
    let word = |page: u64| {
        let slot = page * step % pages;
        let unit = slot / slots * (SLAB_BYTES / CLASS_BYTES) as u64 + slot % slots * u64::from(CLASS);
        Word::Stored(Form::Lz4, PageSlot::at(CLASS, unit).expect("a slot")).bits()
    };
    let table = WordTable((0..pages).map(word).collect());
    let head = TableHead { pages, slabs, codec: PageCodec::Lz4, nonce: 1, spill_pages: 0 };
    let milliseconds = (0..ROUNDS).map(|_| {
        let begun = Instant::now();
        let volume = MemoryVolume::open(&table, &head).expect("the table is whole");
        assert_eq!(volume.figures().compressed_pages, pages);
        begun.elapsed().as_millis()
    });
    milliseconds.min().unwrap_or_default()
}
