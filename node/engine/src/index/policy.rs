//! Chooses the runs to merge.
//!
//! Invariant: levels rise from the newest run of a list to the oldest. Eight runs of a level become one of
//! the next; of a backlog up to sixteen. The oldest run, once it is of level 2 or above, is the *base*: all
//! runs of those levels above it are merged into it when they have half as many entries as it has. So each
//! entry is written about once a level, and a list is at most seven runs for each level below the base's, and
//! the base.

use std::ops::Range;

#[cfg(feature = "simulation")]
use std::cell::Cell;

/// Runs of one level that become one of the next.
const FAN_OUT: usize = 8;
/// Commits that may come while a merge waits for its turn and is made, beside those that its size allows: a
/// hundred a second for some hours. What a merge leaves behind is known to be garbage only so many commits
/// later.
const PLACES_AHEAD: u64 = 1 << 20;
/// Runs above which a record is made for merges alone.
const MAX_RUNS: usize = 48;
/// The lowest level of a base, and of what is merged into it.
const BASE_LEVEL: u8 = 2;
/// A base is merged when the runs above it have one entry for this many of its own.
const BASE_TIMES: u64 = 2;

#[cfg(feature = "simulation")]
thread_local! {
    static SCALED: Cell<usize> = const { Cell::new(FAN_OUT) };
}

/// From now on so many runs make one of the next level in this thread; `None` is what programs have.
#[cfg(feature = "simulation")]
pub fn scale(fan_out: Option<usize>) {
    SCALED.set(fan_out.unwrap_or(FAN_OUT));
}

/// Runs of one level that become one of the next: 8.
#[cfg(feature = "simulation")]
pub fn fan_out() -> usize {
    SCALED.get()
}

/// Runs of one level that become one of the next: 8.
#[cfg(not(feature = "simulation"))]
pub const fn fan_out() -> usize {
    FAN_OUT
}

/// Commits that may come while a merge waits and is made, beside those that its size allows: 2^20. Where runs
/// are merged in smaller numbers, one.
#[cfg(feature = "simulation")]
pub fn places_ahead() -> u64 {
    if fan_out() < FAN_OUT { 1 } else { PLACES_AHEAD }
}

/// Commits that may come while a merge waits and is made, beside those that its size allows: 2^20.
#[cfg(not(feature = "simulation"))]
pub const fn places_ahead() -> u64 {
    PLACES_AHEAD
}

/// Runs above which a record is made for merges alone: 48. Where runs are merged in smaller numbers, three.
#[cfg(feature = "simulation")]
pub fn most_runs() -> usize {
    if fan_out() < FAN_OUT { 3 } else { MAX_RUNS }
}

/// Runs above which a record is made for merges alone: 48.
#[cfg(not(feature = "simulation"))]
pub const fn most_runs() -> usize {
    MAX_RUNS
}

/// Kind of a merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeKind {
    /// Of runs of one level.
    Level,
    /// Into the base.
    Base,
}

/// A run, as far as the choice depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// 0 for a segment's own index.
    pub level: u8,
    /// Number of entries.
    pub entries: u64,
}

/// The runs of a list to merge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Kind of the merge.
    pub kind: MergeKind,
    /// Neighbours in the list, at least two; 0 is the newest run.
    pub inputs: Range<usize>,
    /// Level of the run that takes their place.
    pub level: u8,
}

/// Merges for a list of runs, newest first, of which those without a shape take part in none: at most one for
/// each stretch between such runs.
pub fn next_merges(runs: &[Option<Shape>]) -> Vec<Choice> {
    let (mut start, mut due) = (0, Vec::new());
    for stretch in runs.split(Option::is_none) {
        let shapes: Vec<Shape> = stretch.iter().flatten().copied().collect();
        if let Some(Choice { kind, inputs, level }) = next_merge(&shapes) {
            due.push(Choice { kind, inputs: start + inputs.start..start + inputs.end, level });
        }
        start += stretch.len() + 1;
    }
    due
}

/// The next merge for a list of runs, newest first, if one is due.
pub fn next_merge(runs: &[Shape]) -> Option<Choice> {
    let base = runs.len().checked_sub(1).filter(|last| runs[*last].level >= BASE_LEVEL);
    let above = &runs[..base.unwrap_or(runs.len())];
    level_merge(above).or_else(|| base_merge(above, runs.last().filter(|_| base.is_some())?))
}

fn level_merge(above: &[Shape]) -> Option<Choice> {
    let mut end = 0;
    while let Some(run) = above.get(end) {
        let start = end;
        end += above[start..].iter().take_while(|other| other.level == run.level).count();
        if end - start >= fan_out() {
            // The oldest of them stand beside the next level.
            let inputs = start.max(end.saturating_sub(2 * fan_out()))..end;
            return Some(Choice { kind: MergeKind::Level, inputs, level: run.level.saturating_add(1) });
        }
    }
    None
}

fn base_merge(above: &[Shape], base: &Shape) -> Option<Choice> {
    let start = above.iter().position(|run| run.level >= BASE_LEVEL)?;
    let entries: u64 = above[start..].iter().map(|run| run.entries).sum();
    let level = above[start..].iter().map(|run| run.level).fold(base.level, u8::max);
    let is_due = entries.saturating_mul(BASE_TIMES) >= base.entries;
    is_due.then_some(Choice { kind: MergeKind::Base, inputs: start..above.len() + 1, level })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes(runs: &[(u8, u64)]) -> Vec<Shape> {
        runs.iter().map(|(level, entries)| Shape { level: *level, entries: *entries }).collect()
    }

    fn level_of(inputs: Range<usize>, level: u8) -> Choice {
        Choice { kind: MergeKind::Level, inputs, level }
    }

    #[test]
    fn eight_runs_of_a_level_become_one_of_the_next() {
        assert_eq!(next_merge(&[]), None);
        assert_eq!(next_merge(&shapes(&[(0, 1); 7])), None);
        assert_eq!(next_merge(&shapes(&[(0, 1); 8])), Some(level_of(0..8, 1)));
        let older = [vec![(0, 1); 3], vec![(1, 8); 8], vec![(2, 64)]].concat();
        assert_eq!(next_merge(&shapes(&older)), Some(level_of(3..11, 2)));
    }

    /// A writer whose merges failed for long has more than eight of a level.
    #[test]
    fn a_backlog_is_merged_from_its_oldest_end() {
        assert_eq!(next_merge(&shapes(&[(0, 1); 12])), Some(level_of(0..12, 1)));
        assert_eq!(next_merge(&shapes(&[(0, 1); 40])), Some(level_of(24..40, 1)));
    }

    #[test]
    fn the_base_takes_in_half_of_its_entries() {
        let list = |above| shapes(&[(0, 1), (1, 8), (2, above), (2, 100)]);
        assert_eq!(next_merge(&list(49)), None);
        assert_eq!(next_merge(&list(50)), Some(Choice { kind: MergeKind::Base, inputs: 2..4, level: 2 }));
        let higher = shapes(&[(2, 10), (3, 40), (2, 100)]);
        assert_eq!(next_merge(&higher), Some(Choice { kind: MergeKind::Base, inputs: 0..3, level: 3 }));
    }

    /// A damaged run, or one that is being merged.
    #[test]
    fn no_merge_reaches_across_a_run_that_takes_part_in_none() {
        let mut list: Vec<Option<Shape>> = shapes(&[(0, 1); 20]).into_iter().map(Some).collect();
        list[8] = None;
        assert_eq!(next_merges(&list), [level_of(0..8, 1), level_of(9..20, 1)]);
        list[12] = None;
        assert_eq!(next_merges(&list), [level_of(0..8, 1)]);
        // What lies above a base that is being merged.
        let above = shapes(&[&[(0, 1); 3][..], &[(1, 8); 8]].concat());
        let list: Vec<Option<Shape>> = above.into_iter().map(Some).chain([None, None]).collect();
        assert_eq!(next_merges(&list), [level_of(3..11, 2)]);
        assert_eq!(next_merges(&[]), []);
    }

    /// Each choice keeps neighbours together and the order of levels, and it comes to rest.
    #[test]
    fn a_list_stays_in_order_and_short() {
        let mut runs: Vec<Shape> = Vec::new();
        for _ in 0..100_000 {
            runs.insert(0, Shape { level: 0, entries: 10 });
            while let Some(Choice { inputs, level, .. }) = next_merge(&runs) {
                assert!(inputs.len() >= 2 && inputs.len() <= 2 * FAN_OUT + 24);
                let entries = runs[inputs.clone()].iter().map(|run| run.entries).sum();
                runs.splice(inputs, [Shape { level, entries }]);
            }
            let (base, above) = runs.split_last().unwrap();
            assert!(above.is_sorted_by_key(|run| run.level) && above.len() <= 40, "{above:?} on {base:?}");
        }
    }
}
