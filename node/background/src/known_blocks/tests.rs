use std::future::ready;

use futures::FutureExt;
use holdfast_format::compose::ContentKey;
use holdfast_format::index::Run;
use holdfast_format::segment::SegmentBuilder;
use holdfast_types::{BLOCK_SECTORS, CHUNK_SECTORS, Lineage, Place, SegmentId, Seq};

use super::*;
use crate::SlotTable;
use crate::slots::NoSlot;

const BLOCKS_OF_CHUNK: u64 = CHUNK_SECTORS / BLOCK_SECTORS;

/// Returns a run with a frame of each of these blocks.
fn run(number: u8, blocks: &[u64]) -> Run {
    let mut builder = SegmentBuilder::default();
    for block in blocks {
        builder.push(Block(*block), Mask(1), &[number; 4096]);
    }
    Run::Segment(builder.finish(SegmentId::new(Place::until(Seq(1)), 1, [number; 10])).0.into())
}

fn runs(list: &[Run]) -> Runs {
    Runs::new(Lineage::of("v".parse().unwrap()).into(), list)
}

/// Returns a slot of `table` with its own content.
fn slot(table: &SlotTable, number: u64) -> SlabSlot {
    let key = ContentKey::of_index("slot", number);
    let is_proven = |_, _| -> std::future::Ready<std::io::Result<bool>> { unreachable!("none is old") };
    let write = |_slot, content| ready((content, Ok(())));
    let filled = table.slot(&key, is_proven, ready(Ok::<_, ()>(())), write).now_or_never();
    let slot = filled.expect("a slot is free").map_err(|error: NoSlot<(), ()>| error).ok();
    SlabSlot::new(slot.expect("it was written"), false)
}

fn found(slot: &SlabSlot, sectors: Mask) -> SlabBlock {
    SlabBlock { slot: slot.clone(), sectors }
}

fn is_known(known: &mut KnownBlocks, block: u64, runs: &Runs) -> bool {
    known.find(Block(block), Mask(1), runs).is_some()
}

#[test]
fn a_block_is_known_until_a_possible_change() {
    let table = SlotTable::new(64, 8, 1);
    let [near, far] = [0, 5 * BLOCKS_OF_CHUNK];
    let slots = [slot(&table, 1), slot(&table, 2)];
    let first = run(1, &[near, far]);
    let (mut known, list) = (KnownBlocks::default(), runs(std::slice::from_ref(&first)));
    for (block, slot) in [near, far].into_iter().zip(&slots) {
        known.found(Block(block), &found(slot, Mask::FULL), &list);
    }
    assert!([near, far].map(|block| is_known(&mut known, block, &list)).iter().all(|known| *known));
    // Two commits between the reads, of other blocks in the first one's chunk.
    let elsewhere = run(2, &[3 * BLOCKS_OF_CHUNK]);
    let list = runs(&[elsewhere.clone(), first.clone()]);
    assert!(is_known(&mut known, far, &list));
    let list = runs(&[run(3, &[near + 1]), elsewhere, first]);
    assert!(!is_known(&mut known, near, &list));
    assert!(is_known(&mut known, far, &list));
    // A merge creates another list.
    let list = runs(&[run(4, &[near, far])]);
    assert!(!is_known(&mut known, far, &list));
}

/// The list may have changed while a task looked for the block.
#[test]
fn a_block_of_an_older_list_is_not_known() {
    let table = SlotTable::new(64, 8, 1);
    let first = run(1, &[0, 1]);
    let (mut known, older) = (KnownBlocks::default(), runs(std::slice::from_ref(&first)));
    known.found(Block(1), &found(&slot(&table, 1), Mask::FULL), &older);
    let newer = runs(&[run(2, &[0]), first]);
    assert!(!is_known(&mut known, 0, &newer));
    known.found(Block(0), &found(&slot(&table, 2), Mask::FULL), &older);
    assert!(!is_known(&mut known, 0, &newer));
}

/// More commits than are remembered came since the block was read.
#[test]
fn after_many_commits_a_block_is_not_known() {
    let (table, mut known) = (SlotTable::new(64, 8, 1), KnownBlocks::default());
    let (kept, idle) = (slot(&table, 1), slot(&table, 2));
    let mut list = vec![run(1, &[0, 1])];
    for (block, slot) in [(0, &kept), (1, &idle)] {
        known.found(Block(block), &found(slot, Mask::FULL), &runs(&list));
    }
    for commit in 0..=CHANGES as u64 {
        list.insert(0, run(2, &[(1 + commit) * BLOCKS_OF_CHUNK]));
        assert!(is_known(&mut known, 0, &runs(&list)), "it is read after each commit");
    }
    assert!(!is_known(&mut known, 1, &runs(&list)));
}

#[test]
fn only_the_sectors_that_the_slot_has_are_known() {
    let (table, mut known, list) = (SlotTable::new(64, 8, 1), KnownBlocks::default(), runs(&[run(1, &[0])]));
    let slot = slot(&table, 1);
    known.found(Block(0), &found(&slot, Mask(0b0110)), &list);
    let mut finds = |wanted| known.find(Block(0), Mask(wanted), &list).is_some();
    assert_eq!([0b0010, 0b0110, 0b1110, 0b0001].map(&mut finds), [true, true, false, false]);
}

/// A place whose slot is gone uses memory until it is swept.
#[test]
fn a_block_without_its_slot_takes_no_memory() {
    let (table, mut known, list) = (SlotTable::new(64, 8, 1), KnownBlocks::default(), runs(&[run(1, &[0])]));
    let slots: Vec<SlabSlot> = (0..40).map(|number| slot(&table, number)).collect();
    for (block, slot) in (0..).zip(&slots) {
        known.found(Block(block), &found(slot, Mask::FULL), &list);
    }
    for (block, slot) in (0..).zip(&slots).skip(1) {
        table.forget(slot.slot());
        assert!(is_known(&mut known, block, &list), "it is held");
    }
    drop(slots);
    assert!(is_known(&mut known, 0, &list));
    assert!(!is_known(&mut known, 1, &list));
    while known.next > 0 || known.taken > 1 {
        known.take_used();
    }
    assert_eq!((known.places.iter().flatten().count(), known.taken), (1, 1));
}

#[test]
fn a_volume_knows_as_many_blocks_as_it_reads() {
    let blocks = 3000;
    let (table, mut known) = (SlotTable::new(blocks + 64, 64, 1), KnownBlocks::default());
    let list = runs(&[run(1, &[0])]);
    let slots: Vec<SlabSlot> = (0..u64::from(blocks)).map(|number| slot(&table, number)).collect();
    for (block, slot) in (0..).zip(&slots) {
        known.found(Block(block), &found(slot, Mask::FULL), &list);
    }
    let finds = (0..u64::from(blocks)).filter(|block| is_known(&mut known, *block, &list)).count();
    assert!(finds >= 2990, "{finds} of {blocks}");
    assert!(known.places.len() <= MAX_PLACES);
}

/// Regression, found in review: the bitmaps and tables of ext4 groups with `flex_bg`, 2 GiB apart, shared one
/// place. Two of them grew the table to its maximum.
#[test]
fn blocks_two_gib_apart_have_separate_places() {
    let (table, mut known) = (SlotTable::new(1024 + 64, 64, 1), KnownBlocks::default());
    let list = runs(&[run(1, &[0])]);
    let slots: Vec<SlabSlot> = (0..1024).map(|number| slot(&table, number)).collect();
    // 64 groups, with their first 16 blocks each.
    let blocks: Vec<u64> = (0..1024).map(|number| ((number / 16) << 14) + number % 16).collect();
    for (block, slot) in blocks.iter().zip(&slots) {
        known.found(Block(*block), &found(slot, Mask::FULL), &list);
    }
    let finds = blocks.iter().filter(|block| is_known(&mut known, **block, &list)).count();
    assert!(finds >= 1000, "{finds} of 1024");
    assert!(known.places.len() <= 8 * 1024, "{} places", known.places.len());
}

/// The slab evicts unused blocks. The volume reports uses that the slab did not serve, at most once per block
/// and call.
#[test]
fn a_block_that_is_used_stays_in_the_slab() {
    let (table, mut known, list) = (SlotTable::new(64, 8, 1), KnownBlocks::default(), runs(&[run(1, &[0])]));
    known.found(Block(0), &found(&slot(&table, 0), Mask::FULL), &list);
    for round in 0..20 {
        for _ in 0..3 {
            assert!(is_known(&mut known, 0, &list), "round {round}");
        }
        let used = known.take_used();
        assert_eq!(used.len(), 1);
        used.iter().for_each(|slot| table.used(slot.upgrade().unwrap().slot()));
        assert_eq!(known.take_used().len(), 0);
        // Others, each read once, fill all other slots.
        (1..60).for_each(|number| drop(slot(&table, 1000 * (round + 1) + number)));
    }
}

/// Found by review: with more used blocks than fit one report, the rest was never reported.
#[test]
fn each_used_block_is_reported_to_the_slab() {
    let (table, mut known) = (SlotTable::new(2000 + 64, 64, 1), KnownBlocks::default());
    let list = runs(&[run(1, &[0])]);
    let slots: Vec<SlabSlot> = (0..2000).map(|number| slot(&table, number)).collect();
    for (block, slot) in (0..).zip(&slots) {
        known.found(Block(block), &found(slot, Mask::FULL), &list);
    }
    let mut reported = std::collections::BTreeSet::new();
    for _ in 0..known.places.len() / SWEPT {
        // The same order each time, like a program that reads in a loop.
        for block in 0..2000 {
            is_known(&mut known, block, &list);
        }
        let used = known.take_used();
        assert!(used.len() <= MAX_USED + SWEPT);
        reported.extend(used.iter().map(|slot| slot.upgrade().unwrap().slot().number()));
    }
    assert_eq!(reported.len(), 2000);
}
