use futures::FutureExt;

use super::*;

const MIB: u64 = 1 << 20;
const NEED: MemoryNeed = MemoryNeed { base_bytes: MIB, part_bytes: 16 * MIB };
const SMALL: MemoryNeed = MemoryNeed { base_bytes: 0, part_bytes: MIB };
const LARGE: MemoryNeed = MemoryNeed { base_bytes: 220 * MIB, ..NEED };

fn memory() -> UploadMemory {
    UploadMemory::new(256 * MIB, 16 << 20)
}

/// Registers a volume of each of `stores` stores.
fn attach(memory: &UploadMemory, stores: usize) -> Vec<StorePresence> {
    (0..stores).map(|store| memory.attach(StoreKey(store))).collect()
}

fn take(memory: &UploadMemory, store: usize, need: MemoryNeed) -> Option<UploadReservation> {
    memory.room(StoreKey(store), need).now_or_never()
}

/// Takes everything that a store gets at once.
fn take_all(memory: &UploadMemory, store: usize, need: MemoryNeed) -> Vec<UploadReservation> {
    std::iter::from_fn(|| take(memory, store, need)).take(1000).collect()
}

/// Takes everything that an upload gets at once, in pieces of 1 MiB.
fn grow(room: &UploadReservation) -> Vec<Held> {
    std::iter::from_fn(|| room.try_take(MIB)).collect()
}

fn held_bytes(memory: &UploadMemory, store: usize) -> u64 {
    memory.lock().ledger.stores[&StoreKey(store)].held_bytes
}

/// Regression: two uploads of one store held 112 of 256 MiB, and the third one waited.
#[test]
fn the_only_store_has_all_memory() {
    let memory = memory();
    let _attached = attach(&memory, 1);
    let rooms: Vec<_> = (0..8).map(|_| take(&memory, 0, NEED).expect("eight fit")).collect();
    let taken: Vec<_> = rooms.iter().map(grow).collect();
    assert_eq!(memory.held_bytes(), 240 * MIB, "all but the lane of small uploads");
    let alone = grow(&rooms[7]);
    assert!(alone.is_empty());
    drop((taken, rooms));
    assert_eq!((memory.held_bytes(), memory.peak_bytes()), (0, 240 * MIB));
    let part = take(&memory, 0, NEED).unwrap();
    let _taken = grow(&part);
    assert_eq!(memory.held_bytes(), 240 * MIB, "one upload too");
}

#[test]
fn stores_that_hold_their_shares_leave_some_for_the_others() {
    let memory = memory();
    let attached = attach(&memory, 5);
    let mut all = Vec::new();
    for store in 0..5 {
        let rooms = take_all(&memory, store, NEED);
        assert!(!rooms.is_empty(), "store {store} gets nothing");
        let taken: Vec<_> = rooms.iter().map(grow).collect();
        all.push((taken, rooms));
    }
    assert!(memory.peak_bytes() <= 256 * MIB);
    assert!((128 * MIB..=160 * MIB).contains(&held_bytes(&memory, 0)), "{}", held_bytes(&memory, 0));
    drop(all);
    assert_eq!(memory.held_bytes(), 0);
    drop(attached);
    assert!(memory.lock().ledger.stores.is_empty());
}

/// Memory that a busy store releases goes to the one that holds less, until both hold the same.
#[test]
fn two_busy_stores_get_equal_shares() {
    let memory = memory();
    let _attached = attach(&memory, 2);
    let (part, other) = (take(&memory, 0, NEED).unwrap(), take(&memory, 1, NEED).unwrap());
    let mut taken = [grow(&part), Vec::new()];
    assert!(held_bytes(&memory, 0) >= 170 * MIB, "{}", held_bytes(&memory, 0));
    for _part in 0..300 {
        let mut more = [&part, &other].map(|room| Box::pin(room.take(MIB)));
        let mut granted = [0, 1].map(|store| (&mut more[store]).now_or_never());
        taken[0].pop();
        for store in [0, 1] {
            let later = granted[store].take().or_else(|| (&mut more[store]).now_or_never());
            taken[store].extend(later);
        }
    }
    let (part, other) = (held_bytes(&memory, 0), held_bytes(&memory, 1));
    assert!(part.abs_diff(other) <= 2 * MIB && part + other >= 236 * MIB, "{part} {other}");
}

/// Regression: a FLUSH of a volume with `durability: object` waited behind the seals of the others.
#[test]
fn a_small_upload_passes_the_others() {
    let memory = memory();
    let _attached = attach(&memory, 1);
    let rooms = take_all(&memory, 0, NEED);
    let _taken: Vec<_> = rooms.iter().map(grow).collect();
    let mut next = Box::pin(memory.room(StoreKey(0), NEED));
    assert!((&mut next).now_or_never().is_none());
    let small = take_all(&memory, 0, SMALL);
    assert_eq!(small.len(), 8, "half of the lane: the store may stop to answer");
    assert!(memory.held_bytes() <= 256 * MIB);
    assert!(take(&memory, 1, SMALL).is_some(), "another store's");
    drop(small);
    assert!((&mut next).now_or_never().is_none(), "the lane is not for it");
    drop(rooms);
    assert!(next.now_or_never().is_some());
}

#[test]
fn a_failing_store_holds_one_part_until_it_stores_one() {
    let memory = memory();
    let _attached = attach(&memory, 1);
    let room = take(&memory, 0, NEED).unwrap();
    assert!(!room.is_trial());
    room.set_failing(true);
    assert!(take(&memory, 0, NEED).is_none(), "one is in progress");
    drop(room);
    let trial = take(&memory, 0, NEED).unwrap();
    assert!(trial.is_trial());
    let part = trial.try_take(16 * MIB).expect("its part");
    assert!(trial.try_take(1).is_none());
    assert!(take(&memory, 0, SMALL).is_none());
    let mut next = Box::pin(memory.room(StoreKey(0), NEED));
    assert!((&mut next).now_or_never().is_none());
    trial.set_failing(false);
    let next = next.now_or_never().unwrap();
    assert!(!trial.is_trial() && !next.is_trial() && next.try_take(32 * MIB).is_some());
    drop(part);
}

#[test]
fn volumes_of_one_store_take_turns() {
    let memory = memory();
    let rooms = take_all(&memory, 0, NEED);
    let mut first = Box::pin(memory.room(StoreKey(0), NEED));
    let mut second = Box::pin(memory.room(StoreKey(0), MemoryNeed { part_bytes: 2 * MIB, ..SMALL }));
    assert!((&mut first).now_or_never().is_none());
    assert!((&mut second).now_or_never().is_none(), "a smaller one does not overtake");
    assert!(rooms[0].try_take(17 * MIB).is_none(), "nor does one that is in progress grow");
    drop(rooms);
    assert!((&mut first).now_or_never().is_some() && second.now_or_never().is_some());
}

#[test]
fn released_memory_goes_to_a_waiting_upload() {
    let memory = memory();
    let (part, other) = (take(&memory, 0, NEED).unwrap(), take(&memory, 0, NEED).unwrap());
    let mut taken = grow(&part);
    let mut more = Box::pin(other.take(20 * MIB));
    assert!((&mut more).now_or_never().is_none());
    let mut gone = Box::pin(part.take(MIB));
    assert!((&mut gone).now_or_never().is_none());
    taken.truncate(taken.len() - 8);
    let more = more.now_or_never().expect("it holds less");
    assert!(memory.peak_bytes() <= 256 * MIB);
    // Unnoticed grants are released.
    drop((gone, more));
    drop((taken, part, other));
    assert_eq!(memory.held_bytes(), 0);
}

#[test]
fn an_upload_larger_than_all_memory_runs_alone() {
    let memory = memory();
    let small = take(&memory, 1, NEED).unwrap();
    let mut huge = Box::pin(memory.room(StoreKey(0), MemoryNeed { base_bytes: 300 * MIB, ..NEED }));
    assert!((&mut huge).now_or_never().is_none());
    drop(small);
    let room = huge.now_or_never().unwrap();
    assert!(room.try_take(16 * MIB).is_some() && room.try_take(17 * MIB).is_none());
    assert!(take(&memory, 1, SMALL).is_none());
}

#[test]
fn an_upload_that_is_dropped_leaves_the_queue() {
    let memory = memory();
    let rooms = take_all(&memory, 0, NEED);
    let mut gone = Box::pin(memory.room(StoreKey(0), NEED));
    assert!((&mut gone).now_or_never().is_none());
    drop(gone);
    drop(rooms);
    assert!(take(&memory, 0, NEED).is_some());
    assert_eq!(memory.held_bytes(), 0);
}

/// Two stores that are always busy.
struct BusyStores {
    memory: UploadMemory,
    _attached: Vec<StorePresence>,
    rooms: [Vec<UploadReservation>; 2],
}

impl BusyStores {
    fn new() -> Self {
        let memory = memory();
        let attached = attach(&memory, 4);
        let rooms = [1, 2].map(|store| take_all(&memory, store, NEED));
        Self { memory, _attached: attached, rooms }
    }

    /// Ends an upload of each store and requests the next ones. Returns the number granted to each.
    fn turn(&mut self) -> [usize; 2] {
        [0, 1].map(|store| {
            let ended = (!self.rooms[store].is_empty()).then(|| self.rooms[store].remove(0));
            drop(ended);
            let next = take_all(&self.memory, store + 1, NEED);
            let begun = next.len();
            self.rooms[store].extend(next);
            begun
        })
    }
}

/// Regression: each released byte was taken at once by a smaller upload to a busy store.
#[test]
fn a_large_upload_is_not_starved_by_small_ones() {
    let mut busy = BusyStores::new();
    let memory = busy.memory.clone();
    let mut large = Box::pin(memory.room(StoreKey(0), LARGE));
    let granted = (0..16).find_map(|_turn| {
        busy.turn();
        (&mut large).now_or_never()
    });
    let room = granted.expect("it waits without end");
    assert!(memory.held_bytes() <= 256 * MIB);
    drop(room);
    assert!(busy.turn() > [0, 0], "the others continue");
}

/// Regression: a store with one volume is idle while the record of each upload is created, and its releases
/// were forgotten.
#[test]
fn single_uploads_do_not_starve_a_large_one() {
    let memory = memory();
    let mut rooms = [1, 2].map(|store| take(&memory, store, NEED));
    let mut large = Box::pin(memory.room(StoreKey(0), LARGE));
    let mut turns = [0, 1].into_iter().cycle().take(16);
    let granted = turns.find_map(|store| {
        rooms[store] = None;
        let granted = (&mut large).now_or_never();
        rooms[store] = take(&memory, store + 1, NEED);
        granted
    });
    assert!(granted.is_some(), "it waits without end");
}

/// A stream of small uploads that overlap.
struct SmallStream {
    memory: UploadMemory,
    store: usize,
    rooms: VecDeque<UploadReservation>,
}

impl SmallStream {
    fn new(memory: &UploadMemory, store: usize) -> Self {
        let rooms = (0..2).map(|_| take(memory, store, SMALL).expect("the lane is free")).collect();
        Self { memory: memory.clone(), store, rooms }
    }

    /// Starts the next one before the oldest one ends, if permitted.
    fn turn(&mut self) {
        self.rooms.extend(take(&self.memory, self.store, SMALL));
        self.rooms.pop_front();
    }
}

/// Regression: at no time did uploads hold nothing.
#[test]
fn small_uploads_do_not_starve_one_above_the_memory() {
    let memory = memory();
    let _attached = attach(&memory, 2);
    for (store, base_bytes) in [(0, 300 * MIB), (1, 300 * MIB), (0, 226 * MIB)] {
        let mut small = SmallStream::new(&memory, 1);
        let mut huge = Box::pin(memory.room(StoreKey(store), MemoryNeed { base_bytes, ..NEED }));
        let granted = (0..16).find_map(|_turn| {
            small.turn();
            (&mut huge).now_or_never()
        });
        assert!(granted.is_some(), "it waits without end");
        drop(granted);
        small.turn();
        assert!(take(&memory, 1, SMALL).is_some(), "small ones continue");
    }
}

/// Regression: a store with a small upload in progress counted as neither idle nor starved.
#[test]
fn a_stores_small_uploads_do_not_starve_its_large_one() {
    let mut busy = BusyStores::new();
    let memory = busy.memory.clone();
    let mut small = SmallStream::new(&memory, 0);
    let mut large = Box::pin(memory.room(StoreKey(0), LARGE));
    let granted = (0..16).find_map(|_turn| {
        small.turn();
        busy.turn();
        (&mut large).now_or_never()
    });
    assert!(granted.is_some(), "it waits without end");
    assert!(!small.rooms.is_empty() && memory.held_bytes() <= 256 * MIB);
}

#[test]
fn a_cancelled_waiter_releases_its_reservation() {
    let mut busy = BusyStores::new();
    let memory = busy.memory.clone();
    let mut large = Box::pin(memory.room(StoreKey(0), LARGE));
    assert!((&mut large).now_or_never().is_none());
    busy.turn();
    let mut later = Box::pin(memory.room(StoreKey(3), NEED));
    assert!((&mut later).now_or_never().is_none(), "it came later");
    drop(large);
    assert!(later.now_or_never().is_some());
    assert!(busy.turn() > [0, 0]);
}

#[test]
fn a_failing_store_has_no_reservation() {
    let mut busy = BusyStores::new();
    let memory = busy.memory.clone();
    memory.lock().ledger.set_failing(StoreKey(0), true);
    let mut large = Box::pin(memory.room(StoreKey(0), LARGE));
    for _turn in 0..16 {
        assert!((&mut large).now_or_never().is_none());
        assert!(busy.turn().iter().all(|begun| *begun > 0));
    }
}

/// Regression: memory saved by compression counted as a release by an unresponsive store.
#[test]
fn compression_is_no_answer_of_a_store() {
    let memory = memory();
    let _attached = attach(&memory, 3);
    let silent = take(&memory, 2, NEED).unwrap();
    let mut batch = silent.try_take(64 * MIB).unwrap();
    let mut large = Box::pin(memory.room(StoreKey(0), LARGE));
    assert!((&mut large).now_or_never().is_none());
    for _batch in 0..16 {
        batch.shrink_to(batch.bytes - MIB);
        assert!(take(&memory, 1, NEED).is_some(), "it does not wait for store 2");
    }
    drop(batch.split(16 * MIB).into_sent());
    assert!(take(&memory, 1, NEED).is_none(), "store 2 takes what it is sent");
    drop((batch, silent));
    assert!(large.now_or_never().is_some());
}

/// Regression: it kept its share until the node ended.
#[test]
fn a_failing_store_without_volumes_has_no_share() {
    let memory = memory();
    let _attached = attach(&memory, 1);
    memory.lock().ledger.set_failing(StoreKey(1), true);
    let rooms = take_all(&memory, 0, NEED);
    let _taken: Vec<_> = rooms.iter().map(grow).collect();
    assert_eq!(memory.held_bytes(), 240 * MIB, "all but the lane of small uploads");
}

/// No memory is reserved for an upload to an unresponsive store.
#[test]
fn a_silent_store_makes_no_reservation_block_others() {
    let memory = memory();
    let _attached = attach(&memory, 3);
    let silent = take_all(&memory, 2, NEED);
    let mut large = Box::pin(memory.room(StoreKey(0), LARGE));
    assert!((&mut large).now_or_never().is_none());
    for _upload in 0..16 {
        assert!(take(&memory, 1, NEED).is_some(), "it does not wait for store 2");
    }
    for room in &silent {
        room.set_failing(true);
    }
    drop(silent);
    assert!(large.now_or_never().is_some());
}
