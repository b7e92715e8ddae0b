//! One run of a family: a seed, how many volumes and how long.

use std::fmt;

use super::Family;
use crate::bug::{Bug, plant};
use crate::case::{CaseOutcome, IDLE, shrink};
use crate::fleet::case::outcome;
use crate::violation::{self, Violation};

/// A run of volumes that are forked from each other and live on, in one bucket and on the same hosts. It can
/// be repeated: the same case gives the same outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FamilyCase {
    /// Decides everything that is not decided otherwise, the profile too.
    pub seed: u64,
    /// Most volumes at once.
    pub volumes: usize,
    /// Requests, jobs, answers and deaths of all of them before everything is brought to rest and read.
    pub operations: u64,
    /// The bug that is planted.
    pub bug: Option<Bug>,
}

impl FamilyCase {
    /// Runs it and keeps the last `story` lines of what happened to each volume.
    pub fn run(self, story: usize) -> CaseOutcome {
        self.run_steps(0..self.operations.saturating_mul(IDLE), story)
    }

    /// The first of the `seeds` from 0 that notices that `bug` is planted, and what it sees: the invariant
    /// that the bug is said to break, in a run that breaks none without it.
    pub fn that_finds(bug: Bug, seeds: u64, volumes: usize, operations: u64) -> Option<(Self, Violation)> {
        (0..seeds).find_map(|seed| {
            let case = Self { seed, volumes, operations, bug: Some(bug) };
            let violation = case.run(0).violation?;
            let said = violation.invariant.is_some_and(|invariant| invariant.number() == bug.breaks());
            (said && Self { bug: None, ..case }.run(0).violation.is_none()).then_some((case, violation))
        })
    }

    /// Leaves out steps of a case that ends in a violation as long as it still ends in one like it, at most
    /// `tries` times. Returns what is left, or `None` when the case has no violation.
    pub fn shrink(self, tries: usize, story: usize) -> Option<CaseOutcome> {
        shrink(|steps, story| self.run_steps(steps, story), self.run(0), tries, story)
    }

    fn run_steps(self, steps: impl IntoIterator<Item = u64>, story: usize) -> CaseOutcome {
        plant(self.bug);
        let mut family = Family::new(self.seed, self.volumes, story);
        let ended = violation::catch(|| {
            for step in steps {
                if family.operations() >= self.operations {
                    break;
                }
                family.step(step);
            }
            family.finish();
        });
        plant(None);
        let volumes = family.past.iter_mut().chain(&mut family.fleet.volumes);
        outcome(volumes, family.fleet.taken, ended.err(), story)
    }
}

/// The command that repeats it.
impl fmt::Display for FamilyCase {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, volumes, operations, bug } = self;
        write!(
            out,
            "cargo run -p holdfast-sim --release -- --family {volumes} --seed {seed} --operations {operations}"
        )?;
        bug.map_or(Ok(()), |bug| write!(out, " --bug {bug:?}"))
    }
}
