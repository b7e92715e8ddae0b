//! Sets of a block's 32 sectors.

use crate::{BLOCK_SECTORS, SectorRange};

/// A set of the sectors of one block: bit `n` is the block's sector `n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Mask(pub u32);

impl Mask {
    /// The empty set.
    pub const EMPTY: Self = Self(0);
    /// All 32 sectors.
    pub const FULL: Self = Self(u32::MAX);

    /// Returns the sectors of `range`, which must be within one block.
    pub fn of(range: SectorRange) -> Self {
        let first = range.start.in_block();
        assert!(u64::from(first) + range.sectors <= BLOCK_SECTORS, "a mask spans one block");
        if range.sectors == BLOCK_SECTORS { Self::FULL } else { Self(((1u32 << range.sectors) - 1) << first) }
    }

    /// Returns true if the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the number of sectors in the set.
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Returns true if sector `bit` of the block is in the set.
    pub const fn contains(self, bit: u32) -> bool {
        self.0 & (1 << bit) != 0
    }

    /// Returns the sectors in either set.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the sectors in both sets.
    pub const fn intersect(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns the sectors in this set that are not in `other`.
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the set's sectors as runs `(first bit, length)`, lowest first.
    pub fn runs(self) -> impl Iterator<Item = (u32, u32)> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            let first = rest.trailing_zeros();
            let length = (rest >> first).trailing_ones();
            let run = if length == 32 { u32::MAX } else { ((1 << length) - 1) << first };
            rest &= !run;
            Some((first, length))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_a_mask_cover_it_exactly() {
        for mask in [0, 1, u32::MAX, 0x8000_0001, 0x00ff_ff00, 0b1011_0111] {
            let rebuilt = Mask(mask).runs().fold(Mask::EMPTY, |all, (first, len)| {
                all.union(Mask::of(SectorRange::new(u64::from(first), u64::from(len))))
            });
            assert_eq!(rebuilt, Mask(mask));
        }
    }
}
