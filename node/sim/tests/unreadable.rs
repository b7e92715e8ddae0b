//! A dirty sector that the local disk cannot read: nothing is committed without it, all other requests are
//! served, and after an operator writes or discards it the rest is committed.

use holdfast_engine::event::Op;
use holdfast_engine::settings::{DirtyLimits, Durability};
use holdfast_engine::volume::Delay;
use holdfast_types::SectorRange;

use holdfast_sim::drive;
use holdfast_sim::world::{AttachResult, Faults, World};

const LIMITS: DirtyLimits = DirtyLimits { seal_bytes: 12 * 4096, max_bytes: 24 * 4096, max_age_ms: 2000 };

fn request(world: &mut World, op: Op, start: u64, sectors: u64) {
    world.request(0, op, SectorRange::new(start, sectors)).expect("the device is idle");
    drive::until(world, 0, |world| drive::is_idle(world, 0));
}

fn lost_data(world: &World) -> Option<(u64, u64)> {
    let lost = world.status(0)?.unreadable?;
    Some((lost.first.start.0, lost.bytes / 4096))
}

/// Creates a volume with twelve dirty sectors, the fourth of which is unreadable, and the attempts on it.
fn world() -> World {
    let mut world = World::new(0, 2, 5000, LIMITS, Faults::default());
    drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    request(&mut world, Op::Write, 0, 11);
    request(&mut world, Op::Write, 11, 1);
    world.corrupt(0, 3);
    drive::until(&mut world, 0, |world| lost_data(world).is_some());
    world
}

fn wait_committed(world: &mut World) {
    drive::until(world, 0, |world| world.status(0).is_some_and(|status| status.dirty_bytes == 0));
    assert_eq!(lost_data(world), None);
}

#[test]
fn an_unreadable_sector_is_named_and_blocks_commits() {
    let mut world = world();
    for _ in 0..300 {
        drive::step(&mut world, 0);
    }
    assert_eq!(lost_data(&world), Some((3, 1)));
    assert!(!world.has_commit());
    request(&mut world, Op::Write, 100, 4);
    request(&mut world, Op::Flush, 0, 0);
    request(&mut world, Op::Read, 100, 4);
}

#[test]
fn a_write_over_the_unreadable_sector_unblocks_commits() {
    let mut world = world();
    request(&mut world, Op::Write, 5, 3);
    request(&mut world, Op::Write, 3, 1);
    wait_committed(&mut world);
    drive::check_everywhere(&mut world, 0, 1);
}

#[test]
fn a_discard_of_the_unreadable_sector_unblocks_commits() {
    let mut world = world();
    request(&mut world, Op::Discard, 2, 3);
    wait_committed(&mut world);
    drive::check_everywhere(&mut world, 0, 1);
}

#[test]
fn a_write_elsewhere_repairs_nothing() {
    let mut world = world();
    request(&mut world, Op::Write, 2, 1);
    request(&mut world, Op::Write, 4, 1);
    for _ in 0..300 {
        drive::step(&mut world, 0);
    }
    assert_eq!(lost_data(&world), Some((3, 1)));
    assert!(!world.has_commit());
}

#[test]
fn commits_resume_once_the_disk_reads_the_sector() {
    let mut world = world();
    world.restore_reads(0);
    wait_committed(&mut world);
}

#[test]
fn waiting_writes_have_a_reason_and_repairing_writes_proceed() {
    let mut world = world();
    request(&mut world, Op::Write, 100, 24);
    world.request(0, Op::Write, SectorRange::new(200, 1)).expect("the device has room");
    for _ in 0..50 {
        drive::step(&mut world, 0);
    }
    assert_eq!(
        world.status(0).and_then(|status| status.delayed).map(|(delay, _)| delay),
        Some(Delay::Unreadable)
    );
    world.request(0, Op::Write, SectorRange::new(3, 1)).expect("the device has room");
    drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    wait_committed(&mut world);
    drive::check_everywhere(&mut world, 0, 1);
}

#[test]
fn unreadable_data_is_served_for_repair_after_a_host_loss() {
    let mut world = World::new(0, 2, 5000, LIMITS, Faults::default());
    drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    request(&mut world, Op::Write, 0, 2);
    request(&mut world, Op::Flush, 0, 0);
    world.corrupt(0, 1);
    world.lose_host(0, None);
    drive::until(&mut world, 0, |world| lost_data(world).is_some() && drive::is_idle(world, 0));
    world.kill(0);
    drive::until(&mut world, 0, |world| lost_data(world).is_some() && drive::is_idle(world, 0));
    assert!(!world.has_commit());
    request(&mut world, Op::Write, 1, 1);
    wait_committed(&mut world);
    drive::check_everywhere(&mut world, 0, 1);
}

#[test]
fn a_flush_to_the_store_waits_for_the_unreadable_sector() {
    let mut world = World::new(0, 2, 5000, LIMITS, Faults::default());
    world.set_durability(Durability::Object);
    drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    request(&mut world, Op::Write, 0, 2);
    world.corrupt(0, 1);
    world.request(0, Op::Flush, SectorRange::new(0, 0)).expect("the device is idle");
    drive::until(&mut world, 0, |world| lost_data(world).is_some());
    world.request(0, Op::Write, SectorRange::new(7, 1)).expect("the device has room");
    world.request(0, Op::Flush, SectorRange::new(0, 0)).expect("the device has room");
    for _ in 0..200 {
        drive::step(&mut world, 0);
    }
    assert!(!drive::is_idle(&world, 0) && !world.has_commit());
    request(&mut world, Op::Write, 1, 1);
    wait_committed(&mut world);
    drive::check_everywhere(&mut world, 0, 1);
}

/// The sealed side alone is older than the data committed with the other one.
#[test]
fn a_death_after_both_sides_committed_keeps_the_commit() {
    let mut world = world();
    request(&mut world, Op::Write, 5, 1);
    request(&mut world, Op::Write, 3, 1);
    let before = world.log().count();
    drive::until(&mut world, 0, |world| world.log().count() > before);
    world.kill(0);
    world.restore_reads(0);
    drive::until(&mut world, 0, |world| world.log().count() > before + 1);
    drive::read_all(&mut world, 1);
}

/// Regression: it checked the log only before its detach, and waited for its disk permanently.
#[test]
fn a_waiting_detach_ends_at_a_takeover() {
    let mut world = world();
    world.begin_detach(0);
    for _ in 0..300 {
        drive::step(&mut world, 0);
    }
    assert_eq!(lost_data(&world), Some((3, 1)), "it waits");
    assert_eq!(world.attach(1, true, None), AttachResult::Acquired);
    drive::until(&mut world, 0, |world| world.status(0).is_none());
    drive::read_all(&mut world, 1);
}
