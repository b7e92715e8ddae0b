//! The search for a planted bug.

use holdfast_format::safeguard::Safeguard;

use crate::bug::{Bug, plant};
use crate::case::Case;
use crate::crash::{CrashScenario, campaign, violation_without_death};
use crate::fleet::FleetCase;
use crate::memory_volume::MemoryCase;
use crate::violation::Violation;

/// Volumes of a run for a bug in shared state.
const FLEET: usize = 4;
/// Volumes of a run for [`Safeguard::QueueByStore`]: only when many wait for the memory of uploads at the
/// same time, a failing store delays another one's.
const CROWD: usize = 8;
/// Outcomes of a power cut tried at each visit of a crash point.
const OUTCOMES: u64 = 8;

/// Returns the first seed whose run detects the planted `bug`, and the violation. The bug determines the kind
/// of run: crash points, memory volume, fleet, or single volume.
pub fn search(bug: Bug, seeds: u64, operations: u64) -> Option<(u64, Violation)> {
    if let Some(scenario) = CrashScenario::for_bug(bug) {
        let deaths = |bug| {
            plant(bug);
            let found = campaign(&[scenario], 0, OUTCOMES);
            plant(None);
            found.violations
        };
        let run_without_deaths = |bug| {
            plant(bug);
            let found = violation_without_death(scenario, 0);
            plant(None);
            found
        };
        let matches_bug = |violation: &Violation| {
            violation.invariant.is_some_and(|it| it.number() == bug.invariant_number())
        };
        if let Some(violation) = run_without_deaths(Some(bug)) {
            return (matches_bug(&violation) && run_without_deaths(None).is_none()).then_some((0, violation));
        }
        let found = deaths(Some(bug)).into_iter().find(|(_, violation)| matches_bug(violation));
        return found.filter(|_| deaths(None).is_empty()).map(|(crash, violation)| (crash.seed, violation));
    }
    if bug.needs_memory_volume() {
        return MemoryCase::first_detecting(bug, seeds, operations).map(|(case, found)| (case.seed, found));
    }
    if !bug.needs_fleet() {
        return Case::first_detecting(bug, seeds, operations).map(|(case, found)| (case.seed, found));
    }
    let volumes = if bug == Bug::Missing(Safeguard::QueueByStore) { CROWD } else { FLEET };
    FleetCase::first_detecting(bug, seeds, volumes, volumes as u64 * operations)
        .map(|(case, found)| (case.seed, found))
}
