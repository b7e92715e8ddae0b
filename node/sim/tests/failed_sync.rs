//! A failed sync of a side is final: the data that it covered may be lost although it reads back, and
//! later successful syncs do not change that.

use holdfast_engine::action::Action;
use holdfast_engine::event::{Errno, Op};
use holdfast_engine::settings::DirtyLimits;
use holdfast_sim::world::{AttachStep, Faults, World};
use holdfast_sim::{Fate, drive};
use holdfast_types::SectorRange;

const LIMITS: DirtyLimits =
    DirtyLimits { seal_bytes: 1 << 20, max_bytes: 2 << 20, max_age_ms: 1_000_000_000 };
const NO_SYNC: Faults =
    Faults { local: None, sync: Some(1), create: None, store: None, read: None, stale_list: None };
const NO_LOCAL: Faults =
    Faults { local: Some(1), sync: None, create: None, store: None, read: None, stale_list: None };

fn world() -> World {
    let mut world = World::new(1, 2, 40_000, LIMITS, Faults::default());
    drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    world
}

fn request(world: &mut World, op: Op, start: u64, sectors: u64) -> Result<(), Errno> {
    world.request(0, op, SectorRange::new(start, sectors)).expect("the device has room");
    let mut answer = None;
    while !drive::is_idle(world, 0) {
        if let Some(Action::Complete { result, .. }) = world.jobs(0).next() {
            answer = Some(*result);
        }
        drive::step(world, 0);
    }
    answer.expect("it was completed")
}

fn flush(world: &mut World) -> Result<(), Errno> {
    request(world, Op::Flush, 0, 0)
}

/// Creates a flushed write, and one over it whose sync failed.
fn sync_failed() -> World {
    let mut world = world();
    assert_eq!(request(&mut world, Op::Write, 7, 4), Ok(()));
    assert_eq!(flush(&mut world), Ok(()));
    assert_eq!(request(&mut world, Op::Write, 7, 2), Ok(()));
    world.set_faults(NO_SYNC);
    assert_eq!(flush(&mut world), Err(Errno::EIO));
    world.set_faults(Faults::default());
    world
}

/// Checks that every sector is correct after a power cut that leaves nothing unsynced, on any later
/// reader.
fn check_power_cut(mut world: World) {
    world.lose_host(0, Some(Fate::Nothing));
    check_reads(world);
}

fn check_reads(mut world: World) {
    drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    drive::read_all(&mut world, 0);
    drive::check_everywhere(&mut world, 0, 1);
}

/// The flush succeeds once all data is committed, and the data that it covers survives.
#[test]
fn a_flush_after_a_failed_sync_waits_for_the_commit() {
    let mut world = sync_failed();
    assert!(!world.has_commit());
    flush(&mut world).unwrap();
    assert!(world.has_commit());
    assert!(world.status(0).unwrap().sync_failed);
    check_power_cut(world);
}

#[test]
fn data_flushed_before_a_failed_sync_survives_uncommitted() {
    check_power_cut(sync_failed());
}

#[test]
fn a_failed_sync_is_remembered_by_the_next_daemon() {
    let mut world = sync_failed();
    world.kill(0);
    drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    flush(&mut world).unwrap();
    assert!(world.has_commit());
    check_power_cut(world);
}

#[test]
fn flushes_go_to_the_store_only_until_the_next_attach() {
    let mut world = sync_failed();
    drive::detach(&mut world, 0);
    drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    request(&mut world, Op::Write, 9, 1).unwrap();
    let before = world.store_requests();
    flush(&mut world).unwrap();
    assert_eq!(world.store_requests(), before, "the disk is believed again");
    check_power_cut(world);
}

/// Regression: only failed syncs of the sides counted. A sync of the durable map flushes the same disk, and
/// when it failed, a write that had ended after the sync of its side was lost, although a later FLUSH
/// succeeded.
#[test]
fn a_failed_sync_of_the_map_counts_for_the_sides() {
    let mut world = world();
    let is_next = |world: &World, wanted: fn(&Action) -> bool| world.jobs(0).next().is_some_and(wanted);
    request(&mut world, Op::Write, 7, 4).unwrap();
    world.request(0, Op::Flush, SectorRange::new(0, 0)).expect("the device has room");
    drive::until(&mut world, 0, |world| is_next(world, |action| matches!(action, Action::WriteMap(_))));
    world.request(0, Op::Write, SectorRange::new(9, 1)).expect("the device has room");
    drive::until(&mut world, 0, |world| is_next(world, |action| matches!(action, Action::SyncMap)));
    world.set_faults(NO_LOCAL);
    drive::step(&mut world, 0);
    world.set_faults(Faults::default());
    drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    flush(&mut world).unwrap();
    assert!(world.status(0).unwrap().sync_failed && world.has_commit());
    check_power_cut(world);
}

#[test]
fn files_of_a_failed_detach_are_not_the_volume() {
    let mut world = sync_failed();
    drive::detach(&mut world, 0);
    check_power_cut(world);
}

#[test]
fn overwriting_committed_data_does_not_restore_older_bytes() {
    let mut world = sync_failed();
    for _ in 0..3 {
        flush(&mut world).unwrap();
        request(&mut world, Op::Write, 8, 2).unwrap();
    }
    check_power_cut(world);
}

/// Lets every LIST show an older state for some time.
fn show_older_logs(world: &mut World, seed: u64) {
    world.reseed(seed);
    world.set_faults(Faults { stale_list: Some(1), ..Faults::default() });
    for _ in 0..40 {
        drive::step(world, 0);
    }
    world.set_faults(Faults::default());
}

/// Regression: a daemon took over before the first round of its predecessor, whose epoch was not stored
/// yet, and wrote a header of the previous epoch. An attach that read a log of that epoch applied the
/// invalidations of that epoch's writer to data that was flushed since.
#[test]
fn an_older_log_invalidates_no_data_flushed_by_a_successor() {
    for seed in 0..16 {
        let mut world = sync_failed();
        flush(&mut world).unwrap();
        world.lose_host(0, Some(Fate::Nothing));
        drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
        world.kill(0);
        world.set_faults(Faults { read: Some(1), ..Faults::default() });
        drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
        request(&mut world, Op::Write, 7, 3).unwrap();
        flush(&mut world).unwrap();
        assert_eq!(world.status(0).unwrap().committed, None, "it does not know the log");
        world.lose_host(0, Some(Fate::Nothing));
        show_older_logs(&mut world, 1000 + seed);
        check_reads(world);
    }
}

/// Regression: an attach read the log as of before a takeover, and noted in the header the sides that this
/// log called invalid. It thus dropped data that the last round of the fenced writer had named since.
#[test]
fn an_older_log_invalidates_nothing_of_a_fenced_writer() {
    for seed in 0..16 {
        let mut world = sync_failed();
        flush(&mut world).unwrap();
        request(&mut world, Op::Write, 7, 3).unwrap();
        drive::until(&mut world, 1, |world| drive::is_idle(world, 1));
        world.request(0, Op::Flush, SectorRange::new(0, 0)).expect("the device has room");
        drive::until(&mut world, 0, |world| !world.has_device(0));
        show_older_logs(&mut world, 1000 + seed);
        drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    }
}

/// Regression: a header whose sync failed was read back at the next attach and taken for the newest. The
/// power failed while the other slot, the only synced one, was being written.
#[test]
fn a_failed_header_sync_does_not_free_the_other_slot() {
    for seed in 0..1500 {
        let mut world = World::new(seed, 2, 40_000, LIMITS, Faults::default());
        for _ in 0..40 {
            world.attach(0, true, Some(AttachStep::HeaderSynced));
        }
        world.set_faults(Faults { local: Some(4), ..Faults::default() });
        world.attach(0, true, Some(AttachStep::HeaderSynced));
        world.attach(0, true, Some(AttachStep::HeaderWritten));
        world.lose_host(0, None);
        world.set_faults(Faults::default());
        drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    }
}
