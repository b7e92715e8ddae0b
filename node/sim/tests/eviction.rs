//! A volume with a small limit for its sides respects it, without effect on requests.

use holdfast_engine::event::Op;
use holdfast_engine::settings::DirtyLimits;
use holdfast_types::SectorRange;

use holdfast_sim::case::Case;
use holdfast_sim::drive;
use holdfast_sim::world::{Faults, World};

const SECTORS: u64 = 70_000;
/// Far from every limit of its own: only the share of the cache causes seals.
const LIMITS: DirtyLimits = DirtyLimits { seal_bytes: 1 << 30, max_bytes: 1 << 30, max_age_ms: u64::MAX };
const SHARE: u64 = 300;

fn world() -> World {
    let mut world = World::new(0, 2, SECTORS, LIMITS, Faults::default());
    world.limit_cache(SHARE);
    drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    while world.jobs(0).next().is_some() {
        drive::step(&mut world, 0);
    }
    // No work is left: time passes, and the space is measured for the first time.
    drive::step(&mut world, 0);
    world
}

fn do_at(world: &mut World, op: Op, start: u64, sectors: u64) {
    world.request(0, op, SectorRange::new(start, sectors)).expect("the device is idle");
    drive::until(world, 0, |world| drive::is_idle(world, 0));
}

#[test]
fn ten_times_the_share_is_written_and_read() {
    let mut world = world();
    for start in (0..3000).step_by(50) {
        do_at(&mut world, Op::Write, start * 7, 50);
        assert!(world.held_sectors(0) <= SHARE + 50, "{} sectors are held", world.held_sectors(0));
    }
    let status = world.status(0).expect("it runs");
    assert!(status.evicted_bytes > 0);
    drive::check_everywhere(&mut world, 0, 1);
}

#[test]
fn evicted_data_is_read_from_the_store() {
    let mut world = world();
    do_at(&mut world, Op::Write, 0, 200);
    do_at(&mut world, Op::Write, 40_000, 250);
    drive::until(&mut world, 0, |world| world.held_sectors(0) < SHARE && world.jobs(0).next().is_none());
    drive::read_all(&mut world, 0);
    // Reads bring nothing back to the sides.
    assert!(world.held_sectors(0) < SHARE);
}

#[test]
fn rewriting_sectors_evicts_their_copy_in_the_other_side() {
    let mut world = world();
    for _ in 0..20 {
        do_at(&mut world, Op::Write, 500, 140);
        do_at(&mut world, Op::Flush, 0, 0);
        drive::until(&mut world, 0, |world| world.status(0).is_some_and(|status| !status.full.cache));
    }
    drive::until(&mut world, 0, |world| world.held_sectors(0) < SHARE);
    drive::check_everywhere(&mut world, 0, 1);
}

#[test]
fn a_volume_within_its_share_evicts_nothing() {
    let mut world = world();
    for start in [0, 40_000, 69_000] {
        do_at(&mut world, Op::Write, start, 60);
    }
    for _ in 0..50 {
        drive::step(&mut world, 0);
    }
    let status = world.status(0).expect("it runs");
    assert_eq!((world.held_sectors(0), status.evicted_bytes, status.full.cache), (180, 0, false));
}

/// Regression, found by this seed: writes waited permanently for the space of a range whose punch had failed.
#[test]
fn a_failed_punch_is_retried() {
    let outcome = Case { seed: 130, operations: 5000, bug: None }.run(0);
    assert_eq!(outcome.violation, None);
}
