//! One run: a seed and how long.

use std::fmt;

use crate::bug::{Bug, plant};
use crate::profile::Profile;
use crate::schedule::Schedule;
use crate::violation::{self, Violation};

/// Steps for each operation after which a run in which nothing happens ends.
pub(crate) const IDLE: u64 = 100;

/// A run that can be repeated: the same case gives the same outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// Decides everything that is not decided otherwise, the profile too.
    pub seed: u64,
    /// Requests, jobs, answers and deaths before everything is brought to rest and read.
    pub operations: u64,
    /// The bug that is planted.
    pub bug: Option<Bug>,
}

/// Result of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaseOutcome {
    /// Of every event and action, in hexadecimal.
    pub digest: String,
    /// Steps of the schedule; some find nothing to do.
    pub steps: u64,
    /// Requests, jobs, answers and deaths.
    pub operations: u64,
    /// Requests of the clients.
    pub requests: u64,
    /// Log records that were truncated.
    pub truncated: u64,
    /// Records that came, too late, where another had been truncated.
    pub strays: u64,
    /// The invariant that did not hold, if any.
    pub violation: Option<Violation>,
    /// The last lines of what happened, oldest first.
    pub story: Vec<String>,
}

impl Case {
    /// Runs it and keeps the last `story` lines of what happened; words cost time, so a run without them is
    /// faster.
    pub fn run(self, story: usize) -> CaseOutcome {
        self.run_steps(0..self.operations.saturating_mul(IDLE), story)
    }

    /// The first of so many seeds that notices that `bug` is planted, and what it sees: the invariant that
    /// the bug is said to break, in a run that breaks none without it. The seeds are those from 0, or those
    /// of the profile whose runs meet the bug.
    pub fn that_finds(bug: Bug, seeds: u64, operations: u64) -> Option<(Self, Violation)> {
        let (first, step) = Profile::that_meets(bug).map_or((0, 1), Profile::seeds);
        (0..seeds).map(|number| first + number * step).find_map(|seed| {
            let case = Self { seed, operations, bug: Some(bug) };
            let violation = case.run(0).violation?;
            let said = violation.invariant.is_some_and(|invariant| invariant.number() == bug.breaks());
            (said && Self { bug: None, ..case }.run(0).violation.is_none()).then_some((case, violation))
        })
    }

    /// Runs only these of its steps.
    fn run_steps(self, steps: impl IntoIterator<Item = u64>, story: usize) -> CaseOutcome {
        plant(self.bug);
        let mut run = Schedule::new(self.seed, story);
        let ended = violation::catch(|| {
            for step in steps {
                if run.world.trace.operations >= self.operations {
                    break;
                }
                run.step(step);
            }
            run.finish();
        });
        plant(None);
        let world = &mut run.world;
        CaseOutcome {
            digest: world.trace.digest(),
            steps: run.taken,
            operations: world.trace.operations,
            requests: world.requests(),
            truncated: world.store.truncated,
            strays: world.store.strays,
            violation: ended.err(),
            story: world.trace.take_story(),
        }
    }

    /// Leaves out steps of a case that ends in a violation as long as it still ends in one like it, at most
    /// `tries` times. Returns what is left, or `None` when the case has no violation.
    pub fn shrink(self, tries: usize, story: usize) -> Option<CaseOutcome> {
        shrink(|steps, story| self.run_steps(steps, story), self.run(0), tries, story)
    }
}

/// The command that repeats it.
impl fmt::Display for Case {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, operations, bug } = self;
        write!(out, "cargo run -p holdfast-sim --release -- --seed {seed} --operations {operations}")?;
        bug.map_or(Ok(()), |bug| write!(out, " --bug {bug:?}"))
    }
}

/// Leaves out steps of a run whose `whole` ends in a violation as long as it still ends in one like it, at
/// most `tries` times.
pub(crate) fn shrink(
    run: impl Fn(Vec<u64>, usize) -> CaseOutcome,
    whole: CaseOutcome,
    tries: usize,
    story: usize,
) -> Option<CaseOutcome> {
    let sought = whole.violation?;
    let mut steps: Vec<u64> = (0..whole.steps).collect();
    let mut size = steps.len().div_ceil(2);
    let mut tried = 0;
    while size > 0 && tried < tries {
        // Backwards: what came last is most likely needed for the violation, and what is cut early shortens
        // the rest.
        let mut from = 0;
        while from < steps.len() && tried < tries {
            let fewer = [&steps[..from], &steps[(from + size).min(steps.len())..]].concat();
            tried += 1;
            let outcome = run(fewer.clone(), 0);
            if outcome.violation.is_some_and(|found| found.is_like(&sought)) {
                steps = fewer;
                steps.truncate(outcome.steps as usize);
            } else {
                from += size;
            }
        }
        size /= 2;
    }
    Some(run(steps, story))
}
