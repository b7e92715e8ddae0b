//! Traces of random runs that found a fault, kept unchanged.

use holdfast_engine::event::Op;
use holdfast_engine::settings::DirtyLimits;
use holdfast_types::SectorRange;

use super::{AttachResult, Faults, World};
use crate::calls::StoreCall;
use crate::drive;

const LIMITS: DirtyLimits = DirtyLimits { seal_bytes: 1 << 20, max_bytes: 2 << 20, max_age_ms: 1000 };

/// Returns a world with a process that died with its detach record in flight, and its successor, which has
/// read the log. `None` if the record was lost with the process.
fn detach_in_flight(seed: u64) -> Option<World> {
    let mut world = World::new(seed, 2, 1000, LIMITS, Faults::default());
    assert_eq!(world.attach(0, false, None), AttachResult::Acquired);
    drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    world.request(0, Op::Write, SectorRange::new(3, 4)).expect("the device is idle");
    drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    let clean = |world: &World| world.status(0).is_some_and(|status| status.dirty_bytes == 0);
    drive::until(&mut world, 0, clean);
    world.begin_detach(0);
    drive::until(&mut world, 0, |world| world.has_record_in_flight(0));
    world.kill(0);
    drive::until(&mut world, 0, |world| world.status(0).is_some_and(|status| status.committed.is_some()));
    (!world.store.late.is_empty()).then_some(world)
}

/// Regression: the successor checked for a writer that had replaced it, found the late record and took it
/// for another writer's.
#[test]
fn a_late_detach_record_does_not_fence_its_own_writer() {
    for mut world in (0..16).filter_map(detach_in_flight) {
        world.land_late_request();
        for _ in 0..40 {
            drive::step(&mut world, 0);
        }
        assert!(!world.is_fenced(0));
        drive::detach(&mut world, 0);
        drive::read_all(&mut world, 1);
    }
}

/// Regression, found by seed 215: the successor's repair was to be committed at the position where the
/// late record arrived.
#[test]
fn nothing_is_repaired_while_a_detach_record_may_come_late() {
    let worlds: Vec<World> = (0..16).filter_map(detach_in_flight).collect();
    assert!(worlds.len() > 2, "in some the record comes late");
    for mut world in worlds {
        world.repair(0, vec![SectorRange::new(0, 8)], false);
        for _ in 0..6 {
            drive::step(&mut world, 0);
        }
        world.land_late_request();
        for _ in 0..40 {
            drive::step(&mut world, 0);
        }
        assert!(!world.is_fenced(0));
        drive::detach(&mut world, 0);
        drive::read_all(&mut world, 1);
    }
}

/// Regression, found by seed 505: the model assumed that the host of a late attach record had the last
/// writer's data on its disk. The disk was another host's by then.
#[test]
fn a_late_attach_record_does_not_describe_a_replaced_disk() {
    let mut landed = 0;
    for seed in 0..16 {
        let mut world = World::new(seed, 2, 1000, LIMITS, Faults::default());
        drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
        for (op, sectors) in [(Op::Write, 4), (Op::Flush, 0)] {
            world.request(0, op, SectorRange::new(0, sectors)).expect("the device is idle");
            drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
        }
        drive::until(&mut world, 1, |world| world.has_record_in_flight(1));
        world.kill(1);
        landed += usize::from(!world.store.late.is_empty());
        world.copy_disk(0, 1);
        world.land_late_request();
        world.lose_host(1, None);
        drive::read_all(&mut world, 1);
    }
    assert!(landed > 2, "in some the record comes late");
}

/// Regression, found by seed 301871: the record of an attach arrived late, after the disk was replaced by
/// an older one, and the model dropped that disk's content. The bucket was rolled back to before the record:
/// the disk's data counted again.
#[test]
fn a_replaced_disk_counts_again_without_the_late_attach_record() {
    let limits = DirtyLimits { max_age_ms: 1 << 40, ..LIMITS };
    let mut landed = 0;
    for seed in 0..16 {
        let mut world = World::new(seed, 2, 1000, limits, Faults::default());
        drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
        for (op, sectors) in [(Op::Write, 4), (Op::Flush, 0)] {
            world.request(0, op, SectorRange::new(0, sectors)).expect("the device is idle");
            drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
        }
        world.take_backup();
        world.take_snapshot(0);
        world.lose_host(0, None);
        drive::until(&mut world, 0, |world| world.has_record_in_flight(0));
        world.kill(0);
        world.set_disk_back(0);
        let records = world.store.manifest().seq();
        world.land_late_request();
        landed += usize::from(world.store.manifest().seq() > records);
        world.set_bucket_back();
        assert_eq!(world.attach(0, false, None), AttachResult::Acquired);
        world.lose_host(0, None);
        assert_ne!(world.hosts[0].content.model.allowed(0), [0], "the write was flushed");
        drive::check_everywhere(&mut world, 0, 1);
    }
    assert!(landed > 2, "in some the record comes late");
}

/// Commits a first write on host 0, backs up the bucket, and commits another one. With `rounds`, the last
/// round records that all data is committed.
fn backed_up(seed: u64, rounds: usize) -> World {
    let mut world = World::new(seed, 2, 1000, LIMITS, Faults::default());
    let clean = |world: &World| world.status(0).is_some_and(|status| status.dirty_bytes == 0);
    for start in [0, 2] {
        drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
        world.request(0, Op::Write, SectorRange::new(start, 4)).expect("the device is idle");
        drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
        drive::until(&mut world, 0, clean);
        if start == 0 {
            world.take_backup();
        }
    }
    for _ in 0..rounds {
        world.request(0, Op::Flush, SectorRange::new(0, 0)).expect("the device is idle");
        drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    }
    world.set_bucket_back();
    world
}

/// The node's state is preserved, and the older one is served only with permission.
#[test]
fn a_log_that_was_rolled_back_needs_permission() {
    for seed in 0..8 {
        let mut world = backed_up(seed, 2);
        assert_eq!(
            world.attach(0, false, None),
            AttachResult::Refused,
            "the node's data is newer than the log"
        );
        assert_eq!(world.attach(0, true, None), AttachResult::Acquired);
        drive::check_everywhere(&mut world, 0, 1);
    }
}

/// Without a round since the commit the map still names the newer write dirty: nothing is lost.
#[test]
fn dirty_data_continues_a_log_that_was_rolled_back() {
    let mut continued = 0;
    for seed in 0..8 {
        let mut world = backed_up(seed, 0);
        continued += usize::from(world.attach(0, false, None) == AttachResult::Acquired);
        drive::check_everywhere(&mut world, 0, 1);
    }
    assert!(continued > 0, "in some the map names the write dirty");
}

/// A process that dies during an upload leaves a segment that no record will name: its successor uploads
/// and commits another one, before or after the old one arrives.
#[test]
fn a_segment_of_a_dead_process_comes_after_its_successor() {
    let mut landed = 0;
    for seed in 0..16 {
        let mut world = World::new(seed, 2, 1000, LIMITS, Faults::default());
        drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
        world.request(0, Op::Write, SectorRange::new(3, 4)).expect("the device is idle");
        let uploads = |call: &StoreCall| matches!(call, StoreCall::PutSegment { .. });
        drive::until(&mut world, 0, |world| world.has_store_call(0, uploads));
        world.kill(0);
        let is_late = world.store.late.iter().any(|(call, _)| uploads(call));
        landed += usize::from(is_late);
        let committed = |world: &World| world.status(0).is_some_and(|status| status.dirty_bytes == 0);
        drive::until(&mut world, 0, committed);
        while !world.store.late.is_empty() {
            world.land_late_request();
        }
        assert_eq!(world.segments().count(), 1 + usize::from(is_late), "it is stored beside the other");
        drive::check_everywhere(&mut world, 0, 1);
        world.check_whole();
    }
    assert!(landed > 2, "in some the segment comes late");
}
