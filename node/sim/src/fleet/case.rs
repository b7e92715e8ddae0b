//! One run of a fleet: a seed, the number of volumes and a length.

use std::fmt;

use holdfast_format::safeguard::Safeguard;

use super::{Fleet, PROFILES};
use crate::bug::{Bug, plant};
use crate::case::{CaseOutcome, IDLE_STEPS, shrink};
use crate::schedule::Schedule;
use crate::violation::{self, Violation};

/// A reproducible run of several volumes: the same case gives the same outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FleetCase {
    /// Seed of all random choices, including the profile.
    pub seed: u64,
    /// Volumes on the same hosts.
    pub volumes: usize,
    /// Requests, jobs, answers and deaths of all volumes before the run is brought to rest and checked.
    pub operations: u64,
    /// The planted bug.
    pub bug: Option<Bug>,
}

impl FleetCase {
    /// Runs the case and keeps the last `story` lines of each volume's story.
    pub fn run(self, story: usize) -> CaseOutcome {
        self.run_steps(0..self.operations.saturating_mul(IDLE_STEPS), story)
    }

    /// Returns the first of the `seeds` from 0 that detects the planted `bug`, and its violation: of the
    /// invariant that the bug is declared to break, in a run that has no violation without it. A bug that
    /// only timely runs reveal is searched for in those of the first profile.
    pub fn first_detecting(
        bug: Bug,
        seeds: u64,
        volumes: usize,
        operations: u64,
    ) -> Option<(Self, Violation)> {
        let step = if bug == Bug::Missing(Safeguard::QueueByStore) { PROFILES.len() as u64 } else { 1 };
        (0..seeds).map(|number| number * step).find_map(|seed| {
            let case = Self { seed, volumes, operations, bug: Some(bug) };
            let violation = case.run(0).violation?;
            let matches_bug =
                violation.invariant.is_some_and(|invariant| invariant.number() == bug.invariant_number());
            (matches_bug && Self { bug: None, ..case }.run(0).violation.is_none())
                .then_some((case, violation))
        })
    }

    /// Removes steps of a case with a violation while a similar violation remains, with at most
    /// `tries` runs. Returns the outcome, or `None` if the case has no violation.
    pub fn shrink(self, tries: usize, story: usize) -> Option<CaseOutcome> {
        shrink(|steps, story| self.run_steps(steps, story), self.run(0), tries, story)
    }

    fn run_steps(self, steps: impl IntoIterator<Item = u64>, story: usize) -> CaseOutcome {
        plant(self.bug);
        let mut fleet = Fleet::new(self.seed, self.volumes, story);
        let ended = violation::catch(|| {
            for step in steps {
                if fleet.operations() >= self.operations {
                    break;
                }
                fleet.step(step);
            }
            fleet.finish();
        });
        plant(None);
        outcome(&mut fleet.volumes, fleet.steps_taken, ended.err(), story)
    }
}

/// Returns the outcome of a run of these volumes, with the last `story` lines.
pub(super) fn outcome<'a>(
    volumes: impl IntoIterator<Item = &'a mut Schedule>,
    steps: u64,
    violation: Option<Violation>,
    story: usize,
) -> CaseOutcome {
    let mut outcome = CaseOutcome {
        digest: String::new(),
        steps,
        operations: 0,
        requests: 0,
        truncated: 0,
        strays: 0,
        violation,
        story: Vec::new(),
    };
    let mut digest = blake3::Hasher::new();
    let mut lines = Vec::new();
    for (number, volume) in volumes.into_iter().enumerate() {
        let world = &mut volume.world;
        digest.update(world.trace.digest().as_bytes());
        outcome.operations += world.trace.operations;
        outcome.requests += world.requests();
        outcome.truncated += world.store.truncated;
        outcome.strays += world.store.strays;
        lines.extend(world.trace.take_numbered_story().into_iter().map(|(step, line)| (step, number, line)));
    }
    outcome.digest = digest.finalize().to_hex().to_string();
    lines.sort_by_key(|(step, ..)| *step);
    let skipped = lines.len().saturating_sub(story);
    let last_lines = lines.into_iter().skip(skipped);
    outcome.story =
        last_lines.map(|(step, volume, line)| format!("step {step:6}  volume {volume}  {line}")).collect();
    outcome
}

/// Writes the command that repeats the case.
impl fmt::Display for FleetCase {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, volumes, operations, bug } = self;
        write!(
            out,
            "cargo run -p holdfast-sim --release -- --volumes {volumes} --seed {seed} --operations {operations}"
        )?;
        bug.map_or(Ok(()), |bug| write!(out, " --bug {bug:?}"))
    }
}
