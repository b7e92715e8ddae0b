//! One run: a seed and a length.

use std::fmt;

use crate::bug::{Bug, plant};
use crate::profile::Profile;
use crate::schedule::Schedule;
use crate::violation::{self, Violation};

/// Steps per operation after which a run without progress ends.
pub(crate) const IDLE_STEPS: u64 = 100;

/// A reproducible run: the same case gives the same outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// Seed of all random choices, including the profile.
    pub seed: u64,
    /// Requests, jobs, answers and deaths before the run is brought to rest and checked.
    pub operations: u64,
    /// The planted bug.
    pub bug: Option<Bug>,
}

/// Result of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaseOutcome {
    /// A digest of every event and action, in hexadecimal.
    pub digest: String,
    /// Steps of the schedule, including those without effect.
    pub steps: u64,
    /// Requests, jobs, answers and deaths.
    pub operations: u64,
    /// Requests of the clients.
    pub requests: u64,
    /// Log records that were truncated.
    pub truncated: u64,
    /// Records that arrived too late, at the position of a truncated one.
    pub strays: u64,
    /// The violated invariant, if any.
    pub violation: Option<Violation>,
    /// The last lines of the story, oldest first.
    pub story: Vec<String>,
}

impl Case {
    /// Runs the case and keeps the last `story` lines of its story; without a story it is faster.
    pub fn run(self, story: usize) -> CaseOutcome {
        self.run_steps(0..self.operations.saturating_mul(IDLE_STEPS), story)
    }

    /// Returns the first of `seeds` seeds that detects the planted `bug`, and its violation: of the
    /// invariant that the bug is declared to break, in a run that has no violation without it. The seeds
    /// start at 0, or are those of the profile whose runs reach the bug.
    pub fn first_detecting(bug: Bug, seeds: u64, operations: u64) -> Option<(Self, Violation)> {
        let (first, step) = Profile::for_bug(bug).map_or((0, 1), Profile::seeds);
        (0..seeds).map(|number| first + number * step).find_map(|seed| {
            let case = Self { seed, operations, bug: Some(bug) };
            let violation = case.run(0).violation?;
            let matches_bug =
                violation.invariant.is_some_and(|invariant| invariant.number() == bug.invariant_number());
            (matches_bug && Self { bug: None, ..case }.run(0).violation.is_none())
                .then_some((case, violation))
        })
    }

    /// Runs only the given steps.
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
            steps: run.steps_taken,
            operations: world.trace.operations,
            requests: world.requests(),
            truncated: world.store.truncated,
            strays: world.store.strays,
            violation: ended.err(),
            story: world.trace.take_story(),
        }
    }

    /// Removes steps of a case with a violation while a similar violation remains, with at most
    /// `tries` runs. Returns the outcome, or `None` if the case has no violation.
    pub fn shrink(self, tries: usize, story: usize) -> Option<CaseOutcome> {
        shrink(|steps, story| self.run_steps(steps, story), self.run(0), tries, story)
    }
}

/// Writes the command that repeats the case.
impl fmt::Display for Case {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, operations, bug } = self;
        write!(out, "cargo run -p holdfast-sim --release -- --seed {seed} --operations {operations}")?;
        bug.map_or(Ok(()), |bug| write!(out, " --bug {bug:?}"))
    }
}

/// Removes steps of a run whose outcome `original` is a violation while a similar one remains, with at
/// most `tries` runs.
pub(crate) fn shrink(
    run: impl Fn(Vec<u64>, usize) -> CaseOutcome,
    original: CaseOutcome,
    tries: usize,
    story: usize,
) -> Option<CaseOutcome> {
    let sought = original.violation?;
    let mut steps: Vec<u64> = (0..original.steps).collect();
    let mut size = steps.len().div_ceil(2);
    let mut tried = 0;
    while size > 0 && tried < tries {
        // Backwards: the last steps are most likely needed for the violation, and early cuts shorten the
        // later tries.
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
