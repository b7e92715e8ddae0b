//! Data that the local disk can no longer read.

use holdfast_engine::action::{Action, Report};
use holdfast_engine::event::{Errno, Op};
use holdfast_engine::settings::DirtyLimits;
use holdfast_types::SectorRange;

use holdfast_sim::drive;
use holdfast_sim::world::{Faults, World};

const LIMITS: DirtyLimits = DirtyLimits { seal_bytes: 1 << 30, max_bytes: 1 << 30, max_age_ms: 2000 };
const DEAD_DISK: Faults =
    Faults { local: Some(1), sync: Some(1), create: None, store: None, read: None, stale_list: None };

/// Creates a host whose client wrote `range`, on a disk that can no longer read.
fn unreadable(range: SectorRange, committed: bool) -> World {
    let mut world = World::new(0, 2, 70_000, LIMITS, Faults::default());
    drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    world.request(0, Op::Write, range).expect("the device is idle");
    drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    if committed {
        drive::until(&mut world, 0, |world| world.status(0).is_some_and(|status| status.dirty_bytes == 0));
    }
    while world.jobs(0).next().is_some() {
        drive::step(&mut world, 0);
    }
    world.set_faults(DEAD_DISK);
    world
}

/// Reads `range` as the client: returns the answer, and the reports.
fn read(world: &mut World, range: SectorRange) -> (Result<(), Errno>, Vec<Report>) {
    world.request(0, Op::Read, range).expect("the device is idle");
    let mut answer = None;
    let mut reports = Vec::new();
    while !drive::is_idle(world, 0) {
        match world.jobs(0).next() {
            Some(Action::Complete { result, .. }) => answer = Some(*result),
            Some(Action::Report(report)) => reports.push(*report),
            Some(_) | None => {}
        }
        drive::step(world, 0);
    }
    (answer.expect("it was completed"), reports)
}

#[test]
fn data_in_the_store_is_read_from_there() {
    let range = SectorRange::new(32_760, 40);
    let mut world = unreadable(range, true);
    assert_eq!(read(&mut world, range), (Ok(()), vec![Report::CleanUnreadable(range)]));
    // The disk is not read for it again.
    assert_eq!(read(&mut world, range), (Ok(()), vec![]));
    world.set_faults(Faults::default());
    drive::check_everywhere(&mut world, 0, 1);
}

#[test]
fn a_read_of_the_only_copy_fails_and_is_reported() {
    let range = SectorRange::new(100, 8);
    let mut world = unreadable(range, false);
    assert_eq!(read(&mut world, range), (Err(Errno::EIO), vec![Report::DirtyUnreadable(range)]));
    // It is not evicted: the disk may recover.
    world.set_faults(Faults::default());
    drive::check_everywhere(&mut world, 0, 1);
}
