//! A memory volume whose process ends between any two stores, against a plain array.
//!
//! The memory counts the stores of a life and ends it before one of them, or in the middle of one of many
//! bytes. The next life opens what is left, reads all pages, and gets the request again that was not
//! answered, as the kernel issues it again.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};

use holdfast_memory::{
    Codecs, HeapMemory, MemoryFigures, MemoryVolume, NoRoom, PAGE_BYTES, PageCodec, PageError, PageMemory,
    TableHead,
};

use crate::Rng;
use crate::bug::{Bug, plant};
use crate::invariant::Invariant;
use crate::memory::Killed;
use crate::violation::{self, Violation};

const PAGES: usize = 24;
const SLABS: u32 = 4;
const HEAD: TableHead = TableHead { pages: PAGES as u64, slabs: SLABS, codec: PageCodec::Lz4, nonce: 1 };
/// Most stores of a life.
const STORES: usize = 60;

type PageBytes = Box<[u8; PAGE_BYTES]>;

/// Memory that a process uses until it ends.
#[derive(Debug, Clone)]
struct MortalMemory {
    memory: HeapMemory,
    /// Stores that the process still makes.
    left: usize,
    /// Bytes that it writes of the one in which it ends.
    last_bytes: usize,
}

impl MortalMemory {
    /// Counts a store, before which the process may end.
    fn store(&mut self) {
        let Some(left) = self.left.checked_sub(1) else { panic_any(Killed) };
        self.left = left;
    }
}

impl PageMemory for MortalMemory {
    fn word(&self, page: u64) -> u64 {
        self.memory.word(page)
    }

    fn set_word(&mut self, page: u64, word: u64) {
        self.store();
        self.memory.set_word(page, word);
    }

    fn bytes(&self, offset: u64, len: usize) -> &[u8] {
        self.memory.bytes(offset, len)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        if self.left == 0 {
            self.memory.write(offset, &bytes[..bytes.len().min(self.last_bytes)]);
        }
        self.store();
        self.memory.write(offset, bytes);
    }

    fn take_slab(&mut self, slab: u32) -> Result<(), NoRoom> {
        self.memory.take_slab(slab)
    }

    fn give_back(&mut self, slabs: Range<u32>) {
        self.memory.give_back(slabs);
    }
}

/// A request.
#[derive(Debug, Clone)]
struct MemoryRequest {
    first: usize,
    /// Pages to write; for a discard zeros.
    pages: Vec<PageBytes>,
    is_discard: bool,
}

/// A run with a memory volume, from one seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryCase {
    /// Its seed.
    pub seed: u64,
    /// Requests.
    pub operations: u64,
}

impl MemoryCase {
    /// The first seed that notices that `bug` is planted and that is clean without it.
    pub fn that_finds(bug: Bug, seeds: u64, operations: u64) -> Option<(Self, Violation)> {
        (0..seeds).find_map(|seed| {
            let case = Self { seed, operations };
            plant(Some(bug));
            let found = case.run();
            plant(None);
            let violation = found?;
            let said = violation.invariant.is_some_and(|invariant| invariant.number() == bug.breaks());
            (said && case.run().is_none()).then_some((case, violation))
        })
    }

    /// Runs it. Returns what it violates.
    pub fn run(self) -> Option<Violation> {
        violation::catch(|| MemoryRun::new(self.seed).play(self.operations)).err()
    }
}

struct MemoryRun {
    rng: Rng,
    codecs: Codecs,
    expected: Vec<PageBytes>,
}

impl MemoryRun {
    fn new(seed: u64) -> Self {
        let zeros = || Box::new([0; PAGE_BYTES]);
        let expected = (0..PAGES).map(|_| zeros()).collect();
        Self { rng: Rng::new(seed), codecs: Codecs::default(), expected }
    }

    fn play(&mut self, operations: u64) {
        let mut memory = HeapMemory::new(PAGES, SLABS as usize, SLABS as usize);
        let mut again = None;
        let mut left = operations;
        while left > 0 {
            let (stores, last_bytes) = (self.rng.below(STORES), self.rng.below(PAGE_BYTES));
            let mut volume = Self::open(MortalMemory { memory, left: stores, last_bytes });
            self.look(&volume, again.as_ref());
            while left > 0 && self.serve(&mut volume, &mut again) {
                left -= 1;
            }
            left = left.saturating_sub(1);
            memory = volume.memory().memory.clone();
            if again.is_none() {
                // It ended between two requests: what it counted is what a successor finds.
                let found = Self::open(volume.memory().clone()).figures();
                let counted = MemoryFigures { refused_pages: 0, ..volume.figures() };
                Invariant::MemoryPageIsWhole
                    .check(found == counted, || format!("{counted:?} became {found:?}"));
            }
        }
    }

    /// Serves a request. Returns false if the process ended in it; then it comes again.
    fn serve(&mut self, volume: &mut MemoryVolume<MortalMemory>, again: &mut Option<MemoryRequest>) -> bool {
        let request = again.take().unwrap_or_else(|| self.request());
        let ended = catch_unwind(AssertUnwindSafe(|| self.send(volume, &request)));
        match ended {
            Ok(Ok(())) => {
                for (at, page) in (request.first..).zip(request.pages) {
                    self.expected[at] = page;
                }
                self.look(volume, None);
            }
            // Pages before the one that found no slot are written.
            Ok(Err(_no_space)) => self.look(volume, Some(&request)),
            Err(killed) if killed.is::<Killed>() => {
                *again = Some(request);
                return false;
            }
            Err(other) => resume_unwind(other),
        }
        true
    }

    fn open(memory: MortalMemory) -> MemoryVolume<MortalMemory> {
        match MemoryVolume::open(memory, &HEAD) {
            Ok(volume) => volume,
            Err(error) => Invariant::MemoryPageIsWhole.broken(&error.to_string()),
        }
    }

    fn send(
        &mut self,
        volume: &mut MemoryVolume<MortalMemory>,
        request: &MemoryRequest,
    ) -> Result<(), PageError> {
        let MemoryRequest { first, pages, is_discard } = request;
        if *is_discard {
            return volume.discard(*first as u64, pages.len() as u64);
        }
        let data: Vec<u8> = pages.iter().flat_map(|page| **page).collect();
        volume.write(&mut self.codecs, *first as u64, &data)
    }

    /// Reads all pages: each is as expected, or as this request makes it; then that is expected.
    fn look(&mut self, volume: &MemoryVolume<MortalMemory>, maybe: Option<&MemoryRequest>) {
        for (at, expected) in self.expected.iter_mut().enumerate() {
            let mut page = Box::new([1; PAGE_BYTES]);
            let read = volume.read(&mut self.codecs, at as u64, &mut page[..]);
            Invariant::MemoryPageIsWhole.check(read.is_ok(), || format!("page {at} cannot be read"));
            let new = maybe.and_then(|request| request.pages.get(at.checked_sub(request.first)?));
            let is_whole = page == *expected || Some(&page) == new;
            Invariant::MemoryPageIsWhole.check(is_whole, || format!("page {at} is neither old nor new"));
            *expected = page;
        }
    }

    fn request(&mut self) -> MemoryRequest {
        let first = self.rng.below(PAGES);
        let count = 1 + self.rng.below(4.min(PAGES - first));
        let is_discard = self.rng.once_in(6);
        let pages = (0..count).map(|_| if is_discard { Box::new([0; PAGE_BYTES]) } else { self.page() });
        MemoryRequest { first, pages: pages.collect(), is_discard }
    }

    /// Zeros, a pattern, or noise of some length.
    fn page(&mut self) -> PageBytes {
        let mut page = Box::new([0; PAGE_BYTES]);
        match self.rng.below(8) {
            0 => {}
            1 => page.fill(self.rng.below(256) as u8),
            2 => {
                let pattern: [u8; 8] = self.rng.bytes();
                page.as_chunks_mut::<8>().0.fill(pattern);
            }
            _ => {
                // Of few lengths, so that slots are used again.
                let noisy = 1024 * (1 + self.rng.below(4));
                let noise: [u8; PAGE_BYTES] = self.rng.bytes();
                page[..noisy].copy_from_slice(&noise[..noisy]);
            }
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_whole_wherever_its_process_ends() {
        for seed in 0..60 {
            let found = MemoryCase { seed, operations: 300 }.run();
            assert_eq!(found, None, "seed {seed}");
        }
    }

    #[test]
    fn each_planted_bug_of_memory_volumes_is_found() {
        for bug in Bug::all().filter(|bug| bug.is_of_memory()) {
            let found = MemoryCase::that_finds(bug, 100, 300);
            assert!(found.is_some(), "{bug:?}");
        }
    }
}
