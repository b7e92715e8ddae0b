//! Memory for the uploads of a node: the share of each, and their order.
//!
//! Owns: the bytes that uploads of all volumes may use together, and their division between stores.
//! Does not own: the use of the memory. [`Ledger`] decides, without time or tasks; [`UploadMemory`] wakes
//! waiting uploads.
//!
//! An upload attempt starts with the minimum for progress: one part. It takes more while it runs and releases
//! the memory of each stored part. Invariants:
//! - Uploads hold at most the whole memory, unless a single one is larger; they hold nothing between two
//!   attempts.
//! - Of half of the memory, each store with volumes on the node may always have its share, so that
//!   unresponsive stores leave room for the others. Beyond that, a store may use all free memory.
//! - Uploads waiting to start precede those that want more: the store that holds least comes first.
//! - A sixteenth is reserved for small uploads, which overtake the others: the uploads that a FLUSH waits for
//!   are small. They do not overtake an upload that needs part of that sixteenth and has the reservation
//!   below.
//! - A store whose last attempt failed has one upload, with its minimum.
//! - An upload waiting to be the first of a responsive store is overtaken only until the memory that the
//!   others release suffices for it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use futures::channel::oneshot;
use parking_lot::{Mutex, MutexGuard};

/// Small uploads use at most one part in this many of the memory.
const SMALL_PART: u64 = 256;
/// One part in this many of the memory is reserved for them.
const SMALL_LANE_PART: u64 = 16;

/// Identifies a store of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoreKey(pub usize);

/// Memory requirement of an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemoryNeed {
    /// Held from start to end.
    pub(crate) base_bytes: u64,
    /// Minimum for the part in progress.
    pub(crate) part_bytes: u64,
}

impl MemoryNeed {
    fn least_bytes(self) -> u64 {
        self.base_bytes + self.part_bytes
    }
}

/// An upload in progress.
#[derive(Debug)]
struct LedgerEntry {
    store: StoreKey,
    need: MemoryNeed,
    /// Bytes in use, in addition to those held from start to end.
    used_bytes: u64,
    is_in_small_lane: bool,
}

impl LedgerEntry {
    fn held_bytes(&self) -> u64 {
        self.need.least_bytes().max(self.need.base_bytes + self.used_bytes)
    }

    /// Returns the growth of its held bytes if `bytes` more are in use.
    fn growth(&self, bytes: u64) -> u64 {
        (self.need.base_bytes + self.used_bytes + bytes).saturating_sub(self.held_bytes())
    }
}

/// A store with volumes on the node, or with uploads.
#[derive(Debug, Default)]
struct Account {
    volumes: usize,
    held_bytes: u64,
    /// Bytes of those in the lane of small uploads.
    small_bytes: u64,
    uploads: u64,
    /// Number of those in the lane of small uploads.
    small_uploads: u64,
    is_failing: bool,
    /// The newest ticket when an upload last ended or the memory of a sent part was last released.
    gave_back: u64,
    /// In order of arrival.
    waiting: VecDeque<(u64, MemoryNeed)>,
}

impl Account {
    /// Returns the upload that starts next, if it only waits for memory.
    fn next(&self) -> Option<(u64, MemoryNeed)> {
        let (ticket, need) = self.waiting.front()?;
        (!self.is_failing || self.uploads == 0).then_some((*ticket, *need))
    }

    /// Returns true if it has no upload outside the lane of small uploads, which pass the waiting one.
    fn has_only_small(&self) -> bool {
        self.uploads == self.small_uploads
    }
}

/// An upload without enough free memory.
#[derive(Debug, Clone, Copy)]
struct Starved {
    ticket: u64,
    /// Bytes that it needs to start.
    least_bytes: u64,
    /// True to reserve released memory for it: the releases will suffice, even if stores fail or have
    /// released nothing since the upload arrived.
    is_reserved: bool,
}

/// Result of granting memory.
#[derive(Debug, Default)]
struct Granted {
    /// Uploads that start.
    begun: Vec<(u64, StoreKey)>,
    /// Uploads that got the memory they waited for.
    grown: Vec<u64>,
}

/// Memory held by each store's uploads, and the waiting uploads.
#[derive(Debug)]
struct Ledger {
    bytes: u64,
    held_bytes: u64,
    small_bytes: u64,
    peak_bytes: u64,
    asked: u64,
    stores: BTreeMap<StoreKey, Account>,
    uploads: BTreeMap<u64, LedgerEntry>,
    /// Uploads that wait for more, with the bytes.
    growing: BTreeMap<u64, u64>,
}

impl Ledger {
    fn new(bytes: u64) -> Self {
        Self {
            bytes,
            held_bytes: 0,
            small_bytes: 0,
            peak_bytes: 0,
            asked: 0,
            stores: BTreeMap::new(),
            uploads: BTreeMap::new(),
            growing: BTreeMap::new(),
        }
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

    /// Takes more bytes for an upload, if no other one waits for them.
    fn try_take(&mut self, ticket: u64, bytes: u64) -> bool {
        let growth = self.uploads[&ticket].growth(bytes);
        let may = growth == 0 || self.growing.is_empty() && self.may_grow(&self.uploads[&ticket], growth);
        if may {
            self.take(ticket, bytes);
        }
        may
    }

    fn take(&mut self, ticket: u64, bytes: u64) {
        let upload = self.uploads.get_mut(&ticket).expect("it is in progress");
        let growth = upload.growth(bytes);
        upload.used_bytes += bytes;
        let account = self.stores.get_mut(&upload.store).expect("it has an upload");
        account.held_bytes += growth;
        self.held_bytes += growth;
        self.peak_bytes = self.peak_bytes.max(self.held_bytes);
    }

    /// Releases an upload's bytes; a no-op once it has ended. `is_sent`: the store has the bytes.
    fn give_back(&mut self, ticket: u64, bytes: u64, is_sent: bool) {
        let Some(upload) = self.uploads.get_mut(&ticket) else { return };
        let before = upload.held_bytes();
        upload.used_bytes -= bytes;
        let shrunk = before - upload.held_bytes();
        if shrunk > 0 {
            let account = self.stores.get_mut(&upload.store).expect("it has an upload");
            account.held_bytes -= shrunk;
            if is_sent {
                account.gave_back = self.asked;
            }
            self.held_bytes -= shrunk;
        }
    }

    /// Grants memory to waiting uploads.
    fn grant(&mut self) -> Granted {
        let mut granted = Granted::default();
        while let Some((store, ticket, is_in_small_lane)) = self.next_small().or_else(|| self.next()) {
            self.begin(store, ticket, is_in_small_lane);
            granted.begun.push((ticket, store));
        }
        while let Some(ticket) = self.next_growing() {
            let bytes = self.growing.remove(&ticket).expect("it waits");
            self.take(ticket, bytes);
            granted.grown.push(ticket);
        }
        granted
    }

    fn begin(&mut self, store: StoreKey, ticket: u64, is_in_small_lane: bool) {
        let account = self.stores.get_mut(&store).expect("it has one that waits");
        let at = account.waiting.iter().position(|(waiting, _)| *waiting == ticket).expect("it waits");
        let (_, need) = account.waiting.remove(at).expect("it waits");
        let bytes = need.least_bytes();
        account.held_bytes += bytes;
        account.uploads += 1;
        self.held_bytes += bytes;
        self.peak_bytes = self.peak_bytes.max(self.held_bytes);
        if is_in_small_lane {
            account.small_bytes += bytes;
            account.small_uploads += 1;
            self.small_bytes += bytes;
        }
        self.uploads.insert(ticket, LedgerEntry { store, need, used_bytes: 0, is_in_small_lane });
    }

    /// Returns the bytes reserved for small uploads.
    fn small_lane_bytes(&self) -> u64 {
        self.bytes / SMALL_LANE_PART
    }

    fn is_small(&self, need: MemoryNeed) -> bool {
        need.least_bytes() <= self.bytes / SMALL_PART
    }

    /// Returns a small upload that may pass those before it. An unresponsive store leaves room in the lane.
    fn next_small(&self) -> Option<(StoreKey, u64, bool)> {
        let needs_lane = |starved: &Starved| {
            starved.is_reserved && starved.least_bytes > self.bytes - self.small_lane_bytes()
        };
        if self.starved().as_ref().is_some_and(needs_lane) {
            return None;
        }
        let free = self.small_lane_bytes() - self.small_bytes;
        self.stores.iter().filter(|(_, account)| !account.is_failing).find_map(|(store, account)| {
            let fits = |need: MemoryNeed| {
                let bytes = need.least_bytes();
                self.is_small(need)
                    && account.small_bytes + bytes <= free
                    && self.held_bytes + bytes <= self.bytes
            };
            let (ticket, _) = account.waiting.iter().find(|(_, need)| fits(*need))?;
            Some((*store, *ticket, true))
        })
    }

    fn next(&self) -> Option<(StoreKey, u64, bool)> {
        let starved = self.starved();
        let may_begin = |account: &Account, ticket| {
            starved.is_none_or(|starved| {
                let comes_after = ticket > starved.ticket && starved.is_reserved;
                !comes_after && !account.is_failing
            })
        };
        let begins = |(store, account): (&StoreKey, &Account)| {
            let (ticket, need) = account.next()?;
            let begins = may_begin(account, ticket) && self.fits(*store, account, need);
            begins.then_some((account.held_bytes, *store, ticket))
        };
        let (_, store, ticket) = self.stores.iter().filter_map(begins).min()?;
        Some((store, ticket, false))
    }

    /// Returns the first upload that waits although its store has only small uploads, because the others
    /// leave too little free memory. A failing store has none: its next attempt may take as long as the store
    /// is unreachable.
    fn starved(&self) -> Option<Starved> {
        let starves = |(store, account): (&StoreKey, &Account)| {
            let (ticket, need) = account.next()?;
            let starves =
                account.has_only_small() && !account.is_failing && !self.fits(*store, account, need);
            starves.then_some((ticket, need))
        };
        let (ticket, need) = self.stores.iter().filter_map(starves).min_by_key(|(ticket, _)| *ticket)?;
        let moves = |account: &&Account| !account.is_failing && account.gave_back >= ticket;
        let stuck: u64 =
            self.stores.values().filter(|account| !moves(account)).map(|account| account.held_bytes).sum();
        let least_bytes = need.least_bytes();
        let is_reserved = least_bytes.min(self.bytes) + stuck <= self.bytes;
        Some(Starved { ticket, least_bytes, is_reserved })
    }

    /// Returns true if an upload to this store may start with the free memory.
    fn fits(&self, store: StoreKey, account: &Account, need: MemoryNeed) -> bool {
        let least = need.least_bytes();
        // The first of a store may use all free memory, and the first of all even more than the total.
        let is_first = account.has_only_small() && self.held_bytes + least <= self.bytes;
        is_first || self.held_bytes == 0 || self.leaves_shares(store, least)
    }

    /// Returns true if the others still find their shares after `store` gets `bytes` more.
    fn leaves_shares(&self, store: StoreKey, bytes: u64) -> bool {
        let others = || {
            let is_present = |account: &Account| account.volumes > 0 || account.uploads > 0;
            self.stores.iter().filter(move |(other, account)| **other != store && is_present(account))
        };
        let share = self.bytes / (2 * (1 + others().count() as u64));
        let shares: u64 = others().map(|(_, account)| share.saturating_sub(account.held_bytes)).sum();
        let small = self.small_lane_bytes() - self.small_bytes;
        self.held_bytes + bytes + shares + small <= self.bytes
    }

    /// Returns true if an upload may get `bytes` more.
    fn may_grow(&self, upload: &LedgerEntry, bytes: u64) -> bool {
        let account = &self.stores[&upload.store];
        // An upload waiting to start comes first; one of another store only if that store holds less.
        let comes_before = |(store, other): (&StoreKey, &Account)| {
            other.next().is_some_and(|(_, need)| {
                *store == upload.store || other.held_bytes + need.least_bytes() <= account.held_bytes
            })
        };
        !account.is_failing
            && !self.stores.iter().any(comes_before)
            && self.starved().is_none_or(|starved| !starved.is_reserved)
            && self.leaves_shares(upload.store, bytes)
    }

    /// Returns the next upload that wants more: of the store that holds least.
    fn next_growing(&self) -> Option<u64> {
        let grows = |(ticket, bytes): (&u64, &u64)| {
            let upload = &self.uploads[ticket];
            let growth = upload.growth(*bytes);
            let may = growth == 0 || self.may_grow(upload, growth);
            may.then(|| (growth > 0, self.stores[&upload.store].held_bytes, upload.held_bytes(), *ticket))
        };
        self.growing.iter().filter_map(grows).min().map(|(.., ticket)| ticket)
    }

    fn end(&mut self, ticket: u64) {
        let upload = self.uploads.remove(&ticket).expect("it is in progress");
        let bytes = upload.held_bytes();
        self.held_bytes -= bytes;
        let account = self.stores.get_mut(&upload.store).expect("it has an upload");
        account.held_bytes -= bytes;
        account.uploads -= 1;
        account.gave_back = self.asked;
        if upload.is_in_small_lane {
            account.small_bytes -= upload.need.least_bytes();
            account.small_uploads -= 1;
            self.small_bytes -= upload.need.least_bytes();
        }
        self.growing.remove(&ticket);
        self.tidy();
    }

    fn set_failing(&mut self, store: StoreKey, is_failing: bool) {
        self.stores.entry(store).or_default().is_failing = is_failing;
        self.tidy();
    }

    fn attach(&mut self, store: StoreKey) {
        self.stores.entry(store).or_default().volumes += 1;
    }

    fn detach(&mut self, store: StoreKey) {
        self.stores.get_mut(&store).expect("it has a volume").volumes -= 1;
        self.tidy();
    }

    /// Forgets stores without relevant state: while an upload waits, the releases of a store are relevant.
    fn tidy(&mut self) {
        let waits = self.stores.values().any(|account| !account.waiting.is_empty());
        let matters =
            |account: &Account| account.volumes > 0 || account.uploads > 0 || account.is_failing || waits;
        self.stores.retain(|_, account| matters(account));
    }
}

#[derive(Debug)]
struct UploadMemoryState {
    ledger: Ledger,
    /// Uploads waiting to start.
    waiting: BTreeMap<u64, oneshot::Sender<UploadReservation>>,
    /// Uploads waiting for more.
    growing: BTreeMap<u64, oneshot::Sender<()>>,
}

/// The memory shared by the uploads of a node. Clones share it.
#[derive(Debug, Clone)]
pub struct UploadMemory {
    state: Arc<Mutex<UploadMemoryState>>,
    part_bytes: usize,
    small_bytes: u64,
}

impl UploadMemory {
    /// Creates `bytes` for all uploads, which use parts of `part_bytes`: at least S3's minimum of 5 MiB.
    pub fn new(bytes: u64, part_bytes: usize) -> Self {
        let (waiting, growing) = (BTreeMap::new(), BTreeMap::new());
        let state = UploadMemoryState { ledger: Ledger::new(bytes), waiting, growing };
        Self { state: Arc::new(Mutex::new(state)), part_bytes, small_bytes: bytes / SMALL_PART }
    }

    /// Returns the length of all parts except the last, in bytes.
    pub(crate) fn part_bytes(&self) -> usize {
        self.part_bytes
    }

    /// Returns true if such an upload passes the others.
    pub(crate) fn is_small(&self, need: MemoryNeed) -> bool {
        need.least_bytes() <= self.small_bytes
    }

    /// Returns the memory that uploads hold now, in bytes.
    pub fn held_bytes(&self) -> u64 {
        self.lock().ledger.held_bytes
    }

    /// Returns the peak memory that uploads held, in bytes.
    pub fn peak_bytes(&self) -> u64 {
        self.lock().ledger.peak_bytes
    }

    /// Registers a volume of `store` on the node until the result is dropped.
    pub(crate) fn attach(&self, store: StoreKey) -> StorePresence {
        self.lock().ledger.attach(store);
        StorePresence { memory: self.clone(), store }
    }

    /// Waits until an upload to `store` may start.
    pub(crate) async fn room(&self, store: StoreKey, need: MemoryNeed) -> UploadReservation {
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
        let Granted { begun, grown } = state.ledger.grant();
        let begun: Vec<_> = begun
            .into_iter()
            .map(|(ticket, store)| {
                let is_trial = state.ledger.stores[&store].is_failing;
                (
                    state.waiting.remove(&ticket),
                    UploadReservation { memory: self.clone(), store, ticket, is_trial },
                )
            })
            .collect();
        for ticket in grown {
            if let Some(sender) = state.growing.remove(&ticket) {
                // The receiver returns its place under the same lock, so it still exists.
                let _sent = sender.send(());
            }
        }
        drop(state);
        for (sender, room) in begun {
            if let Some(sender) = sender {
                // If the receiver is gone, the room is released at once.
                let _sent = sender.send(room);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, UploadMemoryState> {
        self.state.lock()
    }
}

/// A volume on the node.
#[derive(Debug)]
pub(crate) struct StorePresence {
    memory: UploadMemory,
    store: StoreKey,
}

impl Drop for StorePresence {
    fn drop(&mut self) {
        self.memory.lock().ledger.detach(self.store);
        self.memory.grant();
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

/// The memory of an upload, released when this is dropped.
#[derive(Debug)]
pub(crate) struct UploadReservation {
    memory: UploadMemory,
    store: StoreKey,
    ticket: u64,
    is_trial: bool,
}

impl UploadReservation {
    /// Returns true if the store's previous attempt failed, and it has accepted nothing since: only one part
    /// is then in memory.
    pub(crate) fn is_trial(&self) -> bool {
        self.is_trial && self.memory.lock().ledger.stores[&self.store].is_failing
    }

    /// Records whether the store accepts uploads.
    pub(crate) fn set_failing(&self, is_failing: bool) {
        self.memory.lock().ledger.set_failing(self.store, is_failing);
        self.memory.grant();
    }

    /// Takes bytes, if they are free.
    pub(crate) fn try_take(&self, bytes: u64) -> Option<Held> {
        let taken = self.memory.lock().ledger.try_take(self.ticket, bytes);
        taken.then(|| self.held(bytes))
    }

    /// Takes bytes, once they are free. One caller at a time.
    pub(crate) async fn take(&self, bytes: u64) -> Held {
        let (sender, receiver) = oneshot::channel();
        {
            let mut state = self.memory.lock();
            state.ledger.growing.insert(self.ticket, bytes);
            state.growing.insert(self.ticket, sender);
        }
        let mut place = GrowPlace { room: self, bytes, is_taken: false };
        self.memory.grant();
        receiver.await.expect("a place that is not left is granted");
        place.is_taken = true;
        self.held(bytes)
    }

    fn held(&self, bytes: u64) -> Held {
        Held { memory: self.memory.clone(), ticket: self.ticket, bytes, is_sent: false }
    }
}

impl Drop for UploadReservation {
    fn drop(&mut self) {
        self.memory.lock().ledger.end(self.ticket);
        self.memory.grant();
    }
}

/// A place among the uploads that want more.
struct GrowPlace<'a> {
    room: &'a UploadReservation,
    bytes: u64,
    is_taken: bool,
}

impl Drop for GrowPlace<'_> {
    fn drop(&mut self) {
        if self.is_taken {
            return;
        }
        let mut state = self.room.memory.lock();
        state.growing.remove(&self.room.ticket);
        // The bytes may have been granted without being received.
        if state.ledger.growing.remove(&self.room.ticket).is_none() {
            state.ledger.give_back(self.room.ticket, self.bytes, false);
        }
        drop(state);
        self.room.memory.grant();
    }
}

/// Bytes in use by an upload, until this is dropped or the upload ends.
#[derive(Debug)]
pub(crate) struct Held {
    memory: UploadMemory,
    ticket: u64,
    bytes: u64,
    /// True once the bytes are sent to the store.
    is_sent: bool,
}

impl Held {
    /// Marks the bytes as sent: their release shows that the store answers.
    pub(crate) fn into_sent(mut self) -> Self {
        self.is_sent = true;
        self
    }

    /// Releases all but `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: u64) {
        drop(self.split(self.bytes - bytes));
    }

    /// Splits off `bytes`.
    pub(crate) fn split(&mut self, bytes: u64) -> Self {
        assert!(bytes <= self.bytes, "{bytes} of {} bytes", self.bytes);
        self.bytes -= bytes;
        Self { memory: self.memory.clone(), ticket: self.ticket, bytes, is_sent: self.is_sent }
    }

    /// Adds other bytes of the same upload.
    pub(crate) fn add(&mut self, mut other: Self) {
        assert!(self.ticket == other.ticket, "of one upload");
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.memory.lock().ledger.give_back(self.ticket, self.bytes, self.is_sent);
            self.memory.grant();
        }
    }
}

#[cfg(test)]
mod tests;
