//! Several volumes on the same hosts, in two stores that fail one by one.

use holdfast_sim::fleet::FleetCase;

fn run(seeds: std::ops::Range<u64>, volumes: usize, operations: u64) {
    for seed in seeds {
        let case = FleetCase { seed, volumes, operations, bug: None };
        if let Some(found) = case.run(0).violation {
            panic!("{} ({})\nrepeat with: {case}", found.message, found.check);
        }
    }
}

#[test]
fn four_volumes_share_hosts_and_stores() {
    run(0..24, 4, 12_000);
}

#[test]
fn a_volume_for_each_store() {
    run(32..48, 2, 6000);
}

#[test]
fn many_volumes_share_hosts_and_stores() {
    run(48..52, 12, 36_000);
}

/// Regression, found by these seeds: the model did not note, during a store failure, that the process of a
/// volume had ended. Its commit counted as late once the store answered again.
#[test]
fn a_restart_during_an_outage_delays_a_commit() {
    for seed in [20, 26] {
        run(seed..seed + 1, 8, 20_000);
    }
}
