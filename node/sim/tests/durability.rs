//! `durability: object`, request by request: the time of a FLUSH's answer, and its cost.

use holdfast_engine::action::Action;
use holdfast_engine::event::Op;
use holdfast_engine::settings::{DirtyLimits, Durability, RuntimeSettings};
use holdfast_sim::drive;
use holdfast_sim::world::{AttachResult, Faults, World};
use holdfast_types::{SECTOR_BYTES, SectorRange};

const LIMITS: DirtyLimits =
    DirtyLimits { seal_bytes: 1 << 20, max_bytes: 2 << 20, max_age_ms: 1_000_000_000 };

fn world() -> World {
    let mut world = World::new(1, 2, 40_000, LIMITS, Faults::default());
    world.set_durability(Durability::Object);
    assert_eq!(world.attach(0, false, None), AttachResult::Acquired);
    drive::until(&mut world, 0, |world| world.is_ready(0));
    world
}

fn request(world: &mut World, op: Op, start: u64, sectors: u64) {
    world.request(0, op, SectorRange::new(start, sectors)).expect("the device has room");
}

fn write(world: &mut World, start: u64) {
    request(world, Op::Write, start, 1);
    drive::until(world, 0, |world| drive::is_idle(world, 0));
}

fn creates_record(world: &World) -> bool {
    world.has_record_in_flight(0)
}

#[test]
fn flushes_share_the_commit_that_covers_them() {
    let mut world = world();
    write(&mut world, 7);
    let before = world.store_requests();
    for _ in 0..3 {
        request(&mut world, Op::Flush, 0, 0);
    }
    drive::until(&mut world, 0, creates_record);
    assert_eq!(world.status(0).unwrap().parked, 3, "all wait for the store");
    drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    assert!(world.has_commit());
    assert_eq!(world.store_requests() - before, 2, "one segment, one record");
}

#[test]
fn a_flush_of_later_writes_waits_for_the_next_commit() {
    let mut world = world();
    write(&mut world, 7);
    request(&mut world, Op::Flush, 0, 0);
    let before = world.status(0).unwrap().committed.unwrap();
    // The seal is in progress.
    drive::until(&mut world, 0, |world| {
        world.jobs(0).any(|action| matches!(action, Action::SyncSide { .. }))
    });
    request(&mut world, Op::Write, 8, 1);
    drive::until(&mut world, 0, |world| world.status(0).unwrap().dirty_bytes == 2 * 4096);
    request(&mut world, Op::Flush, 0, 0);
    drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    assert_eq!(world.status(0).unwrap().committed.unwrap().0, before.0 + 2);
    assert_eq!(world.status(0).unwrap().dirty_bytes, 0);
}

#[test]
fn a_flush_with_nothing_dirty_costs_no_request() {
    let mut world = world();
    write(&mut world, 7);
    for _ in 0..2 {
        request(&mut world, Op::Flush, 0, 0);
        drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    }
    let before = world.store_requests();
    request(&mut world, Op::Flush, 0, 0);
    drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    assert_eq!(world.store_requests(), before);
}

#[test]
fn a_waiting_flush_fails_at_a_takeover() {
    let mut world = world();
    write(&mut world, 7);
    request(&mut world, Op::Flush, 0, 0);
    drive::until(&mut world, 0, creates_record);
    assert_eq!(world.attach(1, true, None), AttachResult::Acquired);
    drive::until(&mut world, 0, |world| world.is_fenced(0) && world.jobs(0).next().is_none());
    assert_eq!(world.status(0).unwrap().parked, 0, "it was answered");
    assert!(!world.has_commit());
}

#[test]
fn a_flush_of_a_killed_daemon_starts_over() {
    let mut world = world();
    write(&mut world, 7);
    request(&mut world, Op::Flush, 0, 0);
    drive::until(&mut world, 0, creates_record);
    world.kill(0);
    drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    assert!(world.has_commit());
}

#[test]
fn the_age_of_dirty_data_outlives_the_process() {
    let mut world = World::new(1, 2, 40_000, LIMITS, Faults::default());
    assert_eq!(world.attach(0, false, None), AttachResult::Acquired);
    drive::until(&mut world, 0, |world| world.is_ready(0));
    world.tick(0, 1000);
    write(&mut world, 7);
    let until = world.status(0).unwrap().durable_until_unix_ms.unwrap();
    world.tick(0, 4000);
    world.kill(0);
    drive::until(&mut world, 0, |world| world.status(0).is_some());
    world.tick(0, 1000);
    let status = world.status(0).unwrap();
    assert_eq!(status.oldest_dirty_ms, Some(5000));
    assert_eq!(status.durable_until_unix_ms, Some(until));
}

/// Creates an attached volume with one write and no early commit.
fn world_with_a_write() -> World {
    let mut world = World::new(1, 2, 40_000, LIMITS, Faults::default());
    assert_eq!(world.attach(0, false, None), AttachResult::Acquired);
    drive::until(&mut world, 0, |world| world.is_ready(0));
    write(&mut world, 7);
    world
}

/// Regression: the process died between the record of the settings and the planner, and its successor
/// waited for the age limit of the data.
#[test]
fn a_successor_commits_data_flushed_before_durability_was_object() {
    let mut world = world_with_a_write();
    request(&mut world, Op::Flush, 0, 0);
    drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    world.kill(0);
    world.configure(0, RuntimeSettings { max_age_ms: LIMITS.max_age_ms, durability: Durability::Object });
    drive::until(&mut world, 0, |world| world.has_commit());
}

#[test]
fn a_shorter_age_limit_seals_old_data_at_once() {
    let mut world = world_with_a_write();
    world.tick(0, 5000);
    assert!(!world.status(0).unwrap().seal.in_progress);
    world.configure(0, RuntimeSettings { max_age_ms: 6000, durability: Durability::Local });
    assert!(!world.status(0).unwrap().seal.in_progress, "it is younger than that");
    world.configure(0, RuntimeSettings { max_age_ms: 5000, durability: Durability::Local });
    assert!(world.status(0).unwrap().seal.in_progress);
    assert_eq!(world.status(0).unwrap().settings.max_age_ms, 5000);
    drive::until(&mut world, 0, |world| world.has_commit());
}

/// A drained node commits each second, regardless of the volume's own limits, and reports those.
#[test]
fn dirty_data_is_committed_soon_on_request() {
    let mut world = world_with_a_write();
    let usual = world.status(0).unwrap().settings;
    let begins_after = |world: &mut World, passed| {
        world.tick(0, passed);
        world.status(0).unwrap().seal.in_progress
    };
    assert!(!begins_after(&mut world, 5000));
    world.commit_soon(0, true);
    assert!(world.status(0).unwrap().seal.in_progress, "it is older than a second");
    drive::until(&mut world, 0, |world| world.has_commit() && world.status(0).unwrap().dirty_bytes == 0);
    let requests = world.store_requests();
    assert!(!begins_after(&mut world, 100_000), "nothing is dirty");
    write(&mut world, 8);
    assert!(!begins_after(&mut world, 999));
    assert_eq!(world.store_requests(), requests, "an idle volume costs nothing");
    assert!(begins_after(&mut world, 1));
    drive::until(&mut world, 0, |world| world.status(0).unwrap().dirty_bytes == 0);
    assert_eq!(world.status(0).unwrap().settings, usual);
    world.commit_soon(0, false);
    write(&mut world, 9);
    assert!(!begins_after(&mut world, 5000));
}

#[test]
fn a_dirty_mebibyte_is_committed_soon_on_request() {
    let limits = DirtyLimits { seal_bytes: 64 << 20, max_bytes: 64 << 20, ..LIMITS };
    let mut world = World::new(1, 2, 40_000, limits, Faults::default());
    assert_eq!(world.attach(0, false, None), AttachResult::Acquired);
    drive::until(&mut world, 0, |world| world.is_ready(0));
    world.commit_soon(0, true);
    let sectors = (1 << 20) / SECTOR_BYTES;
    for start in 0..sectors {
        assert!(!world.status(0).unwrap().seal.in_progress, "{start} sectors are dirty");
        write(&mut world, start);
    }
    assert!(world.status(0).unwrap().seal.in_progress);
}

#[test]
fn a_killed_daemon_continues_with_the_newest_settings() {
    let mut world = world_with_a_write();
    let settings = RuntimeSettings { max_age_ms: 9000, durability: Durability::Object };
    world.configure(0, settings);
    world.kill(0);
    drive::until(&mut world, 0, |world| world.status(0).is_some());
    assert_eq!(world.status(0).unwrap().settings, settings);
    request(&mut world, Op::Flush, 0, 0);
    drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    assert!(world.has_commit());
}

/// The sealed side is being uploaded: its flush stops waiting, and its commit follows in any case.
#[test]
fn a_seal_in_upload_outlives_a_change_of_durability() {
    let mut world = world();
    write(&mut world, 7);
    request(&mut world, Op::Flush, 0, 0);
    drive::until(&mut world, 0, creates_record);
    assert_eq!(world.status(0).unwrap().parked, 1);
    world.configure(0, RuntimeSettings { max_age_ms: LIMITS.max_age_ms, durability: Durability::Local });
    assert_eq!(world.status(0).unwrap().parked, 0, "it was answered");
    drive::until(&mut world, 0, |world| world.status(0).unwrap().dirty_bytes == 0);
    assert!(world.has_commit());
}

/// Regression: data that a FLUSH left on the node under `local` was in the store only after its age limit,
/// although the status said `object`.
#[test]
fn earlier_flushed_data_is_committed_once_durability_is_object() {
    let mut world = world_with_a_write();
    request(&mut world, Op::Flush, 0, 0);
    drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    assert!(!world.has_commit());
    world.configure(0, RuntimeSettings { max_age_ms: LIMITS.max_age_ms, durability: Durability::Object });
    drive::until(&mut world, 0, |world| world.has_commit());
}
