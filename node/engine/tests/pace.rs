//! Writes that are faster than the store, in simulated time.
//!
//! The clock is that of the ring thread. The time of an event is that of the last message (a tick each 250
//! ms, a background answer), or the end of the last pause. Completions in the ring itself set no clock.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::collections::BTreeMap;

use holdfast_engine::action::Action;
use holdfast_engine::durable_map::Header;
use holdfast_engine::event::{CreateAnswer, Event, Op, RequestId};
use holdfast_engine::limit::PAUSE_MS;
use holdfast_engine::sector_map::map_bytes;
use holdfast_engine::settings::{AttachState, DirtyLimits, Durability, Setup};
use holdfast_engine::volume::{Delay, Volume};
use holdfast_format::chunk_ranges::ChunkRanges;
use holdfast_format::manifest::Manifest;
use holdfast_format::record::{Body, Record};
use holdfast_format::segment::SegmentRef;
use holdfast_format::side::{Side, SideSet};
use holdfast_types::{Epoch, Millis, Nonce, SectorRange, SegmentId, Seq, VolumeId};

const SECTORS: u64 = 1 << 18;
const SEAL_BYTES: u64 = 4 << 20;
const MAX_BYTES: u64 = 64 << 20;
/// Bytes per second that the store accepts.
const RATE: u64 = 20 << 20;
/// Requests in flight, and the sectors of each: 1 MiB in all.
const WRITERS: u32 = 16;
const WRITE_SECTORS: u64 = 16;
/// Milliseconds of a write on the local disk: together at most three times the rate of the store.
const DISK_MS: Millis = 1000 * (WRITERS as u64 * WRITE_SECTORS * 4096) / (3 * RATE);
/// Maximum allowed wait of a write.
const BAR_MS: Millis = 200;

/// A future event, and whether it sets the clock of the ring thread.
struct FutureEvent {
    event: Event,
    sets_clock: bool,
}

/// A volume whose clients write continuously, in simulated time.
struct Host {
    volume: Volume<Vec<u8>>,
    now: Millis,
    clock: Millis,
    /// By time and order.
    future_events: BTreeMap<(Millis, u64), FutureEvent>,
    order: u64,
    /// The rates of the store, each from this time on, newest last.
    rates: Vec<(Millis, u64)>,
    /// Begin of each writer's request.
    began: [Millis; WRITERS as usize],
    /// Begin and end of each write.
    writes: Vec<(Millis, Millis)>,
    next_sector: u64,
    /// Times at which the reason of a delay changed.
    delays: Vec<(Millis, Option<Delay>)>,
}

impl Host {
    fn new() -> Self {
        let (volume, nonce): (VolumeId, _) = ("disk".parse().unwrap(), Nonce([7; 16]));
        let mut manifest = Manifest::empty(volume.clone());
        let attach = Body::Attach { sectors: SECTORS, node: "a".to_owned(), displaced: None };
        for (epoch, body) in [(0, Body::create(SECTORS)), (1, attach)] {
            let seq = manifest.seq().next();
            let record = Record { volume: volume.clone(), seq, epoch: Epoch(epoch), nonce, unix_ms: 0, body };
            manifest.apply(&record).unwrap();
        }
        let header = Header {
            volume,
            identity: manifest.identity(),
            sectors: SECTORS,
            epoch: Epoch(1),
            writer: nonce,
            nonces: vec![nonce],
            active: Side::A,
            closed_clean: false,
            invalidated: SideSet::NONE,
            has_journal: false,
            seq: Seq(0),
            synced_generation: 0,
        };
        let setup = Setup {
            requests: WRITERS,
            limits: DirtyLimits { seal_bytes: SEAL_BYTES, max_bytes: MAX_BYTES, max_age_ms: 30_000 },
            durability: Durability::Local,
            header,
            header_generation: 0,
            unix_ms_at_zero: 0,
        };
        let memory = vec![0; usize::try_from(map_bytes(SECTORS)).unwrap()];
        let volume = Volume::attach(setup, memory, AttachState::in_log(manifest), 0, &mut Vec::new());
        let mut host = Self {
            volume,
            now: 0,
            clock: 0,
            future_events: BTreeMap::new(),
            order: 0,
            rates: vec![(0, RATE)],
            began: [0; WRITERS as usize],
            writes: Vec::new(),
            next_sector: 0,
            delays: vec![(0, None)],
        };
        host.schedule(250, Event::Tick, true);
        (0..WRITERS).for_each(|writer| host.write(RequestId(writer)));
        host
    }

    fn schedule(&mut self, after_ms: Millis, event: Event, sets_clock: bool) {
        self.order += 1;
        self.future_events.insert((self.now + after_ms, self.order), FutureEvent { event, sets_clock });
    }

    fn write(&mut self, id: RequestId) {
        self.began[id.0 as usize] = self.now;
        let range = SectorRange::new(self.next_sector, WRITE_SECTORS);
        self.next_sector = (self.next_sector + WRITE_SECTORS) % SECTORS;
        // Like the ring thread.
        match self.volume.begin(self.clock, id, Op::Write, range) {
            Some(_side) => self.schedule(DISK_MS, Event::IoCompleted { id, result: Ok(()) }, false),
            None => self.send(Event::Request { id, op: Op::Write, range }),
        }
    }

    fn end_write(&mut self, id: RequestId) {
        self.writes.push((self.began[id.0 as usize], self.now));
        self.write(id);
    }

    fn send(&mut self, event: Event) {
        if let Event::IoCompleted { id, result: Ok(()) } = event
            && self.volume.end(self.clock, id)
        {
            return self.end_write(id);
        }
        let mut actions = Vec::new();
        self.volume.handle(self.clock, event, &mut actions);
        actions.into_iter().for_each(|action| self.perform(action));
    }

    fn perform(&mut self, action: Action) {
        let result = Ok(());
        let (after_ms, event, sets_clock) = match action {
            Action::Write { id, .. } => (DISK_MS, Event::IoCompleted { id, result }, false),
            Action::Complete { id, result } => {
                result.unwrap();
                return self.end_write(id);
            }
            Action::PrepareMap { chunk } => (0, Event::MapPrepared { chunk, result: Ok(()) }, false),
            Action::SyncSide { side } => (5, Event::SideSynced { side, result }, false),
            Action::WriteMap(_) => (1, Event::MapWritten { result }, false),
            Action::SyncMap => (5, Event::MapSynced { result }, false),
            Action::NextTurn => (0, Event::NextTurn, false),
            Action::Pause => (PAUSE_MS, Event::PauseEnded, true),
            Action::Upload { place, blocks } => {
                let sectors: u32 =
                    blocks.iter().map(|dirty| dirty.a.0.count_ones() + dirty.b.0.count_ones()).sum();
                let uploaded = Event::Uploaded(SegmentRef {
                    id: SegmentId::new(place, 1, [0; 10]),
                    bytes: 100,
                    index_offset: 0,
                    index_bytes: 100,
                    sectors: 5,
                    chunks: ChunkRanges::around([(0, 1)]),
                });
                (self.upload_ms(u64::from(sectors) * 4096), uploaded, true)
            }
            Action::StorePending { .. } => (10, Event::PendingStored { result }, true),
            Action::CreateRecord { .. } => (30, Event::CreateAnswered(CreateAnswer::Created), true),
            Action::ReadRecord { seq } => (30, Event::RecordRead { seq, bytes: None }, true),
            Action::WriteCheckpoint { seq, .. } => {
                (30, Event::CheckpointWritten { seq, written: true }, true)
            }
            // A merge that takes long.
            Action::Merge(_) | Action::Report(_) => return,
            Action::Read { .. }
            | Action::ReadCold { .. }
            | Action::Punch { .. }
            | Action::Evict { .. }
            | Action::ReleaseMap { .. }
            | Action::StoreRoot { .. } => unreachable!("{action:?}"),
        };
        self.schedule(after_ms, event, sets_clock);
    }

    /// Returns the time that the store takes for `bytes`, starting now.
    fn upload_ms(&self, bytes: u64) -> Millis {
        let (mut left, mut at) = (bytes, self.now);
        for (index, &(_, rate)) in self.rates.iter().enumerate() {
            let until = self.rates.get(index + 1).map_or(Millis::MAX, |next| next.0);
            if until <= at {
                continue;
            }
            let takes = (1000 * left).checked_div(rate).unwrap_or(Millis::MAX);
            if takes <= until - at {
                return 30 + at + takes - self.now;
            }
            left -= rate * (until - at) / 1000;
            at = until;
        }
        unreachable!("the last rate is none")
    }

    /// Runs until `until`.
    fn run(&mut self, until: Millis) {
        while let Some(first) = self.future_events.first_entry()
            && first.key().0 <= until
        {
            let (at, _) = *first.key();
            let FutureEvent { event, sets_clock } = first.remove();
            self.now = at;
            if sets_clock {
                self.clock = at;
            }
            if event == Event::Tick {
                self.schedule(250, Event::Tick, true);
            }
            self.send(event);
            let delay = self.volume.status().delayed.map(|(delay, _)| delay);
            if self.delays.last().unwrap().1 != delay {
                self.delays.push((at, delay));
            }
        }
        self.now = until;
    }

    /// Returns the longest wait of the writes that ended in this interval.
    fn longest_wait(&self, from: Millis, until: Millis) -> Millis {
        let ended = self.writes.iter().filter(|(_, end)| (from..until).contains(end));
        ended.map(|(begin, end)| end - begin).max().unwrap()
    }

    /// Returns the bytes per second written in this interval.
    fn rate(&self, from: Millis, until: Millis) -> u64 {
        let ended = self.writes.iter().filter(|(_, end)| (from..until).contains(end)).count() as u64;
        ended * WRITE_SECTORS * 4096 * 1000 / (until - from)
    }

    fn parked_requests(&self) -> usize {
        self.volume.status().parked
    }
}

/// Returns true if `rate` is the store's rate `of`, within a tenth.
fn is_about(rate: u64, of: u64) -> bool {
    (9 * of..=11 * of).contains(&(10 * rate))
}

/// Regression: a client that wrote three times as fast as its store was stopped for more than two seconds
/// with each commit.
#[test]
fn a_faster_client_is_slowed_to_its_stores_rate() {
    let mut host = Host::new();
    host.run(90_000);
    let (longest, rate) = (host.longest_wait(0, 90_000), host.rate(30_000, 90_000));
    println!("longest wait {longest} ms, {} KiB/s of {}", rate >> 10, RATE >> 10);
    assert!(longest <= BAR_MS && is_about(rate, RATE), "{longest} ms, {rate} bytes/s");
    assert_eq!(host.delays.len(), 1, "{:?}", host.delays);
    let pace = host.volume.status().pace;
    assert!(pace.delayed_writes > 0 && pace.delayed_ms > pace.delayed_writes, "{pace:?}");
}

#[test]
fn a_client_as_fast_as_its_store_is_not_delayed() {
    let mut host = Host::new();
    host.rates = vec![(0, 4 * RATE)];
    // Until commits are measured, a slower store is assumed.
    host.run(10_000);
    let before = host.volume.status().pace.delayed_writes;
    host.run(40_000);
    let delayed = host.volume.status().pace.delayed_writes - before;
    println!("{before} writes delayed, later {delayed}");
    assert_eq!((delayed, host.longest_wait(10_000, 40_000)), (0, DISK_MS));
    assert!(host.longest_wait(0, 10_000) <= BAR_MS);
}

/// Writes to a store that suddenly becomes slower wait longer for one commit, and are not stopped.
#[test]
fn a_store_that_becomes_four_times_slower_slows_its_client() {
    let mut host = Host::new();
    host.rates.push((40_000, RATE / 4));
    host.run(160_000);
    for begin in (35_000..155_000).step_by(5000) {
        let (longest, rate) = (host.longest_wait(begin, begin + 5000), host.rate(begin, begin + 5000));
        println!("{begin}: longest wait {longest} ms, {} KiB/s", rate >> 10);
    }
    let (worst, settled) = (host.longest_wait(40_000, 70_000), host.longest_wait(90_000, 160_000));
    let rate = host.rate(90_000, 160_000);
    println!("longest wait {worst} ms, later {settled} ms, {} KiB/s", rate >> 10);
    assert!(worst <= 2000 && settled <= 2 * BAR_MS && is_about(rate, RATE / 4));
    assert_eq!(host.delays.len(), 1, "{:?}", host.delays);
}

/// Regression: occasional admitted writes turned the reason of the delay off and on.
#[test]
fn a_silent_store_stops_writes_once_until_it_answers() {
    let mut host = Host::new();
    host.rates.extend([(40_000, 0), (120_000, RATE)]);
    host.run(120_000);
    let [_, (stopped, Some(Delay::DirtyLimit))] = host.delays[..] else { panic!("{:?}", host.delays) };
    println!("stopped {} ms after the store", stopped - 40_000);
    assert!(stopped < 75_000, "{stopped}");
    assert_eq!(
        (host.parked_requests(), host.writes.iter().filter(|(_, end)| *end > stopped + 100).count()),
        (16, 0)
    );
    let (_, waited_ms) = host.volume.status().delayed.unwrap();
    assert!(waited_ms.abs_diff(host.now - stopped) <= 250, "since the stop: {waited_ms} ms");
    host.run(180_000);
    assert_eq!(host.delays.len(), 3, "{:?}", host.delays);
    for (begin, end) in [(124_000, 150_000), (150_000, 180_000)] {
        let (longest, rate) = (host.longest_wait(begin, end), host.rate(begin, end));
        println!("{begin}: longest wait {longest} ms, {} KiB/s", rate >> 10);
        assert!(is_about(rate, RATE) && longest <= BAR_MS, "{longest} ms, {rate} bytes/s");
    }
}
