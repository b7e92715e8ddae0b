use holdfast_types::Block;

use super::*;
use crate::sector_map::PAGE_BLOCKS;

fn header() -> Header {
    Header {
        volume: "v".parse().unwrap(),
        identity: Nonce([9; 16]),
        sectors: 10,
        epoch: Epoch(3),
        writer: Nonce([1; 16]),
        nonces: vec![Nonce([1; 16])],
        active: Side::B,
        closed_clean: true,
        invalidated: SideSet::NONE,
        has_journal: false,
        seq: Seq(4),
        synced_generation: 5,
    }
}

#[test]
fn the_newer_header_wins_and_a_corrupted_one_is_named() {
    let mut newer = header();
    newer.intend(Nonce([2; 16]));
    let mut file = [header().encode(1), newer.encode(2)].concat();
    assert_eq!(Header::newest(&file), Ok(Some((2, newer))));
    // Regression: either may have been the newer one, and the older one was taken.
    for slots in [&[0][..], &[1], &[0, 1]] {
        let mut file = file.clone();
        slots.iter().for_each(|slot| file[slot * SLOT_BYTES + 50] ^= 1);
        assert_eq!(Header::newest(&file), Err(DecodeError::Checksum(HEADER)), "{slots:?}");
    }
    // Never written, or not synced before the power was cut.
    file[SLOT_BYTES..].fill(0);
    assert_eq!(Header::newest(&file), Ok(Some((1, header()))));
    assert_eq!(Header::newest(&[0; 2 * SLOT_BYTES]), Ok(None));
}

#[test]
fn a_full_header_keeps_its_nonces_and_accepts_no_more() {
    let mut long = header();
    long.nonces.clear();
    for round in 0..200u8 {
        let carried = long.intend(Nonce([round; 16]));
        assert_eq!(carried, Nonce([round.min(REMEMBERED_NONCES as u8 - 1); 16]));
    }
    assert_eq!(long.nonces.len(), REMEMBERED_NONCES);
    assert_eq!(long.nonces.first(), Some(&Nonce([0; 16])));
    assert_eq!(long.encode(1).len(), SLOT_BYTES);
    long.volume = "v".repeat(63).parse().unwrap();
    assert!(long.encode(1)[UNIT_BYTES..].iter().all(|byte| *byte == 0), "no write of it can be torn");
}

#[test]
fn a_page_names_the_side_of_uncommitted_data() {
    let mut nibbles = vec![0; PAGE_BYTES];
    // Sectors 0 to 7: A dirty, A dirty, B dirty (and dirty in A too), B clean, remote, A clean but dirty in
    // B, B dirty, -.
    nibbles[..4].copy_from_slice(&[0x55, 0x2e, 0x90, 0x0a]);
    nibbles[PAGE_BYTES - 1] = 0xa0;
    let page = FoundPage { page: 2, slot: Some(0), generation: 1, seq: Seq(0), nibbles };
    let first = 2 * PAGE_SECTORS;
    assert_eq!(
        page.dirty_runs().collect::<Vec<_>>(),
        [
            (SectorRange::new(first, 2), Side::A),
            (SectorRange::new(first + 2, 1), Side::B),
            (SectorRange::new(first + 6, 1), Side::B),
            (SectorRange::new(first + PAGE_SECTORS - 1, 1), Side::B),
        ]
    );
}

const PAGE_7_GENERATIONS: [u64; 2] = [4, 5];

fn found(pair: [&[u8]; 2], synced_generation: u64) -> Result<(Option<u8>, u64, u8), u64> {
    let pages = [(7, pair.concat())];
    match newest_pages(&Header { synced_generation, ..header() }, &pages, &[]) {
        Ok(found) => {
            Ok(found.first().map_or((None, 0, 0), |page| (page.slot, page.generation, page.nibbles[0])))
        }
        Err(DamagedMap::Page { page, .. }) => Err(page),
        Err(damaged @ DamagedMap::Journal(_)) => panic!("{damaged}"),
    }
}

/// Returns `old` with those units of `new` that `reached` selects.
fn torn(old: &[u8], new: &[u8], reached: u8) -> Vec<u8> {
    let unit = |index: usize| if reached & (1 << index) == 0 { old } else { new };
    (0..UNITS).flat_map(|index| unit(index)[index * UNIT_BYTES..][..UNIT_BYTES].to_vec()).collect()
}

/// Invariant 13: one byte, or one unit, of the last synced data is lost, with nothing written or synced
/// since.
#[test]
fn any_decay_of_the_newest_page_is_named() {
    let [older, newer] = PAGE_7_GENERATIONS.map(|g| encode_page(7, g, Seq(g), false, &[g as u8; PAGE_BYTES]));
    let whole = Ok((Some(1), 5, 5));
    assert_eq!(found([&older, &newer], 3), whole);
    for at in 0..SLOT_BYTES {
        for value in [0, 0xff, newer[at] ^ 1] {
            let mut corrupted = newer.clone();
            corrupted[at] = value;
            let found = found([&older, &corrupted], 3);
            let expected = if corrupted == newer { whole } else { Err(7) };
            assert_eq!(found, expected, "byte {at} became {value}");
        }
    }
    for unit in 0..UNITS {
        for value in [0, 0xff, 0x48] {
            let mut corrupted = newer.clone();
            corrupted[unit * UNIT_BYTES..][..UNIT_BYTES].fill(value);
            assert_eq!(found([&older, &corrupted], 3), Err(7), "unit {unit} became {value}");
        }
    }
    assert_eq!(found([&older, &[0; SLOT_BYTES]], 3), Err(7), "the whole slot is zeros");
    assert_eq!(found([&older, &[0xff; SLOT_BYTES]], 3), Err(7));
    assert_eq!(
        found([&encode_page(8, 5, Seq(0), false, &[5; PAGE_BYTES]), &older], 3),
        Err(7),
        "another page's"
    );
}

#[test]
fn decay_of_the_older_page_does_no_harm() {
    let [older, newer] = PAGE_7_GENERATIONS.map(|g| encode_page(7, g, Seq(g), false, &[g as u8; PAGE_BYTES]));
    for unit in 0..UNITS {
        let mut corrupted = older.clone();
        corrupted[unit * UNIT_BYTES + 100] ^= 1;
        assert_eq!(found([&corrupted, &newer], 3), Ok((Some(1), 5, 5)));
    }
}

#[test]
fn a_torn_write_leaves_the_synced_slot() {
    let [older, newer] = PAGE_7_GENERATIONS.map(|g| encode_page(7, g, Seq(g), false, &[g as u8; PAGE_BYTES]));
    let sixth = encode_page(7, 6, Seq(0), false, &[6; PAGE_BYTES]);
    for reached in 0..=255 {
        let slot = torn(&older, &sixth, reached);
        let expected = match reached {
            0 => (Some(1), 5, 5),
            255 => (Some(0), 6, 6),
            _ => (Some(1), 6, 5),
        };
        assert_eq!(found([&slot, &newer], 3), Ok(expected), "{reached:b}");
        let covered = if matches!(reached, 0 | 255) { Ok(expected) } else { Err(7) };
        assert_eq!(found([&slot, &newer], 6), covered, "{reached:b} of a synced write");
    }
}

#[test]
fn a_first_write_may_be_torn_until_the_header() {
    let blank = vec![0; SLOT_BYTES];
    let first = encode_page(7, 4, Seq(0), true, &[4; PAGE_BYTES]);
    let second = encode_page(7, 5, Seq(0), false, &[5; PAGE_BYTES]);
    assert_eq!(found([&blank, &blank], 3), Ok((None, 0, 0)), "never written");
    for reached in 1..255 {
        let slot = torn(&blank, &first, reached);
        assert_eq!(found([&slot, &slot], 3), Ok((None, 4, 0)), "an empty page, filled again");
        assert_eq!(found([&slot, &slot], 4), Err(7));
        assert_eq!(found([&slot, &first], 3), Ok((Some(1), 4, 4)));
        // The data recovered from one slot is then written to the other.
        assert_eq!(found([&torn(&slot, &second, 0x55), &first], 3), Ok((Some(1), 5, 4)));
    }
    assert_eq!(found([&blank, &first], 3), Ok((Some(1), 4, 4)));
    assert_eq!(found([&blank, &first], 4), Err(7), "it was filled with unknown contents");
    assert_eq!(found([&first, &torn(&first, &second, 0x55)], 4), Ok((Some(0), 5, 4)));
    assert_eq!(found([&first, &torn(&blank, &second, 0x55)], 4), Err(7));
    let mut altered = first.clone();
    altered[1000] ^= 1;
    assert_eq!(found([&altered, &blank], 3), Err(7), "no power cut leaves that");
}

/// Returns a journal of six slots, filled as generation 2, with these records: generation, entries.
fn journal(records: &[(u64, Vec<JournalEntry>)]) -> Vec<u8> {
    let mut bytes = encode_fill(2, 6);
    let mut at = 0;
    for (generation, entries) in records {
        let record = encode_record(*generation, Seq(*generation), 2, entries);
        bytes[at..at + record.len()].copy_from_slice(&record);
        at += record.len();
    }
    bytes
}

/// Returns entries for blocks from page 7 on, each with `nibble` for all its sectors.
fn entries(count: u64, nibble: u8) -> Vec<JournalEntry> {
    (0..count).map(|block| (Block(7 * PAGE_BLOCKS + block), [nibble; _])).collect()
}

/// Returns the findings for the first block of each page, with its generation and the newest record known.
fn replayed(pages: &[(u64, Vec<u8>)], journal: &[u8]) -> Result<Vec<(u64, u8, u64, Seq)>, DamagedMap> {
    let header = Header { has_journal: true, synced_generation: 2, ..header() };
    let found = newest_pages(&header, pages, journal)?;
    Ok(found.iter().map(|page| (page.page, page.nibbles[0], page.generation, page.seq)).collect())
}

#[test]
fn a_journal_entry_counts_for_a_page_with_older_slots() {
    let page = |generation| {
        let slots = [1, generation].map(|g| encode_page(7, g, Seq(g), false, &[0x11; PAGE_BYTES]));
        vec![(7, slots.concat())]
    };
    let records = [(3, entries(1, 0x55)), (4, entries(1, 0x66)), (4, entries(129, 0x77))];
    assert_eq!(replayed(&page(2), &journal(&[])), Ok(vec![(7, 0x11, 2, Seq(2))]));
    assert_eq!(replayed(&page(2), &journal(&records[..1])), Ok(vec![(7, 0x55, 3, Seq(3))]));
    assert_eq!(replayed(&page(3), &journal(&records[..2])), Ok(vec![(7, 0x66, 4, Seq(4))]));
    assert_eq!(replayed(&page(5), &journal(&records[..2])), Ok(vec![(7, 0x11, 5, Seq(5))]));
    let both = vec![(7, 0x77, 4, Seq(4)), (8, 0x77, 4, Seq(4))];
    assert_eq!(replayed(&page(2), &journal(&records)), Ok(both), "page 8 has no slot yet");
    let header = Header { synced_generation: 2, ..header() };
    assert_eq!(newest_pages(&header, &page(2), &journal(&records)).unwrap()[0].nibbles[0], 0x11);
}

/// The journal was reused from the start: the units after its newest record are of an earlier use.
#[test]
fn journal_records_of_an_earlier_use_are_ignored() {
    let older = journal(&[(3, entries(1, 0x55)), (4, entries(1, 0x66)), (5, entries(1, 0x77))]);
    let newer = encode_record(6, Seq(6), 2, &entries(1, 0x99));
    let again = [&newer[..], &older[newer.len()..]].concat();
    assert_eq!(replayed(&[], &again), Ok(vec![(7, 0x99, 6, Seq(6))]));
}

/// Invariant 13: a record interrupted by a power cut counts either as a whole or not at all.
#[test]
fn a_torn_record_of_the_journal_is_ignored() {
    let first = (3, entries(1, 0x55));
    // Its slots held the fill, or an older record.
    for old in [journal(std::slice::from_ref(&first)), journal(&[first.clone(), (1, entries(200, 0x77))])] {
        let new = journal(&[first.clone(), (4, entries(1, 0x66))]);
        for reached in 0..=u8::MAX {
            let second = torn(&old[SLOT_BYTES..2 * SLOT_BYTES], &new[SLOT_BYTES..2 * SLOT_BYTES], reached);
            let file = [&old[..SLOT_BYTES], &second, &old[2 * SLOT_BYTES..]].concat();
            let nibble = if reached == u8::MAX { 0x66 } else { 0x55 };
            assert_eq!(replayed(&[], &file).unwrap()[0].1, nibble, "{reached:b}");
        }
    }
}

/// Invariant 13: one byte, or one unit, of the last synced data is lost.
#[test]
fn decay_of_the_journals_synced_part_is_named() {
    let whole = journal(&[(3, entries(1, 0x55)), (4, entries(200, 0x66))]);
    let sound = replayed(&[], &whole);
    // Three slots of records, and the unit after them, which marks their end.
    let live = 3 * SLOT_BYTES + UNIT_BYTES;
    for at in 0..live {
        let mut corrupted = whole.clone();
        corrupted[at] ^= 0x20;
        assert!(matches!(replayed(&[], &corrupted), Err(DamagedMap::Journal(_))), "byte {at}");
    }
    for unit in 0..whole.len() / UNIT_BYTES {
        for value in [0, 0xff] {
            let mut corrupted = whole.clone();
            corrupted[unit * UNIT_BYTES..][..UNIT_BYTES].fill(value);
            let found = replayed(&[], &corrupted);
            if unit * UNIT_BYTES < live {
                assert!(matches!(found, Err(DamagedMap::Journal(_))), "unit {unit} became {value}");
            } else {
                assert_eq!(found, sound, "unit {unit} is not needed");
            }
        }
    }
    assert!(matches!(replayed(&[], &[]), Err(DamagedMap::Journal(_))), "it is not there");
}
