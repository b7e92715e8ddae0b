//! Volumes of one bucket that are forked from each other, live at once, and are removed in any order.

use holdfast_sim::fleet::FamilyCase;

fn run(seeds: std::ops::Range<u64>, volumes: usize, operations: u64) {
    for seed in seeds {
        let case = FamilyCase { seed, volumes, operations, bug: None };
        if let Some(found) = case.run(0).violation {
            panic!("{} ({})\nrepeat with: {case}", found.message, found.check);
        }
    }
}

#[test]
fn forks_live_alongside_their_source_volumes() {
    run(0..24, 4, 12_000);
}

#[test]
fn a_volume_and_its_fork() {
    run(24..40, 2, 6000);
}

#[test]
fn a_large_family() {
    run(40..48, 8, 24_000);
}

/// Regression, found by this seed: the model took a commit of a fenced writer for a break of the log. It
/// arrived where the removal of the volume had deleted another record.
#[test]
fn a_record_may_come_late_into_a_removed_log() {
    run(1037..1038, 4, 12_000);
}

/// Regression, found by these seeds: a writer that had been replaced unnoticed read an object that the
/// next writer had merged and a sweep deleted. The model expected the data.
#[test]
fn reads_of_a_replaced_writer_may_fail() {
    run(10_240..10_241, 4, 20_000);
    run(10_159..10_160, 5, 20_000);
}

/// Regression, found by this seed: a host read the log of a new fork and paused. Others used the fork and
/// truncated its log. Then the host checked if the fork's snapshot was forgotten, and created a tombstone,
/// which is not part of the log.
#[test]
fn a_fork_is_not_ended_after_its_log_was_truncated() {
    run(20_008..20_009, 3, 20_000);
}

#[test]
fn a_family_run_is_deterministic() {
    for seed in 0..8 {
        let case = FamilyCase { seed, volumes: 4, operations: 6000, bug: None };
        assert_eq!(case.run(0).digest, case.run(0).digest, "seed {seed}");
    }
}
