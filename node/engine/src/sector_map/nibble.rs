//! Four bits of the map: the location of a sector's newest bytes, and its dirty marks.

use holdfast_format::side::{Side, SideSet};

use super::Newest;
use super::side::{dirty_bit, newest_bits};

/// The map's entry of one sector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nibble(pub(crate) u8);

impl Nibble {
    pub(super) const REMOTE: Self = Self(0);
    pub(super) const DIRTY: u8 = 12;

    /// Encodes a sector whose newest bytes are on `side`, with the dirty marks `dirty`. `zeros` marks the
    /// newest copy as zeros; ignored if that copy is clean.
    #[inline]
    pub(super) fn encode(side: Side, dirty: u8, zeros: bool) -> Self {
        let both = dirty & Self::DIRTY == Self::DIRTY;
        match side {
            _ if !zeros || dirty & dirty_bit(side) == 0 => Self(newest_bits(side) | dirty & Self::DIRTY),
            Side::A => Self(if both { 15 } else { 7 }),
            Side::B => Self(if both { 12 } else { 11 }),
        }
    }

    #[inline]
    pub(crate) fn newest(self) -> Newest {
        const OF: [Newest; 16] = {
            let (a, b) = (Some(Side::A), Some(Side::B));
            [None, a, b, None, None, a, b, a, None, a, b, b, b, a, b, a]
        };
        OF[usize::from(self.0 & 15)]
    }

    /// Returns true if the newest copy is dirty and zeros.
    pub(super) fn is_zeros(self) -> bool {
        matches!(self.0, 7 | 11 | 12 | 15)
    }

    pub(crate) fn is_dirty(self, side: Side) -> bool {
        self.0 & dirty_bit(side) != 0
    }

    /// Returns the entry without the contents of the `invalidated` sides.
    pub(crate) fn without(self, invalidated: SideSet) -> Self {
        match self.newest() {
            Some(side) if invalidated.contains(side) => Self(0),
            Some(_) | None => self,
        }
    }

    /// Returns true if the sector has dirty data on `side` other than a newest copy of zeros.
    pub(super) fn counts(self, side: Side) -> bool {
        self.is_dirty(side) && !(self.is_zeros() && self.newest() == Some(side))
    }

    /// Returns the entry without the dirty mark of `side`.
    pub(super) fn clean(self, side: Side) -> Self {
        let dirty = self.0 & Self::DIRTY & !dirty_bit(side);
        self.newest().map_or(Self::REMOTE, |newest| Self::encode(newest, dirty, self.is_zeros()))
    }

    /// Returns the entry after the loss of the host: a dirty newest copy stays; a clean one only if clean
    /// data may be trusted. Zeros become data, because a write after the map's last round may be on the side.
    pub(crate) fn after_host_loss(self, trust_clean: bool) -> Self {
        match self.newest() {
            Some(side) if self.is_dirty(side) => Self::encode(side, dirty_bit(side), false),
            Some(side) if trust_clean => Self::encode(side, 0, false),
            Some(_) | None => Self::REMOTE,
        }
    }
}

/// Sixteen sectors, the first in the lowest bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Nibbles(pub(super) u64);

impl Nibbles {
    /// The lowest bit of each sector.
    const ONES: u64 = 0x1111_1111_1111_1111;

    /// Returns one bit of each sector, moved to the sector's lowest bit.
    fn bit(self, bit: u32) -> u64 {
        (self.0 >> bit) & Self::ONES
    }

    /// Returns the length of the run of equal sectors that starts at `first`, and their entry.
    pub(super) fn alike(self, first: u64) -> (u64, Nibble) {
        let rest = self.0 >> (4 * first);
        let nibble = rest & 15;
        let others = rest ^ (Self::ONES * nibble);
        (u64::from(others.trailing_zeros() / 4).min(16 - first), Nibble(nibble as u8))
    }

    /// Returns true if `sectors` sectors of these words, starting at sector `first`, are all `nibble`; the
    /// last sector is in the last word.
    #[inline]
    pub(super) fn are_all(words: &[[u8; 8]], first: u64, sectors: u64, nibble: Nibble) -> bool {
        let all = Self::ONES * u64::from(nibble.0);
        let others = |word: &[u8; 8]| u64::from_le_bytes(*word) ^ all;
        let (before, after) = (4 * first, 4 * (words.len() as u64 * 16 - first - sectors));
        match words {
            [] => true,
            [one] => (others(one) >> before) << (before + after) == 0,
            [head, middle @ .., tail] => {
                others(head) >> before == 0
                    && others(tail) << after == 0
                    && middle.iter().all(|word| others(word) == 0)
            }
        }
    }

    /// Returns the word with `sectors` sectors from `first` set to `nibble`; `sectors` is at least one.
    pub(super) fn with(self, first: u64, sectors: u64, nibble: Nibble) -> Self {
        let places = (u64::MAX >> (64 - 4 * sectors)) << (4 * first);
        Self((self.0 & !places) | ((Self::ONES * u64::from(nibble.0)) & places))
    }

    /// Returns true if any of them is remote and clean.
    pub(super) fn any_remote(self) -> bool {
        (0..4).fold(0, |set, bit| set | self.bit(bit)) != Self::ONES
    }

    pub(super) fn any_dirty(self, side: Side) -> bool {
        self.0 & (Self::ONES * u64::from(dirty_bit(side))) != 0
    }

    /// Returns the number of them that count for `side`, as defined by [`Nibble::counts`].
    pub(super) fn counted(self, side: Side) -> u32 {
        let [newest_a, newest_b, dirty_a, dirty_b] = [0, 1, 2, 3].map(|bit| self.bit(bit));
        let counts = match side {
            // Dirty in A, except 7 and 15.
            Side::A => dirty_a & !(newest_a & newest_b),
            // Dirty in B, except 11 and 12.
            Side::B => dirty_b & ((newest_a ^ newest_b) | !(newest_a ^ dirty_a)),
        };
        counts.count_ones()
    }

    /// Returns each of them without the dirty mark of `side`.
    pub(super) fn clean(self, side: Side) -> Self {
        let clean = |shift: u32| u64::from(Nibble(((self.0 >> shift) & 15) as u8).clean(side).0) << shift;
        Self((0..64).step_by(4).map(clean).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_that_are_alike_are_set_together() {
        let nibbles = Nibbles(0x5555_5500_0000_3333);
        let of = |first| nibbles.alike(first);
        assert_eq!((of(0), of(3), of(4)), ((4, Nibble(3)), (1, Nibble(3)), (6, Nibble(0))));
        assert_eq!((of(10), of(15)), ((6, Nibble(5)), (1, Nibble(5))));
        assert_eq!(Nibbles(0).alike(7), (9, Nibble(0)));
        assert_eq!(nibbles.with(2, 3, Nibble(10)).0, 0x5555_5500_000a_aa33);
        assert_eq!(nibbles.with(0, 16, Nibble(6)).0, 0x6666_6666_6666_6666);
        assert_eq!(nibbles.with(15, 1, Nibble(9)).0, 0x9555_5500_0000_3333);
    }

    #[test]
    fn a_range_of_words_is_alike_or_not() {
        for sectors in 1..=40u64 {
            for first in 0..16u64 {
                let words = ((first + sectors).div_ceil(16)) as usize;
                let mut alike = vec![[0u8; 8]; words];
                let set = |words: &mut Vec<[u8; 8]>, sector: u64, nibble: u8| {
                    let byte = &mut words[(sector / 16) as usize][(sector % 16 / 2) as usize];
                    let shift = sector % 2 * 4;
                    *byte = *byte & !(15 << shift) | nibble << shift;
                };
                (first..first + sectors).for_each(|sector| set(&mut alike, sector, 9));
                assert!(Nibbles::are_all(&alike, first, sectors, Nibble(9)), "{first} {sectors}");
                for sector in 0..words as u64 * 16 {
                    let mut other = alike.clone();
                    set(&mut other, sector, 5);
                    let lies_within = (first..first + sectors).contains(&sector);
                    let all = Nibbles::are_all(&other, first, sectors, Nibble(9));
                    assert_eq!(all, !lies_within, "{first} {sectors} {sector}");
                }
            }
        }
    }

    #[test]
    fn sixteen_sectors_count_as_each_of_them_does() {
        for one in 0..16u64 {
            for other in 0..16u64 {
                let nibbles = Nibbles(one | other << 20 | one << 60);
                let each = (0..16).map(|at| Nibble(((nibbles.0 >> (4 * at)) & 15) as u8));
                for side in Side::BOTH {
                    let counted = each.clone().filter(|nibble| nibble.counts(side)).count();
                    assert_eq!(nibbles.counted(side) as usize, counted, "{one} and {other} in {side:?}");
                    assert_eq!(nibbles.any_dirty(side), each.clone().any(|nibble| nibble.is_dirty(side)));
                    let clean = Nibbles(nibbles.0).clean(side).0;
                    for (at, nibble) in each.clone().enumerate() {
                        assert_eq!((clean >> (4 * at)) & 15, u64::from(nibble.clean(side).0));
                    }
                }
            }
        }
    }
}
