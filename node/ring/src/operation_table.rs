//! The operations in flight: the purpose of each, and the memory it may touch, until its completion is handed
//! out.
//!
//! ```text
//!            insert                 take, once its completion came
//!   FREE ----------------> HELD ------------------------------------> FREE, generation + 1
//! ```
//!
//! The 64 bits of user data of a submission are the key of an entry. If the highest bit is 1, the others are
//! the operation itself ([`RingOperation::to_word`](crate::RingOperation::to_word)), which has no entry:
//!
//! ```text
//!  63  62                32 31                     0
//! +---+--------------------+------------------------+
//! | 0 |     generation     |         entry          |
//! +---+--------------------+------------------------+
//! | 1 |                    word                     |
//! +---+---------------------------------------------+
//! ```
//!
//! *Owns*: every entry from the push to the completion, and the buffer lent to the kernel with it. Few
//! operations have a buffer, so a separate list holds the buffers and entries stay small.
//! *Invariants*: a key names one operation: a completion of an earlier generation finds nothing. An entry is
//! never moved: the table grows by a part when more operations are in flight than ever before. The entry
//! freed last is used next.

use crate::HeapBuffer;

/// End of the list of free entries; no entry has this number.
const NONE: u32 = u32::MAX;
/// Replaces the next free entry while memory is lent with the operation.
const LENT: u32 = u32::MAX - 1;
/// Binary logarithm of the entries of a part of the table, which is at most 1 MiB.
const PART_BITS: u32 = 14;
const PART_ENTRIES: u32 = 1 << PART_BITS;

/// Mask of a generation.
const GENERATION: u32 = u32::MAX >> 1;

/// Name of an operation in flight that has an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperationKey {
    entry: u32,
    generation: u32,
}

impl OperationKey {
    /// Key of the poll that a [`Waker`](crate::Waker) fires, which has no entry.
    pub(crate) const WAKE: Self = Self { entry: NONE, generation: GENERATION };

    #[inline]
    pub(crate) const fn to_bits(self) -> u64 {
        ((self.generation as u64) << 32) | self.entry as u64
    }

    #[inline]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self { entry: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// Entry of one operation.
struct Entry<T> {
    generation: u32,
    /// In a free entry: the next free one. In a held entry: [`LENT`] if memory is lent with it.
    next_free: u32,
    operation: Option<T>,
}

/// The operations of one ring.
pub(crate) struct OperationTable<T> {
    /// Parts of the table, all full but the last.
    parts: Vec<Vec<Entry<T>>>,
    first_free: u32,
    /// Lent memory, by entry.
    lent: Vec<(u32, HeapBuffer)>,
    held: u32,
    late: u64,
}

impl<T> Default for OperationTable<T> {
    fn default() -> Self {
        Self { parts: Vec::new(), first_free: NONE, lent: Vec::new(), held: 0, late: 0 }
    }
}

impl<T> OperationTable<T> {
    #[inline]
    fn entry(&mut self, entry: u32) -> Option<&mut Entry<T>> {
        self.parts.get_mut((entry >> PART_BITS) as usize)?.get_mut((entry & (PART_ENTRIES - 1)) as usize)
    }

    /// Adds an entry. Returns its number.
    fn add(&mut self, entry: Entry<T>) -> u32 {
        if self.parts.last().is_none_or(|part| part.len() == PART_ENTRIES as usize) {
            self.parts.push(Vec::with_capacity(PART_ENTRIES as usize));
        }
        let before = self.parts.len() - 1;
        let part = &mut self.parts[before];
        part.push(entry);
        let number = before * PART_ENTRIES as usize + part.len() - 1;
        u32::try_from(number).expect("far fewer operations than 2^32 are in flight")
    }

    #[inline]
    pub(crate) fn insert(&mut self, operation: T, buffer: Option<HeapBuffer>) -> OperationKey {
        self.held += 1;
        let first_free = self.first_free;
        let key = if let Some(entry) = self.entry(first_free) {
            let key = OperationKey { entry: first_free, generation: entry.generation };
            let next_free = std::mem::replace(&mut entry.next_free, NONE);
            let free = entry.operation.replace(operation);
            debug_assert!(free.is_none(), "a free entry has no operation");
            // `None` has nothing to drop.
            std::mem::forget(free);
            self.first_free = next_free;
            key
        } else {
            let entry = self.add(Entry { generation: 0, next_free: NONE, operation: Some(operation) });
            OperationKey { entry, generation: 0 }
        };
        if let Some(buffer) = buffer {
            self.lend(key.entry, buffer);
        }
        key
    }

    #[cold]
    fn lend(&mut self, number: u32, buffer: HeapBuffer) {
        self.entry(number).expect("it was just added").next_free = LENT;
        self.lent.push((number, buffer));
    }

    #[cold]
    fn take_lent(&mut self, number: u32) -> Option<HeapBuffer> {
        let at = self.lent.iter().position(|(entry, _)| *entry == number)?;
        Some(self.lent.swap_remove(at).1)
    }

    /// Ends an operation. Returns `None`, and counts the call, if the operation of this key has already
    /// ended.
    #[inline]
    pub(crate) fn take(&mut self, key: OperationKey) -> Option<(T, Option<HeapBuffer>)> {
        let first_free = self.first_free;
        let held = self.entry(key.entry).filter(|entry| entry.generation == key.generation);
        let Some((operation, entry)) = held.and_then(|entry| Some((entry.operation.take()?, entry))) else {
            self.late += 1;
            return None;
        };
        entry.generation = (entry.generation + 1) & GENERATION;
        let is_lent = std::mem::replace(&mut entry.next_free, first_free) == LENT;
        self.first_free = key.entry;
        self.held -= 1;
        let buffer = if is_lent { self.take_lent(key.entry) } else { None };
        Some((operation, buffer))
    }

    /// Returns the number of operations in flight.
    pub(crate) const fn count(&self) -> u32 {
        self.held
    }

    /// Returns the number of completions whose operation had ended before.
    pub(crate) const fn late(&self) -> u64 {
        self.late
    }

    /// Leaks the lent memory, because the kernel may still write to it.
    pub(crate) fn leak_buffers(&mut self) {
        self.lent.drain(..).for_each(std::mem::forget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A completion that came after its operation had ended would end the next operation in its entry.
    #[test]
    fn a_late_key_finds_nothing_in_a_reused_entry() {
        let mut table = OperationTable::default();
        let first = table.insert("first", Some(HeapBuffer::zeroed(4096)));
        assert!(matches!(table.take(first), Some(("first", Some(_)))));
        let second = table.insert("second", None);
        assert_eq!(second.entry, first.entry, "the entry is used again");
        assert!(table.take(first).is_none());
        assert!(table.take(OperationKey { entry: 7, generation: 0 }).is_none());
        assert_eq!((table.late(), table.count()), (2, 1));
        assert!(matches!(table.take(second), Some(("second", None))));
        assert!(table.take(second).is_none());
        assert_eq!((table.late(), table.count()), (3, 0));
    }

    #[test]
    fn entries_are_reused_before_the_table_grows() {
        let mut table = OperationTable::default();
        for round in 0..100 {
            let keys: Vec<_> = (0..4).map(|number| table.insert((round, number), None)).collect();
            for (number, key) in keys.into_iter().enumerate() {
                assert_eq!(OperationKey::from_bits(key.to_bits()), key);
                assert!(matches!(table.take(key), Some((taken, None)) if taken == (round, number)));
            }
        }
        assert_eq!((table.parts.len(), table.parts[0].len()), (1, 4));
    }

    /// The table was one allocation of 512 MiB of address space, which a host with `vm.overcommit_memory=2`
    /// counts as memory.
    #[test]
    fn the_table_grows_by_a_part_and_moves_no_entry() {
        let mut table = OperationTable::default();
        let keys: Vec<_> = (0..PART_ENTRIES + 2).map(|number| table.insert(number, None)).collect();
        assert_eq!(table.parts.iter().map(Vec::len).collect::<Vec<_>>(), [PART_ENTRIES as usize, 2]);
        let capacities = table.parts.iter().map(Vec::capacity).collect::<Vec<_>>();
        assert_eq!(capacities, [PART_ENTRIES as usize; 2]);
        for (number, key) in keys.into_iter().enumerate() {
            assert!(matches!(table.take(key), Some((taken, None)) if taken as usize == number));
        }
        assert_eq!(table.count(), 0);
    }

    #[test]
    fn an_entry_is_small_and_no_key_is_the_wakers() {
        assert!(size_of::<Entry<[u64; 3]>>() <= 40);
        assert_ne!(OperationKey::WAKE.to_bits(), OperationKey { entry: 0, generation: 0 }.to_bits());
    }

    /// The list of free entries swaps those of two operations, but must not swap their memory.
    #[test]
    fn each_operation_gets_its_own_memory_back() {
        let mut table = OperationTable::default();
        for _ in 0..3 {
            let keys = [1, 2, 3].map(|pages| {
                let buffer = (pages != 2).then(|| HeapBuffer::zeroed(pages * 4096));
                table.insert(pages, buffer)
            });
            for (key, pages) in keys.into_iter().zip([1, 2, 3]) {
                let (taken, buffer) = table.take(key).unwrap();
                let len = buffer.map(|buffer| buffer.len());
                assert_eq!((taken, len), (pages, (pages != 2).then_some(pages * 4096)));
            }
        }
        assert!(table.lent.is_empty());
    }
}
