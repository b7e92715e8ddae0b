//! A FUA write, event by event: it completes only when its data is durable.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use holdfast_engine::action::{Action, Report};
use holdfast_engine::durable_map::Header;
use holdfast_engine::event::{CreateAnswer, Errno, Event, Op, RequestId};
use holdfast_engine::sector_map::map_bytes;
use holdfast_engine::settings::{AttachState, DirtyLimits, Durability, RuntimeSettings, Setup};
use holdfast_engine::volume::Volume;
use holdfast_format::chunk_ranges::ChunkRanges;
use holdfast_format::manifest::Manifest;
use holdfast_format::record::{Body, Record};
use holdfast_format::segment::SegmentRef;
use holdfast_format::side::{Side, SideSet};
use holdfast_types::{Chunk, Epoch, Nonce, SectorRange, SegmentId, Seq};

const SECTORS: u64 = 10_000;
const NONCE: Nonce = Nonce([7; 16]);
const LIMITS: DirtyLimits = DirtyLimits { seal_bytes: 1 << 30, max_bytes: 1 << 30, max_age_ms: 1 << 40 };

/// A volume without automatic answers.
struct Bench {
    volume: Volume<Vec<u8>>,
    /// Unanswered actions of the volume, oldest first.
    actions: Vec<Action>,
    completed: Vec<(u32, Result<(), Errno>)>,
    fenced: bool,
}

impl Bench {
    /// Creates an attached volume with its first chunk allocated and its first round done.
    fn new(durability: Durability) -> Self {
        let mut manifest = Manifest::empty("v".parse().unwrap());
        let attach = Body::Attach { sectors: SECTORS, node: "n".to_owned(), displaced: None };
        for (epoch, body) in [(0, Body::create(SECTORS)), (1, attach)] {
            let (volume, seq) = (manifest.volume().clone(), manifest.seq().next());
            manifest
                .apply(&Record { volume, seq, epoch: Epoch(epoch), nonce: NONCE, unix_ms: 0, body })
                .unwrap();
        }
        let header = Header {
            volume: manifest.volume().clone(),
            identity: manifest.identity(),
            sectors: SECTORS,
            epoch: Epoch(1),
            writer: NONCE,
            nonces: vec![NONCE],
            active: Side::A,
            closed_clean: false,
            invalidated: SideSet::NONE,
            has_journal: false,
            seq: Seq(0),
            synced_generation: 0,
        };
        let setup = Setup {
            requests: 8,
            limits: LIMITS,
            header,
            header_generation: 0,
            unix_ms_at_zero: 0,
            durability,
        };
        let memory = vec![0; map_bytes(SECTORS) as usize];
        let volume = Volume::attach(setup, memory, AttachState::in_log(manifest), 0, &mut Vec::new());
        let mut bench = Self { volume, actions: Vec::new(), completed: Vec::new(), fenced: false };
        bench.request(7, Op::Write, 9000);
        bench.send(Event::MapPrepared { chunk: Chunk(0), result: Ok(()) });
        bench.actions.retain(|action| !matches!(action, Action::PrepareMap { .. }));
        bench.finish();
        bench.request(7, Op::Flush, 0);
        bench.finish();
        bench.completed.clear();
        bench
    }

    fn send(&mut self, event: Event) {
        let mut out = Vec::new();
        self.volume.handle(0, event, &mut out);
        for action in out {
            if let Action::Complete { id, result } = action {
                self.completed.push((id.0, result));
            } else if let Action::Report(report) = action {
                self.fenced |= report == Report::Fenced;
            } else {
                self.actions.push(action);
            }
        }
    }

    fn request(&mut self, id: u32, op: Op, sector: u64) {
        let range = SectorRange::new(sector, u64::from(op != Op::Flush));
        self.send(Event::Request { id: RequestId(id), op, range });
    }

    /// Answers the oldest action that `wanted` selects.
    fn answer(&mut self, wanted: impl Fn(&Action) -> bool, result: Result<(), Errno>) {
        let at = self.actions.iter().position(wanted).expect("it was asked for");
        let event = match self.actions.remove(at) {
            Action::Write { id, .. } | Action::Punch { id, .. } => Event::IoCompleted { id, result },
            Action::Evict { .. } => Event::Evicted { result },
            Action::ReleaseMap { chunk } => Event::MapReleased { chunk },
            Action::SyncSide { side } => Event::SideSynced { side, result },
            Action::WriteMap(_) => Event::MapWritten { result },
            Action::SyncMap => Event::MapSynced { result },
            Action::StorePending { .. } => Event::PendingStored { result },
            Action::StoreRoot { .. } => Event::RootStored,
            Action::CreateRecord { .. } => Event::CreateAnswered(CreateAnswer::Created),
            Action::NextTurn => Event::NextTurn,
            Action::Upload { place, .. } => {
                let id = SegmentId::new(place, 1, [0; 10]);
                let chunks = ChunkRanges::around([(0, 1)]);
                Event::Uploaded(SegmentRef {
                    id,
                    bytes: 100,
                    index_offset: 0,
                    index_bytes: 100,
                    sectors: 5,
                    chunks,
                })
            }
            other @ (Action::Merge(_)
            | Action::Read { .. }
            | Action::ReadCold { .. }
            | Action::Pause
            | Action::Complete { .. }
            | Action::PrepareMap { .. }
            | Action::ReadRecord { .. }
            | Action::WriteCheckpoint { .. }
            | Action::Report(_)) => unreachable!("{other:?}"),
        };
        self.send(event);
    }

    fn configure(&mut self, durability: Durability) {
        self.send(Event::Configure(RuntimeSettings { max_age_ms: LIMITS.max_age_ms, durability }));
    }

    fn store(&mut self, id: u32) {
        self.answer(|action| matches!(action, Action::Write { id: of, .. } if of.0 == id), Ok(()));
    }

    /// Answers all actions, oldest first, until none is left.
    fn finish(&mut self) {
        while !self.actions.is_empty() {
            self.answer(|_| true, Ok(()));
        }
    }

    /// Lets the volume find another writer's record at the next position of the log.
    fn fence(&mut self) {
        self.volume.handle(1 << 41, Event::Tick, &mut self.actions);
        let probe = |action: &Action| matches!(action, Action::ReadRecord { .. });
        let at = self.actions.iter().position(probe).expect("an idle writer looks");
        self.actions.remove(at);
        self.send(Event::RecordRead { seq: Seq(3), bytes: Some(b"another's".to_vec()) });
        assert!(self.fenced);
    }

    /// Answers the actions of rounds, until one is over.
    fn finish_round(&mut self) {
        let of_round = |action: &Action| {
            matches!(action, Action::SyncSide { .. } | Action::WriteMap(_) | Action::SyncMap)
        };
        let before = self.completed.len();
        while self.completed.len() == before && self.actions.iter().any(of_round) {
            self.answer(of_round, Ok(()));
        }
    }
}

#[test]
fn a_fua_write_completes_at_the_end_of_its_round() {
    let mut bench = Bench::new(Durability::Local);
    // The first write of a map page writes a header, too.
    bench.request(7, Op::Write, 4);
    bench.finish();
    bench.request(7, Op::Flush, 0);
    bench.finish();
    bench.completed.clear();
    bench.request(0, Op::WriteFua, 3);
    bench.store(0);
    assert!(matches!(bench.actions[..], [Action::SyncSide { side: Side::A }]), "{:?}", bench.actions);
    bench.answer(|_| true, Ok(()));
    assert!(matches!(bench.actions[..], [Action::WriteMap(_)]), "{:?}", bench.actions);
    bench.answer(|_| true, Ok(()));
    assert_eq!(bench.actions, [Action::SyncMap]);
    assert_eq!(bench.completed, [], "its map page is not synced");
    bench.answer(|_| true, Ok(()));
    assert_eq!((bench.completed, bench.actions), (vec![(0, Ok(()))], vec![]));
}

/// A round that began before the data was stored may have synced the side too early.
#[test]
fn a_round_begun_before_does_not_complete_a_fua_write() {
    let mut bench = Bench::new(Durability::Local);
    bench.request(0, Op::Write, 3);
    bench.store(0);
    bench.request(1, Op::WriteFua, 4);
    bench.request(2, Op::Flush, 0);
    bench.completed.clear();
    bench.store(1);
    bench.finish_round();
    assert_eq!(bench.completed, [(2, Ok(()))], "the flush does not wait for the FUA write");
    bench.finish_round();
    assert_eq!(bench.completed, [(2, Ok(())), (1, Ok(()))]);
}

#[test]
fn fua_writes_and_flushes_share_one_round() {
    let mut bench = Bench::new(Durability::Local);
    bench.request(0, Op::WriteFua, 3);
    bench.store(0);
    for id in 1..4 {
        bench.request(id, Op::WriteFua, 4 + u64::from(id));
        bench.store(id);
    }
    bench.request(4, Op::Flush, 0);
    bench.finish_round();
    assert_eq!(bench.completed, [(0, Ok(()))]);
    bench.finish_round();
    assert_eq!(bench.completed.len(), 5);
    assert_eq!(bench.actions, []);
}

#[test]
fn a_round_that_fails_fails_its_fua_writes() {
    let mut bench = Bench::new(Durability::Local);
    bench.request(0, Op::WriteFua, 3);
    bench.store(0);
    bench.answer(|action| matches!(action, Action::SyncSide { .. }), Ok(()));
    bench.answer(|action| matches!(action, Action::WriteMap(_)), Err(Errno::EIO));
    assert_eq!(bench.completed, [(0, Err(Errno::EIO))]);
}

#[test]
fn fua_writes_wait_for_a_commit_after_a_failed_sync() {
    let mut bench = Bench::new(Durability::Local);
    bench.request(0, Op::WriteFua, 3);
    bench.store(0);
    bench.answer(|action| matches!(action, Action::SyncSide { .. }), Err(Errno::EIO));
    assert_eq!(bench.completed, [(0, Err(Errno::EIO))]);
    bench.finish();
    bench.request(1, Op::WriteFua, 3);
    bench.store(1);
    assert!(matches!(bench.actions[..], [Action::Upload { .. }]), "{:?}", bench.actions);
    bench.answer(|_| true, Ok(()));
    bench.answer(|action| matches!(action, Action::StorePending { .. }), Ok(()));
    assert_eq!(bench.completed.len(), 1, "its record is not in the log");
    bench.answer(|action| matches!(action, Action::CreateRecord { .. }), Ok(()));
    assert_eq!(bench.completed[1..], [(1, Ok(()))]);
}

#[test]
fn with_durability_object_a_fua_write_waits_for_its_commit() {
    let mut bench = Bench::new(Durability::Object);
    bench.request(0, Op::WriteFua, 3);
    bench.store(0);
    while !matches!(bench.actions[..], [Action::CreateRecord { .. }]) {
        assert_eq!(bench.completed, []);
        bench.answer(|_| true, Ok(()));
    }
    assert_eq!(bench.completed, []);
    bench.answer(|_| true, Ok(()));
    assert_eq!(bench.completed, [(0, Ok(()))]);
}

/// The store is unreachable: FUA writes take all requests but one.
#[test]
fn reads_are_served_while_fua_writes_wait_for_the_store() {
    let mut bench = Bench::new(Durability::Object);
    for id in 0..7 {
        bench.request(id, Op::WriteFua, 3 + u64::from(id));
        bench.store(id);
    }
    let is_local = |action: &Action| !matches!(action, Action::Upload { .. });
    while bench.actions.iter().any(is_local) {
        bench.answer(is_local, Ok(()));
    }
    assert_eq!((bench.completed.len(), bench.volume.status().parked), (0, 7));
    bench.request(7, Op::Read, 4);
    let Some(Action::Read { id, .. }) = bench.actions.pop() else { panic!("{:?}", bench.actions) };
    bench.send(Event::IoCompleted { id, result: Ok(()) });
    assert_eq!(bench.completed, [(7, Ok(()))]);
    bench.finish();
    assert_eq!(bench.completed.len(), 8);
}

#[test]
fn a_fua_write_without_space_is_written_again() {
    let mut bench = Bench::new(Durability::Local);
    bench.request(0, Op::WriteFua, 3);
    bench.answer(|action| matches!(action, Action::Write { .. }), Err(Errno::ENOSPC));
    assert_eq!((&bench.completed, &bench.actions), (&vec![], &vec![]));
    bench.send(Event::Tick);
    bench.store(0);
    assert_eq!(bench.completed, []);
    bench.finish();
    assert_eq!(bench.completed, [(0, Ok(()))]);
}

/// The discard was issued while the data of the FUA write was not stored: either may be the last, and both
/// are durable.
#[test]
fn a_fua_write_concurrent_with_a_discard_is_durable() {
    let mut bench = Bench::new(Durability::Local);
    bench.request(0, Op::WriteFua, 3);
    bench.request(1, Op::Discard, 3);
    bench.store(0);
    bench.answer(|action| matches!(action, Action::Punch { .. }), Ok(()));
    assert_eq!(bench.completed, [(1, Ok(()))]);
    bench.finish();
    assert_eq!(bench.completed, [(1, Ok(())), (0, Ok(()))]);
    assert_eq!(bench.volume.status().dirty_bytes, 2 * 4096, "what the disk took last counts as data");
}

#[test]
fn a_fua_write_stored_after_the_fencing_fails() {
    let mut bench = Bench::new(Durability::Local);
    bench.request(0, Op::WriteFua, 3);
    bench.fence();
    bench.store(0);
    assert_eq!(bench.completed, [(0, Err(Errno::EIO))]);
    assert_eq!(bench.actions, []);
}

/// Regression: the round synced everything, so a flush in it succeeded, although the volume belonged to
/// another writer by then. A successful flush guarantees that the volume keeps the covered data.
#[test]
fn flushes_of_a_round_that_runs_at_the_fencing_fail() {
    let mut bench = Bench::new(Durability::Local);
    bench.request(0, Op::Write, 3);
    bench.store(0);
    bench.completed.clear();
    bench.request(1, Op::Flush, 0);
    bench.request(2, Op::Flush, 0);
    bench.fence();
    let failed = |id| (id, Err(Errno::EIO));
    assert_eq!(bench.completed, [failed(1), failed(2)], "the next round's fail with it");
    bench.finish();
    assert_eq!(bench.completed.len(), 2, "each is completed once");
}

/// The durability in effect when the write completes counts.
#[test]
fn durability_object_also_delays_fua_writes_in_a_round() {
    let mut bench = Bench::new(Durability::Local);
    bench.request(0, Op::WriteFua, 3);
    bench.store(0);
    // One in the round, and one for the next.
    bench.request(1, Op::Flush, 0);
    bench.configure(Durability::Object);
    let in_log = |bench: &Bench| bench.volume.status().committed;
    let before = in_log(&bench);
    while in_log(&bench) == before {
        assert_eq!(bench.completed, []);
        bench.answer(|_| true, Ok(()));
    }
    bench.finish();
    assert_eq!(bench.completed.len(), 2, "{:?}", bench.completed);
}

#[test]
fn flushes_stop_waiting_for_commits_once_durability_is_local() {
    let mut bench = Bench::new(Durability::Object);
    bench.request(0, Op::WriteFua, 3);
    bench.store(0);
    let is_local = |action: &Action| !matches!(action, Action::Upload { .. });
    while bench.actions.iter().any(is_local) {
        bench.answer(is_local, Ok(()));
    }
    bench.request(1, Op::Write, 4);
    bench.store(1);
    bench.completed.clear();
    // Its round is not over.
    bench.request(2, Op::Flush, 0);
    bench.configure(Durability::Local);
    assert_eq!(bench.completed, [(0, Ok(()))]);
    bench.finish_round();
    assert_eq!(bench.completed, [(0, Ok(())), (2, Ok(()))]);
    bench.finish();
    assert_eq!(bench.completed.len(), 2, "the commits answer none of them again");
}

/// Local syncs no longer prove anything, whatever the setting.
#[test]
fn after_a_failed_sync_flushes_wait_with_any_durability() {
    let mut bench = Bench::new(Durability::Object);
    bench.request(0, Op::WriteFua, 3);
    bench.store(0);
    bench.answer(|action| matches!(action, Action::SyncSide { .. }), Err(Errno::EIO));
    bench.request(1, Op::Flush, 0);
    bench.completed.clear();
    bench.configure(Durability::Local);
    assert_eq!(bench.completed, []);
    bench.finish();
    assert_eq!(bench.completed, [(1, Ok(()))]);
}

#[test]
fn a_fenced_writer_accepts_settings_and_repeats_no_answer() {
    let mut bench = Bench::new(Durability::Local);
    bench.request(0, Op::WriteFua, 3);
    bench.store(0);
    bench.fence();
    bench.configure(Durability::Object);
    bench.configure(Durability::Local);
    bench.finish();
    assert_eq!(bench.completed, [(0, Err(Errno::EIO))]);
}
