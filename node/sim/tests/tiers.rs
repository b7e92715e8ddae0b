//! Costs of index runs for volumes too large for tests, by the shipped policy.

use holdfast_sim::tiers::{Figures, WORKLOADS, Workload};

fn run(name: &str) -> Figures {
    let workload: Workload = *WORKLOADS.iter().find(|workload| workload.name == name).expect("it has a row");
    workload.run()
}

/// The limits of the design: the reads of an attach, the bytes stored by a commit, the depth of a cold read.
#[test]
fn a_randomly_filled_volume_of_10_tib_meets_its_bars() {
    let figures = run("10tib_random");
    assert!(figures.root_bytes <= 64 << 10, "{figures:?}");
    assert!(figures.record_bytes_max <= 4 << 10, "{figures:?}");
    assert!(figures.runs_max <= 48, "{figures:?}");
    assert!(figures.index_percent_of_written <= 10.0, "{figures:?}");
}

#[test]
fn the_other_workloads_stay_within_their_bars() {
    for workload in &WORKLOADS[1..] {
        let figures = workload.run();
        assert!(figures.runs_max <= 48 && figures.root_bytes <= 64 << 10, "{}: {figures:?}", workload.name);
        assert!(figures.index_percent_of_written <= 10.0, "{}: {figures:?}", workload.name);
    }
}
