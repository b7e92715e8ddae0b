//! The work of a round in one turn of its ring thread, and its memory, for a volume with a write in each map
//! page.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests are tests")]

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use holdfast_engine::action::{Action, DirtyBlock, Report};
use holdfast_engine::attach::{ForeignReason, LocalData, assess_local};
use holdfast_engine::durable_map::{
    FoundMap, FoundPage, FoundPart, Header, JOURNAL_OFFSET, PageSummary, file_bytes, newest_pages,
    page_offset,
};
use holdfast_engine::event::{CreateAnswer, Errno, Event, Op, RequestId};
use holdfast_engine::limit::{MAP_WRITE_PAGES, MAX_DIRTY_BLOCKS, ROUND_BLOCKS, ROUND_PAGES, SEAL_BLOCKS};
use holdfast_engine::sector_map::{PAGE_BYTES, PAGE_SECTORS, map_bytes};
use holdfast_engine::settings::{AttachState, DirtyLimits, Durability, Setup};
use holdfast_engine::volume::{Delay, Volume};
use holdfast_format::chunk_ranges::ChunkRanges;
use holdfast_format::manifest::Manifest;
use holdfast_format::record::{Body, Record};
use holdfast_format::segment::SegmentRef;
use holdfast_format::side::{Side, SideSet};
use holdfast_types::{
    BLOCK_SECTORS, CHUNK_BLOCKS, CHUNK_SECTORS, Epoch, Nonce, Place, SectorRange, SegmentId, Seq,
};

const NONCE: Nonce = Nonce([7; 16]);
/// 1 TiB: 65,536 map pages.
const TEBIBYTE: u64 = (1 << 40) / 4096;

/// A live map that outlives the process that maps it.
struct Mapping {
    bytes: Vec<u8>,
    home: Rc<RefCell<Vec<u8>>>,
    /// Accesses to the map.
    steps: Rc<Cell<u64>>,
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        self.steps.update(|steps| steps + 1);
        &self.bytes
    }
}

impl AsMut<[u8]> for Mapping {
    fn as_mut(&mut self) -> &mut [u8] {
        self.steps.update(|steps| steps + 1);
        &mut self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        *self.home.borrow_mut() = std::mem::take(&mut self.bytes);
    }
}

/// Figures of a ring thread's turns.
#[derive(Debug, Default)]
struct Turns {
    longest: Duration,
    all: Duration,
    max_actions: usize,
    max_writes: usize,
    side_syncs: u64,
    map_syncs: u64,
    map_writes: u64,
    /// Turns that continued work too long for one.
    next_turns: u64,
    /// Maximum sectors that became clean in one turn.
    max_cleared: u64,
    /// Maximum blocks of an upload.
    uploaded_blocks: usize,
    uploads: u64,
    completed: u64,
    /// Maximum accesses to the live map in one turn.
    max_steps: u64,
}

struct Host {
    volume: Option<Volume<Mapping>>,
    tmpfs: Rc<RefCell<Vec<u8>>>,
    steps: Rc<Cell<u64>>,
    header: Header,
    /// The durable map's file; empty if the test does not read it.
    file: Vec<u8>,
    /// The journal in the file.
    journal: Vec<u8>,
    turns: Turns,
    /// Writes of the map fail from this one on.
    fails_at: Option<u64>,
    /// Sectors that the next upload cannot read.
    unreadable: Option<SectorRange>,
    /// True if uploads are not answered.
    holds_uploads: bool,
    /// The place of the unanswered upload.
    held_upload: Option<Place>,
    /// The log, if every record of the volume was created here.
    log: Manifest,
}

/// Returns limits at which the sides are sealed by one more write after those of `Host::with_all_touched`.
fn limits(sectors: u64) -> DirtyLimits {
    let seal_bytes = (sectors.div_ceil(PAGE_SECTORS) + 1) * 4096;
    DirtyLimits { seal_bytes, max_bytes: 1 << 50, max_age_ms: 1 << 40 }
}

fn setup(header: Header) -> Setup {
    let (limits, durability) = (limits(header.sectors), Durability::Local);
    Setup { requests: 4, limits, header, header_generation: 0, unix_ms_at_zero: 0, durability }
}

/// Returns the log of a volume after its first attach.
fn attached(sectors: u64) -> Manifest {
    let mut manifest = Manifest::empty("v".parse().unwrap());
    let attach = Body::Attach { sectors, node: "n".to_owned(), displaced: None };
    for (epoch, body) in [(0, Body::create(sectors)), (1, attach)] {
        let (volume, seq) = (manifest.volume().clone(), manifest.seq().next());
        let record = Record { volume, seq, epoch: Epoch(epoch), nonce: NONCE, unix_ms: 0, body };
        manifest.apply(&record).unwrap();
    }
    manifest
}

impl Host {
    /// Creates an attached volume of `sectors` sectors with one dirty sector in each map page, never flushed.
    fn with_all_touched(sectors: u64, keeps_file: bool) -> Self {
        let mut host = Self::new(sectors, keeps_file, limits(sectors));
        for page in 0..sectors.div_ceil(PAGE_SECTORS) {
            host.request(Op::Write, SectorRange::new(page * PAGE_SECTORS + page % 7, 1));
        }
        host
    }

    /// Creates an attached volume of `sectors` sectors without any writes.
    fn new(sectors: u64, keeps_file: bool, limits: DirtyLimits) -> Self {
        let manifest = attached(sectors);
        let header = Header {
            volume: manifest.volume().clone(),
            sectors,
            epoch: Epoch(1),
            writer: NONCE,
            nonces: vec![NONCE],
            active: Side::A,
            closed_clean: false,
            invalidated: SideSet::NONE,
            has_journal: false,
            seq: Seq(0),
            synced_generation: 0,
            identity: manifest.identity(),
        };
        let tmpfs = Rc::new(RefCell::new(Vec::new()));
        let (home, steps) = (Rc::clone(&tmpfs), Rc::new(Cell::new(0)));
        let bytes = vec![0; map_bytes(sectors) as usize];
        let memory = Mapping { bytes, home, steps: Rc::clone(&steps) };
        let setup = Setup { limits, ..setup(header.clone()) };
        let log = manifest.clone();
        let volume = Volume::attach(setup, memory, AttachState::in_log(manifest), 0, &mut Vec::new());
        let pages = sectors.div_ceil(PAGE_SECTORS);
        let file = if keeps_file { vec![0; file_bytes(pages) as usize] } else { Vec::new() };
        Self {
            volume: Some(volume),
            tmpfs,
            steps,
            header,
            file,
            journal: Vec::new(),
            turns: Turns::default(),
            fails_at: None,
            unreadable: None,
            holds_uploads: false,
            held_upload: None,
            log,
        }
    }

    /// Crashes the process; another takes over.
    fn resume(&mut self) {
        self.volume = None;
        let bytes = self.tmpfs.take();
        let memory = Mapping { bytes, home: Rc::clone(&self.tmpfs), steps: Rc::clone(&self.steps) };
        self.volume = Some(Volume::resume(setup(self.header.clone()), memory, None, 0).unwrap());
        self.turns = Turns::default();
    }

    /// Crashes the process; another takes over and reads the log. Returns the uploads of the new process.
    fn uploads_after_takeover(&mut self) -> Vec<DirtyBlock> {
        self.resume();
        let mut actions = VecDeque::from(self.turn(Event::ManifestLoaded(Box::new(self.log.clone()))));
        loop {
            let action = actions.pop_front().expect("what is dirty is uploaded");
            if let Action::Upload { blocks, .. } = action {
                return blocks;
            }
            if let Some(event) = self.answer(action) {
                actions.extend(self.turn(event));
            }
        }
    }

    /// Sends a request, and answers all actions at once.
    fn request(&mut self, op: Op, range: SectorRange) {
        let actions = self.turn(Event::Request { id: RequestId(0), op, range });
        self.drive(actions);
    }

    fn drive(&mut self, actions: Vec<Action>) {
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            if let Some(event) = self.answer(action) {
                actions.extend(self.turn(event));
            }
        }
    }

    fn turn(&mut self, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        let volume = self.volume.as_mut().unwrap();
        let dirty_bytes = volume.status().dirty_bytes;
        let (begun, steps) = (Instant::now(), self.steps.get());
        volume.handle(0, event, &mut out);
        let elapsed = begun.elapsed();
        self.turns.longest = self.turns.longest.max(elapsed);
        self.turns.all += elapsed;
        self.turns.max_steps = self.turns.max_steps.max(self.steps.get() - steps);
        let cleared = dirty_bytes.saturating_sub(volume.status().dirty_bytes) / 4096;
        self.turns.max_cleared = self.turns.max_cleared.max(cleared);
        self.turns.max_actions = self.turns.max_actions.max(out.len());
        out
    }

    fn answer(&mut self, action: Action) -> Option<Event> {
        let result = Ok(());
        Some(match action {
            Action::Write { id, .. } => Event::IoCompleted { id, result },
            Action::PrepareMap { chunk } => Event::MapPrepared { chunk, result: Ok(()) },
            Action::SyncSide { side } => {
                self.turns.side_syncs += 1;
                Event::SideSynced { side, result }
            }
            Action::WriteMap(writes) => {
                self.turns.map_writes += writes.len() as u64;
                self.turns.max_writes = self.turns.max_writes.max(writes.len());
                if self.fails_at.is_some_and(|at| self.turns.map_writes >= at) {
                    return Some(Event::MapWritten { result: Err(Errno::EIO) });
                }
                for write in &writes {
                    let at = write.offset as usize;
                    if let Some(at) = write.offset.checked_sub(JOURNAL_OFFSET) {
                        let end = at as usize + write.bytes.len();
                        self.journal.resize(self.journal.len().max(end), 0);
                        self.journal[at as usize..end].copy_from_slice(&write.bytes);
                    } else if let Some(place) = self.file.get_mut(at..at + write.bytes.len()) {
                        place.copy_from_slice(&write.bytes);
                    }
                }
                Event::MapWritten { result }
            }
            Action::SyncMap => {
                self.turns.map_syncs += 1;
                Event::MapSynced { result }
            }
            Action::Complete { result, .. } => {
                self.turns.completed += 1;
                assert_eq!(result.is_err(), self.fails_at.is_some());
                return None;
            }
            Action::NextTurn => {
                self.turns.next_turns += 1;
                Event::NextTurn
            }
            Action::Upload { place, blocks } => {
                self.turns.uploaded_blocks = self.turns.uploaded_blocks.max(blocks.len());
                self.turns.uploads += 1;
                if self.holds_uploads {
                    self.held_upload = Some(place);
                    return None;
                }
                if let Some(range) = self.unreadable.take() {
                    return Some(Event::SidesUnreadable(vec![range]));
                }
                stored(place)
            }
            Action::Merge(plan) => Event::MergeFailed { kind: plan.kind, barred: plan.inputs[0].id() },
            Action::StorePending { .. } => Event::PendingStored { result },
            Action::StoreRoot { .. } => Event::RootStored,
            Action::CreateRecord { bytes, .. } => {
                self.log.apply(&Record::decode(&bytes).unwrap()).unwrap();
                Event::CreateAnswered(CreateAnswer::Created)
            }
            Action::Report(Report::LocalDiskFailed(_)) if self.fails_at.is_some() => return None,
            Action::Report(
                Report::Committed(_)
                | Report::Detached
                | Report::UploadUnreadable(_)
                | Report::UploadReadable,
            ) => return None,
            Action::Punch { id, .. } => Event::IoCompleted { id, result },
            Action::Read { .. }
            | Action::ReadCold { .. }
            | Action::Pause
            | Action::Evict { .. }
            | Action::ReleaseMap { .. }
            | Action::ReadRecord { .. }
            | Action::WriteCheckpoint { .. }
            | Action::Report(_) => unreachable!("{action:?}"),
        })
    }

    /// Returns the pages that an attach finds after the loss of the host.
    fn found_pages(&self) -> Vec<FoundPage> {
        self.header_and_pages().2
    }

    /// Returns the facts for the attach.
    fn found_map(&self) -> FoundMap {
        let (generation, header, found) = self.header_and_pages();
        let mut pages = PageSummary::default();
        found.into_iter().for_each(|page| pages.add(&FoundPart::Page(page)));
        FoundMap { generation, header, pages }
    }

    fn header_and_pages(&self) -> (u64, Header, Vec<FoundPage>) {
        let (generation, header) = Header::newest(&self.file[..8192]).unwrap().unwrap();
        let pair = |page| self.file[page_offset(page, 0) as usize..][..8192].to_vec();
        let pages: Vec<_> =
            (0..header.sectors.div_ceil(PAGE_SECTORS)).map(|page| (page, pair(page))).collect();
        let pages = newest_pages(&header, &pages, &self.journal).unwrap();
        (generation, header, pages)
    }
}

/// Returns the answer to an upload.
fn stored(place: Place) -> Event {
    Event::Uploaded(SegmentRef {
        id: SegmentId::new(place, 1, [0; 10]),
        bytes: 100,
        index_offset: 0,
        index_bytes: 100,
        sectors: 5,
        chunks: ChunkRanges::around([(0, 1)]),
    })
}

/// Returns a memory figure of this process in bytes: `VmRSS` is the current size, `VmHWM` the peak.
fn resident(figure: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(figure)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Resets the peak memory of the process. Returns the current size, in bytes.
fn forget_peak() -> u64 {
    // Source: `/proc/pid/clear_refs` in proc(5).
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    resident("VmRSS:")
}

/// Prints the figures as a line of JSON. The memory is correct only if no other test of the process runs
/// at the same time.
fn print_figures(turns_of: &str, turns: &Turns, before_bytes: u64) {
    let memory_bytes = resident("VmHWM:").saturating_sub(before_bytes);
    let (longest_ns, max_pages) = (turns.longest.as_nanos(), turns.max_writes / 2);
    println!(
        "{{\"turns_of\":\"{turns_of}\",\"longest_ns\":{longest_ns},\"max_pages\":{max_pages},\"memory_bytes\":{memory_bytes}}}"
    );
}

/// Regression: a round planned, encoded and wrote the whole map in one turn: seconds for every device of
/// the ring thread, and 1.5 GiB for a volume of 1 TiB.
#[test]
fn no_turn_of_a_round_grows_with_the_volume() {
    let mut host = Host::with_all_touched(TEBIBYTE, false);
    let begun = Instant::now();
    host.resume();
    let resumed = begun.elapsed();
    let before_bytes = forget_peak();
    let begun = Instant::now();
    host.request(Op::Flush, SectorRange::new(0, 0));
    let pages = TEBIBYTE / PAGE_SECTORS;
    let turns = &host.turns;
    println!("resume {resumed:?}, flush {:?}; {turns:?}", begun.elapsed());
    print_figures("flush", turns, before_bytes);
    assert!(turns.max_writes <= 2 * MAP_WRITE_PAGES, "{turns:?}");
    assert!(turns.max_actions <= 3, "{turns:?}");
    // Copies and concurrent writes, regardless of the size of the volume.
    let max_bytes = ROUND_PAGES * PAGE_BYTES + turns.max_writes * 4096;
    assert!(max_bytes <= 3 << 19, "{max_bytes} bytes");
    assert_eq!(turns.map_writes, 2 * pages + 1, "each page into both of its slots, and the header");
    assert_eq!(turns.side_syncs, 2, "nothing was written meanwhile");
    assert_eq!(turns.map_syncs, pages.div_ceil(ROUND_PAGES as u64) + 1);
}

/// Regression: a seal listed all dirty data in one turn, and its commit marked it clean in another.
#[test]
fn no_turn_of_a_seal_grows_with_the_volume() {
    let mut host = Host::with_all_touched(TEBIBYTE, false);
    host.turns = Turns::default();
    let before_bytes = forget_peak();
    // The last commit.
    let actions = host.turn(Event::Detach);
    host.drive(actions);
    let turns = &host.turns;
    println!("{turns:?}");
    print_figures("seal", turns, before_bytes);
    let (pages, most) = (TEBIBYTE / PAGE_SECTORS, MAP_WRITE_PAGES as u64);
    assert_eq!(turns.uploaded_blocks as u64, pages, "a block of each page");
    assert_eq!(turns.max_cleared, most, "a sector of each page");
    assert_eq!(turns.next_turns, 2 * (pages / most - 1), "as many list them as make them clean");
    assert!(turns.max_writes <= 2 * MAP_WRITE_PAGES && turns.max_actions <= 3, "{turns:?}");
    assert_eq!(host.volume.as_ref().unwrap().status().dirty_bytes, 0);
}

/// Writes a sector of each of these blocks.
fn write_blocks(host: &mut Host, blocks: std::ops::Range<u64>) {
    for block in blocks {
        host.request(Op::Write, SectorRange::new(block * BLOCK_SECTORS, 1));
    }
}

/// Regression: zeros count as no bytes: a trim of everything was one seal, whose list took 134 MB for each
/// TiB, and its index six times as much.
#[test]
fn a_trim_of_everything_is_sealed_in_parts() {
    let never = DirtyLimits { seal_bytes: 1 << 50, ..limits(TEBIBYTE) };
    let mut host = Host::new(3 * SEAL_BLOCKS * BLOCK_SECTORS, false, never);
    for first in (0..3 * SEAL_BLOCKS).step_by(CHUNK_BLOCKS as usize) {
        write_blocks(&mut host, first..first + CHUNK_BLOCKS);
        host.request(Op::Discard, SectorRange::new(first * BLOCK_SECTORS, CHUNK_SECTORS));
    }
    assert_eq!((host.turns.uploads, host.turns.uploaded_blocks as u64), (3, SEAL_BLOCKS));
}

/// While a commit is in progress, the number of dirty blocks stays within that of the next seal's list.
#[test]
fn writes_and_discards_wait_at_a_seals_block_limit() {
    let never = DirtyLimits { seal_bytes: 1 << 50, ..limits(TEBIBYTE) };
    let blocks = SEAL_BLOCKS + MAX_DIRTY_BLOCKS;
    let mut host = Host::new((blocks + CHUNK_BLOCKS) * BLOCK_SECTORS, false, never);
    host.holds_uploads = true;
    write_blocks(&mut host, 0..blocks);
    let status = |host: &Host| host.volume.as_ref().unwrap().status();
    assert_eq!((host.turns.uploads, status(&host).parked), (1, 0));
    host.request(Op::Discard, SectorRange::new(0, CHUNK_SECTORS));
    let write = Event::Request { id: RequestId(1), op: Op::Write, range: SectorRange::new(0, 1) };
    let actions = host.turn(write);
    host.drive(actions);
    assert_eq!(status(&host).parked, 2);
    assert_eq!(status(&host).delayed.map(|(delay, _)| delay), Some(Delay::DirtyLimit));
    host.holds_uploads = false;
    let place = host.held_upload.take().unwrap();
    let actions = host.turn(stored(place));
    host.drive(actions);
    assert_eq!((status(&host).parked, host.turns.completed), (0, blocks + 2));
    // The waiting requests are in the next seal: the first one says that chunk 0 may hold data.
    assert_eq!((host.turns.uploads, host.turns.uploaded_blocks as u64), (2, MAX_DIRTY_BLOCKS + CHUNK_BLOCKS));
}

/// One event needs the same work in a volume of 10 GiB and in one of 1000 GiB, however scattered the
/// committed data is. Data on more map pages needs more turns.
#[test]
fn commit_events_cost_the_same_in_a_larger_volume() {
    const WRITES: u64 = 16_384;
    let [small, large] = [10 << 30, 1 << 40].map(|bytes| {
        let sectors = bytes / 4096;
        let mut host = Host::new(sectors, false, limits(TEBIBYTE));
        for write in 0..WRITES {
            host.request(Op::Write, SectorRange::new(write * (sectors / WRITES), 1));
        }
        host.turns = Turns::default();
        // The last commit.
        let actions = host.turn(Event::Detach);
        host.drive(actions);
        assert_eq!(host.volume.as_ref().unwrap().status().dirty_bytes, 0);
        println!("{bytes} bytes: {:?}", host.turns);
        host.turns
    });
    let figures =
        |turns: &Turns| format!("{{\"max_steps\":{},\"all_ns\":{}}}", turns.max_steps, turns.all.as_nanos());
    println!("{{\"turns_of\":\"commit\",\"10gib\":{},\"1tib\":{}}}", figures(&small), figures(&large));
    assert_eq!((small.uploaded_blocks, large.uploaded_blocks), (WRITES as usize, WRITES as usize));
    assert!(2 * large.max_steps <= 3 * small.max_steps, "{} and {}", large.max_steps, small.max_steps);
    assert!(large.max_writes <= 2 * MAP_WRITE_PAGES && large.max_actions <= 3, "{large:?}");
    // Each of two rounds has two groups. Each of these is one record, some after a fill with a separate
    // sync; in addition, both headers are written.
    assert!(large.map_syncs <= 2 * 2 * WRITES.div_ceil(ROUND_BLOCKS as u64) + 2, "{large:?}");
}

/// Scattered changes go to the journal; once it is full, all pages with changes in it are written, and it
/// restarts. An attach after the loss of the host finds all flushed data: after each round, and after a
/// crash of the process that began the journal.
#[test]
fn flushed_data_is_found_with_any_journal_fill() {
    const PAGES: u64 = 256;
    const ROUNDS: u64 = 200;
    /// Changed pages per round: enough for a slot of the journal.
    const CHANGED: u64 = 16;
    let mut host = Host::new(PAGES * PAGE_SECTORS, true, limits(TEBIBYTE));
    let mut written = BTreeSet::new();
    for round in 0..ROUNDS {
        for change in 0..CHANGED {
            let page = (round * 7 + change * 16) % PAGES;
            let sector = page * PAGE_SECTORS + (round * 331 + change) % PAGE_SECTORS;
            host.request(Op::Write, SectorRange::new(sector, 1));
            written.insert(sector);
        }
        if round == ROUNDS / 2 {
            host.resume();
        }
        host.request(Op::Flush, SectorRange::new(0, 0));
        let found = host.found_pages();
        let runs = found.iter().flat_map(FoundPage::dirty_runs);
        let sectors: BTreeSet<u64> = runs.flat_map(|(range, _)| range.start.0..range.end()).collect();
        assert!(sectors == written, "round {round}");
    }
    // The process of the second half: its first round writes every page of the map, later ones the changes.
    let changes = ROUNDS / 2 * CHANGED;
    println!("{} writes of the map for {changes} changed pages", host.turns.map_writes - PAGES);
    assert!(2 * (host.turns.map_writes - PAGES) < changes, "{:?}", host.turns);
}

/// Regression: a round wrote all pages of a newly used chunk. Empty pages are not written. A page first
/// written later is covered by a header like the others: zeros in its place are corruption and not a torn
/// write.
#[test]
fn a_page_is_first_written_when_it_holds_something() {
    let mut host = Host::new(4 * PAGE_SECTORS, true, limits(TEBIBYTE));
    for (page, rounds) in [(0, 1), (2, 2)] {
        host.request(Op::Write, SectorRange::new(page * PAGE_SECTORS, 1));
        host.request(Op::Flush, SectorRange::new(0, 0));
        assert_eq!(host.turns.map_writes, rounds * 3, "both slots of a page, and the header");
    }
    let header = Header::newest(&host.file[..8192]).unwrap().unwrap().1;
    let slots = |page| host.file[page_offset(page, 0) as usize..][..8192].to_vec();
    assert_eq!(newest_pages(&header, &[(1, slots(1)), (3, slots(3))], &[]), Ok(vec![]));
    for page in [0, 2] {
        assert_eq!(newest_pages(&header, &[(page, slots(page))], &[]).map(|found| found.len()), Ok(1));
        let mut zeroed = slots(page);
        zeroed[4096..].fill(0);
        assert!(newest_pages(&header, &[(page, zeroed)], &[]).is_err(), "page {page}");
    }
}

/// Both sides are committed together after data was lost: otherwise a write between two turns would become
/// clean with them.
#[test]
fn a_write_waits_until_both_sides_are_clean() {
    let pages = 2 * MAP_WRITE_PAGES as u64;
    let mut host = Host::with_all_touched(pages * PAGE_SECTORS, false);
    let lost = SectorRange::new(0, 1);
    host.unreadable = Some(lost);
    host.request(Op::Write, SectorRange::new(9, 1));
    assert!(
        host.volume.as_ref().unwrap().status().unreadable.is_some(),
        "one side is sealed, and cannot be read"
    );
    // Overwritten on the other side: now both are sealed.
    let mut actions =
        VecDeque::from(host.turn(Event::Request { id: RequestId(0), op: Op::Write, range: lost }));
    let late = Event::Request {
        id: RequestId(1),
        op: Op::Write,
        range: SectorRange::new(pages * PAGE_SECTORS - 1, 1),
    };
    let mut late = Some(late);
    let mut is_committed = false;
    while let Some(action) = actions.pop_front() {
        is_committed |= matches!(action, Action::CreateRecord { .. });
        if is_committed
            && matches!(action, Action::NextTurn)
            && let Some(late) = late.take()
        {
            assert_eq!(host.turn(late), [], "it waits");
        }
        if let Some(event) = host.answer(action) {
            actions.extend(host.turn(event));
        }
    }
    assert!(late.is_none(), "the marks fell in one turn");
    assert_eq!(host.volume.as_ref().unwrap().status().dirty_bytes, 4096, "the late write is dirty");
}

/// Both sides hold a sector when they are committed together. The process dies at the end of one of the
/// turns that clear their marks. Regression: the mark of the newer copy was cleared first, and the next
/// commit was of the older one.
#[test]
fn a_death_while_marks_are_cleared_commits_no_older_copy() {
    let pages = 2 * MAP_WRITE_PAGES as u64;
    let last = SectorRange::new((pages - 1) * PAGE_SECTORS + (pages - 1) % 7, 1);
    for newer in Side::BOTH {
        let mut deaths = 0;
        while let Some(uploaded) = uploaded_after_a_death(pages, newer, last, deaths) {
            deaths += 1;
            let at = uploaded.iter().find(|dirty| dirty.block == last.start.block()).unwrap();
            let (of_newer, of_older) = match newer {
                Side::A => (at.a, at.b),
                Side::B => (at.b, at.a),
            };
            assert_eq!((of_newer.count(), of_older.count()), (1, 0), "{newer:?} is newer, turn {deaths}");
        }
        assert_eq!(deaths, 2, "the older side takes two turns, the newer one the third");
    }
}

/// Commits a volume of this many map pages with a sector dirty in each on one side. `twice` is dirty on both,
/// with the newer copy on `newer`. Both sides are committed together. The process dies after this many of the
/// turns that clear the marks. Returns the next process's upload; `None` if all marks were cleared before.
fn uploaded_after_a_death(
    pages: u64,
    newer: Side,
    twice: SectorRange,
    turns: usize,
) -> Option<Vec<DirtyBlock>> {
    let mut host = Host::with_all_touched(pages * PAGE_SECTORS, false);
    if newer == Side::A {
        // Side A is committed, and the same sector is written to side B.
        host.request(Op::Write, SectorRange::new(9, 1));
        for page in 0..pages {
            host.request(Op::Write, SectorRange::new(page * PAGE_SECTORS + page % 7, 1));
        }
    }
    host.unreadable = Some(twice);
    host.request(Op::Write, SectorRange::new(11, 1));
    assert!(host.volume.as_ref().unwrap().status().unreadable.is_some(), "one side is sealed");
    let records = host.log.seq();
    let write = Event::Request { id: RequestId(0), op: Op::Write, range: twice };
    let mut actions = VecDeque::from(host.turn(write));
    let mut turns_left = turns;
    while let Some(action) = actions.pop_front() {
        if host.log.seq() > records && action == Action::NextTurn {
            if turns_left == 0 {
                return Some(host.uploads_after_takeover());
            }
            turns_left -= 1;
        }
        if let Some(event) = host.answer(action) {
            actions.extend(host.turn(event));
        }
    }
    None
}

/// Size of a volume whose rounds have three groups after a takeover.
const SEVERAL: u64 = (2 * ROUND_PAGES as u64 + 16) * PAGE_SECTORS;

fn written(page: u64) -> (SectorRange, Side) {
    (SectorRange::new(page * PAGE_SECTORS + page % 7, 1), Side::A)
}

#[test]
fn a_round_of_several_groups_makes_every_page_durable() {
    let mut host = Host::with_all_touched(SEVERAL, true);
    host.resume();
    let last = SEVERAL / PAGE_SECTORS - 1;
    let round = host.turn(Event::Request { id: RequestId(0), op: Op::Flush, range: SectorRange::new(0, 0) });
    // The first group is copied, and its sides are about to be synced.
    let late = SectorRange::new(last * PAGE_SECTORS + 100, 2);
    let actions = host.turn(Event::Request { id: RequestId(1), op: Op::Write, range: late });
    host.drive(actions);
    host.drive(round);
    assert_eq!(host.turns.side_syncs, 3, "the side that was written once more, for the second group");
    let found = host.found_pages();
    let runs: Vec<_> = found.iter().flat_map(FoundPage::dirty_runs).collect();
    let mut expected: Vec<_> = (0..=last).map(written).collect();
    expected.push((late, Side::A));
    assert_eq!(runs, expected, "a page that is copied later names what its sync covers");
}

#[test]
fn a_partly_failed_round_repeats_the_other_pages() {
    let mut host = Host::with_all_touched(SEVERAL, true);
    host.resume();
    let group = 2 * ROUND_PAGES as u64;
    host.fails_at = Some(group + 1);
    host.request(Op::Flush, SectorRange::new(0, 0));
    host.fails_at = None;
    host.turns = Turns::default();
    host.request(Op::Flush, SectorRange::new(0, 0));
    let pages = SEVERAL / PAGE_SECTORS;
    assert_eq!(host.turns.map_writes, 2 * pages - group + 1, "the first group is durable");
    let found = host.found_pages();
    let runs: Vec<_> = found.iter().flat_map(FoundPage::dirty_runs).collect();
    assert_eq!(runs, (0..pages).map(written).collect::<Vec<_>>());
}

/// Regression: a bucket was restored while the daemon was down: evicted clean sectors were read from older
/// objects.
#[test]
fn a_live_map_newer_than_the_log_is_refused() {
    let sectors = 3 * PAGE_SECTORS;
    for (known, is_fenced) in [(2, false), (3, true)] {
        let mut host = Host::with_all_touched(sectors, false);
        host.header.seq = Seq(known);
        host.resume();
        let actions = host.turn(Event::ManifestLoaded(Box::new(attached(sectors))));
        assert_eq!(actions.contains(&Action::Report(Report::Fenced)), is_fenced, "{actions:?}");
    }
}

/// Regression, found by the simulation: a round had written its pages but not its header, the host lost
/// power, and the bucket was rolled back to before the commit. Data that was clean in the pages was neither
/// in the log nor, according to the header, missing there: the attach served the sectors' older content.
#[test]
fn pages_without_their_header_reveal_a_log_rolled_back() {
    for dies in [false, true] {
        let sectors = 3 * PAGE_SECTORS;
        let mut host = Host::with_all_touched(sectors, true);
        host.request(Op::Flush, SectorRange::new(0, 0));
        // The third record commits the seal.
        host.request(Op::Write, SectorRange::new(9, 1));
        if dies {
            // The next process cannot read the log yet.
            host.resume();
        }
        let before = host.found_map();
        assert_eq!((before.header.seq, before.known_seq()), (Seq(2), Seq(2)));
        host.turns.map_writes = 0;
        // The header follows the three pages.
        host.fails_at = Some(4);
        host.request(Op::Flush, SectorRange::new(0, 0));
        let found = host.found_map();
        assert_eq!((found.header.seq, found.known_seq()), (Seq(2), Seq(3)), "{dies}");
        assert_eq!(
            assess_local(&attached(sectors), Some(&found)),
            LocalData::Foreign(ForeignReason::LogRolledBack)
        );
        assert!(matches!(assess_local(&attached(sectors), Some(&before)), LocalData::Ours { .. }));
    }
}

/// Regression: the process that cleared the dirty marks died before a flush round recorded this.
#[test]
fn a_live_map_reveals_a_log_that_was_rolled_back() {
    let sectors = 3 * PAGE_SECTORS;
    let mut host = Host::with_all_touched(sectors, true);
    host.request(Op::Flush, SectorRange::new(0, 0));
    host.request(Op::Write, SectorRange::new(9, 1));
    host.resume();
    let actions = host.turn(Event::ManifestLoaded(Box::new(attached(sectors))));
    assert!(actions.contains(&Action::Report(Report::Fenced)), "{actions:?}");
}
