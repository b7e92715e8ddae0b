//! The two local files of a volume, and sets of them.

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

    /// Returns the other side.
    pub const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// Some of a volume's sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SideSet(u8);

impl SideSet {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// Both.
    pub const BOTH: Self = Self(3);

    /// Returns the set with these [`Self::bits`]; `None` for any other bits.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        if bits > 3 { None } else { Some(Self(bits)) }
    }

    /// Returns the bits: bit 0 is side A, bit 1 side B.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Returns the set with only `side`.
    pub const fn only(side: Side) -> Self {
        Self::NONE.with(side)
    }

    /// Iterates over the sides in the set, A first.
    pub fn iter(self) -> impl Iterator<Item = Side> {
        Side::BOTH.into_iter().filter(move |side| self.contains(*side))
    }

    /// Returns true if the set contains `side`.
    pub const fn contains(self, side: Side) -> bool {
        self.0 & (1 << side as u8) != 0
    }

    /// Returns the set with `side` added.
    #[must_use]
    #[inline]
    pub const fn with(self, side: Side) -> Self {
        Self(self.0 | (1 << side as u8))
    }

    /// Returns the set without `side`.
    #[must_use]
    pub const fn without(self, side: Side) -> Self {
        Self(self.0 & !(1 << side as u8))
    }

    /// Returns the union with `others`.
    #[must_use]
    pub const fn or(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Returns the sides that are not in the set.
    #[must_use]
    pub const fn others(self) -> Self {
        Self(!self.0 & 3)
    }
}
