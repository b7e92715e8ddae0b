//! Status of a volume while writes wait for room.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use holdfast_engine::action::Action;
use holdfast_engine::durable_map::Header;
use holdfast_engine::event::{Errno, Event, Op, RequestId, Unprepared};
use holdfast_engine::manifest::Manifest;
use holdfast_engine::record::{Body, Record};
use holdfast_engine::sector_map::{Side, SideSet, map_bytes};
use holdfast_engine::volume::{Delay, DirtyLimits, Durability, Setup, Volume};
use holdfast_types::{Chunk, Epoch, Nonce, SectorRange, Seq, VolumeId};

const SECTORS: u64 = 8192;

/// A volume just attached, at 1000 ms of its clock.
fn volume() -> Volume<Vec<u8>> {
    let (volume, nonce): (VolumeId, _) = ("disk".parse().unwrap(), Nonce([7; 16]));
    let mut manifest = Manifest::empty(volume.clone());
    for (epoch, body) in [
        (0, Body::Create { sectors: SECTORS }),
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
        seq: Seq(0),
        synced_generation: 0,
    };
    let setup = Setup {
        requests: 4,
        limits: DirtyLimits { seal_bytes: 64 << 20, most_bytes: 64 << 20, max_age_ms: 60_000 },
        durability: Durability::Local,
        header,
        header_generation: 0,
        unix_ms_at_zero: 0,
    };
    let memory = vec![0; usize::try_from(map_bytes(SECTORS)).unwrap()];
    Volume::attach(setup, memory, manifest, &[], false, 1000, &mut Vec::new())
}

fn tell(volume: &mut Volume<Vec<u8>>, now: u64, event: Event) -> Vec<Action> {
    let mut actions = Vec::new();
    volume.handle(now, event, &mut actions);
    actions
}

/// Writes hung without a word: the status named no reason, and said that they waited for the object store.
#[test]
fn a_full_run_directory_is_named_until_there_is_room() {
    let mut volume = volume();
    let prepare = [Action::PrepareMap { chunk: Chunk(0) }];
    let write = Event::Request { id: RequestId(0), op: Op::Write, range: SectorRange::new(0, 1) };
    assert_eq!(tell(&mut volume, 1000, write), prepare);
    assert_eq!(volume.status().delayed, None, "it is being tried");
    let full = Event::MapPrepared { chunk: Chunk(0), result: Err(Unprepared::RunDir(Errno::ENOSPC)) };
    assert_eq!(tell(&mut volume, 1000, full), []);
    assert_eq!(tell(&mut volume, 3000, Event::Tick), prepare, "it is tried again");
    let status = volume.status();
    assert_eq!((status.delayed, status.full.run_dir), (Some((Delay::RunDirFull, 2000)), true));
    let disk = Event::MapPrepared { chunk: Chunk(0), result: Err(Unprepared::Disk(Errno::ENOSPC)) };
    tell(&mut volume, 3000, disk);
    assert_eq!(volume.status().delayed, Some((Delay::DiskFull, 2000)));
    tell(&mut volume, 4000, Event::Tick);
    let done = tell(&mut volume, 4000, Event::MapPrepared { chunk: Chunk(0), result: Ok(()) });
    assert!(matches!(done[0], Action::Write { .. }), "{done:?}");
    let status = volume.status();
    assert_eq!((status.delayed, status.full.run_dir), (None, false));
}

/// A host whose clock was set right after the attach reported a wrong time for what is durable until the next
/// attach.
#[test]
fn times_follow_a_clock_that_is_set_later() {
    let mut volume = volume();
    assert_eq!(volume.status().durable_until_unix_ms, Some(1000));
    volume.set_time_of_day(1_700_000_000_000);
    assert_eq!(volume.status().durable_until_unix_ms, Some(1_700_000_001_000));
}
