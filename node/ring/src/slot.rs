//! Slots of the ring's two sparse tables, and numbers of its groups of provided buffers.

use crate::RingError;

/// A slot of the ring's table of fixed files. It stays valid until
/// [`Ring::unregister_file`](crate::Ring::unregister_file).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileSlot(pub(crate) u32);

impl FileSlot {
    /// Returns the index in the table.
    #[must_use]
    #[inline]
    pub const fn index(self) -> u32 {
        self.0
    }

    /// Returns the slot in the form that a submission entry needs.
    #[must_use]
    #[inline]
    pub const fn fixed(self) -> io_uring::types::Fixed {
        io_uring::types::Fixed(self.0)
    }
}

/// Adjacent slots of the ring's table of fixed buffers. Another range may share them.
#[derive(Debug, PartialEq, Eq)]
pub struct BufferRange {
    pub(crate) first: u16,
    pub(crate) count: u16,
}

impl BufferRange {
    /// Returns the table index of the `offset`-th buffer of the range.
    ///
    /// # Panics
    /// If `offset` is beyond the range.
    #[must_use]
    #[inline]
    pub const fn index(&self, offset: u16) -> u16 {
        assert!(offset < self.count, "the buffer lies inside the range");
        self.first + offset
    }

    /// Returns the number of buffers in the range.
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
    /// If all are taken, which is a bug: each queue of a device takes one, and a ring has fewer file slots.
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

/// Users of the buffer table. A range gets slots of its own if any are free, and otherwise shares those with
/// the fewest users: the kernel registers nothing in a slot that is in use, and reports that.
#[derive(Debug)]
pub(crate) struct BufferTable {
    capacity: u16,
    /// Number of ranges in each block of slots.
    users: Vec<u16>,
}

impl BufferTable {
    /// Slots of a block. A range begins at the start of a block.
    const BLOCK: u16 = 16;

    pub(crate) fn new(capacity: u16) -> Self {
        Self { capacity, users: vec![0; capacity.div_ceil(Self::BLOCK).into()] }
    }

    pub(crate) fn take(&mut self, count: u16) -> Result<BufferRange, RingError> {
        let block = usize::from(Self::BLOCK);
        let blocks = usize::from(count).div_ceil(block).max(1);
        let last = usize::from(self.capacity).checked_sub(count.into()).filter(|_| count > 0);
        let (_, _, first) = last
            .into_iter()
            .flat_map(|last| self.users.windows(blocks).zip((0..=last).step_by(block)))
            .map(|(users, first)| {
                (users.iter().max(), users.iter().copied().map(u32::from).sum::<u32>(), first)
            })
            .min()
            .ok_or(RingError::BuffersExhausted { wanted: count.into(), capacity: self.capacity.into() })?;
        let range = BufferRange { first: u16::try_from(first).expect("it is below the capacity"), count };
        self.users_of(&range).iter_mut().for_each(|users| *users += 1);
        Ok(range)
    }

    pub(crate) fn give_back(&mut self, range: BufferRange) {
        self.users_of(&range).iter_mut().for_each(|users| *users -= 1);
    }

    fn users_of(&mut self, range: &BufferRange) -> &mut [u16] {
        let (first, blocks) = (range.first / Self::BLOCK, range.count.div_ceil(Self::BLOCK));
        &mut self.users[first.into()..][..blocks.into()]
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
    fn ranges_have_slots_of_their_own_while_there_are_any() {
        let mut table = BufferTable::new(96);
        let [a, b, c] = [32, 20, 32].map(|count| table.take(count).unwrap());
        assert_eq!((a.index(0), b.index(0), b.index(19), c.index(31)), (0, 32, 51, 95));
        assert!(matches!(table.take(97), Err(RingError::BuffersExhausted { wanted: 97, capacity: 96 })));
        assert!(table.take(0).is_err());
        table.give_back(b);
        assert_eq!(table.take(32).unwrap().index(0), 32, "the slots that came back");
    }

    /// A table of 16,384 buffers was full with 128 devices of 128 requests.
    #[test]
    fn ranges_share_the_slots_with_the_fewest_users() {
        let mut table = BufferTable::new(16_384);
        let mut firsts = Vec::new();
        for round in 0..3 {
            let ranges: Vec<_> = (0..128).map(|_| table.take(128).unwrap()).collect();
            assert!(table.users.iter().all(|users| *users == round + 1));
            firsts.extend(ranges.iter().map(|range| range.index(0)));
        }
        assert_eq!(firsts[..128], firsts[128..256], "the same ones again");
        // One of their three users is closed.
        table.give_back(super::BufferRange { first: firsts[7], count: 128 });
        assert_eq!(table.take(64).unwrap().index(0), firsts[7]);
        let deep = table.take(4096).unwrap();
        assert!(deep.index(4095) < 16_384);
        table.give_back(deep);
        assert_eq!(table.users.iter().map(|users| u32::from(*users)).sum::<u32>(), 3 * 1024 - 8 + 4);
    }

    /// The rings of tests have few buffers.
    #[test]
    fn a_table_of_less_than_a_block_is_used_to_its_end() {
        let mut table = BufferTable::new(8);
        assert_eq!(table.take(8).unwrap().index(7), 7);
        assert_eq!(table.take(3).unwrap().index(0), 0);
        assert!(table.take(9).is_err());
        assert!(BufferTable::new(0).take(1).is_err());
    }
}
