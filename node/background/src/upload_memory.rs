//! Memory for the uploads of a node: the share of each, and their order.
//!
//! Owns: the bytes that uploads of all volumes may take together, and their division between stores.
//! Does not own: the use of the memory. [`Ledger`] decides and knows neither time nor tasks; [`UploadMemory`]
//! wakes the uploads that wait.
//! Invariants: a share is held during an attempt to upload and never between two. The shares make up at most
//! the whole, unless a single one is larger. A store holds more than one upload's share only where as much
//! stays free, so that stores that do not answer leave room for the others. A store whose last attempt failed
//! holds one share of one part. An upload that waits for the first share of a store that answers is overtaken
//! only until the memory that the others give back is enough for it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use futures::channel::oneshot;
use parking_lot::{Mutex, MutexGuard};

/// Most parts of one upload in memory at once.
const MAX_PARTS: u64 = 4;

/// Distinguishes the stores of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoreKey(pub usize);

/// Memory that an upload needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryNeed {
    /// From its beginning to its end.
    pub(crate) base_bytes: u64,
    /// For each part in memory.
    pub(crate) part_bytes: u64,
    /// Parts that it has, about.
    pub(crate) parts: u64,
}

impl MemoryNeed {
    fn share(self, parts: u64) -> Share {
        Share { bytes: self.base_bytes + parts * self.part_bytes, parts }
    }
}

/// Memory that an upload may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Share {
    bytes: u64,
    parts: u64,
}

#[derive(Debug, Default)]
struct Account {
    held_bytes: u64,
    uploads: u64,
    is_failing: bool,
    /// The newest ticket when it last gave a share back.
    gave_back: u64,
    /// By the order of their coming.
    waiting: VecDeque<(u64, MemoryNeed)>,
}

/// An upload for which the free memory is not enough.
#[derive(Debug, Clone, Copy)]
struct Starved {
    ticket: u64,
    /// Reserves the memory that comes back for it: it will be enough, even if stores fail or have given
    /// nothing back since it came.
    is_reserved: bool,
}

/// Memory that each store's uploads hold, and the uploads that wait.
#[derive(Debug)]
struct Ledger {
    bytes: u64,
    held_bytes: u64,
    peak_bytes: u64,
    asked: u64,
    stores: BTreeMap<StoreKey, Account>,
}

impl Ledger {
    fn new(bytes: u64) -> Self {
        Self { bytes, held_bytes: 0, peak_bytes: 0, asked: 0, stores: BTreeMap::new() }
    }

    /// Queues behind the other uploads to `store`.
    fn ask(&mut self, store: StoreKey, need: MemoryNeed) -> u64 {
        self.asked += 1;
        self.stores.entry(store).or_default().waiting.push_back((self.asked, need));
        self.asked
    }

    fn withdraw(&mut self, store: StoreKey, ticket: u64) {
        if let Some(account) = self.stores.get_mut(&store) {
            account.waiting.retain(|(waiting, _)| *waiting != ticket);
        }
        self.tidy();
    }

    /// Uploads that may begin now, with their shares. The store that holds least comes first.
    fn grant(&mut self) -> Vec<(u64, StoreKey, Share)> {
        let mut granted = Vec::new();
        while let Some((store, share)) = self.next() {
            let account = self.stores.get_mut(&store).expect("it has one that waits");
            let (ticket, _) = account.waiting.pop_front().expect("it has one that waits");
            account.held_bytes += share.bytes;
            account.uploads += 1;
            self.held_bytes += share.bytes;
            self.peak_bytes = self.peak_bytes.max(self.held_bytes);
            granted.push((ticket, store, share));
        }
        granted
    }

    fn next(&self) -> Option<(StoreKey, Share)> {
        let starved = self.starved();
        let may_begin = |account: &Account| {
            let Some((ticket, _)) = account.waiting.front() else { return false };
            starved.is_none_or(|starved| {
                let comes_after = *ticket > starved.ticket && starved.is_reserved;
                !comes_after && !account.is_failing
            })
        };
        let mut stores: Vec<_> = self.stores.iter().filter(|(_, account)| may_begin(account)).collect();
        stores.sort_by_key(|(key, account)| (account.held_bytes, **key));
        stores.into_iter().find_map(|(key, account)| Some((*key, self.share(account)?)))
    }

    /// The first of those that wait while their store holds nothing, because the others leave too little
    /// free. A store that fails has none: its next attempt may take as long as the store is unreachable.
    fn starved(&self) -> Option<Starved> {
        let starves =
            |account: &&Account| account.uploads == 0 && !account.is_failing && self.share(account).is_none();
        let first = self.stores.values().filter(starves).filter_map(|account| account.waiting.front());
        let (ticket, need) = first.min_by_key(|(ticket, _)| *ticket)?;
        let moves = |account: &&Account| !account.is_failing && account.gave_back >= *ticket;
        let stuck: u64 =
            self.stores.values().filter(|account| !moves(account)).map(|account| account.held_bytes).sum();
        let least = need.share(1).bytes.min(self.bytes);
        Some(Starved { ticket: *ticket, is_reserved: least + stuck <= self.bytes })
    }

    /// Share that the first waiting upload of this store may have now.
    fn share(&self, account: &Account) -> Option<Share> {
        let (_, need) = account.waiting.front()?;
        let free = self.bytes.saturating_sub(self.held_bytes);
        if account.is_failing && account.uploads > 0 {
            return None;
        }
        let most = if account.is_failing { 1 } else { need.parts.clamp(1, MAX_PARTS) };
        let leaves_as_much = |share: &Share| account.held_bytes + 2 * share.bytes <= free;
        let fair = (1..=most).rev().map(|parts| need.share(parts)).find(leaves_as_much);
        // The first of a store may have all that is free, and the first of all more than there is.
        fair.or_else(|| {
            let least = need.share(1);
            let fits = account.uploads == 0 && least.bytes <= free;
            (fits || self.held_bytes == 0).then_some(least)
        })
    }

    fn give_back(&mut self, store: StoreKey, share: Share) {
        self.held_bytes -= share.bytes;
        let account = self.stores.get_mut(&store).expect("it holds a share");
        account.held_bytes -= share.bytes;
        account.uploads -= 1;
        account.gave_back = self.asked;
        self.tidy();
    }

    fn set_failing(&mut self, store: StoreKey, is_failing: bool) {
        self.stores.entry(store).or_default().is_failing = is_failing;
        self.tidy();
    }

    /// Forgets stores of which nothing is known that matters: while an upload waits, that a store gives back
    /// does.
    fn tidy(&mut self) {
        let waits = self.stores.values().any(|account| !account.waiting.is_empty());
        self.stores.retain(|_, account| account.uploads > 0 || account.is_failing || waits);
    }
}

#[derive(Debug)]
struct UploadMemoryState {
    ledger: Ledger,
    waiting: BTreeMap<u64, oneshot::Sender<Room>>,
}

/// The memory that the uploads of a node share. Clones are the same memory.
#[derive(Debug, Clone)]
pub struct UploadMemory {
    state: Arc<Mutex<UploadMemoryState>>,
    part_bytes: usize,
}

impl UploadMemory {
    /// `bytes` for all uploads, which are made in parts of `part_bytes`: of S3's at least 5 MiB.
    pub fn new(bytes: u64, part_bytes: usize) -> Self {
        let state = UploadMemoryState { ledger: Ledger::new(bytes), waiting: BTreeMap::new() };
        Self { state: Arc::new(Mutex::new(state)), part_bytes }
    }

    /// The length of all parts but the last, in bytes.
    pub(crate) fn part_bytes(&self) -> usize {
        self.part_bytes
    }

    /// Memory that uploads hold now, in bytes.
    pub fn held_bytes(&self) -> u64 {
        self.lock().ledger.held_bytes
    }

    /// The most that uploads ever held at once, in bytes.
    pub fn peak_bytes(&self) -> u64 {
        self.lock().ledger.peak_bytes
    }

    /// Waits for the share of an upload to `store`.
    pub(crate) async fn room(&self, store: StoreKey, need: MemoryNeed) -> Room {
        let (sender, receiver) = oneshot::channel();
        let ticket = {
            let mut state = self.lock();
            let ticket = state.ledger.ask(store, need);
            state.waiting.insert(ticket, sender);
            ticket
        };
        let _place = QueuePlace { memory: self, store, ticket };
        self.grant();
        receiver.await.expect("a place that is not left is granted")
    }

    fn grant(&self) {
        let mut state = self.lock();
        let granted = state.ledger.grant();
        let granted: Vec<_> = granted
            .into_iter()
            .map(|(ticket, store, share)| (state.waiting.remove(&ticket), store, share))
            .collect();
        drop(state);
        for (sender, store, share) in granted {
            let room = Room { memory: self.clone(), store, share };
            if let Some(sender) = sender {
                // Where the other end is gone, the room is given back at once.
                let _sent = sender.send(room);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, UploadMemoryState> {
        self.state.lock()
    }
}

/// A place in the queue, left when this is dropped.
struct QueuePlace<'a> {
    memory: &'a UploadMemory,
    store: StoreKey,
    ticket: u64,
}

impl Drop for QueuePlace<'_> {
    fn drop(&mut self) {
        let mut state = self.memory.lock();
        if state.waiting.remove(&self.ticket).is_some() {
            state.ledger.withdraw(self.store, self.ticket);
        }
        drop(state);
        self.memory.grant();
    }
}

/// Share of an upload, until this is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    memory: UploadMemory,
    store: StoreKey,
    share: Share,
}

impl Room {
    /// Parts that may be in memory at once.
    pub(crate) fn parts(&self) -> usize {
        usize::try_from(self.share.parts).unwrap_or(usize::MAX)
    }

    /// Records if the store takes what it is sent.
    pub(crate) fn set_failing(&self, is_failing: bool) {
        self.memory.lock().ledger.set_failing(self.store, is_failing);
        self.memory.grant();
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.memory.lock().ledger.give_back(self.store, self.share);
        self.memory.grant();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const MIB: u64 = 1 << 20;
    const NEED: MemoryNeed = MemoryNeed { base_bytes: MIB, part_bytes: 16 * MIB, parts: 8 };
    const SMALL: MemoryNeed = MemoryNeed { base_bytes: 0, part_bytes: MIB, parts: 1 };
    const LARGE: MemoryNeed = MemoryNeed { base_bytes: 220 * MIB, ..NEED };

    fn memory() -> UploadMemory {
        UploadMemory::new(256 * MIB, 16 << 20)
    }

    fn take(memory: &UploadMemory, store: usize, need: MemoryNeed) -> Option<Room> {
        memory.room(StoreKey(store), need).now_or_never()
    }

    /// All that a store gets at once.
    fn take_all(memory: &UploadMemory, store: usize, need: MemoryNeed) -> Vec<Room> {
        std::iter::from_fn(|| take(memory, store, need)).take(1000).collect()
    }

    #[test]
    fn stores_that_hold_their_shares_leave_some_for_the_others() {
        let memory = memory();
        let mut held = Vec::new();
        for store in 0..5 {
            let rooms = take_all(&memory, store, NEED);
            assert!(!rooms.is_empty(), "store {store} gets nothing");
            held.extend(rooms);
        }
        assert!(memory.peak_bytes() <= 256 * MIB);
        let first: u64 =
            held.iter().filter(|room| room.store == StoreKey(0)).map(|room| room.share.bytes).sum();
        assert!((96 * MIB..=128 * MIB).contains(&first), "{first}");
        drop(held);
        assert_eq!(memory.lock().ledger.held_bytes, 0);
        assert!(memory.lock().ledger.stores.is_empty());
    }

    #[test]
    fn a_failing_store_holds_one_part_until_it_takes_one() {
        let memory = memory();
        let room = take(&memory, 0, NEED).unwrap();
        assert_eq!(room.parts(), 4);
        room.set_failing(true);
        assert!(take(&memory, 0, NEED).is_none(), "one is in progress");
        drop(room);
        let trial = take(&memory, 0, NEED).unwrap();
        assert_eq!(trial.parts(), 1);
        assert!(take(&memory, 0, SMALL).is_none());
        let mut next = Box::pin(memory.room(StoreKey(0), NEED));
        assert!((&mut next).now_or_never().is_none());
        trial.set_failing(false);
        assert_eq!(next.now_or_never().unwrap().parts(), 4);
    }

    #[test]
    fn volumes_of_one_store_take_turns() {
        let memory = memory();
        let rooms = take_all(&memory, 0, NEED);
        let mut first = Box::pin(memory.room(StoreKey(0), NEED));
        let mut second = Box::pin(memory.room(StoreKey(0), SMALL));
        assert!((&mut first).now_or_never().is_none());
        assert!((&mut second).now_or_never().is_none(), "a small one does not overtake");
        drop(rooms);
        assert!((&mut first).now_or_never().is_some() && second.now_or_never().is_some());
    }

    #[test]
    fn what_is_larger_than_all_memory_is_uploaded_alone() {
        let memory = memory();
        let small = take(&memory, 1, SMALL).unwrap();
        let mut huge = Box::pin(memory.room(StoreKey(0), MemoryNeed { base_bytes: 300 * MIB, ..NEED }));
        assert!((&mut huge).now_or_never().is_none());
        drop(small);
        let room = huge.now_or_never().unwrap();
        assert_eq!(room.parts(), 1);
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
        assert_eq!(memory.lock().ledger.held_bytes, 0);
    }

    /// Two stores that are always busy.
    struct Busy {
        memory: UploadMemory,
        rooms: [Vec<Room>; 2],
    }

    impl Busy {
        fn new() -> Self {
            let memory = memory();
            let rooms = [1, 2].map(|store| take_all(&memory, store, NEED));
            Self { memory, rooms }
        }

        /// Each store ends an upload and asks for the next ones. How many it got.
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

    /// Each byte that came back was taken at once by a smaller upload to a store that was busy already.
    #[test]
    fn a_large_upload_is_not_starved_by_small_ones() {
        let mut busy = Busy::new();
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

    /// A store with one volume is idle while the record of each upload is created: that it gives back was
    /// forgotten.
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

    #[test]
    fn a_cancelled_waiter_releases_its_reservation() {
        let mut busy = Busy::new();
        let memory = busy.memory.clone();
        let mut large = Box::pin(memory.room(StoreKey(0), LARGE));
        assert!((&mut large).now_or_never().is_none());
        busy.turn();
        let mut small = Box::pin(memory.room(StoreKey(3), SMALL));
        assert!((&mut small).now_or_never().is_none(), "it came later");
        drop(large);
        assert!(small.now_or_never().is_some());
        assert!(busy.turn() > [0, 0]);
    }

    #[test]
    fn a_failing_store_has_no_reservation() {
        let mut busy = Busy::new();
        let memory = busy.memory.clone();
        memory.lock().ledger.set_failing(StoreKey(0), true);
        let mut large = Box::pin(memory.room(StoreKey(0), LARGE));
        for _turn in 0..16 {
            assert!((&mut large).now_or_never().is_none());
            assert!(busy.turn().iter().all(|begun| *begun > 0));
        }
    }

    /// Nothing is kept for an upload that waits for a store which does not answer.
    #[test]
    fn a_silent_store_makes_no_reservation_block_others() {
        let memory = memory();
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
}
