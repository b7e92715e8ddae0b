//! Contents of the slots of a file of blocks: the node's slab, or its substitute in memory.
//!
//! Owns: the numbers of the slots, the free slots, and the index from contents to slots. Does not own: the
//! file. Invariants: a slot's content is written before it is published, and never changes while a [`Slot`]
//! is held. Contents that were prefetched and not read yet use at most a quarter of the slots: the oldest of
//! them makes room for the next, and none that were read. Contents of an earlier process are in the slots
//! that its table named (`holdfast_format::slab_table`). None is returned before its bytes are verified with
//! their proof; mismatches are forgotten. Runs on: any executor that polls its futures. On failure: if the
//! disk has no space for a never-written slot, the index evicts a written one, and grows again once the disk
//! has space. A content that fits no slot is returned to the caller: nothing waits for a disk.

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

/// The keys are checksums, so no seed is needed; the eviction order is the same in every process.
type Hasher = BuildHasherDefault<DefaultHasher>;

/// Prefetched unread contents use at most one slot in this many.
const UNREAD_SHARE: u64 = 4;
/// Share of the index for contents used twice. All others are in the rest of the index, and are evicted in
/// their order of arrival. The rest is slightly larger than the limit of unread contents, so that none is
/// evicted before its reader comes.
const USED_TWICE_SHARE: f64 = 0.70;

/// While the disk is full, one in this many contents that need a slot retries whether it has space again.
const TRY_ROOM_EVERY: u64 = 64;
/// Number of slots tried for a content that finds no space in one.
const TRIES_WHILE_FULL: u32 = 4;
/// Maximum slots verified in parallel: 8 MiB of blocks.
const COMPARES: usize = 64;

/// A slot with a content; holding this keeps both.
#[derive(Clone, Debug)]
pub struct Slot(Arc<OwnedSlot>);

impl Slot {
    /// Returns its position in the slab, in blocks.
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Records that the disk failed a write or a read of it: it becomes the last to be reused.
    pub fn set_failed(&self) {
        self.0.has_room.store(false, Ordering::Relaxed);
    }

    /// Returns a weak reference.
    pub(crate) fn downgrade(&self) -> WeakSlot {
        WeakSlot(Arc::downgrade(&self.0))
    }
}

/// A weak reference to a slot with a content.
#[derive(Clone, Debug)]
pub(crate) struct WeakSlot(Weak<OwnedSlot>);

impl WeakSlot {
    /// Returns the slot if it still has this content.
    #[inline]
    pub(crate) fn upgrade(&self) -> Option<Slot> {
        self.0.upgrade().map(Slot)
    }

    /// Returns true if it no longer has this content.
    pub(crate) fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// Prefetched contents, counted since the table was created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AheadCounts {
    /// All prefetched contents.
    pub fetched: u64,
    /// Those that a reader took.
    pub used: u64,
    /// Those evicted before any reader took them.
    pub unused: u64,
}

/// Counters for [`AheadCounts`].
#[derive(Debug, Default)]
struct AheadCounters {
    fetched: AtomicU64,
    used: AtomicU64,
    unused: AtomicU64,
}

/// Contents fetched by an earlier process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OldCounts {
    /// Those in the index at this process's start.
    pub found: u64,
    /// Those verified since.
    pub used: u64,
    /// Those whose slots had other bytes, or could not be read.
    pub refused: u64,
}

/// Counters for [`OldCounts`].
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
    /// True if the slot was written: the file has space for it.
    has_room: AtomicBool,
    /// True if it was prefetched, and no reader took it yet.
    is_unread: AtomicBool,
    /// True if it was filled for a pending reader, whose read is no second use.
    is_awaited: AtomicBool,
    /// The proof recorded by the earlier process that filled it.
    proof: [u8; 16],
    /// True if this process filled or verified it.
    is_proven: AtomicBool,
    free: Arc<FreeSlots>,
}

impl OwnedSlot {
    /// Creates a slot that is being filled or, with its proof, one filled by an earlier process.
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

    /// Returns the entry to verify its bytes with before anything reads them.
    fn unproven(&self) -> Option<SlabEntry> {
        let Self { key, proof, .. } = *self;
        (!self.is_proven.load(Ordering::Acquire)).then_some(SlabEntry { key, proof })
    }

    /// Records that a reader takes the content.
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
    /// Slots that were written, so that another content needs no space. The last is used first.
    written: Vec<u32>,
    /// Slots that were never written, or that the disk failed. The last is used first.
    fresh: Vec<u32>,
    /// Number of slots taken since the disk had no space for a fresh one; `None` while it has space.
    taken_while_full: Option<u64>,
}

impl Numbers {
    fn take(&mut self) -> Option<FreeSlot> {
        let written = |numbers: &mut Self| Some(FreeSlot { number: numbers.written.pop()?, has_room: true });
        let fresh = |numbers: &mut Self| Some(FreeSlot { number: numbers.fresh.pop()?, has_room: false });
        // Occasionally a fresh one, to find out whether the disk has space again.
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
    /// One permit per free slot.
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

    /// Adds never-written slots. The last is used first.
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

    /// Takes a free slot, if one exists.
    fn try_take(&self) -> Option<FreeSlot> {
        self.count.try_acquire().ok()?.forget();
        self.numbers.lock().take()
    }

    /// Takes a free written slot, if one exists.
    fn take_written(&self) -> Option<FreeSlot> {
        let permit = self.count.try_acquire().ok()?;
        let number = self.numbers.lock().written.pop()?;
        permit.forget();
        Some(FreeSlot { number, has_room: true })
    }
}

/// A content that fits no slot.
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
    /// It could not be created.
    Unmade(E),
    /// The file did not accept it.
    Unkept(Unkept<B>),
}

/// Purpose of filling a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FillPurpose {
    /// A reader that waits for it: its first use.
    Reader,
    /// A reader that requests it right afterwards.
    LaterRead,
    /// A reader that may never come.
    ReadAhead,
    /// Later use, by a caller that waits for no slot.
    Spare,
}

/// Returns true if the filesystem has no space for a write.
fn is_full(error: &io::Error) -> bool {
    [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded].contains(&error.kind())
}

/// Index from contents to slots. It never holds all slots: each filled one evicts another before the free
/// slots run out.
pub struct SlotTable {
    index: Cache<ContentKey, Slot, UnitWeighter, Hasher>,
    /// Maximum contents in the index while the disk has space.
    capacity: u64,
    /// Slots with prefetched contents, oldest first. Some were read since.
    ahead: Mutex<VecDeque<Weak<OwnedSlot>>>,
    old: OldCounters,
    /// Locked while a slot is verified, by the slot's number.
    comparing: [tokio::sync::Mutex<()>; COMPARES],
    free: Arc<FreeSlots>,
}

impl SlotTable {
    /// Creates a table of `slots` free slots, with an index of at most `shards` shards for all except `spare`
    /// of them: those are for blocks being filled, or read during their eviction.
    ///
    /// # Panics
    /// If the index could hold more slots.
    pub fn new(slots: u32, spare: u32, shards: usize) -> Self {
        Self::with_old(slots, spare, shards, [])
    }

    /// Like [`Self::new`], with the contents `old` that an earlier process wrote, each of which enters the
    /// index in order. Duplicates, and contents beyond the index's capacity, leave their slots free.
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
        // The cache has a power of two as its number of shards, each with at least 32 entries, and rounds the
        // share of each up.
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

    /// Returns the counts of contents that an earlier process had fetched.
    pub fn old(&self) -> OldCounts {
        let OldCounters { found, used, refused } = &self.old;
        let [used, refused] = [used, refused].map(|count| count.load(Ordering::Relaxed));
        OldCounts { found: *found, used, refused }
    }

    /// Verifies a content that an earlier process wrote before its first use, and forgets it if the slot has
    /// other bytes or is unreadable. One caller verifies a slot, and the others wait for it.
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

    /// Returns the slot of this content. If it has none, `fetch` creates the content, and `write` puts it
    /// into a free slot and returns it; without space, it is written to previously written slots. Concurrent
    /// fetches of one content coalesce. A content of an earlier process is returned once `is_proven` has read
    /// it and found that it matches the entry.
    ///
    /// # Errors
    /// Those of `fetch`; [`Unkept`] with the last error of `write`. The table does not keep such a content.
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
        // From here on, the index has no unverified content of this key: those only come with the table.
        self.prove(key, is_proven).await;
        let slot = self.find_or_fill(key, fetch, write, FillPurpose::Reader).await?;
        slot.0.set_read();
        if slot.0.is_awaited.swap(false, Ordering::Relaxed) {
            // The reader waited for another caller's fill, which the index counted as a second use.
            let is_same = |held: &Slot| Arc::ptr_eq(&held.0, &slot.0);
            if self.index.remove_if(key, is_same).is_some() {
                self.index.insert(*key, slot.clone());
            }
        }
        Ok(slot)
    }

    /// Like [`Self::slot`], for a reader that requests the content right afterwards: its read is the first
    /// use.
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
        self.find_or_fill(key, fetch, write, FillPurpose::LaterRead).await.map(drop)
    }

    /// Like [`Self::slot`], for a content without a reader yet: it is unread until one comes.
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
        let slot = self.find_or_fill(key, fetch, write, FillPurpose::ReadAhead).await?;
        if slot.0.is_unread.load(Ordering::Relaxed) {
            self.bound_unread(Arc::downgrade(&slot.0));
        }
        Ok(())
    }

    /// Like [`Self::slot`], for a content without a reader yet; returns it if no slot is free.
    ///
    /// # Errors
    /// As [`Self::slot`]; [`io::ErrorKind::WouldBlock`] if no slot is free.
    pub async fn fill_spare<B, E, W>(
        &self,
        key: &ContentKey,
        fetch: impl Future<Output = Result<B, E>>,
        write: impl Fn(Slot, B) -> W,
    ) -> Result<(), NoSlot<B, E>>
    where
        W: Future<Output = (B, io::Result<()>)>,
    {
        self.find_or_fill(key, fetch, write, FillPurpose::Spare).await.map(drop)
    }

    /// Adds a slot to the unread ones; evicts the oldest if there are too many.
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

    /// Returns the maximum of prefetched unread contents.
    pub fn unread_most(&self) -> u64 {
        self.capacity / UNREAD_SHARE
    }

    /// Returns the counts of prefetched contents.
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
        filled_for: FillPurpose,
    ) -> Result<Slot, NoSlot<B, E>>
    where
        W: Future<Output = (B, io::Result<()>)>,
    {
        let published = |slot: Slot| {
            let is_awaited = matches!(filled_for, FillPurpose::LaterRead | FillPurpose::ReadAhead);
            slot.0.is_awaited.store(is_awaited, Ordering::Relaxed);
            if filled_for == FillPurpose::ReadAhead {
                self.free.ahead.fetched.fetch_add(1, Ordering::Relaxed);
                slot.0.is_unread.store(true, Ordering::Relaxed);
            }
            slot
        };
        self.index
            .get_or_insert_async(key, async {
                let content = fetch.await.map_err(NoSlot::Unmade)?;
                let first = match filled_for {
                    FillPurpose::Spare => self.free.try_take(),
                    FillPurpose::Reader | FillPurpose::LaterRead | FillPurpose::ReadAhead => {
                        Some(self.free.take().await)
                    }
                };
                let Some(first) = first else {
                    return Err(NoSlot::Unkept(Unkept { content, error: io::ErrorKind::WouldBlock.into() }));
                };
                let mut filled = self.fill(key, first, content, &write).await;
                // A slot written by an earlier process may have no space: the file was truncated, or copied
                // as sparse.
                for _ in 0..TRIES_WHILE_FULL {
                    let unkept = match filled {
                        Err(unkept) if is_full(&unkept.error) => unkept,
                        ended => return ended.map(published).map_err(NoSlot::Unkept),
                    };
                    // Other contents are only evicted if no written slot is free.
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

    /// Returns the slot of this content for a reader, if it has one; contents of an earlier process are
    /// handled as in [`Self::slot`].
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

    /// Records that this slot was read without a lookup here.
    pub fn used(&self, slot: &Slot) {
        let _used_again = self.index.get(&slot.0.key);
    }

    /// Returns true if this content is in a slot.
    pub fn contains(&self, key: &ContentKey) -> bool {
        self.index.contains_key(key)
    }

    /// Writes `content` to a slot that was free.
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

    /// Lowers the index's capacity below its current number of contents, and evicts others: the disk has no
    /// space.
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

    /// Forgets a slot that the disk cannot read: its content is fetched again, into another slot.
    pub fn forget(&self, slot: &Slot) {
        slot.set_failed();
        self.index.remove_if(&slot.0.key, |held| Arc::ptr_eq(&held.0, &slot.0));
    }

    /// Returns the number of contents in slots.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns true if no content is in a slot.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }
}

#[cfg(test)]
mod tests;
