//! Compact sets of the chunks that an index has entries for.
//!
//! ```text
//! u32 n (at most 64), n x (u32 first chunk, u32 chunks): ascending, apart
//! ```
//! A set of 64 ranges may include chunks without an entry, to avoid further ranges. It never omits a chunk
//! with an entry.

use std::cmp::Reverse;

use holdfast_types::{CHUNK_SECTORS, Chunk};

use crate::limit::{MAX_CHUNK_RANGES, MAX_SECTORS};
use crate::wire::{DecodeError, Reader};

#[cfg(feature = "simulation")]
thread_local! {
    static SCALED: std::cell::Cell<usize> = const { std::cell::Cell::new(MAX_CHUNK_RANGES) };
}

/// Limits new sets of this thread to this many ranges; `None` restores the limit of production.
#[cfg(feature = "simulation")]
pub fn scale(ranges: Option<usize>) {
    SCALED.set(ranges.unwrap_or(MAX_CHUNK_RANGES));
}

#[cfg(feature = "simulation")]
fn max_ranges() -> usize {
    SCALED.get()
}

#[cfg(not(feature = "simulation"))]
const fn max_ranges() -> usize {
    MAX_CHUNK_RANGES
}

/// Ranges of chunks, `(first, count)`: ascending, apart, at most [`MAX_CHUNK_RANGES`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChunkRanges {
    ranges: Vec<(u32, u32)>,
}

impl ChunkRanges {
    /// Maximum bytes of its encoded ranges.
    pub(crate) const MAX_RANGE_BYTES: usize = 8 * MAX_CHUNK_RANGES;

    /// Returns the set around `ranges`, which ascend by their first chunk and may touch or overlap. The
    /// ranges with the smallest gaps are joined until few enough remain.
    pub fn around(ranges: impl IntoIterator<Item = (u32, u32)>) -> Self {
        let mut joined: Vec<(u32, u32)> = Vec::new();
        for (first, count) in ranges {
            match joined.last_mut() {
                Some((start, length)) if first <= *start + *length => {
                    *length = (*length).max(first + count - *start);
                }
                Some(_) | None => joined.push((first, count)),
            }
        }
        if joined.len() > max_ranges() {
            joined = without_small_gaps(&joined);
        }
        Self { ranges: joined }
    }

    /// Returns the set around the chunks of all `sets`.
    pub fn union<'a>(sets: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut ranges: Vec<(u32, u32)> =
            sets.into_iter().flat_map(|set| set.ranges.iter().copied()).collect();
        ranges.sort_unstable();
        Self::around(ranges)
    }

    /// Returns true if every chunk in the set has an entry.
    pub fn is_exact(&self) -> bool {
        self.ranges.len() < max_ranges()
    }

    /// Returns its ranges: first chunk and number of chunks, ascending, apart.
    pub fn ranges(&self) -> &[(u32, u32)] {
        &self.ranges
    }

    /// Returns false if `chunk` has no entry.
    pub fn may_hold(&self, chunk: Chunk) -> bool {
        let after = self.ranges.partition_point(|(first, _)| u64::from(*first) <= chunk.0);
        let before = after.checked_sub(1).map(|at| self.ranges[at]);
        before.is_some_and(|(first, count)| chunk.0 < u64::from(first) + u64::from(count))
    }

    /// Returns a range of the set that ends beyond a volume of `chunks` chunks.
    pub(crate) fn range_beyond(&self, chunks: u64) -> Option<(u32, u32)> {
        self.ranges.iter().copied().find(|(first, count)| u64::from(*first) + u64::from(*count) > chunks)
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let count = u32::try_from(self.ranges.len()).expect("MAX_CHUNK_RANGES fits");
        out.extend_from_slice(&count.to_le_bytes());
        for (first, count) in &self.ranges {
            out.extend_from_slice(&first.to_le_bytes());
            out.extend_from_slice(&count.to_le_bytes());
        }
    }

    pub(crate) fn take(fields: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = fields.count(8)?;
        if count > MAX_CHUNK_RANGES {
            return Err(fields.bad("number of chunk ranges", count as u64));
        }
        let mut ranges = Vec::with_capacity(count);
        let mut end: Option<u32> = None;
        for _ in 0..count {
            let (first, count) = (fields.u32()?, fields.u32()?);
            if end.is_some_and(|end| first <= end) || count == 0 {
                return Err(fields.bad("chunk range", u64::from(first)));
            }
            let last = first.checked_add(count).filter(|end| u64::from(*end) <= MAX_SECTORS / CHUNK_SECTORS);
            end = Some(last.ok_or_else(|| fields.bad("chunk count", u64::from(count)))?);
            ranges.push((first, count));
        }
        Ok(Self { ranges })
    }
}

/// Returns as many ranges as a set may have, separated at the widest gaps.
fn without_small_gaps(ranges: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let gap = |at: &usize| ranges[*at].0 - (ranges[*at - 1].0 + ranges[*at - 1].1);
    let mut starts: Vec<usize> = (1..ranges.len()).collect();
    starts.sort_by_key(|at| Reverse(gap(at)));
    starts.truncate(max_ranges() - 1);
    starts.push(0);
    starts.sort_unstable();
    let ends = starts.iter().skip(1).copied().chain([ranges.len()]);
    let whole = |(from, to): (&usize, usize)| {
        (ranges[*from].0, ranges[to - 1].0 + ranges[to - 1].1 - ranges[*from].0)
    };
    starts.iter().zip(ends).map(whole).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHAT: &str = "record";

    fn decode(bytes: &[u8]) -> Result<ChunkRanges, DecodeError> {
        ChunkRanges::take(&mut Reader::new(WHAT, bytes))
    }

    #[test]
    fn many_ranges_keep_the_widest_gaps_and_lacks_nothing() {
        // The gap after range n is n chunks wide.
        let mut next = 0;
        let ranges: Vec<(u32, u32)> = (0..100)
            .map(|n| {
                let range = (next, 1 + n % 3);
                next += range.1 + n;
                range
            })
            .collect();
        let set = ChunkRanges::around(ranges.iter().copied());
        assert_eq!((set.ranges().len(), set.is_exact()), (MAX_CHUNK_RANGES, false));
        assert_eq!(set.ranges()[1..], ranges[37..]);
        for (first, count) in &ranges {
            assert!((*first..first + count).all(|chunk| set.may_hold(Chunk(u64::from(chunk)))));
        }
        assert!(!set.may_hold(Chunk(u64::from(next))));
        let mut bytes = Vec::new();
        set.put(&mut bytes);
        assert_eq!(decode(&bytes), Ok(set));
    }

    #[test]
    fn ranges_that_touch_become_one() {
        let set = ChunkRanges::around([(0, 2), (1, 3), (4, 1), (9, 1)]);
        assert_eq!(set.ranges(), [(0, 5), (9, 1)]);
        assert_eq!(
            [4, 5, 8, 9, 10].map(|chunk| set.may_hold(Chunk(chunk))),
            [true, false, false, true, false]
        );
        let others =
            [ChunkRanges::around([(20, 1)]), set, ChunkRanges::around([(5, 4)]), ChunkRanges::default()];
        assert_eq!(ChunkRanges::union(&others).ranges(), [(0, 10), (20, 1)]);
    }

    #[test]
    fn stored_ranges_that_touch_or_are_too_many_are_refused() {
        let stored = |ranges: &[(u32, u32)]| {
            let mut bytes = Vec::new();
            ChunkRanges { ranges: ranges.to_vec() }.put(&mut bytes);
            bytes
        };
        for altered in [&[(0, 2), (1, 1)][..], &[(0, 2), (2, 1)], &[(5, 0)], &[(5, 1), (1, 1)]] {
            assert!(decode(&stored(altered)).is_err(), "{altered:?}");
        }
        let many: Vec<(u32, u32)> = (0..65).map(|n| (2 * n, 1)).collect();
        assert_eq!(
            decode(&stored(&many)).unwrap_err().to_string(),
            "record: number of chunk ranges cannot be 65"
        );
        assert!(decode(&stored(&many[..64])).is_ok());
    }
}
