//! Costs of a volume, counted.

use holdfast_engine::action::Action;
use holdfast_engine::event::Op;
use holdfast_engine::settings::DirtyLimits;
use holdfast_types::SectorRange;

use holdfast_sim::drive;
use holdfast_sim::world::{Faults, World};

const SECTORS: u64 = 70_000;
/// Limits that prevent uploads.
const NO_SEAL: DirtyLimits = DirtyLimits { seal_bytes: u64::MAX, max_bytes: u64::MAX, max_age_ms: u64::MAX };

/// Creates a world in which host 1 serves a volume whose data is only in the store.
fn cold_volume(limits: DirtyLimits) -> World {
    let mut world = World::new(0, 2, SECTORS, limits, Faults::default());
    drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    for start in (0..2000).step_by(50).chain([32_760, 65_500]) {
        world.request(0, Op::Write, SectorRange::new(start, 50)).expect("the device is idle");
        drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    }
    drive::detach(&mut world, 0);
    drive::until(&mut world, 1, |world| drive::is_idle(world, 1));
    while world.is_busy(1) {
        drive::step(&mut world, 1);
    }
    world
}

#[test]
fn a_cold_write_reads_nothing_and_requests_nothing() {
    let mut world = cold_volume(NO_SEAL);
    let before = world.store_requests();
    for range in [(0, 32), (64, 1), (97, 3), (1000, 64), (32_760, 16), (65_501, 1), (69_999, 1)] {
        let range = SectorRange::new(range.0, range.1);
        world.request(1, Op::Write, range).expect("the device is idle");
        while !drive::is_idle(&world, 1) {
            for action in world.jobs(1) {
                let foreground = matches!(
                    action,
                    Action::Write { .. } | Action::PrepareMap { .. } | Action::Complete { .. }
                );
                assert!(foreground, "a write of {range:?} asked for {action:?}");
            }
            drive::step(&mut world, 1);
        }
    }
    assert_eq!(world.store_requests(), before);
    drive::check_everywhere(&mut world, 1, 0);
}

#[test]
fn five_hundred_scattered_dirty_blocks_are_two_puts() {
    let limits = DirtyLimits { seal_bytes: 500 * 4096, ..NO_SEAL };
    let mut world = World::new(0, 2, SECTORS, limits, Faults::default());
    drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    let before = world.store_requests();
    for block in 0..500 {
        let range = SectorRange::new(block * 130 + block % 32, 1);
        world.request(0, Op::Write, range).expect("the device is idle");
        drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    }
    drive::until(&mut world, 0, |world| world.status(0).is_some_and(|status| status.dirty_bytes == 0));
    assert_eq!(world.store_requests() - before, 2);
    drive::check_everywhere(&mut world, 0, 1);
}

#[test]
fn a_detached_volume_finds_its_cache_on_its_host() {
    let mut world = cold_volume(NO_SEAL);
    let range = SectorRange::new(100, 64);
    world.request(1, Op::Write, range).expect("the device is idle");
    drive::detach(&mut world, 1);
    drive::until(&mut world, 1, |world| drive::is_idle(world, 1));
    // A merge begun by the attach has its own requests.
    while world.is_busy(1) {
        drive::step(&mut world, 1);
    }
    let before = world.store_requests();
    world.request(1, Op::Read, range).expect("the device is idle");
    drive::until(&mut world, 1, |world| drive::is_idle(world, 1));
    assert_eq!(world.store_requests(), before, "clean data of a clean close is served from here");
}
