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
mod tests {
    use std::collections::BTreeSet;

    use futures::FutureExt;
    use holdfast_format::compose::{Layer, compose};
    use holdfast_format::segment::{FrameIndex, SegmentBuilder};
    use holdfast_types::{Block, Mask, Place, SegmentId, Seq};

    use super::*;

    const SPARE: u32 = 64;

    /// Names of contents that are all different.
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

    /// Fills slots until each of `keys` was asked for once; says how many were filled before one could not
    /// be.
    fn fill(table: &SlotTable, keys: &[ContentKey]) -> usize {
        let fill = |key| {
            let write = |_slot, content| std::future::ready((content, Ok(())));
            table.slot(key, none_is_old, std::future::ready(Ok::<_, ()>(())), write).now_or_never()
        };
        keys.iter().take_while(|key| fill(key).is_some_and(|slot| slot.is_ok())).count()
    }

    /// On nodes of 17 CPUs and more the index could hold every slot of the slab: then no miss found a free
    /// one, and each cold read of the node waited until the daemon was restarted.
    #[test]
    fn misses_are_served_on_any_number_of_cpus() {
        let tiny = 4 * SPARE;
        let keys = keys(3 * 8192);
        for cpus in [1, 2, 16, 17, 32, 64, 512] {
            for slots in [tiny, tiny + 1, 1000, 4096, 5003, 8191, 8192] {
                let table = SlotTable::new(slots, SPARE, 4 * cpus);
                let due = &keys[..3 * slots as usize];
                assert_eq!(fill(&table, due), due.len(), "{slots} slots, {cpus} CPUs");
                let held = table.len() as u64;
                assert!(
                    held * 10 >= u64::from(slots) * 7,
                    "{held} of {slots} slots are used with {cpus} CPUs"
                );
            }
        }
        assert_eq!(SlotTable::new(32_768, SPARE, 8).index.num_shards(), 8);
    }

    /// Two takers that waited at once could miss one of two slots that were given back.
    #[test]
    fn each_slot_that_comes_back_wakes_a_taker() {
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

    /// A file with room for so many slots, whichever come first.
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

        /// Has the table keep the content; the errors of the writes are in the result.
        fn ask(&self, table: &SlotTable, key: &ContentKey) -> Result<Slot, NoSlot<(), ()>> {
            let write = |slot: Slot, content| std::future::ready((content, self.write(&slot)));
            table
                .slot(key, none_is_old, std::future::ready(Ok(())), write)
                .now_or_never()
                .expect("nothing waits")
        }
    }

    /// A cold read of a block that was in no slot never ended on a full disk: each try took a slot that had
    /// never been written, though others had room.
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

    /// A program whose file is fetched ahead, and that stops to read it, must not cost others their blocks.
    #[test]
    fn what_is_fetched_ahead_leaves_what_was_read() {
        let (table, keys) = (SlotTable::new(4096, SPARE, 8), keys(4 * 4096));
        let most = table.unread_most() as usize;
        // Each shard of the index has its own share, which contents fill by chance.
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

    /// A table of 4096 slots that was full of contents once, and half of whose slots are of the first
    /// `hot` of `keys`, which were read twice.
    fn filled_once(keys: &[ContentKey], hot: usize) -> SlotTable {
        let table = SlotTable::new(4096, SPARE, 8);
        for _ in 0..3 {
            assert_eq!(fill(&table, &keys[..hot]), hot);
        }
        assert_eq!(fill(&table, &keys[hot..8192]), 8192 - hot);
        table
    }

    /// Each block of a scan was fetched ahead and then read: that made it one of those that are used often.
    #[test]
    fn a_scan_leaves_what_was_read_twice() {
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

    /// The same for a reader that comes while its block is fetched ahead.
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

    /// Once the index was full, 3 % of it were all that was fetched ahead or read once: a window left it
    /// before its reader came.
    #[test]
    fn an_index_that_was_full_keeps_what_is_unread() {
        let keys = keys(2 * 8192);
        let table = filled_once(&keys, 2048);
        // Each shard of the index has its own share, which contents fill by chance.
        let ahead = &keys[8192..][..table.unread_most() as usize * 7 / 8];
        ahead.iter().for_each(|key| table.fill_ahead_now(key));
        assert_eq!(ahead.iter().filter(|key| table.contains(key)).count(), ahead.len());
    }

    #[test]
    fn contents_fetched_ahead_are_counted_as_used_once() {
        let (table, keys) = (SlotTable::new(4 * SPARE, SPARE, 8), keys(3));
        keys.iter().for_each(|key| table.fill_ahead_now(key));
        // There is no second fetch of what is there.
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

    /// Parts of indexes waited for a slot, and their readers with them.
    #[test]
    fn a_spare_content_waits_for_no_slot() {
        let (table, keys) = (SlotTable::new(4 * SPARE, SPARE, 8), keys(257));
        let (last, held) = keys.split_last().unwrap();
        let disk = Disk::of(usize::MAX);
        let held: Vec<Slot> = held.iter().map(|key| disk.ask(&table, key).unwrap()).collect();
        let keep = || {
            let write = |_slot, content| std::future::ready((content, Ok(())));
            table.fill_spare(last, std::future::ready(Ok::<_, ()>(())), write).now_or_never()
        };
        let Some(Err(NoSlot::Unkept(Unkept { error, .. }))) = keep() else { panic!("no slot is free") };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(held);
        assert!(keep().is_some_and(|kept| kept.is_ok()) && table.contains(last));
    }

    #[test]
    fn what_no_slot_takes_is_handed_back() {
        let (table, keys) = (SlotTable::new(4 * SPARE, SPARE, 8), keys(300));
        for disk in [Disk::of(0), Disk::of(1)] {
            // A reader holds the only one that has room.
            let held = disk.ask(&table, &keys[0]);
            for key in &keys[1..] {
                let Err(NoSlot::Unkept(Unkept { error, .. })) = disk.ask(&table, key) else {
                    panic!("there is no room")
                };
                assert_eq!(error.kind(), io::ErrorKind::StorageFull);
            }
            assert_eq!(held.is_ok(), disk.room == 1);
        }
        assert_eq!(fill(&table, &keys), keys.len(), "no slot was lost");
    }

    /// Entries of an earlier process for the slots from 0.
    fn entries(keys: &[ContentKey]) -> impl Iterator<Item = (u32, SlabEntry)> {
        (0..).zip(keys.iter().map(|key| SlabEntry::of(*key, &[])))
    }

    /// Every cold block was requested again after each restart of the daemon.
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
        let held: Vec<&ContentKey> = keys.iter().filter(|key| table.contains(key)).collect();
        for key in &held {
            assert!(table.get(key, has_all).now_or_never().unwrap().is_some());
            assert!(table.get_now(key).is_some(), "once is enough");
        }
        assert_eq!(table.old(), OldCounts { found: found as u64, used: found as u64, refused: 0 });
        // As many others as there were find slots.
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

    /// An entry of the table says that a slot was written, and not that it has room: a content that found
    /// none was served from memory though others had room.
    #[test]
    fn an_old_slot_without_room_leaves_the_content_to_others() {
        let keys = keys(40);
        let (old, fresh) = keys.split_at(11);
        let (table, disk) = (SlotTable::with_old(4 * SPARE, SPARE, 8, entries(old)), Disk::of(8));
        disk.allocated.lock().extend(0..8);
        // The last three have no room, and are the first to be used.
        for key in old {
            let refused = |_slot, _entry| std::future::ready(Ok(false));
            table.prove(key, refused).now_or_never().expect("nothing waits");
        }
        for key in fresh {
            assert!(disk.ask(&table, key).expect("others have room").number() < 8);
        }
    }

    /// Each of the readers of a block compared it.
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
        // One whose reader is dropped is left to the next.
        let mut dropped = Box::pin(table.get(&keys[0], |_slot, _entry| std::future::pending()));
        assert!(dropped.as_mut().now_or_never().is_none());
        drop(dropped);
        assert!(table.get(&keys[0], |_slot, _entry| std::future::ready(Ok(true))).await.is_some());
    }

    /// The table of a larger slab, and one whose slots name a content twice: it was evicted and came back.
    #[test]
    fn entries_beyond_the_slab_and_second_ones_count_for_nothing() {
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
}
