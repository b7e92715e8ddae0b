use super::*;

fn map(sectors: u64) -> SectorMap<Vec<u8>> {
    let volume = "v".parse().unwrap();
    let mut map = SectorMap::format(vec![0; map_bytes(sectors) as usize], sectors, &volume);
    for chunk in 0..sectors.div_ceil(CHUNK_SECTORS) {
        map.set_prepared(Chunk(chunk));
    }
    map.publish();
    map
}

#[test]
fn a_late_write_to_the_sealed_side_hides_nothing() {
    let mut map = map(100);
    map.set_active(Side::B);
    map.mark_written(SectorRange::new(5, 1), Side::B);
    map.mark_written(SectorRange::new(4, 3), Side::A);
    let newest: Vec<_> = (4..7).map(|s| map.first_run(SectorRange::new(s, 1)).1).collect();
    assert_eq!(newest, [Some(Side::A), Some(Side::B), Some(Side::A)]);
    assert_eq!(map.dirty_blocks(0, Blocks::ALL, Side::A).collect::<Vec<_>>(), [(Block(0), Mask(0b111_0000))]);
}

#[test]
fn zeroing_marks_only_sectors_with_possible_data() {
    let mut map = map(100);
    assert!(!map.mark_zeroed(SectorRange::new(0, 100), Side::A, false));
    map.mark_written(SectorRange::new(3, 1), Side::A);
    assert!(map.mark_zeroed(SectorRange::new(0, 100), Side::A, false));
    assert_eq!(map.dirty_blocks(0, Blocks::ALL, Side::A).collect::<Vec<_>>(), [(Block(0), Mask(0b1000))]);
    assert!(map.mark_zeroed(SectorRange::new(0, 2), Side::A, true));
    assert_eq!(map.dirty_blocks(0, Blocks::ALL, Side::A).collect::<Vec<_>>(), [(Block(0), Mask(0b1011))]);
}

/// Returns the map's counts. Asserts that a takeover would count the same.
fn counted(map: &SectorMap<Vec<u8>>) -> [u64; 2] {
    let mut reopened = SectorMap::open(map.memory.clone(), map.sectors, &"v".parse().unwrap()).unwrap();
    for page in 0..reopened.pages() {
        reopened.count(page);
    }
    assert_eq!(map.counted, reopened.counted, "a restart changes nothing");
    Side::BOTH.map(|side| map.counted(side))
}

#[test]
fn writes_over_zeros_count_and_zeros_over_writes_do_not() {
    let mut map = map(200);
    let range = |start, sectors| SectorRange::new(start, sectors);
    assert!(map.mark_zeroed(range(0, 100), Side::A, true));
    assert_eq!(counted(&map), [0, 0]);
    assert!(map.mark_written(range(10, 20), Side::A), "the durable map must learn of it");
    assert_eq!(counted(&map), [20, 0]);
    assert!(!map.mark_written(range(10, 20), Side::A));
    assert!(map.mark_zeroed(range(0, 15), Side::A, false));
    assert_eq!(counted(&map), [15, 0]);
    map.set_active(Side::B);
    map.mark_written(range(0, 20), Side::B);
    assert_eq!(counted(&map), [30, 20], "nothing says any more that sectors 0 to 14 are zeros on A");
    map.mark_zeroed(range(0, 1), Side::B, false);
    map.mark_zeroed(range(15, 1), Side::B, false);
    assert_eq!(counted(&map), [30, 18]);
    map.mark_written(range(15, 1), Side::A);
    assert_eq!(counted(&map), [30, 18], "a late write to the sealed side leaves the newer zeros");
    assert!(map.mark_uncertain(range(15, 1), Side::B), "a write that failed may have left data");
    assert_eq!(counted(&map), [30, 19]);
    map.clear_dirty(0, Blocks::ALL, Side::A);
    assert_eq!(counted(&map), [0, 19]);
    assert_eq!(map.first_run(range(0, 200)), (range(0, 20), Some(Side::B)));
    map.clear_dirty(0, Blocks::ALL, Side::B);
    assert_eq!(counted(&map), [0, 0]);
    let newest = [0, 19, 20, 99, 100].map(|sector| map.first_run(range(sector, 1)).1);
    assert_eq!(newest, [Some(Side::B), Some(Side::B), Some(Side::A), Some(Side::A), None]);
}

#[test]
fn releasing_one_side_leaves_zeros_of_the_other() {
    let mut map = map(64);
    map.mark_written(SectorRange::new(0, 64), Side::A);
    map.clear_dirty(0, Blocks::ALL, Side::A);
    map.set_active(Side::B);
    map.mark_zeroed(SectorRange::new(0, 8), Side::B, false);
    assert_eq!(map.release(0, Side::A, &mut Vec::new()).0, 56);
    let newest = [0, 7, 8].map(|sector| map.first_run(SectorRange::new(sector, 1)).1);
    assert_eq!(newest, [Some(Side::B), Some(Side::B), None]);
    assert_eq!(map.dirty_blocks(0, Blocks::ALL, Side::B).collect::<Vec<_>>(), [(Block(0), Mask(0xff))]);
    assert_eq!(counted(&map), [0, 0]);
}

#[test]
fn a_side_releases_whole_blocks_without_dirty_sectors() {
    let mut map = map(200);
    map.mark_written(SectorRange::new(0, 200), Side::A);
    map.clear_dirty(0, Blocks::ALL, Side::A);
    map.mark_written(SectorRange::new(40, 1), Side::A);
    map.set_active(Side::B);
    map.mark_written(SectorRange::new(70, 2), Side::B);
    let mut ranges = Vec::new();
    assert_eq!(map.release(0, Side::A, &mut ranges).0, 200 - 32 - 2);
    assert_eq!(ranges, [SectorRange::new(0, 32), SectorRange::new(64, 136)]);
    let newest: Vec<_> = [0, 33, 40, 64, 70, 199]
        .into_iter()
        .map(|sector| map.first_run(SectorRange::new(sector, 1)).1)
        .collect();
    assert_eq!(newest, [None, Some(Side::A), Some(Side::A), None, Some(Side::B), None]);
    // Stale copies are released too, and nothing is counted twice.
    ranges.clear();
    assert_eq!(map.release(0, Side::A, &mut ranges), (0, Blocks::default()));
    assert_eq!(ranges, [SectorRange::new(0, 32), SectorRange::new(64, 136)]);
}

#[test]
fn only_clean_sectors_are_forgotten() {
    let mut map = map(100);
    map.mark_written(SectorRange::new(0, 10), Side::A);
    map.clear_dirty(0, Blocks::ALL, Side::A);
    map.mark_written(SectorRange::new(4, 2), Side::A);
    assert_eq!(map.forget_clean(SectorRange::new(2, 20)), 6);
    assert_eq!(map.first_run(SectorRange::new(0, 100)), (SectorRange::new(0, 2), Some(Side::A)));
    assert_eq!(map.first_run(SectorRange::new(4, 96)), (SectorRange::new(4, 2), Some(Side::A)));
}

#[test]
fn a_live_map_of_another_volume_or_size_is_refused() {
    let memory = map(100).memory;
    let open =
        |volume: &str, sectors| SectorMap::open(memory.clone(), sectors, &volume.parse().unwrap()).err();
    assert_eq!(open("v", 100), None);
    assert_eq!(open("w", 100), Some(LiveMapError::Volume));
    let short = CHUNK_SECTORS + 1;
    let (found, needed) = (map_bytes(100), map_bytes(short));
    let refused = LiveMapError::Size { found, sectors: short, needed };
    assert_eq!(open("v", short), Some(refused), "no place for it");
    let blank = vec![0; 1 << 20];
    assert_eq!(SectorMap::open(blank, 100, &"v".parse().unwrap()).err(), Some(LiveMapError::Head));
}

/// Regression: it was mistaken for one whose creation was interrupted, which holds nothing.
#[test]
fn a_live_map_of_another_version_is_named() {
    for found in [1u32, 3] {
        let mut memory = map(100).memory;
        memory[4..8].copy_from_slice(&found.to_le_bytes());
        let refused = SectorMap::open(memory, 100, &"v".parse().unwrap()).err();
        assert_eq!(refused, Some(LiveMapError::Version { found }));
    }
}

/// An unprepared map proves that the node holds nothing of the volume: a format depends on it.
#[test]
fn a_map_is_unprepared_until_its_first_write() {
    let sectors = 2 * GROUP_SECTORS + CHUNK_SECTORS;
    let volume = "v".parse().unwrap();
    for chunk in [0, 7, 8, 19, 1023, 1024, 2048] {
        let mut map = SectorMap::format(vec![0; map_bytes(sectors) as usize], sectors, &volume);
        assert!(!map.is_any_prepared());
        map.set_prepared(Chunk(chunk));
        assert!(map.is_any_prepared());
    }
}

/// Regression: a daemon that crashed in the middle of a growth left a map that its successor rejected.
#[test]
fn a_live_map_of_a_smaller_volume_grows_in_place() {
    let mut small = map(100);
    small.mark_written(SectorRange::new(7, 3), Side::A);
    small.set_synced_slot(0, Some(1));
    let sectors = 2 * GROUP_SECTORS + 1;
    let last = Chunk(2 * GROUP_CHUNKS);
    let mut memory = small.memory;
    memory.resize(map_bytes(sectors) as usize, 0);
    let mut large = SectorMap::open(memory, sectors, &"v".parse().unwrap()).unwrap();
    assert_eq!((large.sectors(), large.pages()), (sectors, 2 * GROUP_SECTORS / PAGE_SECTORS + 1));
    assert_eq!(large.synced_slot(0), Some(1));
    assert_eq!(
        large.dirty_blocks(0, Blocks::ALL, Side::A).collect::<Vec<_>>(),
        [(Block(0), Mask(0b111 << 7))]
    );
    assert_eq!(large.prepared_pages().count(), 8, "and nothing else is there");
    for chunk in [Chunk(GROUP_CHUNKS - 1), Chunk(GROUP_CHUNKS), last] {
        large.set_prepared(chunk);
        let first = chunk.first_sector().0;
        large.mark_written(SectorRange::new(first, 1), Side::A);
        large.set_synced_slot(first / PAGE_SECTORS, Some(0));
    }
    let again = SectorMap::open(large.memory, sectors, &"v".parse().unwrap()).unwrap();
    for chunk in [Chunk(GROUP_CHUNKS - 1), Chunk(GROUP_CHUNKS), last] {
        let first = chunk.first_sector();
        assert_eq!(again.newest(first.0), Some(Side::A));
        assert_eq!(again.dirty_blocks(first.0 / PAGE_SECTORS, Blocks::ALL, Side::A).count(), 1);
        assert_eq!(again.synced_slot(first.0 / PAGE_SECTORS), Some(0));
    }
    assert_eq!(again.dirty_blocks(0, Blocks::ALL, Side::A).count(), 1);
    assert!(!again.is_prepared(Chunk(1)) && !again.is_prepared(Chunk(GROUP_CHUNKS + 1)));
}

/// Regression: a daemon that crashed between map and header left a map that its successor rejected.
#[test]
fn a_live_map_of_a_larger_volume_stays_valid() {
    let larger = SectorMap::open(map(100).memory, 99, &"v".parse().unwrap()).unwrap();
    assert_eq!(larger.sectors(), 100);
}

#[test]
fn a_map_grows_while_it_is_open() {
    let mut small = map(100);
    small.mark_written(SectorRange::new(99, 1), Side::A);
    let sectors = GROUP_SECTORS + 1;
    small.memory_mut().resize(map_bytes(sectors) as usize, 0);
    small.grow(sectors);
    assert_eq!((small.sectors(), small.newest(99), small.newest(100)), (sectors, Some(Side::A), None));
    let again = SectorMap::open(small.memory, 100, &"v".parse().unwrap()).unwrap();
    assert_eq!(again.sectors(), sectors);
}

/// No two fields of the map overlap.
#[test]
fn the_parts_of_the_map_do_not_overlap() {
    let sectors = 2 * GROUP_SECTORS + 1;
    let mut parts: Vec<(u64, u64)> = fixed_extents(sectors).collect();
    parts.extend((0..sectors.div_ceil(CHUNK_SECTORS)).map(|chunk| chunk_extent(Chunk(chunk))));
    parts.sort_unstable();
    let mut end = 0;
    for (offset, length) in parts {
        assert_eq!(offset, end);
        end = offset + length;
    }
    assert_eq!(end, map_bytes(sectors));
}

#[test]
fn only_a_remote_clean_chunk_is_released() {
    let mut map = map(2 * CHUNK_SECTORS);
    let chunk = Chunk(1);
    let sector = SectorRange::new(2 * CHUNK_SECTORS - 1, 1);
    map.mark_written(sector, Side::A);
    assert!(!map.unprepare(chunk), "it is dirty");
    map.clear_dirty(sector.start.0 / PAGE_SECTORS, Blocks::ALL, Side::A);
    assert!(!map.unprepare(chunk), "a side has it");
    map.forget_clean(sector);
    assert!(map.unprepare(chunk) && !map.is_prepared(chunk) && map.is_prepared(Chunk(0)));
    assert!(!map.unprepare(chunk), "once");
}

/// Words of the map change at once: the result equals that of single sectors.
#[test]
fn a_range_changes_like_each_of_its_sectors() {
    type Change = fn(&mut SectorMap<Vec<u8>>, SectorRange, Side) -> bool;
    let changes: [Change; 4] = [
        |map, range, side| map.mark_written(range, side),
        |map, range, side| map.mark_uncertain(range, side),
        |map, range, side| map.mark_zeroed(range, side, false),
        |map, range, side| map.mark_zeroed(range, side, true),
    ];
    let (mut whole, mut each) = (map(200), map(200));
    let mut random = 1u64;
    let mut below = |limit: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % limit
    };
    for _ in 0..3000 {
        let start = below(200);
        let range = SectorRange::new(start, 1 + below((200 - start).min(50)));
        let side = Side::BOTH[below(2) as usize];
        if below(20) == 0 {
            let active = whole.active().other();
            whole.set_active(active);
            each.set_active(active);
        }
        let change = changes[below(4) as usize];
        let changed = change(&mut whole, range, side);
        let by_sector =
            range.split_at_multiples(1).fold(false, |any, one| change(&mut each, one, side) | any);
        assert_eq!((changed, &whole.memory), (by_sector, &each.memory));
        assert_eq!(counted(&whole), counted(&each));
        let (run, newest) = whole.first_run(range);
        let alike = (range.start.0..range.end()).take_while(|sector| whole.newest(*sector) == newest);
        assert_eq!(run, SectorRange::new(range.start.0, alike.count() as u64));
    }
}

/// Blocks for read-ahead are those that a read would get from the store. The last one is partial.
#[test]
fn a_partly_local_block_still_counts_as_remote() {
    let mut map = map(100);
    let first = Block(0);
    assert_eq!([0, 1, 2, 3, 9].map(|block| map.remote_after(Block(block))), [0b111, 0b11, 0b1, 0, 0]);
    map.mark_written(SectorRange::new(32, 31), Side::A);
    map.mark_written(SectorRange::new(64, 20), Side::A);
    map.mark_zeroed(SectorRange::new(84, 12), Side::A, true);
    assert_eq!(map.remote_after(first), 0b101);
    map.set_active(Side::B);
    map.mark_written(SectorRange::new(63, 1), Side::B);
    assert_eq!(map.remote_after(first), 0b100);
    let unprepared = SectorMap::format(vec![0; map_bytes(9000) as usize], 9000, &"v".parse().unwrap());
    assert_eq!(unprepared.remote_after(first), u128::MAX);
}

/// Regression: the page slots of the next group follow the end of a group. Two pages in slot 0 look like a
/// sector that is dirty on side A. A write across the border whose first part was already dirty therefore
/// left the map unchanged, and was neither read back nor committed.
#[test]
fn a_write_over_the_border_of_a_group_is_marked() {
    let sectors = GROUP_SECTORS + CHUNK_SECTORS;
    for (active, slot) in [(Side::A, 0), (Side::B, 1)] {
        let mut map = map(sectors);
        map.set_active(active);
        let pages = GROUP_SECTORS / PAGE_SECTORS;
        (pages..pages + 8).for_each(|page| map.set_synced_slot(page, Some(slot)));
        map.mark_written(SectorRange::new(GROUP_SECTORS - 1, 1), active);
        assert_eq!(map.newest(GROUP_SECTORS), None);
        let over = SectorRange::new(GROUP_SECTORS - 1, 2);
        assert!(map.mark_written(over, active), "{active:?}");
        assert_eq!(map.newest(GROUP_SECTORS), Some(active));
        assert_eq!(map.newest_of_all(over), None, "the direct path takes no request over a border");
        assert!(!map.mark_written(over, active));
    }
}
