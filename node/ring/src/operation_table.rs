//! The operations in flight: what each was for, and the memory it may touch, until its completion is handed
//! out.
//!
//! ```text
//!            insert                 take, once its completion came
//!   FREE ----------------> HELD ------------------------------------> FREE, generation + 1
//! ```
//!
//! The key of an entry travels as the 64 bits of user data:
//!
//! ```text
//!  63                    32 31                     0
//! +------------------------+------------------------+
//! |       generation       |         entry          |
//! +------------------------+------------------------+
//! ```
//!
//! *Owns*: every entry from the push to the completion, the buffer that was lent to the kernel with it.
//! *Invariants*: a key names one operation: a completion whose generation is gone finds nothing. No operation
//! costs an allocation or a search while no more are in flight than the table was made for; the entry freed
//! last is used next.

use crate::HeapBuffer;

/// Marks the end of the list of free entries, and belongs to no entry.
const NONE: u32 = u32::MAX;

/// Names an operation in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperationKey {
    entry: u32,
    generation: u32,
}

impl OperationKey {
    /// The poll that a [`Waker`](crate::Waker) fires; it has no entry.
    pub(crate) const WAKE: Self = Self { entry: NONE, generation: u32::MAX };

    pub(crate) const fn to_bits(self) -> u64 {
        ((self.generation as u64) << 32) | self.entry as u64
    }

    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self { entry: bits as u32, generation: (bits >> 32) as u32 }
    }
}

/// One operation. It fills a cache line, of which an owner's `T` of up to 24 bytes leaves some.
#[repr(align(64))]
struct Entry<T> {
    generation: u32,
    /// The next free one, while this is free.
    next_free: u32,
    operation: Option<T>,
    buffer: Option<HeapBuffer>,
}

/// The operations of one ring.
pub(crate) struct OperationTable<T> {
    entries: Vec<Entry<T>>,
    first_free: u32,
    held: u32,
    most: u32,
    late: u64,
}

impl<T> OperationTable<T> {
    /// A table that grows only beyond `operations` in flight at a time. Memory is touched as it is used.
    pub(crate) fn with_capacity(operations: u32) -> Self {
        Self { entries: Vec::with_capacity(operations as usize), first_free: NONE, held: 0, most: 0, late: 0 }
    }

    pub(crate) fn insert(&mut self, operation: T, buffer: Option<HeapBuffer>) -> OperationKey {
        self.held += 1;
        self.most = self.most.max(self.held);
        if let Some(entry) = self.entries.get_mut(self.first_free as usize) {
            let key = OperationKey { entry: self.first_free, generation: entry.generation };
            self.first_free = entry.next_free;
            (entry.operation, entry.buffer) = (Some(operation), buffer);
            return key;
        }
        let entry = u32::try_from(self.entries.len()).expect("far fewer operations than 2^32 are in flight");
        self.entries.push(Entry { generation: 0, next_free: NONE, operation: Some(operation), buffer });
        OperationKey { entry, generation: 0 }
    }

    /// Ends an operation. `None`, and counted, if there is none of this key: it has ended before.
    pub(crate) fn take(&mut self, key: OperationKey) -> Option<(T, Option<HeapBuffer>)> {
        let entry = self.entries.get_mut(key.entry as usize);
        let Some(entry) = entry.filter(|entry| entry.generation == key.generation) else {
            self.late += 1;
            return None;
        };
        let Some(operation) = entry.operation.take() else {
            self.late += 1;
            return None;
        };
        entry.generation = entry.generation.wrapping_add(1);
        entry.next_free = std::mem::replace(&mut self.first_free, key.entry);
        self.held -= 1;
        Some((operation, entry.buffer.take()))
    }

    /// Number of operations in flight.
    pub(crate) const fn count(&self) -> u32 {
        self.held
    }

    /// Largest number of them at a time.
    pub(crate) const fn most(&self) -> u32 {
        self.most
    }

    /// Number of completions that named an operation that had ended before.
    pub(crate) const fn late(&self) -> u64 {
        self.late
    }

    /// Leaks the memory that is lent: the kernel may still write to it.
    pub(crate) fn leak_buffers(&mut self) {
        self.entries.iter_mut().filter_map(|entry| entry.buffer.take()).for_each(std::mem::forget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A completion that came after its operation had ended would be taken for the next one of its entry.
    #[test]
    fn a_late_key_finds_nothing_in_a_reused_entry() {
        let mut table = OperationTable::with_capacity(2);
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
        let mut table = OperationTable::with_capacity(4);
        for round in 0..100 {
            let keys: Vec<_> = (0..4).map(|number| table.insert((round, number), None)).collect();
            for (number, key) in keys.into_iter().enumerate() {
                assert_eq!(OperationKey::from_bits(key.to_bits()), key);
                assert!(matches!(table.take(key), Some((taken, None)) if taken == (round, number)));
            }
        }
        assert_eq!((table.entries.len(), table.entries.capacity(), table.most()), (4, 4, 4));
    }

    #[test]
    fn an_entry_fills_one_cache_line() {
        assert_eq!(size_of::<Entry<[u64; 3]>>(), 64);
        assert_ne!(OperationKey::WAKE.to_bits(), OperationKey { entry: 0, generation: 0 }.to_bits());
    }
}
