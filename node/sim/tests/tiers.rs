//! Costs of index runs for volumes that no test can fill, by the policy that is shipped.

use holdfast_sim::tiers::{Figures, WORKLOADS, Workload};

fn play(name: &str) -> Figures {
    let workload: Workload = *WORKLOADS.iter().find(|workload| workload.name == name).expect("it has a row");
    workload.play()
}

/// The bars of the design: what an attach reads, what a commit stores, how deep a cold read goes.
#[test]
fn a_volume_of_10_tib_filled_at_random_stays_within_its_bars() {
    let figures = play("10tib_random");
    assert!(figures.root_bytes <= 64 << 10, "{figures:?}");
    assert!(figures.record_bytes_max <= 4 << 10, "{figures:?}");
    assert!(figures.runs_max <= 48, "{figures:?}");
    assert!(figures.index_percent_of_written <= 10.0, "{figures:?}");
}

#[test]
fn all_other_workloads_stay_within_them_too() {
    for workload in &WORKLOADS[1..] {
        let figures = workload.play();
        assert!(figures.runs_max <= 48 && figures.root_bytes <= 64 << 10, "{}: {figures:?}", workload.name);
        assert!(figures.index_percent_of_written <= 10.0, "{}: {figures:?}", workload.name);
    }
}
