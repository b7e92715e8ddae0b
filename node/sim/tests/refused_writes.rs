//! Full, failing and read-only file systems: each write to the state and run directory fails, at each of its
//! visits.

use holdfast_sim::bug::{Bug, Mutation, plant};
use holdfast_sim::crash::{CrashScenario, refuse_each};
use holdfast_sim::strike::WriteStep;

/// No acknowledged byte is lost, a full disk delays no commit, and nothing stays blocked afterwards.
#[test]
fn every_write_fails_once_and_permanently() {
    let found = refuse_each(&CrashScenario::ALL, 0);
    println!(r#"{{"full_disk_steps":{},"full_disk_stuck":{}}}"#, found.total, found.stuck.len());
    for step in WriteStep::ALL {
        assert!(found.writes.contains_key(&step), "no scenario has {step:?}");
    }
    let failed = found.lost.iter().chain(&found.stuck);
    let described: Vec<String> = failed
        .map(|(refused, violation)| format!("{refused}: {} ({})", violation.message, violation.check))
        .collect();
    assert!(described.is_empty(), "{} of {}:\n{}", described.len(), found.total, described.join("\n"));
}

/// Regression: a commit wrote its record to a separate file, and with 0 bytes free nothing was committed.
#[test]
fn a_record_that_needs_space_is_detected() {
    plant(Some(Bug::Mutation(Mutation::RecordNeedsRoom)));
    let found = refuse_each(&[CrashScenario::Doubt], 0);
    plant(None);
    assert!(!found.stuck.is_empty() && found.lost.is_empty(), "{:?}", found.lost.first());
}
