use super::super::core::tests::{core, sector_of};
use super::*;

/// Returns a core with one sector on each side that is clean and newest there.
fn with_clean_data() -> Core<Vec<u8>> {
    let mut core = core(2);
    for (page, side) in [(0, Side::A), (1, Side::B)] {
        core.record_write(sector_of(page), side);
        core.clear(page, side);
    }
    core
}

#[test]
fn clean_sectors_are_sealed_with_their_side() {
    let mut core = with_clean_data();
    let mut repair = RepairJob::default();
    repair.ask(vec![sector_of(0), sector_of(1)], false);
    assert_eq!(repair.advance(&mut core), RepairStep::Seal(Side::B));
    assert!(repair.wants_seal(Side::A) && repair.wants_seal(Side::B));
    repair.committed(Side::B);
    assert_eq!(repair.advance(&mut core), RepairStep::Wait);
    repair.committed(Side::A);
    assert_eq!(repair.advance(&mut core), RepairStep::Done);
    assert!(!repair.is_asked());
}

#[test]
fn data_absent_from_the_node_is_not_marked() {
    let mut core = with_clean_data();
    let mut repair = RepairJob::default();
    repair.ask(vec![SectorRange::new(8, 8), SectorRange::new(1 << 40, 8)], false);
    assert_eq!(repair.advance(&mut core), RepairStep::Done);
    assert_eq!(core.dirty_sides(), SideSet::NONE);
}

#[test]
fn a_checkpoint_alone_is_waited_for() {
    let mut core = with_clean_data();
    let mut repair = RepairJob::default();
    repair.ask(Vec::new(), true);
    assert_eq!(repair.advance(&mut core), RepairStep::Wait);
    assert!(repair.wants_checkpoint());
    repair.checkpointed();
    assert_eq!(repair.advance(&mut core), RepairStep::Done);
}

#[test]
fn after_the_detach_record_nothing_is_repaired() {
    let mut core = with_clean_data();
    let mut repair = RepairJob::default();
    repair.ask(vec![sector_of(0)], true);
    repair.forget();
    assert_eq!(repair.advance(&mut core), RepairStep::Done);
    assert_eq!(core.dirty_sides(), SideSet::NONE);
}
