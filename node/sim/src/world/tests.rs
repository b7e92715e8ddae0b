//! Stories that random runs told, kept as they are.

use holdfast_engine::event::Op;
use holdfast_engine::volume::DirtyLimits;
use holdfast_types::SectorRange;

use super::{Attach, Faults, World};
use crate::drive;

const LIMITS: DirtyLimits = DirtyLimits { seal_bytes: 1 << 20, most_bytes: 2 << 20, max_age_ms: 1000 };

/// A process died with its detach record on its way, which arrived when its successor had read the log. The successor
/// looked whether anybody had replaced it, met the record and took it for another writer's.
#[test]
fn a_late_detach_record_does_not_fence_its_own_writer() {
    for seed in 0..16 {
        let mut world = World::new(seed, 2, 1000, LIMITS, Faults::default());
        assert_eq!(world.attach(0, false, None), Attach::Won);
        drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
        world.request(0, Op::Write, SectorRange::new(3, 4)).expect("the device is idle");
        drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
        let clean = |world: &World| world.status(0).is_some_and(|status| status.dirty_bytes == 0);
        drive::until(&mut world, 0, clean);
        world.begin_detach(0);
        drive::until(&mut world, 0, |world| world.is_creating(0));
        world.kill(0);
        drive::until(&mut world, 0, |world| world.status(0).is_some_and(|status| status.committed.is_some()));
        world.land_late();
        for _ in 0..40 {
            drive::step(&mut world, 0);
        }
        assert!(!world.is_fenced(0));
        drive::detach(&mut world, 0);
        drive::read_all(&mut world, 1);
    }
}
