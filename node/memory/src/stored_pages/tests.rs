use super::*;
use crate::memory::HeapMemory;

const PAGES: u64 = 4096;
/// The size of the volume, a partly used slab for each of the five classes below, and one for the page that
/// is being replaced. A volume without a limit has 64 more than its size, for 48 classes.
const SLABS: u32 = (PAGES * PAGE_BYTES as u64 / SLAB_BYTES as u64) as u32 + 6;

type HeapPages = StoredPages<HeapMemory>;

fn stored_pages(slabs: u32, room: u32) -> HeapPages {
    let head = TableHead { pages: PAGES, slabs, codec: PageCodec::Lz4, nonce: 1, spill_pages: 0 };
    StoredPages::open(HeapMemory::new(PAGES as usize, slabs as usize, room as usize), &head).unwrap()
}

/// Returns the pages of a volume in random order.
fn shuffled(seed: u64) -> Vec<u64> {
    let mut pages: Vec<u64> = (0..PAGES).collect();
    let mix = |bits: u64| (bits ^ bits >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    pages.sort_unstable_by_key(|page| mix(mix(mix(page ^ seed << 32))));
    pages
}

/// Returns content of this length that no other page has; a whole page is stored as it is.
fn content(page: u64, len_bytes: usize) -> Vec<u8> {
    page.to_le_bytes().into_iter().cycle().take(len_bytes).collect()
}

fn write(stored: &mut HeapPages, page: u64, len_bytes: usize) -> Result<(), PageError> {
    let content = content(page, len_bytes);
    let encoded = match len_bytes {
        PAGE_BYTES => EncodedPage::Plain(&content),
        _ => EncodedPage::Compressed(PageCodec::Lz4, &content),
    };
    stored.replace(page, &encoded)
}

fn holds(stored: &HeapPages, page: u64, len_bytes: usize) {
    let (mut whole, mut compressed) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
    let found = match stored.copy(page, &mut whole, &mut compressed).unwrap() {
        PageCopy::Whole => &whole[..],
        PageCopy::Compressed(_, len) => &compressed[..len],
        PageCopy::Spilled => panic!("there is no spill file"),
    };
    assert!(found == content(page, len_bytes), "page {page} with {len_bytes} bytes");
}

/// Lengths of pages that compress to less than the first class, to a third, a half and seven eighths.
const LENGTHS: [usize; 5] = [40, 1300, 2000, EncodedPage::MOST_COMPRESSED, PAGE_BYTES];

/// Pages that changed to another size one by one left a few pages in each slab, and writes failed when 11 to
/// 75 percent of the pages had changed.
#[test]
fn the_memory_of_the_size_suffices_for_all_overwrites() {
    // Limited by the volume, and by the system.
    for (slabs, room) in [(SLABS, SLABS), (2 * SLABS, SLABS)] {
        for from in LENGTHS {
            let mut stored = stored_pages(slabs, room);
            (0..PAGES).for_each(|page| write(&mut stored, page, from).unwrap());
            for (seed, to) in (0..).zip(LENGTHS) {
                for page in shuffled(seed) {
                    let written = write(&mut stored, page, to);
                    assert_eq!(written, Ok(()), "{from} to {to}: page {page}, {:?}", stored.figures());
                }
                (0..PAGES).for_each(|page| holds(&stored, page, to));
            }
            let head = TableHead { pages: PAGES, slabs, codec: PageCodec::Lz4, nonce: 1, spill_pages: 0 };
            let counted = MemoryFigures { moved_pages: 0, ..stored.figures() };
            let found = StoredPages::open(stored.into_memory(), &head).unwrap().figures();
            assert_eq!(found, counted, "no slot is lost");
        }
    }
}

/// The work of a write is bounded while the reserve lasts: it reads a part of the table, and moves at most
/// two slabs of content.
#[test]
fn a_page_that_needs_a_slab_moves_few_others() {
    let mut stored = stored_pages(SLABS, SLABS);
    (0..PAGES).for_each(|page| write(&mut stored, page, PAGE_BYTES).unwrap());
    let mut most = 0;
    for page in shuffled(1) {
        let before = stored.figures().moved_pages;
        write(&mut stored, page, 2000).unwrap();
        most = most.max(stored.figures().moved_pages - before);
    }
    assert!((1..=32).contains(&most), "{most} pages moved for one");
}

/// Slabs whose only page is damaged cannot be merged. A write that finds no room fails, and the next one does
/// not search the table again.
#[test]
fn a_damaged_page_ends_the_search() {
    let mut stored = stored_pages(4, 4);
    let in_slab = SLAB_BYTES as u64 / 1344;
    (0..4 * in_slab).for_each(|page| write(&mut stored, page, 1300).unwrap());
    for page in (0..4 * in_slab).filter(|page| page % in_slab > 0) {
        stored.discard(page).unwrap();
    }
    (0..4).for_each(|slab| stored.memory.set_word(slab * in_slab, 7));
    assert_eq!(stored.compaction.gain(&stored.pool), 3);
    assert_eq!(write(&mut stored, 1000, PAGE_BYTES), Err(PageError::NoSpace));
    assert_eq!((stored.compaction.gain(&stored.pool), stored.pool.mergeable_slabs()), (0, 3));
}

/// Found in review: a write whose own page was the only one that could move counted it as damaged, so the
/// next write failed, too.
#[test]
fn a_page_that_is_replaced_can_move_later() {
    let mut stored = stored_pages(3, 3);
    // Two slabs with a page each, of which the first can move to the second, and a full one.
    (0..49).for_each(|page| write(&mut stored, page, 1300).unwrap());
    (100..116).for_each(|page| write(&mut stored, page, PAGE_BYTES).unwrap());
    (1..48).for_each(|page| stored.discard(page).unwrap());
    assert_eq!(write(&mut stored, 0, PAGE_BYTES), Err(PageError::NoSpace));
    assert_eq!(write(&mut stored, 200, PAGE_BYTES), Ok(()));
    holds(&stored, 0, 1300);
}

/// Phases of writes and discards, each of random pages and with one length.
#[test]
fn writes_find_room_after_any_discards() {
    let mut stored = stored_pages(SLABS, SLABS);
    let mut lengths = vec![None; PAGES as usize];
    for seed in 0..60 {
        let random = shuffled(seed + 100);
        let (length, discarded) = (LENGTHS[random[0] as usize % LENGTHS.len()], random[1] % 3);
        for page in random.into_iter().take(PAGES as usize * 3 / 4) {
            if page % 3 < discarded {
                stored.discard(page).unwrap();
                lengths[page as usize] = None;
            } else {
                assert_eq!(write(&mut stored, page, length), Ok(()), "{seed}: {:?}", stored.figures());
                lengths[page as usize] = Some(length);
            }
        }
        for (page, length) in (0..).zip(&lengths) {
            if let Some(length) = length {
                holds(&stored, page, *length);
            }
        }
    }
    assert!(stored.figures().moved_pages > 0);
}
