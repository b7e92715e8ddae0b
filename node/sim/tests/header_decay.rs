//! A decayed slot of the durable map's header is named: the other one, which may be older, does not
//! replace it. It may lack invalidated sides, and attaches of this node.

use holdfast_engine::durable_map::Header;
use holdfast_engine::event::Op;
use holdfast_engine::settings::DirtyLimits;
use holdfast_sim::world::{AttachResult, Faults, World};
use holdfast_sim::{Fate, drive};
use holdfast_types::SectorRange;

const LIMITS: DirtyLimits =
    DirtyLimits { seal_bytes: 1 << 20, max_bytes: 2 << 20, max_age_ms: 1_000_000_000 };

fn request(world: &mut World, op: Op, start: u64, sectors: u64) {
    world.request(0, op, SectorRange::new(start, sectors)).expect("the device has room");
    drive::until(world, 0, |world| drive::is_idle(world, 0));
}

/// Host 0 serves a volume with flushed, uncommitted writes, and a header in each slot.
fn world() -> World {
    let mut world = World::new(1, 2, 40_000, LIMITS, Faults::default());
    drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    for start in [0, 5000] {
        request(&mut world, Op::Write, start, 4);
        request(&mut world, Op::Flush, 0, 0);
    }
    world
}

fn newest(world: &World) -> Option<(u64, Header)> {
    Header::newest(&world.durable_map(0, 0, 8192)).ok()?
}

/// Returns the slot of the newest header.
fn newest_slot(world: &World) -> u8 {
    u8::from(newest(world).expect("both are whole").0 % 2 == 1)
}

/// Continues on the other host with the content of the store.
fn continues_elsewhere(world: &mut World) {
    world.lose_host(0, None);
    drive::until(world, 1, |world| drive::is_idle(world, 1));
    drive::read_all(world, 1);
}

#[test]
fn a_header_that_decays_is_named_after_a_power_cut() {
    for slot in [0, 1] {
        let mut world = world();
        assert!(world.decay_header(0, slot), "it was written");
        world.lose_host(0, Some(Fate::Everything));
        for _ in 0..2 {
            assert_eq!(world.attach(0, true, None), AttachResult::Failed, "slot {slot}");
        }
        continues_elsewhere(&mut world);
    }
}

/// A daemon that takes over also reads the header.
#[test]
fn a_header_that_decays_is_named_to_the_next_process() {
    for slot in [0, 1] {
        let mut world = world();
        assert!(world.decay_header(0, slot), "it was written");
        world.kill(0);
        assert_eq!(newest(&world), None, "slot {slot}");
    }
}

/// The writer does not read its headers, and writes the slots alternately.
#[test]
fn a_writer_is_not_disturbed_and_replaces_what_decayed() {
    for is_newest in [false, true] {
        let mut world = world();
        let slot = newest_slot(&world) ^ u8::from(!is_newest);
        assert!(world.decay_header(0, slot), "it was written");
        request(&mut world, Op::Write, 9000, 4);
        request(&mut world, Op::Flush, 0, 0);
        drive::read_all(&mut world, 0);
        // The last round of a detach writes one header.
        drive::detach(&mut world, 0);
        let is_replaced = newest(&world).is_some();
        let attached = world.attach(0, true, None);
        assert_eq!(attached == AttachResult::Acquired, is_replaced, "{attached:?}");
        continues_elsewhere(&mut world);
    }
}
