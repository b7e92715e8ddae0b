//! A block in the slab: the node's files of fetched blocks, from which a ring thread copies.

use crate::slots::{Slot, WeakSlot};
use holdfast_types::BLOCK_BYTES;

/// A block in the slab; it is kept while this is held.
#[derive(Clone, Debug)]
pub struct SlabSlot {
    slot: Slot,
    is_in_memory: bool,
}

impl SlabSlot {
    /// Creates the reference to a block in this slot of the slab's file in memory, or of the one on disk.
    #[must_use]
    pub const fn new(slot: Slot, is_in_memory: bool) -> Self {
        Self { slot, is_in_memory }
    }

    /// Returns the slot.
    #[must_use]
    pub const fn slot(&self) -> &Slot {
        &self.slot
    }

    /// Returns the offset of the block's first byte in its file.
    #[must_use]
    pub fn offset_bytes(&self) -> u64 {
        Self::offset_of(&self.slot)
    }

    /// Returns the offset of a slot.
    #[must_use]
    pub fn offset_of(slot: &Slot) -> u64 {
        u64::from(slot.number()) * BLOCK_BYTES
    }

    /// Returns true if it is in the file in memory, false if in the one on disk.
    #[must_use]
    pub const fn is_in_memory(&self) -> bool {
        self.is_in_memory
    }

    /// Returns a weak reference, which does not keep the block.
    pub(crate) fn downgrade(&self) -> WeakSlabSlot {
        WeakSlabSlot { slot: self.slot.downgrade(), is_in_memory: self.is_in_memory }
    }
}

/// A slot that had a block, and still has it unless the slab reused the slot.
#[derive(Clone, Debug)]
pub struct WeakSlabSlot {
    slot: WeakSlot,
    is_in_memory: bool,
}

impl WeakSlabSlot {
    /// Returns the block if it is still in its slot.
    #[inline]
    pub fn upgrade(&self) -> Option<SlabSlot> {
        Some(SlabSlot { slot: self.slot.upgrade()?, is_in_memory: self.is_in_memory })
    }

    /// Returns true if the block is no longer in its slot.
    pub(crate) fn is_gone(&self) -> bool {
        self.slot.is_gone()
    }
}
