use std::panic::{AssertUnwindSafe, catch_unwind};

use super::super::core::tests::{core, sector_of};
use super::*;

/// Returns a volume with a clean sector on the inactive side, and more bytes than its share.
fn with_excess() -> (Evictor, Core<Vec<u8>>) {
    let mut core = core(2);
    core.record_write(sector_of(0), Side::A);
    core.clear(0, Side::A);
    core.swap_sides();
    let mut evictor = Evictor::after_takeover(2);
    evictor.space_measured(1 << 20, 0);
    (evictor, core)
}

const STATES: [EvictStep; 5] =
    [EvictStep::Idle, EvictStep::Released, EvictStep::Round(3), EvictStep::Reads, EvictStep::Punching(1)];

#[test]
fn every_event_in_every_state() {
    type EvictEvent = (&'static str, fn(&mut Evictor));
    let events: [EvictEvent; 3] = [
        ("a round has a number", |evictor| evictor.wait_for(4)),
        ("a punch ended", |evictor| {
            evictor.evicted(Ok(()), Side::A);
        }),
        ("a sync failed", |evictor| evictor.sync_failed(Side::A)),
    ];
    // The next state from each of `STATES`; `None` if the event cannot happen.
    let [idle, released, _, reads, punching] = STATES;
    let table = [
        [None, Some(EvictStep::Round(4)), Some(EvictStep::Round(4)), None, None],
        [None, None, None, None, Some(idle)],
        [Some(idle), Some(released), Some(reads), Some(reads), Some(punching)],
    ];
    for ((event, happens), row) in events.into_iter().zip(table) {
        for (state, expected) in STATES.into_iter().zip(row) {
            let (mut evictor, _) = with_excess();
            evictor.step = state;
            let next = catch_unwind(AssertUnwindSafe(|| {
                happens(&mut evictor);
                evictor.step
            }));
            assert_eq!(next.ok(), expected, "{event} in {state:?}");
        }
    }
}

#[test]
fn a_punch_waits_for_the_round_and_for_earlier_reads() {
    let (mut evictor, mut core) = with_excess();
    let early = evictor.read_began();
    let out = &mut Vec::new();
    assert!(evictor.advance(&mut core, true, None, out), "it wants a round");
    assert!(!core.is_on_a_side(sector_of(0)), "the data is remote from now on");
    evictor.wait_for(1);
    let late = evictor.read_began();
    assert!(!evictor.advance(&mut core, true, Some(RoundProgress::Pending), out));
    assert!(evictor.advance(&mut core, true, Some(RoundProgress::Failed), out), "it wants another");
    assert!(!evictor.advance(&mut core, true, Some(RoundProgress::Ended), out));
    assert_eq!(*out, []);
    evictor.read_ended(early);
    evictor.advance(&mut core, true, None, out);
    assert!(matches!(out[..], [Action::Evict { side: Side::A, .. }]), "{out:?}");
    assert!(evictor.evicted(Ok(()), Side::A));
    assert_eq!(evictor.evicted_bytes(), SECTOR_BYTES);
    evictor.read_ended(late);
}

#[test]
fn data_stays_if_its_round_is_gone() {
    let (mut evictor, mut core) = with_excess();
    let out = &mut Vec::new();
    assert!(evictor.advance(&mut core, true, None, out));
    evictor.wait_for(1);
    core.map.set_sync_failed();
    evictor.sync_failed(Side::A);
    evictor.advance(&mut core, true, None, out);
    assert!(evictor.is_idle() && out.is_empty());
}

#[test]
fn dirty_blocks_and_sides_in_use_are_left_alone() {
    let (mut evictor, mut core) = with_excess();
    core.dirty[Side::A].in_flight = 1;
    assert!(!evictor.evicts_first(&core, true));
    core.dirty[Side::A].in_flight = 0;
    core.mark_unstored(sector_of(0), Side::A);
    let out = &mut Vec::new();
    evictor.advance(&mut core, true, None, out);
    assert!(core.is_on_a_side(sector_of(0)));
}

#[test]
fn room_runs_out_and_comes_back_with_a_measurement() {
    let (mut evictor, _) = with_excess();
    evictor.space_measured(0, 4096);
    evictor.take_room(4096);
    assert!(evictor.is_full());
    evictor.space_measured(0, 4096);
    assert!(!evictor.is_full());
    evictor.disk_is_full();
    assert!(evictor.is_disk_full() && evictor.wanted == DISK_FULL_EVICT_BYTES);
    evictor.disk_has_space();
    assert!(!evictor.is_disk_full());
}

/// Regression: the counts continued into the new pages, and older ones were never checked again.
#[test]
fn unchecked_pages_are_evicted_after_a_growth() {
    let (mut evictor, mut core) = with_excess();
    // One page was checked, and the cursor is past it.
    (evictor.cursor, evictor.pages_to_scan) = (1, PerSide::from_fn(|_side| 1));
    let sectors = 8 * PAGE_SECTORS;
    core.map.memory_mut().resize(usize::try_from(crate::sector_map::map_bytes(sectors)).unwrap(), 0);
    core.map.grow(sectors);
    core.unflushed.grow(8);
    evictor.grow(8);
    let out = &mut Vec::new();
    for _ in 0..8 {
        evictor.advance(&mut core, true, None, out);
    }
    assert!(!core.is_on_a_side(sector_of(0)), "it is evicted");
}
