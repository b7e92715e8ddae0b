use std::collections::BTreeSet;

use futures::FutureExt;
use holdfast_format::compose::{Layer, compose};
use holdfast_format::segment::{FrameIndex, SegmentBuilder};
use holdfast_types::{Block, Mask, Place, SegmentId, Seq};

use super::*;

const SPARE: u32 = 64;

/// Returns distinct content keys.
fn keys(count: u64) -> Vec<ContentKey> {
    let mut builder = SegmentBuilder::default();
    for number in 0..count {
        builder.push(Block(number), Mask(1), &[number + 1; 512].map(u64::to_le_bytes).concat());
    }
    let (segment, object) = builder.finish(SegmentId::new(Place::until(Seq(1)), 1, [0; 10]));
    let at = segment.index_offset as usize;
    let index = &object[at..at + segment.index_bytes as usize];
    let index = FrameIndex::decode(index).unwrap();
    (0..count)
        .map(|number| compose(Block(number), Mask::FULL, [Layer::Segment(segment.id, &index)]).key)
        .collect()
}

fn none_is_old(slot: Slot, _entry: SlabEntry) -> std::future::Ready<io::Result<bool>> {
    panic!("{slot:?} is proven")
}

/// Fills slots until each of `keys` was requested once; returns the number filled before one could not be.
fn fill(table: &SlotTable, keys: &[ContentKey]) -> usize {
    let fill = |key| {
        let write = |_slot, content| std::future::ready((content, Ok(())));
        table.slot(key, none_is_old, std::future::ready(Ok::<_, ()>(())), write).now_or_never()
    };
    keys.iter().take_while(|key| fill(key).is_some_and(|slot| slot.is_ok())).count()
}

/// Regression: on nodes with 17 or more CPUs, the index could hold every slot of the slab: no miss found a
/// free one, and each cold read of the node waited until the daemon was restarted.
#[test]
fn misses_are_served_on_any_number_of_cpus() {
    let tiny = 4 * SPARE;
    let keys = keys(3 * 8192);
    for cpus in [1, 2, 16, 17, 32, 64, 512] {
        for slots in [tiny, tiny + 1, 1000, 4096, 5003, 8191, 8192] {
            let table = SlotTable::new(slots, SPARE, 4 * cpus);
            let due = &keys[..3 * slots as usize];
            assert_eq!(fill(&table, due), due.len(), "{slots} slots, {cpus} CPUs");
            let used_slots = table.len() as u64;
            assert!(
                used_slots * 10 >= u64::from(slots) * 7,
                "{used_slots} of {slots} slots are used with {cpus} CPUs"
            );
        }
    }
    assert_eq!(SlotTable::new(32_768, SPARE, 8).index.num_shards(), 8);
}

/// Regression: two concurrent waiters could miss one of two released slots.
#[test]
fn each_released_slot_wakes_a_waiter() {
    let free = FreeSlots::none();
    free.add_fresh([1, 0].into_iter());
    let (one, other) = (free.take().now_or_never().unwrap(), free.take().now_or_never().unwrap());
    assert_eq!((one.number, other.number), (0, 1));
    let mut takers = [Box::pin(free.take()), Box::pin(free.take())];
    assert!(takers.iter_mut().all(|taker| taker.now_or_never().is_none()));
    free.give_back(one.number, true);
    free.give_back(other.number, false);
    let taken = takers.each_mut().map(|taker| taker.now_or_never());
    assert_eq!(taken, [Some(FreeSlot { has_room: true, ..one }), Some(other)]);
}

/// A file with space for the first `count` slots that are written.
struct Disk {
    room: usize,
    allocated: Mutex<BTreeSet<u32>>,
}

impl Disk {
    fn of(room: usize) -> Self {
        Self { room, allocated: Mutex::default() }
    }

    fn write(&self, slot: &Slot) -> io::Result<()> {
        let mut allocated = self.allocated.lock();
        if allocated.len() >= self.room && !allocated.contains(&slot.number()) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        allocated.insert(slot.number());
        Ok(())
    }

    /// Stores the content; write errors are in the result.
    fn ask(&self, table: &SlotTable, key: &ContentKey) -> Result<Slot, NoSlot<(), ()>> {
        let write = |slot: Slot, content| std::future::ready((content, self.write(&slot)));
        table.slot(key, none_is_old, std::future::ready(Ok(())), write).now_or_never().expect("nothing waits")
    }
}

/// Regression: on a full disk, a cold read of an uncached block never ended: each attempt took a
/// never-written slot, although others had space.
#[test]
fn a_ninth_block_reuses_one_of_eight_allocated_slots() {
    let (table, keys) = (SlotTable::new(4 * SPARE, SPARE, 8), keys(400));
    let mut disk = Disk::of(8);
    for _ in 0..2 {
        for key in &keys {
            let slot = disk.ask(&table, key).expect("an allocated slot takes it");
            assert!(slot.number() < 8, "{slot:?}");
        }
    }
    assert!((4..=8).contains(&table.len()), "{} of 8 slots are used", table.len());
    disk.room = usize::MAX;
    for key in &keys {
        disk.ask(&table, key).unwrap();
    }
    assert!(table.len() > 100, "the index grows again: {}", table.len());
}

impl SlotTable {
    fn get_now(&self, key: &ContentKey) -> Option<Slot> {
        self.get(key, none_is_old).now_or_never().expect("nothing waits")
    }

    fn fill_ahead_now(&self, key: &ContentKey) {
        let write = |_slot, content| std::future::ready((content, Ok(())));
        let filled = self.fill_ahead(key, std::future::ready(Ok::<_, ()>(())), write).now_or_never();
        assert!(filled.is_some_and(|filled| filled.is_ok()));
    }
}

/// A program that stops reading its prefetched file must not evict others' blocks.
#[test]
fn read_ahead_evicts_no_block_that_was_read() {
    let (table, keys) = (SlotTable::new(4096, SPARE, 8), keys(4 * 4096));
    let most = table.unread_most() as usize;
    // Each shard of the index has its own share, filled at random.
    let (read, ahead) = keys.split_at((table.capacity as usize - most) * 7 / 8);
    assert_eq!(fill(&table, read), read.len());
    ahead.iter().for_each(|key| table.fill_ahead_now(key));
    let left = read.iter().filter(|key| table.contains(key)).count();
    assert_eq!(left, read.len(), "{most} more fit");
    let unread = ahead.iter().filter(|key| table.contains(key)).count();
    assert!(unread <= most, "{unread} unread");
    let AheadCounts { fetched, used, unused } = table.ahead();
    assert_eq!((fetched, used, unused), (ahead.len() as u64, 0, (ahead.len() - unread) as u64));
}

/// Returns a table of 4096 slots that was full once, half of its slots with the first `hot` of `keys`, which
/// were read twice.
fn filled_once(keys: &[ContentKey], hot: usize) -> SlotTable {
    let table = SlotTable::new(4096, SPARE, 8);
    for _ in 0..3 {
        assert_eq!(fill(&table, &keys[..hot]), hot);
    }
    assert_eq!(fill(&table, &keys[hot..8192]), 8192 - hot);
    table
}

/// Regression: each block of a scan was prefetched and then read, and thus counted as frequently used.
#[test]
fn a_scan_evicts_no_block_that_was_read_twice() {
    let keys = keys(3 * 8192);
    let (hot, scanned) = (&keys[..2048], &keys[8192..]);
    let joined = |table: &SlotTable, key| {
        let write = |_slot, content| std::future::ready((content, Ok(())));
        let filled = table.fill_joined(key, std::future::ready(Ok::<_, ()>(())), write).now_or_never();
        assert!(filled.is_some_and(|filled| filled.is_ok()));
    };
    for is_ahead in [true, false] {
        let table = filled_once(&keys, hot.len());
        for key in scanned {
            if is_ahead {
                table.fill_ahead_now(key)
            } else {
                joined(&table, key)
            }
            assert!(table.get_now(key).is_some());
        }
        let left = hot.iter().filter(|key| table.contains(key)).count();
        assert_eq!(left, hot.len(), "ahead: {is_ahead}");
        // Their next read is a second use.
        let last = &scanned[scanned.len() - 100..];
        last.iter().for_each(|key| assert!(table.get_now(key).is_some()));
        assert_eq!(fill(&table, &scanned[..4096]), 4096);
        assert!(last.iter().all(|key| table.contains(key)));
    }
}

/// The same for a reader that comes while its block is being prefetched.
#[test]
fn a_reader_that_waits_for_its_block_uses_it_once() {
    let keys = keys(2 * 8192);
    let table = filled_once(&keys, 2048);
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let write = |_slot, content| std::future::ready((content, Ok(())));
    let fetch = async { ended.await.map_err(drop) };
    let mut ahead = Box::pin(table.fill_ahead(&keys[8192], fetch, write));
    assert!(ahead.as_mut().now_or_never().is_none());
    let mut reader =
        Box::pin(table.slot(&keys[8192], none_is_old, std::future::pending::<Result<(), ()>>(), write));
    assert!(reader.as_mut().now_or_never().is_none());
    end.send(()).unwrap();
    assert!(ahead.now_or_never().is_some_and(|filled| filled.is_ok()));
    assert!(reader.now_or_never().is_some_and(|slot| slot.is_ok()));
    assert_eq!(table.ahead(), AheadCounts { fetched: 1, used: 1, unused: 0 });
    assert_eq!(fill(&table, &keys[8193..][..4096]), 4096);
    assert!(!table.contains(&keys[8192]), "it was used once");
}

/// Regression: once the index was full, prefetched and once-read contents shared 3 % of it: a window was
/// evicted before its reader came.
#[test]
fn a_full_index_keeps_unread_contents() {
    let keys = keys(2 * 8192);
    let table = filled_once(&keys, 2048);
    // Each shard of the index has its own share, filled at random.
    let ahead = &keys[8192..][..table.unread_most() as usize * 7 / 8];
    ahead.iter().for_each(|key| table.fill_ahead_now(key));
    assert_eq!(ahead.iter().filter(|key| table.contains(key)).count(), ahead.len());
}

#[test]
fn contents_fetched_ahead_are_counted_as_used_once() {
    let (table, keys) = (SlotTable::new(4 * SPARE, SPARE, 8), keys(3));
    keys.iter().for_each(|key| table.fill_ahead_now(key));
    // An existing content is not fetched again.
    table.fill_ahead_now(&keys[0]);
    assert_eq!(table.ahead(), AheadCounts { fetched: 3, used: 0, unused: 0 });
    assert!(table.get_now(&keys[0]).is_some());
    assert_eq!(fill(&table, &keys[..2]), 2);
    assert_eq!(table.ahead(), AheadCounts { fetched: 3, used: 2, unused: 0 });
    let slot = table.index.get(&keys[2]).unwrap();
    table.forget(&slot);
    drop(slot);
    assert_eq!(table.ahead(), AheadCounts { fetched: 3, used: 2, unused: 1 });
}

/// Regression: parts of indexes waited for a slot, and their readers with them.
#[test]
fn a_spare_content_waits_for_no_slot() {
    let (table, keys) = (SlotTable::new(4 * SPARE, SPARE, 8), keys(257));
    let (last, used_slots) = keys.split_last().unwrap();
    let disk = Disk::of(usize::MAX);
    let used_slots: Vec<Slot> = used_slots.iter().map(|key| disk.ask(&table, key).unwrap()).collect();
    let keep = || {
        let write = |_slot, content| std::future::ready((content, Ok(())));
        table.fill_spare(last, std::future::ready(Ok::<_, ()>(())), write).now_or_never()
    };
    let Some(Err(NoSlot::Unkept(Unkept { error, .. }))) = keep() else { panic!("no slot is free") };
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    drop(used_slots);
    assert!(keep().is_some_and(|kept| kept.is_ok()) && table.contains(last));
}

#[test]
fn content_without_a_slot_is_returned() {
    let (table, keys) = (SlotTable::new(4 * SPARE, SPARE, 8), keys(300));
    for disk in [Disk::of(0), Disk::of(1)] {
        // A reader holds the only slot with space.
        let used_slots = disk.ask(&table, &keys[0]);
        for key in &keys[1..] {
            let Err(NoSlot::Unkept(Unkept { error, .. })) = disk.ask(&table, key) else {
                panic!("there is no room")
            };
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        }
        assert_eq!(used_slots.is_ok(), disk.room == 1);
    }
    assert_eq!(fill(&table, &keys), keys.len(), "no slot was lost");
}

/// Returns entries of an earlier process for the slots from 0.
fn entries(keys: &[ContentKey]) -> impl Iterator<Item = (u32, SlabEntry)> {
    (0..).zip(keys.iter().map(|key| SlabEntry::of(*key, &[])))
}

/// Regression: every cold block was fetched again after each restart of the daemon.
#[test]
fn contents_of_an_earlier_process_need_no_fetch() {
    let keys = keys(4096);
    let before = SlotTable::new(4096, SPARE, 8);
    let most = before.capacity as usize;
    let table = SlotTable::with_old(4096, SPARE, 8, entries(&keys));
    let found = keys.iter().filter(|key| table.contains(key)).count();
    println!("{found} of {most} are found");
    assert!(found * 100 >= most * 99, "{found} of {most}");
    let has_all = |_slot, _entry| std::future::ready(Ok(true));
    let used_slots: Vec<&ContentKey> = keys.iter().filter(|key| table.contains(key)).collect();
    for key in &used_slots {
        assert!(table.get(key, has_all).now_or_never().unwrap().is_some());
        assert!(table.get_now(key).is_some(), "once is enough");
    }
    assert_eq!(table.old(), OldCounts { found: found as u64, used: found as u64, refused: 0 });
    // The remaining contents fill the other slots.
    let keys = self::keys(3 * 4096);
    assert_eq!(fill(&table, &keys[4096..]), 2 * 4096);
}

#[test]
fn an_old_slot_with_other_bytes_is_fetched_into_another() {
    let (table, keys) = (SlotTable::with_old(4 * SPARE, SPARE, 8, entries(&keys(2))), keys(2));
    let ask = |key, found: fn() -> io::Result<bool>| {
        let read = move |_slot, _entry| std::future::ready(found());
        let write = |_slot, content| std::future::ready((content, Ok(())));
        table.slot(key, read, std::future::ready(Ok::<_, ()>(())), write).now_or_never().unwrap().unwrap()
    };
    // The disk has failed that one: others are used before it.
    assert_eq!(ask(&keys[1], || Err(io::ErrorKind::Other.into())).number(), 2);
    assert_eq!(ask(&keys[0], || Ok(false)).number(), 0, "the last to be free is the first to be used");
    assert!(keys.iter().all(|key| table.get_now(key).is_some()), "they are this process's");
    assert_eq!(table.old(), OldCounts { found: 2, used: 0, refused: 2 });
}

/// Regression: an entry of the table counted as proof of space: a content that found none was served from
/// memory, although other slots had space.
#[test]
fn an_old_slot_without_space_yields_to_others() {
    let keys = keys(40);
    let (old, fresh) = keys.split_at(11);
    let (table, disk) = (SlotTable::with_old(4 * SPARE, SPARE, 8, entries(old)), Disk::of(8));
    disk.allocated.lock().extend(0..8);
    // The last three have no space, and are the first to be used.
    for key in old {
        let refused = |_slot, _entry| std::future::ready(Ok(false));
        table.prove(key, refused).now_or_never().expect("nothing waits");
    }
    for key in fresh {
        assert!(disk.ask(&table, key).expect("others have room").number() < 8);
    }
}

/// Regression: each reader of a block verified it.
#[tokio::test]
async fn readers_that_come_together_compare_a_block_once() {
    let keys = keys(1);
    let table = SlotTable::with_old(4 * SPARE, SPARE, 8, entries(&keys));
    for is_right in [false, true] {
        let table = SlotTable::with_old(4 * SPARE, SPARE, 8, entries(&keys));
        let compares = AtomicU64::new(0);
        let compare = async |_slot, _entry| {
            compares.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Ok(is_right)
        };
        let readers = (0..32).map(|_| table.get(&keys[0], compare));
        let found = futures::future::join_all(readers).await;
        assert!(found.iter().all(|slot| slot.is_some() == is_right));
        assert_eq!(compares.into_inner(), 1);
    }
    // If its reader is dropped, the next one verifies it.
    let mut dropped = Box::pin(table.get(&keys[0], |_slot, _entry| std::future::pending()));
    assert!(dropped.as_mut().now_or_never().is_none());
    drop(dropped);
    assert!(table.get(&keys[0], |_slot, _entry| std::future::ready(Ok(true))).await.is_some());
}

/// Covers the table of a larger slab, and one that names a content twice because it was evicted and fetched
/// again.
#[test]
fn entries_beyond_the_slab_and_duplicates_are_ignored() {
    let keys = keys(300);
    let twice = [(7, SlabEntry::of(keys[0], &[])), (256, SlabEntry::of(keys[1], &[]))];
    let old = entries(&keys[..1]).chain(twice);
    let table = SlotTable::with_old(4 * SPARE, SPARE, 8, old);
    assert_eq!((table.len(), table.old().found), (1, 1));
    let has_all = |_slot, _entry| std::future::ready(Ok(true));
    assert!(table.get(&keys[0], has_all).now_or_never().unwrap().is_some());
    assert_eq!(fill(&table, &keys), keys.len());
    let numbers = table.free.numbers.lock();
    let free: BTreeSet<u32> = numbers.written.iter().chain(&numbers.fresh).copied().collect();
    assert_eq!(free.len() + table.len(), 4 * SPARE as usize, "no slot is lost, and none is there twice");
}
