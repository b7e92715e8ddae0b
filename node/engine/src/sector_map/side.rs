//! The two local files of a volume, sets of them, and values for each of them.

use std::ops::{Index, IndexMut};

/// One of a volume's two local files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Side {
    /// `a.data`
    A = 0,
    /// `b.data`
    B = 1,
}

impl Side {
    /// Both sides.
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    /// The other side.
    pub const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    pub(super) const fn newest_bits(self) -> u8 {
        match self {
            Self::A => 1,
            Self::B => 2,
        }
    }

    pub(super) const fn dirty_bit(self) -> u8 {
        match self {
            Self::A => 4,
            Self::B => 8,
        }
    }
}

/// Some of a volume's sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SideSet(u8);

impl SideSet {
    /// None of them.
    pub const NONE: Self = Self(0);
    /// Both.
    pub const BOTH: Self = Self(3);

    pub(crate) const fn from_bits(bits: u8) -> Option<Self> {
        if bits > 3 { None } else { Some(Self(bits)) }
    }

    /// Bit 0 is side A, bit 1 side B.
    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    /// `side` alone.
    pub const fn only(side: Side) -> Self {
        Self::NONE.with(side)
    }

    /// Each of them, A first.
    pub fn iter(self) -> impl Iterator<Item = Side> {
        Side::BOTH.into_iter().filter(move |side| self.contains(*side))
    }

    /// Returns true if `side` is one of them.
    pub const fn contains(self, side: Side) -> bool {
        self.0 & (1 << side as u8) != 0
    }

    /// These and `side`.
    #[must_use]
    pub const fn with(self, side: Side) -> Self {
        Self(self.0 | (1 << side as u8))
    }

    /// These without `side`.
    #[must_use]
    pub const fn without(self, side: Side) -> Self {
        Self(self.0 & !(1 << side as u8))
    }

    /// These and `others`.
    #[must_use]
    pub const fn or(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// The other ones.
    #[must_use]
    pub const fn others(self) -> Self {
        Self(!self.0 & 3)
    }
}

/// A value for each side, indexed by the side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PerSide<T>([T; 2]);

impl<T> PerSide<T> {
    /// The values that `make` returns for each side.
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

/// Place of a sector's newest bytes: a side, or (`None`) the object store.
pub type Newest = Option<Side>;
