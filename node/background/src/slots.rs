//! Contents of the slots of a file of blocks: the node's slab, or its substitute in memory.
//!
//! Owns: the numbers of the slots, the free slots, and the index from contents to slots. Does not own: the
//! file. A slot's content is written before it is published, and never changes while a [`Slot`] is held.
//! Contents that were fetched ahead of a reader, and not read yet, take a quarter of the slots at most: the
//! oldest of them makes room for the next, and none of those that were read.
//! Contents of an earlier process have the slots that its table named (`holdfast_format::slab_table`). None
//! is handed out before its bytes were compared with their proof, and what differs is forgotten.
//! Runs on: whatever polls its futures.
//! On failure: where the disk has no room for a slot that was never written, the index gives back one that
//! was, and grows again once the disk has room. What no slot takes is handed back: nothing waits for a disk.

use std::collections::VecDeque;
use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use holdfast_format::compose::ContentKey;
use holdfast_format::safeguard::{
    Safeguard::{FreeSlotOnce, ProveOldSlots, SpareSlots},
    safeguard,
};
use holdfast_format::slab_table::SlabEntry;
use parking_lot::Mutex;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, UnitWeighter};
use tokio::sync::Semaphore;

/// The keys are checksums, so no seed is needed; the same contents leave the index in the same order in every
/// process.
type Hasher = BuildHasherDefault<DefaultHasher>;

/// Contents that were fetched ahead and not read yet have one slot in so many at most.
const UNREAD_SHARE: u64 = 4;
/// Share of the index for contents that were used twice. The others enter the rest of it, where the oldest
/// leaves first: a little more than what may be unread, so that nothing leaves before its reader comes.
const USED_TWICE_SHARE: f64 = 0.70;

/// Of so many contents that need a slot while the disk is full, one tries whether it has room again.
const TRY_ROOM_EVERY: u64 = 64;
/// Slots that are tried for a content that finds no room in one.
const TRIES_WHILE_FULL: u32 = 4;
/// Slots that are compared with their proofs at a time: 8 MiB of blocks.
const COMPARES: usize = 64;

/// A slot with a content; it keeps both while this is held.
#[derive(Clone, Debug)]
pub struct Slot(Arc<OwnedSlot>);

impl Slot {
    /// Its place in the slab, counted in blocks.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Records that the disk failed a write or a read of it: it is the last to be used again.
    pub fn set_failed(&self) {
        self.0.has_room.store(false, Ordering::Relaxed);
    }

    /// The same, which keeps nothing.
    pub(crate) fn downgrade(&self) -> WeakSlot {
        WeakSlot(Arc::downgrade(&self.0))
    }
}

/// A slot that had a content.
#[derive(Clone, Debug)]
pub(crate) struct WeakSlot(Weak<OwnedSlot>);

impl WeakSlot {
    /// The slot, if it has this content still.
    #[inline]
    pub(crate) fn upgrade(&self) -> Option<Slot> {
        self.0.upgrade().map(Slot)
    }

    /// Returns true if it does not.
    pub(crate) fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// Contents that were fetched ahead of a reader, counted since the table was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AheadCounts {
    /// All of them.
    pub fetched: u64,
    /// Those that a reader took.
    pub used: u64,
    /// Those that left their slot before any did.
    pub unused: u64,
}

/// The same, as they are counted.
#[derive(Debug, Default)]
struct AheadCounters {
    fetched: AtomicU64,
    used: AtomicU64,
    unused: AtomicU64,
}

/// Contents that an earlier process had fetched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OldCounts {
    /// Those that this process found in the index when it began.
    pub found: u64,
    /// Those that were compared since, and found right.
    pub used: u64,
    /// Those whose slots had other bytes, or could not be read.
    pub refused: u64,
}

/// The same, as they are counted.
#[derive(Debug, Default)]
struct OldCounters {
    found: u64,
    used: AtomicU64,
    refused: AtomicU64,
}

#[derive(Debug)]
struct OwnedSlot {
    number: u32,
    key: ContentKey,
    /// It was written: the file has its bytes.
    has_room: AtomicBool,
    /// It was fetched ahead, and no reader took it yet.
    is_unread: AtomicBool,
    /// It was filled for a reader that is still to come: that one's read is no second use.
    is_awaited: AtomicBool,
    /// That of an earlier process, which filled it.
    proof: [u8; 16],
    /// This process filled it, or found its bytes right.
    is_proven: AtomicBool,
    free: Arc<FreeSlots>,
}

impl OwnedSlot {
    /// A slot that is being filled, or with its proof one that was by an earlier process.
    fn new(slot: FreeSlot, key: ContentKey, proof: Option<[u8; 16]>, free: Arc<FreeSlots>) -> Self {
        Self {
            number: slot.number,
            key,
            has_room: slot.has_room.into(),
            is_unread: false.into(),
            is_awaited: false.into(),
            is_proven: proof.is_none().into(),
            proof: proof.unwrap_or_default(),
            free,
        }
    }

    /// The entry to compare its bytes with before anything reads them.
    fn unproven(&self) -> Option<SlabEntry> {
        let Self { key, proof, .. } = *self;
        (!self.is_proven.load(Ordering::Acquire)).then_some(SlabEntry { key, proof })
    }

    /// A reader takes it.
    fn set_read(&self) {
        if self.is_unread.load(Ordering::Relaxed) && self.is_unread.swap(false, Ordering::Relaxed) {
            self.free.ahead.used.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for OwnedSlot {
    fn drop(&mut self) {
        if *self.is_unread.get_mut() {
            self.free.ahead.unused.fetch_add(1, Ordering::Relaxed);
        }
        let has_room = *self.has_room.get_mut();
        if !safeguard(FreeSlotOnce) {
            self.free.give_back(self.number, has_room);
        }
        self.free.give_back(self.number, has_room);
    }
}

/// Numbers of the free slots.
#[derive(Debug)]
struct Numbers {
    /// Of slots that were written, so that another content needs no room. The last is used first.
    written: Vec<u32>,
    /// Of slots that were not, or that the disk failed. The last is used first.
    fresh: Vec<u32>,
    /// The disk had no room for a fresh one: so many were taken since.
    taken_while_full: Option<u64>,
}

impl Numbers {
    fn take(&mut self) -> Option<FreeSlot> {
        let written = |numbers: &mut Self| Some(FreeSlot { number: numbers.written.pop()?, has_room: true });
        let fresh = |numbers: &mut Self| Some(FreeSlot { number: numbers.fresh.pop()?, has_room: false });
        // Now and then a fresh one, to find out whether the disk has room again.
        let tries_room = self.taken_while_full.as_mut().is_some_and(|taken| {
            *taken += 1;
            taken.is_multiple_of(TRY_ROOM_EVERY)
        });
        if tries_room { fresh(self).or_else(|| written(self)) } else { written(self).or_else(|| fresh(self)) }
    }
}

/// A slot that was free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FreeSlot {
    number: u32,
    has_room: bool,
}

#[derive(Debug)]
struct FreeSlots {
    numbers: Mutex<Numbers>,
    /// A permit for each of them.
    count: Semaphore,
    ahead: AheadCounters,
}

impl FreeSlots {
    fn none() -> Self {
        Self {
            count: Semaphore::new(0),
            numbers: Mutex::new(Numbers { written: Vec::new(), fresh: Vec::new(), taken_while_full: None }),
            ahead: AheadCounters::default(),
        }
    }

    /// Adds slots that were never written. The last is used first.
    fn add_fresh(&self, slots: impl Iterator<Item = u32>) {
        let mut numbers = self.numbers.lock();
        let before = numbers.fresh.len();
        numbers.fresh.extend(slots);
        self.count.add_permits(numbers.fresh.len() - before);
    }

    fn give_back(&self, number: u32, has_room: bool) {
        let mut numbers = self.numbers.lock();
        if has_room {
            numbers.written.push(number)
        } else {
            numbers.fresh.insert(0, number)
        }
        drop(numbers);
        self.count.add_permits(1);
    }

    async fn take(&self) -> FreeSlot {
        self.count.acquire().await.expect("the semaphore is never closed").forget();
        self.numbers.lock().take().expect("there is a number for each permit")
    }

    /// Takes one, if one is free.
    fn try_take(&self) -> Option<FreeSlot> {
        self.count.try_acquire().ok()?.forget();
        self.numbers.lock().take()
    }

    /// Takes one that was written, if one is free.
    fn take_written(&self) -> Option<FreeSlot> {
        let permit = self.count.try_acquire().ok()?;
        let number = self.numbers.lock().written.pop()?;
        permit.forget();
        Some(FreeSlot { number, has_room: true })
    }
}

/// A content that no slot took.
#[derive(Debug)]
pub struct Unkept<B> {
    /// The content.
    pub content: B,
    /// Error of the last write.
    pub error: io::Error,
}

/// Reason why a content is in no slot.
#[derive(Debug)]
pub enum NoSlot<B, E> {
    /// It could not be made.
    Unmade(E),
    /// The file did not take it.
    Unkept(Unkept<B>),
}

/// The use for which a slot is filled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    /// A reader that waits for it: its first use.
    Reader,
    /// A reader that asks for it right after.
    LaterRead,
    /// A reader that may never come.
    ReadAhead,
    /// A later time, by a caller that waits for no slot.
    Spare,
}

/// The filesystem has no room for a write.
fn is_full(error: &io::Error) -> bool {
    [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded].contains(&error.kind())
}

/// Index from contents to slots. It never holds all slots: each that is filled evicts one before the free
/// slots run out.
pub struct SlotTable {
    index: Cache<ContentKey, Slot, UnitWeighter, Hasher>,
    /// Contents that the index holds at most while the disk has room.
    capacity: u64,
    /// Slots whose contents were fetched ahead, the oldest first. Some were read since.
    ahead: Mutex<VecDeque<Weak<OwnedSlot>>>,
    old: OldCounters,
    /// Held while a slot is compared with its proof, by the slot's number.
    comparing: [tokio::sync::Mutex<()>; COMPARES],
    free: Arc<FreeSlots>,
}

impl SlotTable {
    /// A table of `slots`, which are all free, with an index of at most `shards` parts for all but `spare` of
    /// them: those are for blocks that are being filled, or read while they are evicted.
    ///
    /// # Panics
    /// If the index could hold more than that.
    pub fn new(slots: u32, spare: u32, shards: usize) -> Self {
        Self::with_old(slots, spare, shards, [])
    }

    /// The same with the contents `old` that an earlier process wrote, each of which enters the index as it
    /// comes. Where two slots name one content, or the index has no room for all, the others are free.
    ///
    /// # Panics
    /// As [`Self::new`].
    pub fn with_old(
        slots: u32,
        spare: u32,
        shards: usize,
        old: impl IntoIterator<Item = (u32, SlabEntry)>,
    ) -> Self {
        let spare = if safeguard(SpareSlots) { spare } else { 0 };
        let most = (slots - spare) as usize;
        // The cache has parts of at least 32, as many as a power of two says, and rounds the share of each
        // up.
        let mut shards = shards.next_power_of_two();
        while shards > 1 && most / shards < 32 {
            shards /= 2;
        }
        let capacity = most - most % shards;
        let options = OptionsBuilder::new()
            .shards(shards)
            .estimated_items_capacity(capacity)
            .weight_capacity(capacity as u64)
            .hot_allocation(USED_TWICE_SHARE)
            .build()
            .expect("both capacities are set");
        let index =
            Cache::with_options(options, UnitWeighter, Hasher::default(), DefaultLifecycle::default());
        assert!(
            index.capacity() + u64::from(spare) <= u64::from(slots),
            "an index of {} slots leaves none of {slots} free",
            index.capacity()
        );
        let (free, mut used) = (Arc::new(FreeSlots::none()), vec![false; slots as usize]);
        for (number, entry) in old {
            let Some(is_used @ false) = used.get_mut(number as usize) else { continue };
            *is_used = true;
            let slot = FreeSlot { number, has_room: true };
            index.insert(
                entry.key,
                Slot(OwnedSlot::new(slot, entry.key, Some(entry.proof), free.clone()).into()),
            );
        }
        free.add_fresh((0..slots).rev().filter(|number| !used[*number as usize]));
        Self {
            capacity: index.capacity(),
            old: OldCounters { found: index.len() as u64, ..OldCounters::default() },
            index,
            ahead: Mutex::default(),
            comparing: [const { tokio::sync::Mutex::const_new(()) }; COMPARES],
            free,
        }
    }

    /// Contents that an earlier process had fetched.
    pub fn old(&self) -> OldCounts {
        let OldCounters { found, used, refused } = &self.old;
        let [used, refused] = [used, refused].map(|count| count.load(Ordering::Relaxed));
        OldCounts { found: *found, used, refused }
    }

    /// Has a content that an earlier process wrote be compared with its proof before its first use, and
    /// forgets it where the slot has other bytes, or the disk cannot read it. One caller compares a slot, and
    /// the others wait for it.
    pub async fn prove<P>(&self, key: &ContentKey, is_proven: impl FnOnce(Slot, SlabEntry) -> P)
    where
        P: Future<Output = io::Result<bool>>,
    {
        let unproven = || self.index.peek(key).and_then(|slot| slot.0.unproven().map(|entry| (slot, entry)));
        let Some(number) = unproven().map(|(slot, _entry)| slot.number()) else { return };
        let _alone = self.comparing[number as usize % COMPARES].lock().await;
        let Some((slot, entry)) = unproven() else { return };
        let found = if safeguard(ProveOldSlots) { is_proven(slot.clone(), entry).await } else { Ok(true) };
        if matches!(found, Ok(true)) {
            slot.0.is_proven.store(true, Ordering::Release);
            self.old.used.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if found.is_err() {
            slot.set_failed();
        }
        if self.index.remove_if(key, |held| Arc::ptr_eq(&held.0, &slot.0)).is_some() {
            self.old.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The slot of this content. When there is none, `fetch` makes the content and `write` puts it into a
    /// free slot, and hands it back; where that finds no room, into others that were written.
    /// Fetches of one content coalesce. What an earlier process wrote is handed out once `is_proven` has read
    /// it, and found that it is what the entry says.
    ///
    /// # Errors
    /// Those of `fetch`; [`Unkept`] with the last one of `write`. Nothing is kept of them.
    pub async fn slot<B, E, P, W>(
        &self,
        key: &ContentKey,
        is_proven: impl FnOnce(Slot, SlabEntry) -> P,
        fetch: impl Future<Output = Result<B, E>>,
        write: impl Fn(Slot, B) -> W,
    ) -> Result<Slot, NoSlot<B, E>>
    where
        P: Future<Output = io::Result<bool>>,
        W: Future<Output = (B, io::Result<()>)>,
    {
        // From here on the index has no other of an earlier process: those come with the table alone.
        self.prove(key, is_proven).await;
        let slot = self.find_or_fill(key, fetch, write, For::Reader).await?;
        slot.0.set_read();
        if slot.0.is_awaited.swap(false, Ordering::Relaxed) {
            // The reader waited for what another filled for it, and the index took that for a second use.
            let is_same = |held: &Slot| Arc::ptr_eq(&held.0, &slot.0);
            if self.index.remove_if(key, is_same).is_some() {
                self.index.insert(*key, slot.clone());
            }
        }
        Ok(slot)
    }

    /// The same for a reader that asks for the content right after: its read is the first use.
    ///
    /// # Errors
    /// As [`Self::slot`].
    pub async fn fill_joined<B, E, W>(
        &self,
        key: &ContentKey,
        fetch: impl Future<Output = Result<B, E>>,
        write: impl Fn(Slot, B) -> W,
    ) -> Result<(), NoSlot<B, E>>
    where
        W: Future<Output = (B, io::Result<()>)>,
    {
        self.find_or_fill(key, fetch, write, For::LaterRead).await.map(drop)
    }

    /// The same for a content that no reader asks for yet: it is unread until one does.
    ///
    /// # Errors
    /// As [`Self::slot`].
    pub async fn fill_ahead<B, E, W>(
        &self,
        key: &ContentKey,
        fetch: impl Future<Output = Result<B, E>>,
        write: impl Fn(Slot, B) -> W,
    ) -> Result<(), NoSlot<B, E>>
    where
        W: Future<Output = (B, io::Result<()>)>,
    {
        let slot = self.find_or_fill(key, fetch, write, For::ReadAhead).await?;
        if slot.0.is_unread.load(Ordering::Relaxed) {
            self.bound_unread(Arc::downgrade(&slot.0));
        }
        Ok(())
    }

    /// The same for a content that has no reader yet, and that is handed back where no slot is free.
    ///
    /// # Errors
    /// As [`Self::slot`]; [`io::ErrorKind::WouldBlock`] where no slot is free.
    pub async fn fill_spare<B, E, W>(
        &self,
        key: &ContentKey,
        fetch: impl Future<Output = Result<B, E>>,
        write: impl Fn(Slot, B) -> W,
    ) -> Result<(), NoSlot<B, E>>
    where
        W: Future<Output = (B, io::Result<()>)>,
    {
        self.find_or_fill(key, fetch, write, For::Spare).await.map(drop)
    }

    /// Adds a slot to those that are unread; the oldest of them leaves its slot where they are too many.
    fn bound_unread(&self, slot: Weak<OwnedSlot>) {
        let mut ahead = self.ahead.lock();
        ahead.push_back(slot);
        let oldest = if ahead.len() as u64 > self.unread_most() { ahead.pop_front() } else { None };
        drop(ahead);
        if let Some(oldest) = oldest.as_ref().and_then(Weak::upgrade) {
            let is_unread =
                |held: &Slot| Arc::ptr_eq(&held.0, &oldest) && held.0.is_unread.load(Ordering::Relaxed);
            self.index.remove_if(&oldest.key, is_unread);
        }
    }

    /// Contents that may be fetched ahead and not read yet.
    pub fn unread_most(&self) -> u64 {
        self.capacity / UNREAD_SHARE
    }

    /// Contents that were fetched ahead.
    pub fn ahead(&self) -> AheadCounts {
        let AheadCounters { fetched, used, unused } = &self.free.ahead;
        let [fetched, used, unused] = [fetched, used, unused].map(|count| count.load(Ordering::Relaxed));
        AheadCounts { fetched, used, unused }
    }

    async fn find_or_fill<B, E, W>(
        &self,
        key: &ContentKey,
        fetch: impl Future<Output = Result<B, E>>,
        write: impl Fn(Slot, B) -> W,
        filled_for: For,
    ) -> Result<Slot, NoSlot<B, E>>
    where
        W: Future<Output = (B, io::Result<()>)>,
    {
        let published = |slot: Slot| {
            let is_awaited = matches!(filled_for, For::LaterRead | For::ReadAhead);
            slot.0.is_awaited.store(is_awaited, Ordering::Relaxed);
            if filled_for == For::ReadAhead {
                self.free.ahead.fetched.fetch_add(1, Ordering::Relaxed);
                slot.0.is_unread.store(true, Ordering::Relaxed);
            }
            slot
        };
        self.index
            .get_or_insert_async(key, async {
                let content = fetch.await.map_err(NoSlot::Unmade)?;
                let first = match filled_for {
                    For::Spare => self.free.try_take(),
                    For::Reader | For::LaterRead | For::ReadAhead => Some(self.free.take().await),
                };
                let Some(first) = first else {
                    return Err(NoSlot::Unkept(Unkept { content, error: io::ErrorKind::WouldBlock.into() }));
                };
                let mut filled = self.fill(key, first, content, &write).await;
                // One that an earlier process wrote may have no room: the file was cut off, or copied without
                // its zeros.
                for _ in 0..TRIES_WHILE_FULL {
                    let unkept = match filled {
                        Err(unkept) if is_full(&unkept.error) => unkept,
                        ended => return ended.map(published).map_err(NoSlot::Unkept),
                    };
                    // Others are given back only where none that was written is free.
                    let written = self.free.take_written().or_else(|| {
                        self.shrink();
                        self.free.take_written()
                    });
                    let Some(written) = written else { return Err(NoSlot::Unkept(unkept)) };
                    filled = self.fill(key, written, unkept.content, &write).await;
                }
                filled.map(published).map_err(NoSlot::Unkept)
            })
            .await
    }

    /// The slot of this content, if it is in one, for a reader; what an earlier process wrote, as
    /// [`Self::slot`] does.
    pub async fn get<P>(&self, key: &ContentKey, is_proven: impl FnOnce(Slot, SlabEntry) -> P) -> Option<Slot>
    where
        P: Future<Output = io::Result<bool>>,
    {
        self.prove(key, is_proven).await;
        let slot = self.index.peek(key)?;
        slot.0.set_read();
        if !slot.0.is_awaited.swap(false, Ordering::Relaxed) {
            let _used_again = self.index.get(key);
        }
        Some(slot)
    }

    /// Takes in that this slot was read without being asked for here.
    pub fn used(&self, slot: &Slot) {
        let _used_again = self.index.get(&slot.0.key);
    }

    /// Returns true if this content is in a slot.
    pub fn contains(&self, key: &ContentKey) -> bool {
        self.index.contains_key(key)
    }

    /// Writes `content` into a slot that was free.
    async fn fill<B, W: Future<Output = (B, io::Result<()>)>>(
        &self,
        key: &ContentKey,
        free: FreeSlot,
        content: B,
        write: impl Fn(Slot, B) -> W,
    ) -> Result<Slot, Unkept<B>> {
        let slot = Slot(Arc::new(OwnedSlot::new(free, *key, None, Arc::clone(&self.free))));
        let (content, written) = write(slot.clone(), content).await;
        if let Err(error) = written {
            slot.set_failed();
            return Err(Unkept { content, error });
        }
        slot.0.has_room.store(true, Ordering::Relaxed);
        if !free.has_room && self.free.numbers.lock().taken_while_full.take().is_some() {
            self.index.set_capacity(self.capacity);
        }
        Ok(slot)
    }

    /// The disk has no room: the index is to hold fewer contents than now, and gives back the slots of
    /// others.
    fn shrink(&self) {
        self.free.numbers.lock().taken_while_full.get_or_insert(0);
        let (held, shards) = (self.index.len() as u64, self.index.num_shards() as u64);
        let mut each = held.div_ceil(shards);
        while each > 0 && self.index.len() as u64 >= held {
            each -= 1;
            self.index.set_capacity(each * shards);
        }
        self.index.set_capacity(each.max(1) * shards);
    }

    /// Forgets a slot that the disk cannot read: its content is fetched again, into another.
    pub fn forget(&self, slot: &Slot) {
        slot.set_failed();
        self.index.remove_if(&slot.0.key, |held| Arc::ptr_eq(&held.0, &slot.0));
    }

    /// Contents that are in a slot.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// True if no content is in a slot.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }
}

#[cfg(test)]
mod tests;
