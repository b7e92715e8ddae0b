//! Slots of the ring's two sparse tables, and numbers of its groups of provided buffers.

use crate::RingError;

/// A slot of the ring's table of fixed files. It stays valid until
/// [`Ring::unregister_file`](crate::Ring::unregister_file).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileSlot(pub(crate) u32);

impl FileSlot {
    /// The index in the table.
    #[must_use]
    #[inline]
    pub const fn index(self) -> u32 {
        self.0
    }

    /// The form an entry of the submission queue takes it in.
    #[must_use]
    #[inline]
    pub const fn fixed(self) -> io_uring::types::Fixed {
        io_uring::types::Fixed(self.0)
    }
}

/// Adjacent slots of the ring's table of fixed buffers.
#[derive(Debug, PartialEq, Eq)]
pub struct BufferRange {
    pub(crate) first: u16,
    pub(crate) count: u16,
}

impl BufferRange {
    /// The table index of the `offset`-th buffer of the range.
    ///
    /// # Panics
    /// If the range is not that long.
    #[must_use]
    #[inline]
    pub const fn index(&self, offset: u16) -> u16 {
        assert!(offset < self.count, "the buffer lies inside the range");
        self.first + offset
    }

    /// Number of buffers in the range.
    #[must_use]
    #[inline]
    pub const fn count(&self) -> u16 {
        self.count
    }
}

/// Free slots of the file table.
#[derive(Debug)]
pub(crate) struct FileTable {
    capacity: u32,
    next_unused: u32,
    freed: Vec<u32>,
}

impl FileTable {
    pub(crate) const fn new(capacity: u32) -> Self {
        Self { capacity, next_unused: 0, freed: Vec::new() }
    }

    pub(crate) fn take(&mut self) -> Result<FileSlot, RingError> {
        if let Some(slot) = self.freed.pop() {
            return Ok(FileSlot(slot));
        }
        if self.next_unused == self.capacity {
            return Err(RingError::FilesExhausted { capacity: self.capacity });
        }
        self.next_unused += 1;
        Ok(FileSlot(self.next_unused - 1))
    }

    pub(crate) fn give_back(&mut self, slot: FileSlot) {
        debug_assert!(slot.0 < self.next_unused && !self.freed.contains(&slot.0), "the slot was taken");
        self.freed.push(slot.0);
    }
}

/// Free numbers of groups of provided buffers.
#[derive(Debug, Default)]
pub(crate) struct GroupTable {
    next_unused: u16,
    freed: Vec<u16>,
}

impl GroupTable {
    /// # Panics
    /// If all are taken: each queue of a device takes one, and a ring has fewer slots of files.
    pub(crate) fn take(&mut self) -> u16 {
        self.freed.pop().unwrap_or_else(|| {
            let group = self.next_unused;
            self.next_unused = group.checked_add(1).expect("far fewer than 65,536 groups are in use");
            group
        })
    }

    pub(crate) fn give_back(&mut self, group: u16) {
        self.freed.push(group);
    }
}

/// Free runs of the buffer table: first fit over a sorted list of holes, merged on return.
#[derive(Debug)]
pub(crate) struct BufferTable {
    capacity: u16,
    /// `(first, count)`, sorted by `first`, never adjacent.
    holes: Vec<(u16, u16)>,
}

impl BufferTable {
    pub(crate) fn new(capacity: u16) -> Self {
        let holes = if capacity == 0 { Vec::new() } else { vec![(0, capacity)] };
        Self { capacity, holes }
    }

    pub(crate) fn take(&mut self, count: u16) -> Result<BufferRange, RingError> {
        let fit = self.holes.iter().position(|&(_, free)| free >= count && count > 0);
        let Some(at) = fit else {
            return Err(RingError::BuffersExhausted { wanted: count.into(), capacity: self.capacity.into() });
        };
        let (first, free) = self.holes[at];
        if free == count {
            self.holes.remove(at);
        } else {
            self.holes[at] = (first + count, free - count);
        }
        Ok(BufferRange { first, count })
    }

    pub(crate) fn give_back(&mut self, range: BufferRange) {
        let BufferRange { first, count } = range;
        let at = self.holes.partition_point(|&(hole, _)| hole < first);
        self.holes.insert(at, (first, count));
        if let Some(&(next, next_count)) = self.holes.get(at + 1)
            && first + count == next
        {
            self.holes[at].1 += next_count;
            self.holes.remove(at + 1);
        }
        if at > 0 && self.holes[at - 1].0 + self.holes[at - 1].1 == first {
            self.holes[at - 1].1 += self.holes[at].1;
            self.holes.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BufferTable, FileTable};
    use crate::RingError;

    #[test]
    fn a_returned_file_slot_is_reused() {
        let mut table = FileTable::new(2);
        let first = table.take().unwrap();
        let second = table.take().unwrap();
        assert_ne!(first, second);
        assert!(matches!(table.take(), Err(RingError::FilesExhausted { capacity: 2 })));
        table.give_back(first);
        assert_eq!(table.take().unwrap(), first);
    }

    #[test]
    fn buffer_ranges_never_overlap_and_merge_when_they_come_back() {
        let mut table = BufferTable::new(96);
        let a = table.take(32).unwrap();
        let b = table.take(32).unwrap();
        let c = table.take(32).unwrap();
        assert_eq!((a.index(0), b.index(0), c.index(31)), (0, 32, 95));
        assert!(table.take(1).is_err());
        table.give_back(a);
        table.give_back(c);
        assert!(table.take(64).is_err(), "two holes of 32 are not one of 64");
        table.give_back(b);
        assert_eq!(table.take(96).unwrap().index(0), 0, "all holes merged");
    }
}
