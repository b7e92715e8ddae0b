//! A simulation that does not detect a missing safeguard has a hole.

use std::sync::{Mutex, PoisonError};
use std::thread;

use holdfast_sim::bug::Bug;
use holdfast_sim::find::search;

/// Seeds tried for each bug: the budget of a test run.
const SEEDS: u64 = 400;
const OPERATIONS: u64 = 3000;

/// One thread for each processor: a bug is planted in the simulations of one thread.
#[test]
fn every_planted_bug_is_found() {
    let (left, missed) = (Mutex::new(Bug::all()), Mutex::new(Vec::new()));
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let look = || {
        while let Some(bug) = next() {
            match search(bug, SEEDS, OPERATIONS) {
                Some((seed, found)) => println!("{bug:?}: seed {seed}: {}", found.message),
                None => missed.lock().unwrap_or_else(PoisonError::into_inner).push(bug),
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(look);
        }
    });
    let missed = missed.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert!(missed.is_empty(), "not found in {SEEDS} seeds: {missed:?}");
}
