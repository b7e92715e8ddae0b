//! Deaths at crash points: scenarios that reach each of them, and the checks after each death.
//!
//! Owns: the choice of the scenario, of the point and the visit at which the process ends, and of the
//! host's fate; the comparison with the model.
//! Does not own: the points (`holdfast_format::crash_point`).
//! Invariant: a scenario with the same seed is the same up to its death.

mod refused;
mod scenario;
mod stage;
mod watch;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use holdfast_format::crash_point::CrashPoint;

pub use refused::{RefusalReport, RefusedWrite, refuse_each, writes};
pub use scenario::CrashScenario;

use crate::disk::Fate;
use crate::drive;
use crate::rng::Rng;
use crate::violation::{self, Violation};
use crate::world::{Faults, World};
use scenario::HOSTS;
use watch::Watch;

/// The victim at a crash point, and the recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Death {
    /// The process; a successor takes over.
    Process,
    /// The process, and later the host while the successor works.
    ProcessThenHost,
    /// The host, permanently; the volume is attached elsewhere.
    HostForGood,
    /// The host, which returns with this one of its possible outcomes ([`World::outcomes`]).
    Host(u64),
    /// The host, which returns with a random outcome if they are too many to try: this seed decides about
    /// each unsynced write.
    HostByChance(u64),
}

/// One death.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Crash {
    /// The scenario.
    pub scenario: CrashScenario,
    /// Seed of all other choices.
    pub seed: u64,
    /// The point at which the process ends.
    pub point: CrashPoint,
    /// The number of the visit, from zero.
    pub visit: u64,
    /// The kind of death.
    pub death: Death,
}

/// Counts the visits of each point in `scenario` without a death.
pub fn visits(scenario: CrashScenario, seed: u64) -> BTreeMap<CrashPoint, u64> {
    let watch = Watch::begin(None);
    let mut world = scenario.world(seed);
    assert_eq!(scenario.play(&mut world), Ok(()), "nothing ends it");
    watch.visits()
}

/// Returns the invariant violated in `scenario` without a death.
pub fn violation_without_death(scenario: CrashScenario, seed: u64) -> Option<Violation> {
    violation::catch(|| drop(visits(scenario, seed))).err()
}

impl Crash {
    /// Runs up to the death. Returns the world and the host that died.
    fn play(self) -> (World, usize) {
        let _watch = Watch::begin(Some((self.point, self.visit)));
        let mut world = self.scenario.world(self.seed);
        if matches!(self.death, Death::Host(_) | Death::HostByChance(_)) {
            world.keep_all_outcomes();
        }
        let Err(died) = self.scenario.play(&mut world) else { panic!("{self}: the point was not visited") };
        (world, died)
    }

    /// Returns the number of outcomes that a loss of the host has at this point.
    pub fn outcomes(self) -> u64 {
        let (world, died) = Self { death: Death::Host(0), ..self }.play();
        world.outcomes(died)
    }

    /// Runs the death and the recovery, and compares with the model: on the same host, from the store alone,
    /// and on another host.
    ///
    /// # Errors
    /// The violated invariant.
    pub fn run(self) -> Result<(), Violation> {
        violation::catch(|| {
            let (mut world, home) = self.play();
            let other = (home + 1) % HOSTS;
            world.set_faults(Faults::default());
            world.restore_reads(home);
            world.lose_host(other, None);
            match self.death {
                Death::Process => {}
                Death::ProcessThenHost => {
                    let steps = Rng::new(self.seed ^ self.visit).below(24);
                    for _ in 0..steps {
                        drive::step(&mut world, home);
                    }
                    world.lose_host(home, None);
                }
                Death::HostForGood => {
                    world.lose_host(home, Some(Fate::Nothing));
                    drive::read_all(&mut world, other);
                    return drive::check_everywhere(&mut world, other, home);
                }
                Death::Host(outcome) => world.lose_host(home, Some(Fate::Nth(outcome))),
                Death::HostByChance(seed) => {
                    world.lose_host(home, Some(Fate::Some(&mut Rng::new(seed))));
                }
            }
            // Only scenarios with a backup of the bucket restore it.
            world.set_bucket_back();
            drive::check_everywhere(&mut world, home, other);
        })
    }
}

/// Writes the command that repeats the death.
impl fmt::Display for Crash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scenario, seed, point, visit, death } = self;
        out.write_str("cargo run -p holdfast-sim --release -- crash-points --crash ")?;
        write!(out, "{scenario:?}:{seed}:{point:?}:{visit}:")?;
        match death {
            Death::Process => out.write_str("process"),
            Death::ProcessThenHost => out.write_str("process-then-host"),
            Death::HostForGood => out.write_str("host-for-good"),
            Death::Host(outcome) => write!(out, "host-{outcome}"),
            Death::HostByChance(seed) => write!(out, "host-by-chance-{seed}"),
        }
    }
}

impl FromStr for Crash {
    type Err = String;

    /// Parses the argument of `--crash` in the command.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| {
            format!("{what} is wrong in {text:?}: use SCENARIO:SEED:POINT:VISIT:DEATH as it was printed")
        };
        let parts: Vec<&str> = text.split(':').collect();
        let [scenario, seed, point, visit, death] = parts[..] else {
            return Err(wrong("the number of parts"));
        };
        let number = |text: &str, what| text.parse().ok().ok_or_else(|| wrong(what));
        let death = match death {
            "process" => Death::Process,
            "process-then-host" => Death::ProcessThenHost,
            "host-for-good" => Death::HostForGood,
            host => match (host.strip_prefix("host-by-chance-"), host.strip_prefix("host-")) {
                (Some(seed), _) => Death::HostByChance(number(seed, "the death")?),
                (None, Some(outcome)) => Death::Host(number(outcome, "the death")?),
                (None, None) => return Err(wrong("the death")),
            },
        };
        let named = |name: &dyn fmt::Debug, text| format!("{name:?}") == text;
        Ok(Self {
            scenario: CrashScenario::ALL
                .into_iter()
                .find(|it| named(it, scenario))
                .ok_or_else(|| wrong("the scenario"))?,
            seed: number(seed, "the seed")?,
            point: CrashPoint::ALL
                .iter()
                .copied()
                .find(|it| named(it, point))
                .ok_or_else(|| wrong("the point"))?,
            visit: number(visit, "the visit")?,
            death,
        })
    }
}

/// Results of a campaign.
#[derive(Debug, Default)]
pub struct CampaignReport {
    /// Number of deaths.
    pub deaths: u64,
    /// Visits of each point that ended in a death.
    pub visited: BTreeMap<CrashPoint, u64>,
    /// Visits for which every outcome was tried.
    pub exhausted: u64,
    /// Deaths after which an invariant was violated.
    pub violations: Vec<(Crash, Violation)>,
}

impl CampaignReport {
    /// Returns the points that no scenario reached.
    pub fn missed(&self) -> Vec<CrashPoint> {
        CrashPoint::ALL.iter().copied().filter(|point| !self.visited.contains_key(point)).collect()
    }
}

/// Ends each of `scenarios` with `seed` at every visit of every point, in every way.
///
/// At most `outcomes` outcomes of a host loss are tried at one visit. If there are more, the seed chooses
/// them.
pub fn campaign(scenarios: &[CrashScenario], seed: u64, outcomes: u64) -> CampaignReport {
    let mut found = CampaignReport::default();
    for &scenario in scenarios {
        for (point, count) in visits(scenario, seed) {
            for visit in 0..count {
                let crash = Crash { scenario, seed, point, visit, death: Death::Process };
                *found.visited.entry(point).or_default() += 1;
                let possible = crash.outcomes();
                let mut deaths = vec![Death::Process, Death::ProcessThenHost, Death::HostForGood];
                if possible <= outcomes {
                    found.exhausted += 1;
                    deaths.extend((0..possible).map(Death::Host));
                } else {
                    let mut rng = Rng::new(seed ^ visit);
                    deaths.extend((0..outcomes).map(|_| Death::HostByChance(rng.bits())));
                }
                for death in deaths {
                    let crash = Crash { death, ..crash };
                    found.deaths += 1;
                    if let Err(violation) = crash.run() {
                        found.violations.push((crash, violation));
                    }
                }
            }
        }
    }
    found
}
