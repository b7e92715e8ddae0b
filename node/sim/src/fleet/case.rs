//! One run of a fleet: a seed, how many volumes and how long.

use std::fmt;

use super::Fleet;
use crate::bug::{Bug, plant};
use crate::case::{CaseOutcome, IDLE, shrink};
use crate::schedule::Schedule;
use crate::violation::{self, Violation};

/// A run of several volumes that can be repeated: the same case gives the same outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FleetCase {
    /// Decides everything that is not decided otherwise, the profile too.
    pub seed: u64,
    /// Volumes on the same hosts.
    pub volumes: usize,
    /// Requests, jobs, answers and deaths of all of them before everything is brought to rest and read.
    pub operations: u64,
    /// The bug that is planted.
    pub bug: Option<Bug>,
}

impl FleetCase {
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
        outcome(&mut fleet.volumes, fleet.taken, ended.err(), story)
    }
}

/// The outcome of a run of these volumes, with the last `story` lines.
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
    let told = lines.into_iter().skip(skipped);
    outcome.story =
        told.map(|(step, volume, line)| format!("step {step:6}  volume {volume}  {line}")).collect();
    outcome
}

/// The command that repeats it.
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
