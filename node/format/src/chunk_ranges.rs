//! Fences: compact sets of the chunks that an index has entries for.
//!
//! ```text
//! u32 n (at most 64), n x (u32 first chunk, u32 chunks): ascending, apart
//! ```
//! A fence of 64 runs may include chunks without an entry, to avoid further runs. It never omits a chunk with
//! an entry.

use std::cmp::Reverse;

use holdfast_types::{CHUNK_SECTORS, Chunk};

use crate::limit::{MAX_FENCE_RUNS, MAX_SECTORS};
use crate::wire::{DecodeError, Reader};

#[cfg(feature = "simulation")]
thread_local! {
    static SCALED: std::cell::Cell<usize> = const { std::cell::Cell::new(MAX_FENCE_RUNS) };
}

/// Limits new fences of this thread to this many runs; `None` restores the limit of production.
#[cfg(feature = "simulation")]
pub fn scale(runs: Option<usize>) {
    SCALED.set(runs.unwrap_or(MAX_FENCE_RUNS));
}

#[cfg(feature = "simulation")]
fn most_runs() -> usize {
    SCALED.get()
}

#[cfg(not(feature = "simulation"))]
const fn most_runs() -> usize {
    MAX_FENCE_RUNS
}

/// Runs of chunks, `(first, count)`: ascending, apart, at most [`MAX_FENCE_RUNS`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fence {
    runs: Vec<(u32, u32)>,
}

impl Fence {
    /// Maximum bytes of its encoded runs.
    pub(crate) const MAX_RUN_BYTES: usize = 8 * MAX_FENCE_RUNS;

    /// Returns the fence around `runs`, which ascend by their first chunk and may touch or overlap. The
    /// runs with the smallest gaps are joined until few enough remain.
    pub fn around(runs: impl IntoIterator<Item = (u32, u32)>) -> Self {
        let mut joined: Vec<(u32, u32)> = Vec::new();
        for (first, count) in runs {
            match joined.last_mut() {
                Some((start, length)) if first <= *start + *length => {
                    *length = (*length).max(first + count - *start);
                }
                Some(_) | None => joined.push((first, count)),
            }
        }
        if joined.len() > most_runs() {
            joined = without_small_gaps(&joined);
        }
        Self { runs: joined }
    }

    /// Returns the fence around the chunks of all `fences`.
    pub fn union<'a>(fences: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut runs: Vec<(u32, u32)> =
            fences.into_iter().flat_map(|fence| fence.runs.iter().copied()).collect();
        runs.sort_unstable();
        Self::around(runs)
    }

    /// Returns true if every chunk in the fence has an entry.
    pub fn is_exact(&self) -> bool {
        self.runs.len() < most_runs()
    }

    /// Returns its runs: first chunk and number of chunks, ascending, apart.
    pub fn runs(&self) -> &[(u32, u32)] {
        &self.runs
    }

    /// Returns false if `chunk` has no entry.
    pub fn may_hold(&self, chunk: Chunk) -> bool {
        let after = self.runs.partition_point(|(first, _)| u64::from(*first) <= chunk.0);
        let before = after.checked_sub(1).map(|at| self.runs[at]);
        before.is_some_and(|(first, count)| chunk.0 < u64::from(first) + u64::from(count))
    }

    /// Returns a run of the fence that ends beyond a volume of `chunks` chunks.
    pub(crate) fn run_beyond(&self, chunks: u64) -> Option<(u32, u32)> {
        self.runs.iter().copied().find(|(first, count)| u64::from(*first) + u64::from(*count) > chunks)
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let count = u32::try_from(self.runs.len()).expect("MAX_FENCE_RUNS fits");
        out.extend_from_slice(&count.to_le_bytes());
        for (first, count) in &self.runs {
            out.extend_from_slice(&first.to_le_bytes());
            out.extend_from_slice(&count.to_le_bytes());
        }
    }

    pub(crate) fn take(fields: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = fields.count(8)?;
        if count > MAX_FENCE_RUNS {
            return Err(fields.bad("number of chunk runs", count as u64));
        }
        let mut runs = Vec::with_capacity(count);
        let mut end: Option<u32> = None;
        for _ in 0..count {
            let (first, count) = (fields.u32()?, fields.u32()?);
            if end.is_some_and(|end| first <= end) || count == 0 {
                return Err(fields.bad("chunk run", u64::from(first)));
            }
            let last = first.checked_add(count).filter(|end| u64::from(*end) <= MAX_SECTORS / CHUNK_SECTORS);
            end = Some(last.ok_or_else(|| fields.bad("chunk count", u64::from(count)))?);
            runs.push((first, count));
        }
        Ok(Self { runs })
    }
}

/// Returns as many runs as a fence may have, separated at the widest gaps.
fn without_small_gaps(runs: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let gap = |at: &usize| runs[*at].0 - (runs[*at - 1].0 + runs[*at - 1].1);
    let mut starts: Vec<usize> = (1..runs.len()).collect();
    starts.sort_by_key(|at| Reverse(gap(at)));
    starts.truncate(most_runs() - 1);
    starts.push(0);
    starts.sort_unstable();
    let ends = starts.iter().skip(1).copied().chain([runs.len()]);
    let whole =
        |(from, to): (&usize, usize)| (runs[*from].0, runs[to - 1].0 + runs[to - 1].1 - runs[*from].0);
    starts.iter().zip(ends).map(whole).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHAT: &str = "fence";

    fn decode(bytes: &[u8]) -> Result<Fence, DecodeError> {
        Fence::take(&mut Reader::new(WHAT, bytes))
    }

    #[test]
    fn a_fence_of_many_runs_keeps_the_widest_gaps_and_lacks_nothing() {
        // The gap after run n is n chunks wide.
        let mut next = 0;
        let runs: Vec<(u32, u32)> = (0..100)
            .map(|n| {
                let run = (next, 1 + n % 3);
                next += run.1 + n;
                run
            })
            .collect();
        let fence = Fence::around(runs.iter().copied());
        assert_eq!((fence.runs().len(), fence.is_exact()), (MAX_FENCE_RUNS, false));
        assert_eq!(fence.runs()[1..], runs[37..]);
        for (first, count) in &runs {
            assert!((*first..first + count).all(|chunk| fence.may_hold(Chunk(u64::from(chunk)))));
        }
        assert!(!fence.may_hold(Chunk(u64::from(next))));
        let mut bytes = Vec::new();
        fence.put(&mut bytes);
        assert_eq!(decode(&bytes), Ok(fence));
    }

    #[test]
    fn runs_that_touch_become_one() {
        let fence = Fence::around([(0, 2), (1, 3), (4, 1), (9, 1)]);
        assert_eq!(fence.runs(), [(0, 5), (9, 1)]);
        assert_eq!(
            [4, 5, 8, 9, 10].map(|chunk| fence.may_hold(Chunk(chunk))),
            [true, false, false, true, false]
        );
        let others = [Fence::around([(20, 1)]), fence, Fence::around([(5, 4)]), Fence::default()];
        assert_eq!(Fence::union(&others).runs(), [(0, 10), (20, 1)]);
    }

    #[test]
    fn a_stored_fence_of_runs_that_touch_or_are_too_many_is_refused() {
        let stored = |runs: &[(u32, u32)]| {
            let mut bytes = Vec::new();
            Fence { runs: runs.to_vec() }.put(&mut bytes);
            bytes
        };
        for altered in [&[(0, 2), (1, 1)][..], &[(0, 2), (2, 1)], &[(5, 0)], &[(5, 1), (1, 1)]] {
            assert!(decode(&stored(altered)).is_err(), "{altered:?}");
        }
        let many: Vec<(u32, u32)> = (0..65).map(|n| (2 * n, 1)).collect();
        assert_eq!(
            decode(&stored(&many)).unwrap_err().to_string(),
            "fence: number of chunk runs cannot be 65"
        );
        assert!(decode(&stored(&many[..64])).is_ok());
    }
}
