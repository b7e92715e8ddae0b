//! Status of a volume while writes wait for space.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use holdfast_engine::action::Action;
use holdfast_engine::durable_map::Header;
use holdfast_engine::event::{CreateAnswer, Errno, Event, Op, RequestId, Unprepared};
use holdfast_engine::sector_map::map_bytes;
use holdfast_engine::settings::{AttachState, DirtyLimits, Durability, Setup};
use holdfast_engine::volume::{Delay, Volume};
use holdfast_format::chunk_ranges::ChunkRanges;
use holdfast_format::limit::MAX_SECTORS;
use holdfast_format::manifest::Manifest;
use holdfast_format::record::{Body, Record};
use holdfast_format::segment::SegmentRef;
use holdfast_format::side::{Side, SideSet};
use holdfast_types::{Chunk, Epoch, Nonce, SectorRange, SegmentId, Seq, VolumeId};

const SECTORS: u64 = 8192;

/// Returns a newly attached volume, at 1000 ms of its clock.
fn volume() -> Volume<Vec<u8>> {
    let (volume, nonce): (VolumeId, _) = ("disk".parse().unwrap(), Nonce([7; 16]));
    let mut manifest = Manifest::empty(volume.clone());
    for (epoch, body) in [
        (0, Body::create(SECTORS)),
        (1, Body::Attach { sectors: SECTORS, node: "a".to_owned(), displaced: None }),
    ] {
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
        requests: 4,
        limits: DirtyLimits { seal_bytes: 64 << 20, max_bytes: 64 << 20, max_age_ms: 60_000 },
        durability: Durability::Local,
        header,
        header_generation: 0,
        unix_ms_at_zero: 0,
    };
    let memory = vec![0; usize::try_from(map_bytes(SECTORS)).unwrap()];
    Volume::attach(setup, memory, AttachState::in_log(manifest), 1000, &mut Vec::new())
}

fn send(volume: &mut Volume<Vec<u8>>, now: u64, event: Event) -> Vec<Action> {
    let mut actions = Vec::new();
    volume.handle(now, event, &mut actions);
    actions
}

/// Regression: writes hung silently, and the status reported a wait for the object store.
#[test]
fn a_full_run_directory_is_named_until_there_is_room() {
    let mut volume = volume();
    let prepare = [Action::PrepareMap { chunk: Chunk(0) }];
    let write = Event::Request { id: RequestId(0), op: Op::Write, range: SectorRange::new(0, 1) };
    assert_eq!(send(&mut volume, 1000, write), prepare);
    assert_eq!(volume.status().delayed, None, "it is being tried");
    let full = Event::MapPrepared { chunk: Chunk(0), result: Err(Unprepared::RunDir(Errno::ENOSPC)) };
    assert_eq!(send(&mut volume, 1000, full), []);
    assert_eq!(send(&mut volume, 3000, Event::Tick), prepare, "it is tried again");
    let status = volume.status();
    assert_eq!((status.delayed, status.full.run_dir), (Some((Delay::RunDirFull, 2000)), true));
    let disk = Event::MapPrepared { chunk: Chunk(0), result: Err(Unprepared::Disk(Errno::ENOSPC)) };
    send(&mut volume, 3000, disk);
    assert_eq!(volume.status().delayed, Some((Delay::DiskFull, 2000)));
    send(&mut volume, 4000, Event::Tick);
    assert_eq!(volume.status().unkept, None);
    let broken = Event::MapPrepared { chunk: Chunk(0), result: Err(Unprepared::Disk(Errno::EROFS)) };
    send(&mut volume, 4000, broken);
    assert_eq!(volume.status().unkept, Some((Errno::EROFS, 3000)));
    send(&mut volume, 4000, Event::Tick);
    let done = send(&mut volume, 4000, Event::MapPrepared { chunk: Chunk(0), result: Ok(()) });
    assert!(matches!(done[0], Action::Write { .. }), "{done:?}");
    let status = volume.status();
    assert_eq!((status.delayed, status.full.run_dir, status.unkept), (None, false, None));
}

/// Found in review: where the file system of the state directory had been shut down, a read of zeros was
/// planned again and again, and its ring thread did nothing else.
#[test]
fn a_read_that_always_fails_ends() {
    let mut volume = volume();
    let (id, range) = (RequestId(0), SectorRange::new(0, 8));
    let mut actions = send(&mut volume, 1000, Event::Request { id, op: Op::Read, range });
    let mut plans = 0;
    while matches!(actions[..], [Action::Read { .. }]) {
        plans += 1;
        assert!(plans < 10, "it does not end");
        actions = send(&mut volume, 1000, Event::IoCompleted { id, result: Err(Errno::EIO) });
    }
    assert_eq!(actions, [Action::Complete { id, result: Err(Errno::EIO) }]);
}

/// Regression: a disk that failed each map write blocked every commit, and no status named it.
#[test]
fn a_round_that_fails_before_a_commit_is_named() {
    let mut volume = volume();
    drive(&mut volume, 1000, request(0, Op::Write, 0, 256), Ok(()));
    assert_eq!(send(&mut volume, 62_000, Event::Tick), [Action::ReadRecord { seq: Seq(3) }]);
    let round = send(&mut volume, 62_000, Event::RecordRead { seq: Seq(3), bytes: None });
    assert_eq!(round, Side::BOTH.map(|side| Action::SyncSide { side }));
    let [_, written] =
        Side::BOTH.map(|side| send(&mut volume, 62_000, Event::SideSynced { side, result: Ok(()) }));
    assert!(matches!(written[..], [Action::WriteMap(_)]), "{written:?}");
    send(&mut volume, 62_000, Event::MapWritten { result: Err(Errno::EROFS) });
    assert_eq!(volume.status().unkept, Some((Errno::EROFS, 0)));
    drive(&mut volume, 65_000, Event::Tick, Ok(()));
    assert_eq!((volume.status().unkept, volume.status().dirty_bytes), (None, 0), "the next one is written");
}

/// Regression: a host whose clock was corrected after the attach reported a wrong time for durable data
/// until the next attach.
#[test]
fn times_follow_a_clock_that_is_set_later() {
    let mut volume = volume();
    assert_eq!(volume.status().durable_until_unix_ms, Some(1000));
    volume.set_time_of_day(1_700_000_000_000);
    assert_eq!(volume.status().durable_until_unix_ms, Some(1_700_000_001_000));
}

/// The volume's reactions.
#[derive(Default)]
struct Reactions {
    /// The requests that completed.
    completed: Vec<(RequestId, Result<(), Errno>)>,
    /// Number of ranges that were evicted.
    evicted: usize,
    /// The chunks whose memory is to be released, which was not answered.
    released: Vec<Chunk>,
}

/// Sends `event` to the volume and answers all actions; syncs of sides end with `synced`.
fn drive(volume: &mut Volume<Vec<u8>>, now: u64, event: Event, synced: Result<(), Errno>) -> Reactions {
    let (mut events, mut reactions) = (vec![event], Reactions::default());
    while let Some(event) = events.pop() {
        let mut answers = Vec::new();
        for action in send(volume, now, event) {
            let result = Ok(());
            answers.push(match action {
                Action::Write { id, .. } | Action::Read { id, .. } | Action::Punch { id, .. } => {
                    Event::IoCompleted { id, result }
                }
                Action::Evict { .. } => {
                    reactions.evicted += 1;
                    Event::Evicted { result }
                }
                Action::PrepareMap { chunk } => Event::MapPrepared { chunk, result: Ok(()) },
                Action::ReleaseMap { chunk } => {
                    reactions.released.push(chunk);
                    continue;
                }
                Action::SyncSide { side } => Event::SideSynced { side, result: synced },
                Action::WriteMap(_) => Event::MapWritten { result },
                Action::SyncMap => Event::MapSynced { result },
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
                Action::StorePending { .. } => Event::PendingStored { result },
                Action::StoreRoot { .. } => Event::RootStored,
                Action::CreateRecord { .. } => Event::CreateAnswered(CreateAnswer::Created),
                Action::ReadRecord { seq } => Event::RecordRead { seq, bytes: None },
                Action::WriteCheckpoint { seq, .. } => Event::CheckpointWritten { seq, written: true },
                Action::Complete { id, result } => {
                    reactions.completed.push((id, result));
                    continue;
                }
                Action::Report(_) => continue,
                Action::ReadCold { .. } | Action::Merge(_) | Action::Pause => unreachable!("{action:?}"),
            });
        }
        events.splice(0..0, answers.into_iter().rev());
    }
    reactions
}

fn request(id: u32, op: Op, start: u64, sectors: u64) -> Event {
    Event::Request { id: RequestId(id), op, range: SectorRange::new(start, sectors) }
}

/// Returns a volume with only clean data, whose last sync of a side failed.
fn clean_with_a_failed_sync() -> Volume<Vec<u8>> {
    let mut volume = volume();
    drive(&mut volume, 1000, request(0, Op::Write, 0, 256), Ok(()));
    drive(&mut volume, 62_000, Event::Tick, Ok(()));
    assert_eq!((volume.status().dirty_bytes, volume.status().seal.begun), (0, 1));
    // A failed write to an unwritten range dirties nothing, and still the side must be synced.
    send(&mut volume, 62_000, request(0, Op::Write, 4096, 8));
    send(&mut volume, 62_000, Event::IoCompleted { id: RequestId(0), result: Err(Errno::EIO) });
    let flushed = drive(&mut volume, 62_000, request(0, Op::Flush, 0, 0), Err(Errno::EIO));
    assert_eq!(flushed.completed, [(RequestId(0), Err(Errno::EIO))]);
    let status = volume.status();
    assert!(status.sync_failed && status.dirty_bytes == 0 && status.oldest_dirty_ms.is_none());
    volume
}

/// Regression: clean data could not be evicted without a commit, no dirty data could be committed, and no
/// write that would create some was admitted: writes waited until the next attach.
#[test]
fn after_a_failed_sync_a_full_cache_admits_one_write() {
    let mut volume = clean_with_a_failed_sync();
    let (mut now, mut evictions) = (63_000, 0);
    let mut completed = Vec::new();
    let full = Event::Space { excess_bytes: 1 << 20, room_bytes: 0 };
    drive(&mut volume, now, full.clone(), Ok(()));
    for id in 0..2 {
        completed.extend(
            drive(&mut volume, now, request(id, Op::Write, 600 + u64::from(id), 1), Ok(())).completed,
        );
    }
    assert_eq!(completed, [(RequestId(0), Ok(()))], "one write is committed first");
    for _ in 0..4 {
        now += 1000;
        evictions += drive(&mut volume, now, Event::Tick, Ok(())).evicted;
    }
    assert!(evictions > 0, "its commit lets clean data be evicted");
    let room = Event::Space { excess_bytes: 0, room_bytes: 1 << 20 };
    assert_eq!(drive(&mut volume, now, room, Ok(())).completed, [(RequestId(1), Ok(()))]);
}

/// A batch that changes no map page needs a round with nothing to write: without an event that continues
/// the eviction, the space would be freed only at the next tick.
#[test]
fn an_eviction_whose_round_ends_at_once_punches_at_once() {
    let mut volume = volume();
    drive(&mut volume, 1000, request(0, Op::Flush, 0, 0), Ok(()));
    let excess = Event::Space { excess_bytes: 1 << 20, room_bytes: 1 << 20 };
    let whole = SectorRange::new(0, SECTORS);
    assert_eq!(send(&mut volume, 1000, excess), [Action::Evict { range: whole, side: Side::B }]);
}

/// Returns a volume whose first sectors are clean on the inactive side.
fn with_clean_data() -> Volume<Vec<u8>> {
    let mut volume = volume();
    drive(&mut volume, 1000, request(0, Op::Write, 0, 256), Ok(()));
    drive(&mut volume, 62_000, Event::Tick, Ok(()));
    assert_eq!(volume.status().seal.begun, 1);
    volume
}

const EXCESS: Event = Event::Space { excess_bytes: 1 << 20, room_bytes: 1 << 20 };

/// Regression: each 128 MiB ever written kept 16 KiB of the run directory until the next attach.
#[test]
fn a_chunk_without_local_data_returns_its_memory() {
    let mut volume = with_clean_data();
    let chunk = Chunk(0);
    assert_eq!(drive(&mut volume, 62_000, EXCESS, Ok(())).released, [chunk]);
    let read = send(&mut volume, 62_000, request(0, Op::Read, 0, 1));
    assert!(matches!(read[..], [Action::ReadCold { .. }]), "{read:?}");
    assert_eq!(send(&mut volume, 62_000, request(1, Op::Write, 9, 1)), [], "it is not there yet, nor gone");
    assert_eq!(send(&mut volume, 62_000, Event::MapReleased { chunk }), [Action::PrepareMap { chunk }]);
    let written = drive(&mut volume, 62_000, Event::MapPrepared { chunk, result: Ok(()) }, Ok(()));
    assert_eq!(written.completed, [(RequestId(1), Ok(()))]);
    assert_eq!(volume.status().dirty_bytes, 4096);
}

#[test]
fn a_chunk_with_a_write_in_flight_keeps_its_memory() {
    let mut volume = with_clean_data();
    let write = send(&mut volume, 62_000, request(1, Op::Write, 4097, 1));
    assert!(matches!(write[..], [Action::Write { .. }]), "{write:?}");
    let reactions = drive(&mut volume, 62_000, EXCESS, Ok(()));
    assert!(reactions.evicted > 0 && reactions.released.is_empty());
    drive(&mut volume, 62_000, Event::IoCompleted { id: RequestId(1), result: Ok(()) }, Ok(()));
    assert_eq!(volume.status().dirty_bytes, 4096);
}

/// Otherwise data that the durable map still calls dirty would be punched without a check.
#[test]
fn a_chunk_that_changed_since_the_round_keeps_its_memory() {
    let mut volume = volume();
    for (id, start) in [(0, 0), (1, 4096)] {
        drive(&mut volume, 1000, request(id, Op::Write, start, 256), Ok(()));
    }
    drive(&mut volume, 62_000, Event::Tick, Ok(()));
    assert_eq!(volume.status().dirty_bytes, 0);
    let round = send(&mut volume, 62_000, EXCESS);
    assert!(matches!(round[..], [Action::WriteMap(_)]), "{round:?}: of the first page");
    // The rest becomes remote after the round has copied it.
    let read = send(&mut volume, 62_000, request(0, Op::Read, 4096, 256));
    assert!(matches!(read[..], [Action::Read { .. }]), "{read:?}");
    send(&mut volume, 62_000, Event::IoCompleted { id: RequestId(0), result: Err(Errno::EIO) });
    let reactions = drive(&mut volume, 62_000, Event::MapWritten { result: Ok(()) }, Ok(()));
    assert!(reactions.evicted > 0 && reactions.released.is_empty(), "{:?}", reactions.released);
}

/// Regression: a record with a larger size cannot be read, and the volume was lost with it.
#[test]
fn a_growth_beyond_the_largest_size_never_reaches_the_log() {
    let mut volume = volume();
    let mut grow = |sectors| {
        volume.memory_mut().resize(usize::try_from(map_bytes(2 * SECTORS)).unwrap(), 0);
        send(&mut volume, 1000, Event::Grow { sectors })
    };
    assert_eq!(grow(MAX_SECTORS + 1), []);
    assert!(
        matches!(grow(2 * SECTORS)[..], [Action::StorePending { .. }]),
        "the next request is not held up"
    );
    assert_eq!(volume.status().sectors, SECTORS);
}

/// The direct path accepts requests that one operation on a side answers; events handle any other.
#[test]
fn the_direct_path_takes_no_request_beyond_the_end() {
    let mut volume = volume();
    let inside = SectorRange::new(0, 1);
    assert_eq!(volume.begin(1000, RequestId(0), Op::Write, inside), None, "the map has no place yet");
    send(&mut volume, 1000, Event::Request { id: RequestId(0), op: Op::Write, range: inside });
    send(&mut volume, 1000, Event::MapPrepared { chunk: Chunk(0), result: Ok(()) });
    assert!(volume.end(1000, RequestId(0)));
    for op in [Op::Read, Op::Write] {
        assert_eq!(volume.begin(1000, RequestId(0), op, inside), Some(Side::A), "{op:?}");
        assert!(volume.end(1000, RequestId(0)));
    }
    for op in [Op::WriteFua, Op::Discard, Op::WriteZeroes, Op::Flush] {
        assert_eq!(volume.begin(1000, RequestId(0), op, inside), None, "{op:?}");
    }
    for (op, start) in [(Op::Write, SECTORS - 1), (Op::Write, SECTORS), (Op::Read, SECTORS - 1)] {
        let range = SectorRange::new(start, 2);
        assert_eq!(volume.begin(1000, RequestId(0), op, range), None, "{op:?} {range:?}");
        let refused = send(&mut volume, 1000, Event::Request { id: RequestId(0), op, range });
        assert_eq!(refused, [Action::Complete { id: RequestId(0), result: Err(Errno::EIO) }]);
    }
}
