//! A simulation that does not notice a missing safeguard has a hole.

use holdfast_sim::bug::Bug;
use holdfast_sim::case::found_by;

/// Seeds tried for each bug: the budget of a run of the tests.
const SEEDS: u64 = 400;
const OPERATIONS: u64 = 3000;

#[test]
fn every_planted_bug_is_found() {
    let mut missed = Vec::new();
    for bug in Bug::all() {
        match found_by(bug, SEEDS, OPERATIONS) {
            Some((seed, found)) => println!("{bug:?}: seed {seed}: {}", found.words),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not found in {SEEDS} seeds: {missed:?}");
}
