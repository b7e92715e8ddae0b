//! Scenarios in which one write fails, and the checks after each.
//!
//! Owns: the choice of the write and of its failure; what must be possible while it lasts, and after it.
//! A scenario ends with the write that fails. The process lives on, with that failure.

use std::collections::BTreeMap;
use std::fmt;

use super::scenario::{HOSTS, Scenario};
use crate::drive;
use crate::invariant::Invariant;
use crate::strike::{Condition, Strike, WriteStep};
use crate::violation::{self, Violation};
use crate::world::{Faults, World};

/// Steps of a host while a condition lasts.
const STEPS: usize = 120;
/// Steps in which a full disk must have committed what was dirty.
const PATIENCE: usize = 5000;

/// One failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RefusedWrite {
    /// The scenario.
    pub scenario: Scenario,
    /// Decides the rest.
    pub seed: u64,
    /// The write, and its failure.
    pub strike: Strike,
}

fn world(scenario: Scenario, seed: u64) -> World {
    let mut world = scenario.world(seed);
    // What is evicted there is read back through slots.
    world.terms.has_slab = scenario == Scenario::Cramped;
    world
}

/// Counts the writes of each kind in `scenario` when none is made to fail.
pub fn writes(scenario: Scenario, seed: u64) -> BTreeMap<WriteStep, u64> {
    let mut world = world(scenario, seed);
    assert_eq!(scenario.play(&mut world), Ok(()), "nothing ends it");
    world.strikes.visits().clone()
}

impl RefusedWrite {
    /// Plays up to the failure, continues until it is over and after it, and compares with the model: on the
    /// same host, from the store alone, on another host.
    ///
    /// # Errors
    /// The invariant that does not hold.
    pub fn run(self) -> Result<(), Violation> {
        violation::catch(|| {
            let mut world = world(self.scenario, self.seed);
            world.arm(self.strike);
            assert!(self.scenario.play(&mut world).is_err(), "{self}: the write was not reached");
            let home = world.struck().expect("a write failed");
            let other = (home + 1) % HOSTS;
            world.set_faults(Faults::default());
            world.restore_reads(home);
            world.lose_host(other, None);
            let detaches = world.is_detaching(home);
            if self.strike.lasts {
                match self.strike.condition {
                    Condition::Full if detaches => drive::detach(&mut world, home),
                    Condition::Full => commits_meanwhile(&mut world, home),
                    Condition::Broken | Condition::ReadOnly => {}
                }
                for _ in 0..STEPS {
                    drive::step(&mut world, home);
                }
                world.end_strike();
            }
            if world.is_detaching(home) {
                // Its client asks for nothing more.
                drive::detach(&mut world, home);
            }
            drive::check_everywhere(&mut world, home, other);
        })
    }
}

/// A file system that is full delays no commit: it is commits that make room.
fn commits_meanwhile(world: &mut World, host: usize) {
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

/// Names it, to find it again in [`refuse_each`].
impl fmt::Display for RefusedWrite {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scenario, seed, strike: Strike { step, visit, condition, lasts } } = self;
        let how_long = if *lasts { "lasting" } else { "once" };
        write!(out, "{scenario:?}, seed {seed}: {step:?} {visit}, {condition:?}, {how_long}")
    }
}

/// Findings of [`refuse_each`].
#[derive(Debug, Default)]
pub struct Refused {
    /// Writes of each kind that were made to fail.
    pub writes: BTreeMap<WriteStep, u64>,
    /// Failures that were played.
    pub total: u64,
    /// Those after which something did not come to rest, or did not commit.
    pub stuck: Vec<(RefusedWrite, Violation)>,
    /// Those after which another invariant did not hold.
    pub lost: Vec<(RefusedWrite, Violation)>,
}

/// Fails each write of `scenarios` in every way, once and lasting.
pub fn refuse_each(scenarios: &[Scenario], seed: u64) -> Refused {
    let mut found = Refused::default();
    for &scenario in scenarios {
        for (step, count) in writes(scenario, seed) {
            *found.writes.entry(step).or_default() += count;
            for visit in 0..count {
                for condition in Condition::ALL {
                    for lasts in [false, true] {
                        let strike = Strike { step, visit, condition, lasts };
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
