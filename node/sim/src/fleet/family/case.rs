//! One run of a family: a seed, the number of volumes and a length.

use std::fmt;

use super::Family;
use crate::bug::{Bug, plant};
use crate::case::{CaseOutcome, IDLE_STEPS, shrink};
use crate::fleet::case::outcome;
use crate::violation;

/// A reproducible run of volumes that are forked from each other and live at the same time, in one bucket
/// and on the same hosts: the same case gives the same outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FamilyCase {
    /// Seed of all random choices, including the profile.
    pub seed: u64,
    /// Maximum volumes at the same time.
    pub volumes: usize,
    /// Requests, jobs, answers and deaths of all volumes before the run is brought to rest and checked.
    pub operations: u64,
    /// The planted bug.
    pub bug: Option<Bug>,
}

impl FamilyCase {
    /// Runs the case and keeps the last `story` lines of each volume's story.
    pub fn run(self, story: usize) -> CaseOutcome {
        self.run_steps(0..self.operations.saturating_mul(IDLE_STEPS), story)
    }

    /// Removes steps of a case with a violation while a similar violation remains, with at most
    /// `tries` runs. Returns the outcome, or `None` if the case has no violation.
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
        outcome(volumes, family.fleet.steps_taken, ended.err(), story)
    }
}

/// Writes the command that repeats the case.
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
