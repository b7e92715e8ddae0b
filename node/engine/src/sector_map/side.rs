//! Bits of the sector map for each side, and values kept for each of them.

use std::ops::{Index, IndexMut};

use holdfast_format::side::Side;

/// Returns the bits of a nibble for a sector whose newest bytes are on `side`.
#[inline]
pub(super) const fn newest_bits(side: Side) -> u8 {
    match side {
        Side::A => 1,
        Side::B => 2,
    }
}

/// Returns the bit of a nibble for a sector that is dirty on `side`.
#[inline]
pub(super) const fn dirty_bit(side: Side) -> u8 {
    match side {
        Side::A => 4,
        Side::B => 8,
    }
}

/// A value for each side, indexed by the side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PerSide<T>([T; 2]);

impl<T> PerSide<T> {
    /// Creates the values with `make`.
    pub(crate) fn from_fn(make: impl FnMut(Side) -> T) -> Self {
        Self(Side::BOTH.map(make))
    }
}

impl<T> Index<Side> for PerSide<T> {
    type Output = T;

    fn index(&self, side: Side) -> &T {
        &self.0[side as usize]
    }
}

impl<T> IndexMut<Side> for PerSide<T> {
    fn index_mut(&mut self, side: Side) -> &mut T {
        &mut self.0[side as usize]
    }
}

/// Location of a sector's newest bytes: a side, or (`None`) the object store.
pub type Newest = Option<Side>;
