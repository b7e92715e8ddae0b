//! The pool: slabs of slots, by size class.
//!
//! A slab has slots of one class. The set of used slots is not stored: a successor derives it from the table,
//! so there is no second structure to keep consistent.
//!
//! A slab is sparse if it holds fewer pages than its memory could hold uncompressed, or if more than an
//! eighth of its slots are free. Slots of dense slabs are taken first. If no class has sparse slabs that can
//! be merged into fewer, the slabs are together at most 47 slabs larger than the uncompressed pages.
//!
//! Owns: the set of used slots, the class of each slab, the choice of the slab that a page moves to.
//! Does not own: the moves, the bytes; the pool reports when the memory of a slab is needed and when it is
//! not.
//! Invariants: a slot is used once; a slab without a used slot has no class.

use holdfast_format::safeguard::{Safeguard, safeguard};

use crate::PAGE_BYTES;

/// Bytes of a slab. Smaller than a huge page: each of 47 classes may have one half-used slab, which wastes
/// 1.5 MiB with this size and 47 MiB with slabs of 2 MiB.
pub const SLAB_BYTES: usize = 64 << 10;
/// Bytes by which classes differ. Offsets of slots are multiples of it.
pub const CLASS_BYTES: usize = 64;
/// The class of a whole page.
pub const PAGE_CLASS: u8 = 64;

/// Units of [`CLASS_BYTES`] in a slab.
const SLAB_UNITS: u64 = (SLAB_BYTES / CLASS_BYTES) as u64;
/// Number of slots whose bits are in [`PoolSlab::bits`].
const WORD_SLOTS: usize = u64::BITS as usize;
/// Number of words for the bits of the other slots, in the smallest class.
const MORE_WORDS: usize = SLAB_UNITS as usize / WORD_SLOTS - 1;
/// Uncompressed pages that fit into a slab.
const SLAB_PAGES: usize = SLAB_BYTES / PAGE_BYTES;
/// No slab.
const NONE: u32 = u32::MAX;
/// List of the slabs without a class. The lists of sparse slabs have the numbers of their classes.
const UNUSED: usize = 0;
/// Number of lists.
const LISTS: usize = 2 * PAGE_CLASS as usize + 1;

/// A slot: part of a slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageSlot {
    class: u8,
    unit: u64,
}

impl PageSlot {
    /// Returns the slot of a class at an offset in units of [`CLASS_BYTES`], if such a slot exists.
    #[must_use]
    pub const fn at(class: u8, unit: u64) -> Option<Self> {
        if class == 0 || class > PAGE_CLASS {
            return None;
        }
        // 32 bits, because a division of 64 bits takes twice as long.
        let in_slab = (unit % SLAB_UNITS) as u32;
        let fits = in_slab.is_multiple_of(class as u32) && in_slab + class as u32 <= SLAB_UNITS as u32;
        if fits { Some(Self { class, unit }) } else { None }
    }

    const fn new(class: u8, slab: u32, index: usize) -> Self {
        Self { class, unit: slab as u64 * SLAB_UNITS + index as u64 * class as u64 }
    }

    /// Returns its length in units of [`CLASS_BYTES`], 1 to 64.
    #[must_use]
    pub const fn class(self) -> u8 {
        self.class
    }

    /// Returns its offset in units of [`CLASS_BYTES`].
    #[must_use]
    pub const fn unit(self) -> u64 {
        self.unit
    }

    /// Returns its offset in bytes.
    #[must_use]
    pub const fn offset(self) -> u64 {
        self.unit * CLASS_BYTES as u64
    }

    /// Returns its length in bytes.
    #[must_use]
    pub const fn len_bytes(self) -> usize {
        self.class as usize * CLASS_BYTES
    }

    /// Returns the number of its slab, or `None` beyond the largest pool.
    fn slab(self) -> Option<u32> {
        u32::try_from(self.unit / SLAB_UNITS).ok()
    }

    /// Returns its number in its slab.
    const fn index(self) -> usize {
        ((self.unit % SLAB_UNITS) as u32 / self.class as u32) as usize
    }
}

/// Returns the class for `len_bytes` bytes: the largest class with as many slots per slab as the smallest
/// class that holds them. The classes between the two would save no memory per slot, and each would add a
/// partly used slab.
///
/// # Panics
/// If no class holds `len_bytes`.
#[must_use]
pub fn class_of(len_bytes: usize) -> u8 {
    assert!(
        len_bytes > 0 && len_bytes <= CLASS_BYTES * usize::from(PAGE_CLASS),
        "a slot holds a page at most"
    );
    let units = SLAB_UNITS as usize;
    let smallest = len_bytes.div_ceil(CLASS_BYTES);
    u8::try_from(units / (units / smallest)).expect("there are 64 classes")
}

/// Returns the number of slots of a slab of a class.
const fn slots_of(class: u8) -> usize {
    SLAB_UNITS as usize / class as usize
}

/// Limits of the slabs of a class.
#[derive(Debug, Clone, Copy)]
struct ClassLimits {
    slots: u16,
    /// Used slots of the emptiest dense slab.
    dense_from: u16,
}

/// By class.
const LIMITS: [ClassLimits; PAGE_CLASS as usize + 1] = {
    let mut limits = [ClassLimits { slots: 0, dense_from: 0 }; PAGE_CLASS as usize + 1];
    let mut class = 1;
    while class <= PAGE_CLASS {
        let slots = slots_of(class);
        let mostly_used = slots - slots / 8;
        let dense_from = if mostly_used > SLAB_PAGES { mostly_used } else { SLAB_PAGES };
        limits[class as usize] = ClassLimits { slots: slots as u16, dense_from: dense_from as u16 };
        class += 1;
    }
    limits
};

/// Returns the list of dense slabs of a class.
const fn dense(class: u8) -> usize {
    (PAGE_CLASS + class) as usize
}

/// Returns the list for a slab of a class with this number of used slots, if it belongs to any.
fn list_of(class: u8, used: u16) -> Option<usize> {
    let ClassLimits { slots, dense_from } = LIMITS[usize::from(class)];
    match used {
        0 => Some(UNUSED),
        _ if used < dense_from => Some(usize::from(class)),
        _ if used < slots => Some(dense(class)),
        _ => None,
    }
}

/// A slab.
#[derive(Debug, Clone)]
struct PoolSlab {
    /// Neighbours in its list: of sparse or of dense slabs of its class, or of slabs without a class.
    next: u32,
    previous: u32,
    used: u16,
    /// 0 while the slab has none.
    class: u8,
    /// Bits of the first [`WORD_SLOTS`] slots, each set while its slot is used.
    bits: u64,
}

impl PoolSlab {
    const UNUSED: Self = Self { next: NONE, previous: NONE, used: 0, class: 0, bits: 0 };
}

/// Slabs that were added at the same time.
#[derive(Debug, Clone)]
struct SlabPart {
    /// Number of the first slab.
    first: u32,
    slabs: Box<[PoolSlab]>,
    /// Bits of the other slots. The system backs them with memory only once a slab has that many slots.
    more: Box<[[u64; MORE_WORDS]]>,
}

impl SlabPart {
    /// Creates slabs without a class, linked in order.
    fn new(first: u32, end: u32) -> Self {
        let slab = |number: u32| PoolSlab {
            next: if number + 1 < end { number + 1 } else { NONE },
            previous: if number > first { number - 1 } else { NONE },
            ..PoolSlab::UNUSED
        };
        let slabs: Box<[PoolSlab]> = (first..end).map(slab).collect();
        Self { first, more: vec![[0; MORE_WORDS]; slabs.len()].into(), slabs }
    }

    /// Returns the word with the bit of a slot, and the bit; `place` is the index of the slab in this part.
    #[inline]
    fn word_mut(&mut self, place: usize, index: usize) -> (&mut u64, u64) {
        let word = match (index / WORD_SLOTS).checked_sub(1) {
            None => &mut self.slabs[place].bits,
            Some(word) => &mut self.more[place][word],
        };
        (word, 1 << (index % WORD_SLOTS))
    }

    /// Returns the words with the bits of the slab at an index of this part.
    fn words(&self, place: usize) -> impl Iterator<Item = u64> {
        std::iter::once(self.slabs[place].bits).chain(self.more[place].iter().copied())
    }
}

/// Slabs by number. Those of each growth are a separate part, so that no other slab moves.
#[derive(Debug, Clone, Default)]
struct PoolSlabs {
    parts: Vec<SlabPart>,
    count: u32,
}

impl PoolSlabs {
    /// Returns the part of a slab, and the slab's index in it.
    #[inline]
    fn locate(&self, slab: u32) -> Option<(usize, usize)> {
        if slab >= self.count {
            return None;
        }
        let part = match &self.parts[..] {
            [_all] => 0,
            parts => parts.partition_point(|part| part.first <= slab) - 1,
        };
        Some((part, (slab - self.parts[part].first) as usize))
    }

    #[inline]
    fn get_mut(&mut self, slab: u32) -> Option<&mut PoolSlab> {
        let (part, place) = self.locate(slab)?;
        Some(&mut self.parts[part].slabs[place])
    }

    /// Returns a slab that exists.
    fn at(&mut self, slab: u32) -> &mut PoolSlab {
        self.get_mut(slab).expect("the pool has the slab")
    }

    /// Returns the word with the bit of a slot, and the bit.
    fn word_mut(&mut self, slab: u32, slot: PageSlot) -> (&mut u64, u64) {
        let (part, place) = self.locate(slab).expect("the pool has the slab");
        self.parts[part].word_mut(place, slot.index())
    }
}

/// Slabs by which a pool grows. Another thread creates them, so that the time of [`Pool::grow`] does not
/// depend on their number.
#[derive(Debug)]
pub struct PoolExtension(SlabPart);

impl PoolExtension {
    /// Creates the slabs by which a pool grows from `from` to `to` slabs.
    ///
    /// # Panics
    /// If `to` is less than `from`, or is 2^32 - 1.
    #[must_use]
    pub fn new(from: u32, to: u32) -> Self {
        assert!(from <= to && to != NONE, "a pool only grows, and to a number of slabs");
        Self(SlabPart::new(from, to))
    }
}

/// Reason why a slot could not be marked as used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SlotTaken {
    /// Another page uses the slot.
    #[error("another page has this slot")]
    Shared,
    /// The slot's slab has slots of another class.
    #[error("the slot's slab has slots of another class")]
    OtherClass,
    /// The slot is beyond the pool.
    #[error("the slot lies beyond the end of the pool")]
    Beyond,
}

/// The pool of a predecessor, derived from its table. The table names slots in any order, so the recovery
/// keeps one bit for each slot, for most slabs in the same word as the class: everything fits into the
/// processor's cache.
#[derive(Debug)]
pub struct PoolRecovery {
    slabs: Vec<RecoveredSlab>,
    /// Bits of the slabs with many slots, ordered by the time when their first slot was taken.
    bits: Vec<u64>,
}

/// A slab of a predecessor.
///
/// ```text
/// 63       56 55                                        0
/// +----------+------------------------------------------+
/// | class    | a bit for each slot, set while used      |   class 18 and greater
/// | class    | its first word in `PoolRecovery::bits`    |   class 1 to 17
/// +----------+------------------------------------------+
/// ```
/// 0 while it has no class.
#[derive(Debug, Clone, Copy)]
struct RecoveredSlab(u64);

impl RecoveredSlab {
    const CLASS_SHIFT: u32 = 56;
    const REST: u64 = (1 << Self::CLASS_SHIFT) - 1;
    /// Smallest class whose slabs have no more slots than this word has bits.
    const LEAST_WITH_BITS: u8 = (SLAB_UNITS / (Self::CLASS_SHIFT as u64 + 1)) as u8 + 1;

    const fn new(class: u8, rest: u64) -> Self {
        Self((class as u64) << Self::CLASS_SHIFT | rest)
    }

    const fn class(self) -> u8 {
        (self.0 >> Self::CLASS_SHIFT) as u8
    }

    const fn rest(self) -> u64 {
        self.0 & Self::REST
    }

    /// Returns true if a slab of this class has its bits in this word.
    const fn has_bits(class: u8) -> bool {
        class >= Self::LEAST_WITH_BITS
    }
}

impl PoolRecovery {
    /// Begins the recovery of a pool of `slabs` slabs.
    #[must_use]
    pub fn new(slabs: u32) -> Self {
        Self { slabs: vec![RecoveredSlab(0); slabs as usize], bits: Vec::new() }
    }

    /// Marks a slot that the table names as used.
    ///
    /// # Errors
    /// [`SlotTaken`]: the table is damaged.
    #[inline]
    pub fn take(&mut self, slot: PageSlot) -> Result<(), SlotTaken> {
        let class = slot.class();
        let slab = slot.slab().and_then(|slab| self.slabs.get_mut(slab as usize)).ok_or(SlotTaken::Beyond)?;
        if slab.class() == 0 {
            let first_word = self.bits.len();
            if RecoveredSlab::has_bits(class) {
                *slab = RecoveredSlab::new(class, 0);
            } else {
                *slab = RecoveredSlab::new(class, first_word as u64);
                self.bits.resize(first_word + words_of(class), 0);
            }
        }
        if slab.class() != class {
            return Err(SlotTaken::OtherClass);
        }
        let (at, bit) = (slot.index() / WORD_SLOTS, 1 << (slot.index() % WORD_SLOTS));
        let word = if RecoveredSlab::has_bits(class) {
            &mut slab.0
        } else {
            &mut self.bits[slab.rest() as usize + at]
        };
        if *word & bit != 0 {
            return Err(SlotTaken::Shared);
        }
        if safeguard(Safeguard::TakeSlotOnce) {
            *word |= bit;
        }
        Ok(())
    }

    /// Returns the recovered pool.
    #[must_use]
    pub fn finish(self) -> Pool {
        let Self { slabs, bits } = self;
        let mut part = SlabPart::new(0, u32::try_from(slabs.len()).expect("a number of slabs"));
        for (place, found) in slabs.into_iter().enumerate() {
            let (class, slab) = (found.class(), &mut part.slabs[place]);
            slab.class = class;
            if RecoveredSlab::has_bits(class) {
                slab.bits = found.rest();
                slab.used = slab.bits.count_ones() as u16;
            } else if class > 0 {
                let bits = &bits[found.rest() as usize..][..words_of(class)];
                slab.bits = bits[0];
                part.more[place][..bits.len() - 1].copy_from_slice(&bits[1..]);
                slab.used = bits.iter().map(|word| word.count_ones() as u16).sum();
            }
        }
        let mut pool = Pool::new(0);
        pool.slabs.count = part.slabs.len() as u32;
        pool.slabs.parts.push(part);
        for number in (0..pool.slabs.count).rev() {
            let &mut PoolSlab { class, used, .. } = pool.slabs.at(number);
            pool.in_use += u32::from(class > 0);
            pool.slot_bytes += u64::from(used) * u64::from(class) * CLASS_BYTES as u64;
            if let Some(list) = list_of(class, used) {
                pool.link(list, number);
            }
            pool.count_sparse(class, 0, used);
        }
        pool
    }
}

/// Returns the number of words with a bit for each slot of a slab of a class.
const fn words_of(class: u8) -> usize {
    slots_of(class).div_ceil(WORD_SLOTS)
}

/// Sparse slabs of a class.
#[derive(Debug, Clone, Copy, Default)]
struct SparseSlabs {
    slabs: u32,
    used_slots: u64,
}

/// The slabs of a volume, and their used slots.
#[derive(Debug, Clone)]
pub struct Pool {
    slabs: PoolSlabs,
    /// First slab of each list.
    first: [u32; LISTS],
    /// By class.
    sparse: [SparseSlabs; PAGE_CLASS as usize + 1],
    /// Slabs with a class.
    in_use: u32,
    slot_bytes: u64,
}

impl Pool {
    /// Creates a pool of `slabs` unused slabs.
    ///
    /// # Panics
    /// If it has 2^32 - 1 slabs or more.
    #[must_use]
    pub fn new(slabs: u32) -> Self {
        let mut pool = Self {
            slabs: PoolSlabs::default(),
            first: [NONE; LISTS],
            sparse: [SparseSlabs::default(); PAGE_CLASS as usize + 1],
            in_use: 0,
            slot_bytes: 0,
        };
        pool.grow(PoolExtension::new(0, slabs));
        pool
    }

    /// Adds unused slabs. [`next_slab`](Self::next_slab) stays the same.
    ///
    /// # Panics
    /// If the extension was created for a pool with another number of slabs.
    pub fn grow(&mut self, extension: PoolExtension) {
        let PoolExtension(part) = extension;
        let from = part.first;
        assert_eq!(from, self.slabs.count, "the extension is for this pool");
        let count = u32::try_from(part.slabs.len()).expect("it has fewer than 2^32");
        let Some(last) = count.checked_sub(1).map(|last| from + last) else { return };
        self.slabs.parts.push(part);
        self.slabs.count += count;
        let first = self.first[UNUSED];
        let next = match self.slabs.get_mut(first) {
            Some(first) => std::mem::replace(&mut first.next, from),
            None => std::mem::replace(&mut self.first[UNUSED], from),
        };
        self.slabs.at(from).previous = first;
        self.slabs.at(last).next = next;
        if let Some(next) = self.slabs.get_mut(next) {
            next.previous = last;
        }
    }

    /// Returns the number of slabs, used or not.
    #[must_use]
    pub const fn slabs(&self) -> u32 {
        self.slabs.count
    }

    /// Returns the number of slabs with a used slot.
    #[must_use]
    pub const fn slabs_in_use(&self) -> u32 {
        self.in_use
    }

    /// Returns the bytes of the used slots.
    #[must_use]
    pub const fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// Returns true if a slab has a used slot.
    #[must_use]
    pub fn is_in_use(&self, slab: u32) -> bool {
        self.slabs.locate(slab).is_some_and(|(part, place)| self.slabs.parts[part].slabs[place].class != 0)
    }

    /// Returns true if the pool has a free slot or a slab without a class.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.first.iter().any(|slab| *slab != NONE)
    }

    /// Returns true if this slot is used; such a slot lies in the pool, in a slab of its class.
    #[must_use]
    pub fn has(&self, slot: PageSlot) -> bool {
        let Some((part, place)) = slot.slab().and_then(|slab| self.slabs.locate(slab)) else { return false };
        let part = &self.slabs.parts[part];
        let word = || part.words(place).nth(slot.index() / WORD_SLOTS);
        part.slabs[place].class == slot.class()
            && word().is_some_and(|word| word >> (slot.index() % WORD_SLOTS) & 1 == 1)
    }

    /// Takes a free slot of a class in a slab that has used slots.
    pub fn take(&mut self, class: u8) -> Option<PageSlot> {
        self.open_slab(class).map(|slab| self.take_in(slab))
    }

    /// Takes a free slot for the content of the used slot `slot` in another slab of its class, if its slab is
    /// sparse and the sparse slabs of its class can be [merged](Self::mergeable_slabs).
    pub fn take_denser(&mut self, slot: PageSlot) -> Option<PageSlot> {
        if !self.is_movable(slot) {
            return None;
        }
        self.take(slot.class())
    }

    /// Returns true if [`take_denser`](Self::take_denser) would take a slot.
    #[must_use]
    pub fn is_movable(&self, slot: PageSlot) -> bool {
        let Some((number, (part, place))) =
            slot.slab().and_then(|slab| Some((slab, self.slabs.locate(slab)?)))
        else {
            return false;
        };
        let (class, used) = (slot.class(), self.slabs.parts[part].slabs[place].used);
        list_of(class, used) == Some(usize::from(class))
            && self.mergeable_of(class) > 0
            && self.open_slab(class).is_some_and(|slab| slab != number)
    }

    /// Returns the number of slabs that become free if the sparse slabs of each class are merged.
    #[must_use]
    pub fn mergeable_slabs(&self) -> u32 {
        (1..=PAGE_CLASS).map(|class| self.mergeable_of(class)).sum()
    }

    fn mergeable_of(&self, class: u8) -> u32 {
        let SparseSlabs { slabs, used_slots } = self.sparse[usize::from(class)];
        let merged = || used_slots.div_ceil(u64::from(LIMITS[usize::from(class)].slots)) as u32;
        if slabs > 1 { slabs - merged() } else { 0 }
    }

    /// Returns the slab that gets a class next, if any is left.
    #[must_use]
    pub fn next_slab(&self) -> Option<u32> {
        let slab = self.first[UNUSED];
        (slab != NONE).then_some(slab)
    }

    /// Gives [`next_slab`](Self::next_slab) this class and takes its first slot.
    ///
    /// # Panics
    /// If no such slab is left.
    pub fn take_first(&mut self, class: u8) -> PageSlot {
        let slab = self.next_slab().expect("the caller asked for it");
        self.set_class(slab, class);
        self.take_in(slab)
    }

    /// Frees a slot. Returns its slab if no slot of the slab is used any more.
    ///
    /// # Panics
    /// If the slot is not used.
    pub fn free(&mut self, slot: PageSlot) -> Option<u32> {
        let number = slot.slab().expect("a used slot lies in the pool");
        let (word, bit) = self.slabs.word_mut(number, slot);
        assert!(*word & bit != 0, "a slot is freed once");
        *word &= !bit;
        self.slot_bytes -= slot.len_bytes() as u64;
        let used = self.slabs.at(number).used - 1;
        self.set_used(number, used);
        (used == 0).then_some(number)
    }

    /// Returns the slab from which the next slot of a class is taken, if one has a free slot.
    fn open_slab(&self, class: u8) -> Option<u32> {
        [dense(class), usize::from(class)].map(|list| self.first[list]).into_iter().find(|slab| *slab != NONE)
    }

    fn set_class(&mut self, slab: u32, class: u8) {
        self.unlink(UNUSED, slab);
        self.slabs.at(slab).class = class;
        self.in_use += 1;
    }

    /// Changes the number of used slots of a slab, and its list accordingly. A slab without used slots has no
    /// class.
    fn set_used(&mut self, number: u32, used: u16) {
        let slab = self.slabs.at(number);
        let class = slab.class;
        let before = std::mem::replace(&mut slab.used, used);
        if used == 0 {
            slab.class = 0;
            self.in_use -= 1;
        }
        self.count_sparse(class, before, used);
        // A slab that was unused left its list when it got its class.
        let from = if before == 0 { None } else { list_of(class, before) };
        let to = list_of(class, used);
        if from == to {
            return;
        }
        if let Some(list) = from {
            self.unlink(list, number);
        }
        if let Some(list) = to {
            self.link(list, number);
        }
    }

    /// Updates the counts of sparse slabs for a slab whose number of used slots changed.
    fn count_sparse(&mut self, class: u8, before: u16, after: u16) {
        let is_sparse = |used| used > 0 && list_of(class, used) == Some(usize::from(class));
        let sparse = &mut self.sparse[usize::from(class)];
        if is_sparse(before) {
            sparse.slabs -= 1;
            sparse.used_slots -= u64::from(before);
        }
        if is_sparse(after) {
            sparse.slabs += 1;
            sparse.used_slots += u64::from(after);
        }
    }

    /// Takes a free slot of a slab that has one.
    fn take_in(&mut self, slab: u32) -> PageSlot {
        let (part, place) = self.slabs.locate(slab).expect("the pool has the slab");
        let part = &self.slabs.parts[part];
        let class = part.slabs[place].class;
        let (at, word) = (0..)
            .zip(part.words(place))
            .find(|(_, word)| *word != u64::MAX)
            .expect("a slab in a list has a free slot");
        let index = at * WORD_SLOTS + word.trailing_ones() as usize;
        debug_assert!(index < slots_of(class), "a slab in a list has a free slot");
        let slot = PageSlot::new(class, slab, index);
        self.mark(slab, slot);
        slot
    }

    /// Marks a free slot as used.
    fn mark(&mut self, number: u32, slot: PageSlot) {
        let (word, bit) = self.slabs.word_mut(number, slot);
        if safeguard(Safeguard::TakeSlotOnce) {
            *word |= bit;
        }
        self.slot_bytes += slot.len_bytes() as u64;
        let used = self.slabs.at(number).used + 1;
        self.set_used(number, used);
    }

    /// Puts a slab into a list: at the head, but after the head of a list of sparse slabs, because pages move
    /// to the head until it is dense.
    fn link(&mut self, list: usize, slab: u32) {
        let head = self.first[list];
        let is_sparse = (1..=usize::from(PAGE_CLASS)).contains(&list);
        let (previous, next) = match self.slabs.get_mut(head) {
            Some(first) if is_sparse => (head, std::mem::replace(&mut first.next, slab)),
            Some(_) | None => (NONE, std::mem::replace(&mut self.first[list], slab)),
        };
        let one = self.slabs.at(slab);
        (one.next, one.previous) = (next, previous);
        if let Some(next) = self.slabs.get_mut(next) {
            next.previous = slab;
        }
    }

    /// Takes a slab out of a list.
    fn unlink(&mut self, list: usize, slab: u32) {
        let &mut PoolSlab { next, previous, .. } = self.slabs.at(slab);
        match self.slabs.get_mut(previous) {
            Some(previous) => previous.next = next,
            None => self.first[list] = next,
        }
        if let Some(next) = self.slabs.get_mut(next) {
            next.previous = previous;
        }
    }
}

#[cfg(test)]
mod tests;
