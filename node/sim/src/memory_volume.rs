//! A memory volume whose process ends between any two stores, compared with a plain array.
//!
//! The memory counts the stores of a life and ends it before one of them, or in the middle of a long one.
//! The disk has a spill file, in which each page of an operation is written, read or punched at a separate
//! time; it may be full, or fail. Several requests are in flight, also for the same pages. In the next
//! life some pages of each operation in flight are done; it opens the remaining state, reads all pages,
//! and gets the unanswered requests again, as the kernel reissues them. In the meantime the volume grows:
//! its record says so before it has the new size, and the process may end in between.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any, resume_unwind};

use holdfast_memory::pool::PoolExtension;
use holdfast_memory::{
    Codecs, DiskOperation, DiskRun, HeapMemory, MemoryFigures, MemoryGrowth, MemoryVolume, NoRoom,
    PAGE_BYTES, PageCodec, PageError, PageMemory, SpillEnd, SpillRequest, SpillRequests, TableHead,
};

use crate::Rng;
use crate::bug::{Bug, plant};
use crate::invariant::Invariant;
use crate::memory::Killed;
use crate::violation::{self, Violation};

/// Maximum pages of the volume.
const PAGES: usize = 56;
/// Slabs that fit the system's memory.
const ROOM: usize = 5;
/// Maximum stores of a life.
const STORES: usize = 60;
/// Maximum concurrent requests.
const REQUESTS: usize = 4;
/// A page of the spill file that is a hole. No request writes this content.
const HOLE: [u8; PAGE_BYTES] = [0xdd; PAGE_BYTES];

type PageBytes = Box<[u8; PAGE_BYTES]>;

/// Memory that a process uses until it ends.
#[derive(Debug, Clone)]
struct MortalMemory {
    memory: HeapMemory,
    /// Stores left in the life of the process.
    stores_left: usize,
    /// Bytes written of the store in which it ends.
    last_bytes: usize,
}

impl MortalMemory {
    /// Counts a store, before which the process may end.
    fn store(&mut self) {
        let Some(left) = self.stores_left.checked_sub(1) else { panic_any(Killed) };
        self.stores_left = left;
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
        if self.stores_left == 0 {
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
    /// Pages to write; for a discard zeros, for a read the returned data.
    pages: Vec<PageBytes>,
    kind: MemoryRequestKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MemoryRequestKind {
    Read,
    Write,
    Discard,
}

/// A request that was not answered.
#[derive(Debug)]
struct UnansweredRequest {
    request: MemoryRequest,
    began: u64,
    /// The contents that a read may find, as of its start, by page.
    seen: Vec<Vec<PageBytes>>,
}

/// An allowed content of a page.
#[derive(Debug, Clone)]
struct Candidate {
    page: PageBytes,
    /// The request that writes it; `None` for the first content.
    request: Option<u64>,
    /// Time at which that request was answered.
    ended: Option<u64>,
}

/// An operation of the disk for a request.
#[derive(Debug)]
struct DiskInFlight {
    /// The number of the request in [`SpillRequests`].
    number: u16,
    id: u64,
    run: DiskRun,
    /// Pages that are done.
    done: u32,
}

/// Reason why a request failed.
#[derive(Debug)]
enum Refusal {
    Page(PageError),
    Disk,
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
    /// Returns the first seed that detects the planted `bug` and has no violation without it.
    pub fn first_detecting(bug: Bug, seeds: u64, operations: u64) -> Option<(Self, Violation)> {
        (0..seeds).find_map(|seed| {
            let case = Self { seed, operations };
            plant(Some(bug));
            let found = case.run();
            plant(None);
            let violation = found?;
            // A panic of the volume itself, such as by a slot that is freed twice, has no number.
            let matches_bug =
                violation.invariant.is_none_or(|invariant| invariant.number() == bug.invariant_number());
            (matches_bug && case.run().is_none()).then_some((case, violation))
        })
    }

    /// Runs the case. Returns its violation, if any.
    pub fn run(self) -> Option<Violation> {
        violation::catch(|| MemoryRun::new(self.seed).play(self.operations)).err()
    }
}

struct MemoryRun {
    rng: Rng,
    codecs: Codecs,
    head: TableHead,
    now: u64,
    /// Bytes of noise in most pages that this process writes.
    usual_bytes: usize,
    /// The possible contents by page.
    candidates: Vec<Vec<Candidate>>,
    unanswered: BTreeMap<u64, UnansweredRequest>,
    disk: Vec<PageBytes>,
    /// Pages available to the spill file in its filesystem.
    disk_pages: u64,
    in_flight: Vec<DiskInFlight>,
}

impl MemoryRun {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let first = || vec![Candidate { page: Box::new([0; PAGE_BYTES]), request: None, ended: Some(0) }];
        let slabs = 1 + rng.below(5) as u32;
        let pages = *rng.pick(&[PAGES / 2, PAGES]) as u64;
        let spill_pages = *rng.pick(&[0, 6, pages]);
        Self {
            codecs: Codecs::default(),
            head: TableHead { pages, slabs, codec: PageCodec::Lz4, nonce: 1, spill_pages },
            now: 0,
            usual_bytes: PAGE_BYTES,
            candidates: (0..PAGES).map(|_| first()).collect(),
            unanswered: BTreeMap::new(),
            disk: (0..PAGES).map(|_| Box::new(HOLE)).collect(),
            disk_pages: 4 + rng.below(PAGES) as u64,
            in_flight: Vec::new(),
            rng,
        }
    }

    fn play(&mut self, operations: u64) {
        let mut memory = HeapMemory::new(self.pages(), self.head.slabs as usize, ROOM);
        let mut left = operations;
        while left > 0 {
            let (stores, last_bytes) = (self.rng.below(STORES), self.rng.below(PAGE_BYTES));
            let volume = self.recover(MortalMemory { memory, stores_left: stores, last_bytes });
            self.check_pages(&volume);
            let ended = catch_unwind(AssertUnwindSafe(|| self.serve_until_death(&volume, &mut left)));
            if let Err(other) = ended
                && !other.is::<Killed>()
            {
                resume_unwind(other);
            }
            left = left.saturating_sub(1);
            self.end_process();
            memory = volume.into_memory().memory;
        }
    }

    /// Completes some pages of the operations in flight, and drops the others.
    fn end_process(&mut self) {
        for operation in std::mem::take(&mut self.in_flight) {
            for at in operation.run.range() {
                if self.rng.once_in(2) {
                    self.complete_page(&operation, at as usize);
                }
            }
        }
    }

    /// Returns the number of pages of the volume.
    fn pages(&self) -> usize {
        self.head.pages as usize
    }

    /// Opens the volume that a predecessor left, and punches pages of the spill file that no word names.
    fn recover(&mut self, memory: MortalMemory) -> MemoryVolume<MortalMemory> {
        let volume = self.open(self.extend_memory(memory));
        let mut named = [false; PAGES];
        for page in volume.spilled_runs(0, self.head.pages).flat_map(|run| run.range()) {
            named[page as usize] = true;
        }
        for (page, _) in self.disk.iter_mut().zip(named).filter(|(_, is_named)| !is_named) {
            **page = HOLE;
        }
        volume
    }

    fn open(&self, memory: MortalMemory) -> MemoryVolume<MortalMemory> {
        match MemoryVolume::open(memory, &self.head) {
            Ok(volume) => volume,
            Err(error) => Invariant::MemoryPageIsWhole.broken(&error.to_string()),
        }
    }

    /// Extends the memory to the size in the head.
    fn extend_memory(&self, memory: MortalMemory) -> MortalMemory {
        let larger = memory.memory.larger(self.pages(), self.head.slabs as usize);
        MortalMemory { memory: larger, ..memory }
    }

    /// Gives the volume more pages, slabs or space in its spill file.
    fn grow(&mut self, volume: &MemoryVolume<MortalMemory>) {
        let from = self.head;
        let TableHead { pages, slabs, spill_pages, .. } = &mut self.head;
        *pages = PAGES as u64;
        *slabs += self.rng.below(3) as u32;
        if *spill_pages > 0 {
            *spill_pages += self.rng.below(4) as u64;
        }
        if self.rng.once_in(3) {
            panic_any(Killed);
        }
        let memory = self.extend_memory(volume.with_memory(MortalMemory::clone));
        let slabs = PoolExtension::new(from.slabs, self.head.slabs);
        let TableHead { pages, spill_pages, .. } = self.head;
        volume.grow(MemoryGrowth { memory, pages, slabs, spill_pages });
    }

    /// Serves requests, the unanswered ones first, until the process ends.
    fn serve_until_death(&mut self, volume: &MemoryVolume<MortalMemory>, left: &mut u64) {
        self.usual_bytes = 1024 * (1 + self.rng.below(4));
        let mut side = SpillRequests::default();
        for id in self.unanswered.keys().copied().collect::<Vec<_>>() {
            self.admit(volume, &mut side, id);
        }
        while *left > 0 {
            *left -= 1;
            if self.rng.once_in(30) {
                self.grow(volume);
            }
            let is_new = self.unanswered.len() < REQUESTS && self.rng.once_in(2);
            if is_new || self.in_flight.is_empty() {
                let id = self.begin_request();
                self.admit(volume, &mut side, id);
            } else {
                self.advance_disk(volume, &mut side);
            }
            if self.unanswered.is_empty() {
                self.check_pages(volume);
                self.check_at_rest(volume);
            }
        }
        while !self.in_flight.is_empty() {
            self.advance_disk(volume, &mut side);
        }
        let is_at_rest = self.unanswered.is_empty() && side.is_idle();
        Invariant::MemoryPageIsWhole.check(is_at_rest, || format!("{:?} never end", self.unanswered.keys()));
    }

    /// Checks, with nothing in flight, that a successor finds the volume's counts, and that the disk has
    /// only counted pages.
    fn check_at_rest(&self, volume: &MemoryVolume<MortalMemory>) {
        let found = self.open(volume.with_memory(MortalMemory::clone)).figures();
        let counted = MemoryFigures { refused_pages: 0, moved_pages: 0, ..volume.figures() };
        Invariant::MemoryPageIsWhole.check(found == counted, || format!("{counted:?} became {found:?}"));
        let stored = self.data_pages();
        let is_all = stored == counted.spilled_pages;
        Invariant::MemoryPageIsWhole.check(is_all, || format!("{stored} pages on disk: {counted:?}"));
    }

    /// Returns the number of pages of the spill file that are not holes.
    fn data_pages(&self) -> u64 {
        self.disk.iter().filter(|page| ***page != HOLE).count() as u64
    }

    /// Begins a new request.
    fn begin_request(&mut self) -> u64 {
        self.now += 1;
        let id = self.now;
        let request = self.request();
        let pages = request.first..request.first + request.pages.len();
        let seen = self.candidates[pages.clone()].iter();
        let seen = seen.map(|page| page.iter().map(|candidate| candidate.page.clone()).collect()).collect();
        if request.kind != MemoryRequestKind::Read {
            for (candidates, page) in self.candidates[pages].iter_mut().zip(&request.pages) {
                candidates.push(Candidate { page: page.clone(), request: Some(id), ended: None });
            }
        }
        self.unanswered.insert(id, UnansweredRequest { request, began: self.now, seen });
        id
    }

    fn admit(
        &mut self,
        volume: &MemoryVolume<MortalMemory>,
        side: &mut SpillRequests<u64, Refusal>,
        id: u64,
    ) {
        let MemoryRequest { first, pages, kind } = &self.unanswered[&id].request;
        let (first, pages) = (*first as u64, pages.len() as u64);
        let request = SpillRequest { request: id, first, pages, is_read: *kind == MemoryRequestKind::Read };
        if let Some(request) = side.admit(request) {
            self.serve(volume, side, request);
        }
    }

    fn serve(
        &mut self,
        volume: &MemoryVolume<MortalMemory>,
        side: &mut SpillRequests<u64, Refusal>,
        request: SpillRequest<u64>,
    ) {
        let id = request.request;
        let open = self.unanswered.get_mut(&id).expect("it was not answered");
        let MemoryRequest { first, pages, kind } = &mut open.request;
        let count = pages.len();
        let mut runs = Vec::new();
        let result = match kind {
            MemoryRequestKind::Read => {
                let mut data = vec![1; count * PAGE_BYTES];
                let read = volume.read(&mut self.codecs, *first as u64, &mut data);
                let found = data.as_chunks::<PAGE_BYTES>().0.iter().map(|page| Box::new(*page));
                *pages = found.collect();
                if let Ok(1..) = read {
                    runs.extend(volume.spilled_runs(*first as u64, count as u64));
                }
                read.map(drop)
            }
            MemoryRequestKind::Write => {
                let data: Vec<u8> = pages.iter().flat_map(|page| **page).collect();
                volume.write(&mut self.codecs, *first as u64, &data)
            }
            MemoryRequestKind::Discard => volume.discard(*first as u64, count as u64),
        };
        let result = result.map_err(Refusal::Page);
        volume.take_disk_runs(&mut runs);
        if runs.is_empty() {
            return self.answer(id, result);
        }
        let number = side.begin(request, u32::try_from(runs.len()).expect("few"), result);
        let runs = runs.into_iter().map(|run| DiskInFlight { number, id, run, done: 0 });
        self.in_flight.extend(runs);
    }

    /// Lets the disk do a page of one of its operations, or end one.
    fn advance_disk(&mut self, volume: &MemoryVolume<MortalMemory>, side: &mut SpillRequests<u64, Refusal>) {
        let chosen = self.rng.below(self.in_flight.len());
        let mut operation = self.in_flight.swap_remove(chosen);
        let at = (operation.run.first + u64::from(operation.done)) as usize;
        let is_write = matches!(operation.run.operation, DiskOperation::Write | DiskOperation::Rewrite);
        let mut outcome = Ok(());
        if operation.done < operation.run.pages {
            let is_full = *self.disk[at] == HOLE && self.data_pages() >= self.disk_pages;
            if is_write && is_full {
                volume.refuse(1);
                outcome = Err(Refusal::Page(PageError::NoSpace));
            } else if is_write && self.rng.once_in(40) {
                outcome = Err(Refusal::Disk);
            } else {
                self.complete_page(&operation, at);
                operation.done += 1;
                return self.in_flight.push(operation);
            }
        }
        let DiskInFlight { number, id, run, done } = operation;
        volume.disk_ended(&run, done);
        let mut more = Vec::new();
        volume.take_disk_runs(&mut more);
        let ended = side.end(number, outcome, u32::try_from(more.len()).expect("few"));
        self.in_flight.extend(more.into_iter().map(|run| DiskInFlight { number, id, run, done: 0 }));
        if let Some(SpillEnd { request, result }) = ended {
            self.answer(request, result);
        }
        while let Some(request) = side.next_ready() {
            self.serve(volume, side, request);
        }
    }

    /// Completes a page of a disk operation.
    fn complete_page(&mut self, operation: &DiskInFlight, at: usize) {
        let MemoryRequest { first, pages, .. } =
            &mut self.unanswered.get_mut(&operation.id).expect("it was not answered").request;
        match operation.run.operation {
            DiskOperation::Read => pages[at - *first].clone_from(&self.disk[at]),
            DiskOperation::Hole => *self.disk[at] = HOLE,
            DiskOperation::Write | DiskOperation::Rewrite => self.disk[at].clone_from(&pages[at - *first]),
        }
        let (stored, limit) = (self.data_pages(), self.head.spill_pages);
        Invariant::MemoryPageIsWhole.check(stored <= limit, || format!("{stored} of {limit} pages on disk"));
    }

    /// Handles the answer to a request.
    fn answer(&mut self, id: u64, result: Result<(), Refusal>) {
        self.now += 1;
        let UnansweredRequest { request, began, seen } =
            self.unanswered.remove(&id).expect("it was not answered");
        let MemoryRequest { first, pages, kind } = request;
        let may_fail =
            kind == MemoryRequestKind::Write && !matches!(result, Err(Refusal::Page(PageError::Damaged(_))));
        let is_right = result.is_ok() || may_fail;
        Invariant::MemoryPageIsWhole.check(is_right, || format!("{kind:?} of page {first}: {result:?}"));
        let candidates = self.candidates[first..].iter_mut();
        for (at, ((candidates, page), seen)) in candidates.zip(pages).zip(seen).enumerate() {
            if kind == MemoryRequestKind::Read {
                let is_whole = seen.contains(&page) || candidates.iter().any(|other| other.page == page);
                Invariant::MemoryPageIsWhole
                    .check(is_whole, || format!("a read of page {} found neither old nor new", first + at));
                continue;
            }
            // It replaces contents that were answered before it began.
            if result.is_ok() {
                candidates.retain(|other| other.ended.is_none_or(|ended| ended >= began));
            }
            let own = candidates.iter_mut().find(|other| other.request == Some(id));
            own.expect("it stays until a later one replaces it").ended = Some(self.now);
        }
    }

    /// Reads all pages while nothing is in flight: each must have an allowed content. Unless an open
    /// request writes the page, that becomes its only content.
    fn check_pages(&mut self, volume: &MemoryVolume<MortalMemory>) {
        let mut data = vec![1; self.pages() * PAGE_BYTES];
        let read = volume.read(&mut self.codecs, 0, &mut data);
        Invariant::MemoryPageIsWhole.check(read.is_ok(), || format!("{read:?}"));
        let mut pages: Vec<PageBytes> =
            data.as_chunks::<PAGE_BYTES>().0.iter().map(|page| Box::new(*page)).collect();
        for at in volume.spilled_runs(0, self.head.pages).flat_map(|run| run.range()) {
            pages[at as usize].clone_from(&self.disk[at as usize]);
        }
        for (at, (page, candidates)) in pages.into_iter().zip(&mut self.candidates).enumerate() {
            let is_whole = candidates.iter().any(|other| other.page == page);
            Invariant::MemoryPageIsWhole.check(is_whole, || format!("page {at} is neither old nor new"));
            if candidates.iter().all(|other| other.ended.is_some()) {
                candidates.retain(|other| other.page == page);
            }
        }
    }

    fn request(&mut self) -> MemoryRequest {
        let first = self.rng.below(self.pages());
        let count = 1 + self.rng.below(4.min(self.pages() - first));
        let kind = match self.rng.below(8) {
            0 => MemoryRequestKind::Discard,
            1 | 2 => MemoryRequestKind::Read,
            _ => MemoryRequestKind::Write,
        };
        let zeros = || Box::new([0; PAGE_BYTES]);
        let pages = (0..count).map(|_| if kind == MemoryRequestKind::Write { self.page() } else { zeros() });
        MemoryRequest { first, pages: pages.collect(), kind }
    }

    /// Returns zeros, a pattern, or noise of some length.
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
                // Few lengths, so that slots are reused. Mostly one length, so that pages leave many slabs
                // partly used when the next process writes other pages.
                let noisy =
                    if self.rng.once_in(4) { 1024 * (1 + self.rng.below(4)) } else { self.usual_bytes };
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
        for bug in Bug::all().filter(|bug| bug.needs_memory_volume()) {
            let found = MemoryCase::first_detecting(bug, 100, 300);
            assert!(found.is_some(), "{bug:?}");
        }
    }
}
