//! Full, failing and read-only file systems: each write to the state and run directory fails, at each of its
//! visits.

use holdfast_sim::bug::{Bug, Mutation, plant};
use holdfast_sim::crash::{Scenario, refuse_each};
use holdfast_sim::strike::WriteStep;

/// No acknowledged byte is lost, a full disk delays no commit, and nothing stays blocked afterwards.
#[test]
fn every_write_is_refused_once_and_lastingly() {
    let found = refuse_each(&Scenario::ALL, 0);
    println!(r#"{{"full_disk_steps":{},"full_disk_stuck":{}}}"#, found.total, found.stuck.len());
    for step in WriteStep::ALL {
        assert!(found.writes.contains_key(&step), "no scenario has {step:?}");
    }
    let failed = found.lost.iter().chain(&found.stuck);
    let said: Vec<String> = failed
        .map(|(refused, violation)| format!("{refused}: {} ({})", violation.words, violation.check))
        .collect();
    assert!(said.is_empty(), "{} of {}:\n{}", said.len(), found.total, said.join("\n"));
}

/// Regression: a commit wrote its record to a separate file, and with 0 bytes free nothing was committed.
#[test]
fn a_record_that_needs_room_is_seen() {
    plant(Some(Bug::Mutation(Mutation::RecordNeedsRoom)));
    let found = refuse_each(&[Scenario::Doubt], 0);
    plant(None);
    assert!(!found.stuck.is_empty() && found.lost.is_empty(), "{:?}", found.lost.first());
}
