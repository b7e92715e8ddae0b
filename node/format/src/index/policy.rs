//! Chooses the runs to merge.
//!
//! Invariant: levels rise from the newest run of a list to the oldest. Eight runs of a level (up to sixteen
//! in a backlog) become one run of the next. The oldest run, once it is of level 2 or above, is the *base*.
//! All newer runs of those levels are merged into the base once they show half as many sectors as the base
//! does. Each entry is thus written about once per level, and a list has the base and at most seven runs for
//! each level below the base's.
//!
//! Merges into the base free space. The whole list is therefore merged once the runs newer than the oldest
//! one show half as many sectors as the oldest does, and at least 64 MiB: large commits, sequential ones and
//! discards have few entries, and a small volume has few commits. Sectors are counted, not entries: one entry
//! of a block hides up to 32 older ones.

use std::ops::Range;

#[cfg(feature = "simulation")]
use std::cell::Cell;

/// Number of runs of one level that become one run of the next.
const FAN_OUT: usize = 8;
/// Number of runs above which a record is created for merges alone.
const MAX_RUNS: usize = 48;
/// The lowest level of a base, and of the runs merged into it.
const BASE_LEVEL: u8 = 2;
/// Minimum sectors in runs newer than the oldest for which the whole list is merged: 64 MiB.
const LEAST_SECTORS: u64 = 1 << 14;
/// A base is merged when the newer runs show one sector for this many sectors of the base.
const BASE_TIMES: u64 = 2;

#[cfg(feature = "simulation")]
thread_local! {
    static SCALED: Cell<usize> = const { Cell::new(FAN_OUT) };
}

/// Sets this number of runs that make one of the next level, in this thread; `None` restores production's.
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

/// Runs above which a record is created for merges alone: 48, or three with a reduced fan-out.
#[cfg(feature = "simulation")]
pub fn max_runs() -> usize {
    if fan_out() < FAN_OUT { 3 } else { MAX_RUNS }
}

/// Runs above which a record is created for merges alone: 48.
#[cfg(not(feature = "simulation"))]
pub const fn max_runs() -> usize {
    MAX_RUNS
}

/// Minimum sectors above the oldest run for which the whole list is merged: 2^14, or 2^12 with a reduced
/// fan-out.
#[cfg(feature = "simulation")]
fn least_sectors() -> u64 {
    if fan_out() < FAN_OUT { 1 << 12 } else { LEAST_SECTORS }
}

/// Minimum sectors above the oldest run for which the whole list is merged: 2^14.
#[cfg(not(feature = "simulation"))]
const fn least_sectors() -> u64 {
    LEAST_SECTORS
}

/// Kind of a merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeKind {
    /// Runs of one level.
    Level,
    /// The oldest run with those above it.
    Base,
}

/// The properties of a run on which the choice depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// 0 for a segment's own index.
    pub level: u8,
    /// Sectors visible through its entries, including zeros.
    pub sectors: u64,
}

/// The runs of a list to merge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Kind of the merge.
    pub kind: MergeKind,
    /// Neighbours in the list, at least two; 0 is the newest run.
    pub inputs: Range<usize>,
    /// Level of the run that replaces them.
    pub level: u8,
}

/// Returns the merges for a list of runs, newest first. Runs without a shape are excluded; each stretch
/// between them gets at most one merge.
pub fn next_merges(runs: &[Option<Shape>]) -> Vec<Choice> {
    let (mut start, mut due) = (0, Vec::new());
    for stretch in runs.split(Option::is_none) {
        let shapes: Vec<Shape> = stretch.iter().flatten().copied().collect();
        let has_oldest = start + stretch.len() == runs.len();
        if let Some(Choice { kind, inputs, level }) = next_merge(&shapes, has_oldest) {
            due.push(Choice { kind, inputs: start + inputs.start..start + inputs.end, level });
        }
        start += stretch.len() + 1;
    }
    due
}

/// Returns the next merge for neighbours of a list, newest first, if one is due. `has_oldest`: the last of
/// them is the oldest run of the list.
pub fn next_merge(runs: &[Shape], has_oldest: bool) -> Option<Choice> {
    let base = runs.len().checked_sub(1).filter(|last| runs[*last].level >= BASE_LEVEL);
    let above = &runs[..base.unwrap_or(runs.len())];
    whole_merge(runs)
        .filter(|_| has_oldest)
        .or_else(|| level_merge(above))
        .or_else(|| base_merge(above, runs.last().filter(|_| base.is_some())?))
}

/// Returns a merge of the whole list if the newer runs may hide much of the oldest one.
fn whole_merge(runs: &[Shape]) -> Option<Choice> {
    let level = runs.iter().map(|run| run.level).fold(BASE_LEVEL, u8::max);
    is_due_whole(runs).then_some(Choice { kind: MergeKind::Base, inputs: 0..runs.len(), level })
}

/// Returns true if this whole list, newest first, must become one run.
pub fn is_due_whole(runs: &[Shape]) -> bool {
    let Some((oldest, above)) = runs.split_last() else { return false };
    !above.is_empty() && sectors(above) >= least_sectors() && shows_half(above, oldest)
}

fn sectors(runs: &[Shape]) -> u64 {
    runs.iter().fold(0, |sectors, run| sectors.saturating_add(run.sectors))
}

/// Returns true if the newer runs show half as many sectors as the oldest one.
fn shows_half(above: &[Shape], oldest: &Shape) -> bool {
    sectors(above).saturating_mul(BASE_TIMES) >= oldest.sectors
}

fn level_merge(above: &[Shape]) -> Option<Choice> {
    let mut end = 0;
    while let Some(run) = above.get(end) {
        let start = end;
        end += above[start..].iter().take_while(|other| other.level == run.level).count();
        if end - start >= fan_out() {
            // The oldest runs are chosen, which adjoin the next level.
            let inputs = start.max(end.saturating_sub(2 * fan_out()))..end;
            return Some(Choice { kind: MergeKind::Level, inputs, level: run.level.saturating_add(1) });
        }
    }
    None
}

fn base_merge(above: &[Shape], base: &Shape) -> Option<Choice> {
    let start = above.iter().position(|run| run.level >= BASE_LEVEL)?;
    let level = above[start..].iter().map(|run| run.level).fold(base.level, u8::max);
    let is_due = shows_half(&above[start..], base);
    is_due.then_some(Choice { kind: MergeKind::Base, inputs: start..above.len() + 1, level })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes(runs: &[(u8, u64)]) -> Vec<Shape> {
        runs.iter().map(|(level, sectors)| Shape { level: *level, sectors: *sectors }).collect()
    }

    fn level_of(inputs: Range<usize>, level: u8) -> Choice {
        Choice { kind: MergeKind::Level, inputs, level }
    }

    #[test]
    fn eight_runs_of_a_level_become_one_of_the_next() {
        assert_eq!(next_merge(&[], true), None);
        assert_eq!(next_merge(&shapes(&[(0, 1); 7]), true), None);
        assert_eq!(next_merge(&shapes(&[(0, 1); 8]), true), Some(level_of(0..8, 1)));
        let older = [vec![(0, 1); 3], vec![(1, 8); 8], vec![(2, 64)]].concat();
        assert_eq!(next_merge(&shapes(&older), true), Some(level_of(3..11, 2)));
    }

    /// After a long series of failed merges, a writer has more than eight runs of a level.
    #[test]
    fn a_backlog_is_merged_from_its_oldest_end() {
        assert_eq!(next_merge(&shapes(&[(0, 1); 12]), true), Some(level_of(0..12, 1)));
        assert_eq!(next_merge(&shapes(&[(0, 1); 40]), true), Some(level_of(24..40, 1)));
    }

    #[test]
    fn the_base_takes_in_half_of_its_entries() {
        let list = |above| shapes(&[(0, 1), (1, 8), (2, above), (2, 100)]);
        assert_eq!(next_merge(&list(49), true), None);
        assert_eq!(
            next_merge(&list(50), true),
            Some(Choice { kind: MergeKind::Base, inputs: 2..4, level: 2 })
        );
        let higher = shapes(&[(2, 10), (3, 40), (2, 100)]);
        assert_eq!(next_merge(&higher, true), Some(Choice { kind: MergeKind::Base, inputs: 0..3, level: 3 }));
    }

    /// A run that is damaged, or is being merged.
    #[test]
    fn no_merge_reaches_across_a_run_that_takes_part_in_none() {
        let mut list: Vec<Option<Shape>> = shapes(&[(0, 1); 20]).into_iter().map(Some).collect();
        list[8] = None;
        assert_eq!(next_merges(&list), [level_of(0..8, 1), level_of(9..20, 1)]);
        list[12] = None;
        assert_eq!(next_merges(&list), [level_of(0..8, 1)]);
        // The runs above a base that is being merged.
        let above = shapes(&[&[(0, 1); 3][..], &[(1, 8); 8]].concat());
        let list: Vec<Option<Shape>> = above.into_iter().map(Some).chain([None, None]).collect();
        assert_eq!(next_merges(&list), [level_of(3..11, 2)]);
        assert_eq!(next_merges(&[]), []);
    }

    /// Regression: discards and sequential writes have few entries: the data that they hid stayed in the
    /// bucket until half as many entries were written. And a volume of 1 GiB with commits of 64 MiB had no
    /// base for 64 commits.
    #[test]
    fn a_list_is_merged_whole_when_half_of_it_may_be_hidden() {
        let list = |above: u64, oldest: u64| {
            let list = shapes(&[(0, above / 4), (0, above - above / 4), (1, oldest)]);
            list.into_iter().map(Some).collect::<Vec<_>>()
        };
        let all = vec![Choice { kind: MergeKind::Base, inputs: 0..3, level: BASE_LEVEL }];
        assert_eq!(next_merges(&list(LEAST_SECTORS, 1)), all);
        assert_eq!(next_merges(&list(LEAST_SECTORS, 2 * LEAST_SECTORS)), all);
        assert_eq!(next_merges(&list(LEAST_SECTORS, 2 * LEAST_SECTORS + 1)), [], "less than half");
        assert_eq!(next_merges(&list(LEAST_SECTORS - 1, 2)), [], "less than 64 MiB");
        // This merge precedes a merge of the level, which would hide the run that makes this one due.
        let eight = shapes(&[(0, LEAST_SECTORS); 8]);
        assert_eq!(next_merge(&eight, true).unwrap().kind, MergeKind::Base);
        assert_eq!(next_merge(&eight, false).unwrap().kind, MergeKind::Level);
        // The older runs are being merged, or damaged.
        let partly_taken = [list(LEAST_SECTORS, 2), vec![None]].concat();
        assert_eq!(next_merges(&partly_taken), []);
        // The oldest run hides nothing.
        assert_eq!(next_merges(&list(LEAST_SECTORS, LEAST_SECTORS)[2..]), []);
    }

    /// Each choice keeps neighbours together and the order of levels, and the choices end.
    #[test]
    fn a_list_stays_in_order_and_short() {
        let mut runs: Vec<Shape> = Vec::new();
        for _ in 0..100_000 {
            runs.insert(0, Shape { level: 0, sectors: 10 });
            while let Some(Choice { inputs, level, .. }) = next_merge(&runs, true) {
                assert!(inputs.len() >= 2 && inputs.len() <= 2 * FAN_OUT + 24);
                let sectors = runs[inputs.clone()].iter().map(|run| run.sectors).sum();
                runs.splice(inputs, [Shape { level, sectors }]);
            }
            let (base, above) = runs.split_last().unwrap();
            assert!(above.is_sorted_by_key(|run| run.level) && above.len() <= 40, "{above:?} on {base:?}");
        }
    }
}
