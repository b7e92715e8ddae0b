//! Dirty bytes and their age: request by request, and across a takeover.

use holdfast_engine::event::Op;
use holdfast_engine::settings::DirtyLimits;
use holdfast_sim::drive;
use holdfast_sim::world::{AttachResult, Faults, World};
use holdfast_types::SectorRange;

const LIMITS: DirtyLimits = DirtyLimits { seal_bytes: 1 << 20, max_bytes: 2 << 20, max_age_ms: 20_000 };
const TIME_OF_DAY: u64 = 1_700_000_000_000;

fn world() -> World {
    let mut world = World::new(1, 1, 40_000, LIMITS, Faults::default());
    world.set_time_of_day(TIME_OF_DAY);
    assert_eq!(world.attach(0, false, None), AttachResult::Acquired);
    drive::until(&mut world, 0, |world| world.is_ready(0));
    world
}

fn request(world: &mut World, op: Op, start: u64, sectors: u64) -> u64 {
    world.request(0, op, SectorRange::new(start, sectors)).expect("the device has room");
    drive::until(world, 0, |world| drive::is_idle(world, 0));
    dirty_sectors(world)
}

fn dirty_sectors(world: &World) -> u64 {
    world.status(0).expect("it serves").dirty_bytes / 4096
}

/// Kills the process, and lets the next one take over.
fn take_over(world: &mut World) {
    world.kill(0);
    drive::until(world, 0, |world| world.status(0).is_some_and(|status| status.committed.is_some()));
}

#[test]
fn a_write_on_top_of_a_discard_counts() {
    let mut world = world();
    request(&mut world, Op::Write, 0, 64);
    drive::until(&mut world, 0, |world| dirty_sectors(world) == 0);
    assert_eq!(request(&mut world, Op::Discard, 0, 64), 0, "zeros are no data");
    assert_eq!(request(&mut world, Op::Write, 10, 20), 20);
    assert_eq!(request(&mut world, Op::Write, 20, 20), 30);
    assert_eq!(request(&mut world, Op::WriteZeroes, 0, 15), 25);
    take_over(&mut world);
    assert_eq!(dirty_sectors(&world), 25, "a restart finds what there was");
}

#[test]
fn writes_after_a_full_discard_are_sealed_at_the_limit() {
    let mut world = world();
    request(&mut world, Op::Write, 0, 64);
    drive::until(&mut world, 0, |world| dirty_sectors(world) == 0);
    request(&mut world, Op::Discard, 0, 1000);
    let before = world.status(0).unwrap().committed.unwrap();
    for start in [0, 64, 128, 192] {
        request(&mut world, Op::Write, start, 64);
    }
    assert!(world.status(0).unwrap().seal.in_progress, "1 MiB is the limit");
    drive::until(&mut world, 0, |world| dirty_sectors(world) == 0);
    assert_eq!(world.status(0).unwrap().committed.unwrap().0, before.0 + 1);
}

#[test]
fn a_clock_set_back_between_two_processes_makes_nothing_younger() {
    let mut world = world();
    request(&mut world, Op::Write, 7, 1);
    world.tick(0, 5000);
    // Ten years.
    world.set_time_of_day(TIME_OF_DAY - 315_360_000_000);
    take_over(&mut world);
    let status = world.status(0).unwrap();
    assert!(status.oldest_dirty_ms.unwrap() >= 5000, "{status:?}");
    world.tick(0, LIMITS.max_age_ms - 5000);
    assert!(world.status(0).unwrap().seal.in_progress, "it is as old as the limit");
    drive::until(&mut world, 0, |world| dirty_sectors(world) == 0);
}
