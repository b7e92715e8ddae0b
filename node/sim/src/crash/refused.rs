//! Scenarios in which one write fails, and the checks after each.
//!
//! Owns: the choice of the write and of its failure; the checks while the failure lasts, and afterwards.
//! A scenario ends with the failed write. The process survives with that failure.

use std::collections::BTreeMap;
use std::fmt;

use super::scenario::{CrashScenario, HOSTS};
use crate::drive;
use crate::invariant::Invariant;
use crate::strike::{Condition, Strike, WriteStep};
use crate::violation::{self, Violation};
use crate::world::{Faults, World};

/// Steps of a host while a condition lasts.
const STEPS: usize = 120;
/// Steps within which a full disk must have committed its dirty data.
const PATIENCE: usize = 5000;

/// One failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RefusedWrite {
    /// The scenario.
    pub scenario: CrashScenario,
    /// Seed of all other choices.
    pub seed: u64,
    /// The write, and its failure.
    pub strike: Strike,
}

fn world(scenario: CrashScenario, seed: u64) -> World {
    let mut world = scenario.world(seed);
    // Evicted data is read back through slots.
    world.terms.has_slab = scenario == CrashScenario::Cramped;
    world
}

/// Counts the writes of each kind in `scenario` without a failure.
pub fn writes(scenario: CrashScenario, seed: u64) -> BTreeMap<WriteStep, u64> {
    let mut world = world(scenario, seed);
    assert_eq!(scenario.play(&mut world), Ok(()), "nothing ends it");
    world.failures.strikes.visits().clone()
}

impl RefusedWrite {
    /// Runs up to the failure and past it, and compares with the model: on the same host, from the store
    /// alone, on another host.
    ///
    /// # Errors
    /// The violated invariant.
    pub fn run(self) -> Result<(), Violation> {
        violation::catch(|| {
            let mut world = world(self.scenario, self.seed);
            world.arm(self.strike);
            assert!(self.scenario.play(&mut world).is_err(), "{self}: the write was not reached");
            let home = world.failed_host().expect("a write failed");
            let other = (home + 1) % HOSTS;
            world.set_faults(Faults::default());
            world.restore_reads(home);
            world.lose_host(other, None);
            let detaches = world.is_detaching(home);
            if self.strike.is_lasting {
                match self.strike.condition {
                    Condition::Full if detaches => drive::detach(&mut world, home),
                    Condition::Full => check_full_disk_commits(&mut world, home),
                    Condition::Broken | Condition::ReadOnly => {}
                }
                for _ in 0..STEPS {
                    drive::step(&mut world, home);
                }
                world.end_strike();
            }
            if world.is_detaching(home) {
                // Its client sends no more requests.
                drive::detach(&mut world, home);
            }
            drive::check_everywhere(&mut world, home, other);
        })
    }
}

/// A full file system delays no commit, because commits free space.
fn check_full_disk_commits(world: &mut World, host: usize) {
    let Some(begun) = world.status(host).map(|status| status.seal.begun) else { return };
    world.commit_soon(host, true);
    for _ in 0..PATIENCE {
        let Some(status) = world.status(host) else { return };
        let is_done = status.dirty_bytes == 0 || (status.seal.begun > begun && !status.seal.in_progress);
        if status.fenced || is_done {
            world.commit_soon(host, false);
            return;
        }
        drive::step(world, host);
    }
    Invariant::ComesToRest.broken(&format!("a full disk keeps dirty data: {:?}", world.status(host)));
}

/// Writes its name, to find it again in [`refuse_each`].
impl fmt::Display for RefusedWrite {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scenario, seed, strike: Strike { step, visit, condition, is_lasting } } = self;
        let how_long = if *is_lasting { "lasting" } else { "once" };
        write!(out, "{scenario:?}, seed {seed}: {step:?} {visit}, {condition:?}, {how_long}")
    }
}

/// Results of [`refuse_each`].
#[derive(Debug, Default)]
pub struct RefusalReport {
    /// Writes of each kind that failed.
    pub writes: BTreeMap<WriteStep, u64>,
    /// Number of failures.
    pub total: u64,
    /// Failures after which the volume did not come to rest, or did not commit.
    pub stuck: Vec<(RefusedWrite, Violation)>,
    /// Failures after which another invariant was violated.
    pub lost: Vec<(RefusedWrite, Violation)>,
}

/// Fails each write of `scenarios` in every way, once and permanently.
pub fn refuse_each(scenarios: &[CrashScenario], seed: u64) -> RefusalReport {
    let mut found = RefusalReport::default();
    for &scenario in scenarios {
        for (step, count) in writes(scenario, seed) {
            *found.writes.entry(step).or_default() += count;
            for visit in 0..count {
                for condition in Condition::ALL {
                    for is_lasting in [false, true] {
                        let strike = Strike { step, visit, condition, is_lasting };
                        let refused = RefusedWrite { scenario, seed, strike };
                        found.total += 1;
                        match refused.run() {
                            Ok(()) => {}
                            Err(violation) if violation.invariant == Some(Invariant::ComesToRest) => {
                                found.stuck.push((refused, violation));
                            }
                            Err(violation) => found.lost.push((refused, violation)),
                        }
                    }
                }
            }
        }
    }
    found
}
