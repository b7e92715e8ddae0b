//! Random schedules: any order of jobs and answers, any death at any point, writers that replace each other.

use holdfast_sim::Profile;
use holdfast_sim::case::Case;

/// Runs `count` seeds of `profile`.
fn runs(profile: Profile, count: u64, operations: u64) {
    let first = Profile::ALL.iter().position(|other| *other == profile).expect("all means all") as u64;
    for seed in (first..).step_by(Profile::ALL.len()).take(count as usize) {
        assert_eq!(Profile::of(seed), profile);
        let case = Case { seed, operations, bug: None };
        if let Some(found) = case.run(0).violation {
            panic!("{} ({})\nrepeat with: {case}", found.message, found.check);
        }
    }
}

#[test]
fn any_order_without_faults() {
    runs(Profile::Calm, 12, 2500);
}

#[test]
fn any_order_with_ambiguous_creates() {
    runs(Profile::BadStore, 12, 2500);
}

#[test]
fn any_order_with_a_failing_disk() {
    runs(Profile::BadDisk, 12, 2500);
}

#[test]
fn killed_at_any_point() {
    runs(Profile::Kills, 25, 2500);
}

#[test]
fn power_lost_at_any_point() {
    runs(Profile::PowerCuts, 25, 2500);
}

#[test]
fn power_lost_on_a_failing_disk() {
    runs(Profile::LongLives, 25, 6000);
}

#[test]
fn rivals_for_one_volume() {
    runs(Profile::Rivals, 25, 3500);
}

#[test]
fn everything_at_once() {
    runs(Profile::Everything, 25, 3500);
}

#[test]
fn cut_off_and_paused() {
    runs(Profile::Partitions, 20, 3500);
}

#[test]
fn disks_fill_up() {
    runs(Profile::FullDisks, 12, 2500);
}

#[test]
fn commits_come_in_time() {
    runs(Profile::Timely, 12, 3500);
}

#[test]
fn disks_are_emptied_rolled_back_and_copied() {
    runs(Profile::OtherDisks, 25, 3000);
}

#[test]
fn processes_pause_while_the_log_is_truncated() {
    runs(Profile::Sleepers, 12, 3000);
}

/// In most runs of sleepers the log is truncated, and in some a record arrives at a truncated position.
#[test]
fn logs_are_truncated() {
    let first = Profile::ALL.len() as u64 - 1;
    assert_eq!(Profile::of(first), Profile::Sleepers);
    let runs = (first..).step_by(Profile::ALL.len()).take(24);
    let truncated =
        runs.filter(|seed| Case { seed: *seed, operations: 3000, bug: None }.run(0).truncated > 0);
    assert!(truncated.count() >= 18);
}

/// Regression, found by this seed: a sector had zeros at the last write of its map page, and data at the
/// power failure. This data did not count as dirty.
#[test]
fn data_written_before_a_power_cut_counts_as_dirty() {
    let outcome = Case { seed: 533, operations: 10_000, bug: None }.run(0);
    assert_eq!(outcome.violation, None);
}

/// Regression, found by these seeds: a write failed on the active side, an older one then succeeded on the
/// sealed side, and a read returned the data from before both.
#[test]
fn a_failed_write_does_not_hide_a_late_one() {
    for seed in [1546, 1570] {
        let outcome = Case { seed, operations: 10_000, bug: None }.run(0);
        assert_eq!(outcome.violation, None);
    }
}

/// Regression, found by this seed: a read failed on the side while another failed read there dropped the
/// same sectors, and was not sent to the store.
#[test]
fn two_reads_that_fail_together_both_come_from_the_store() {
    let outcome = Case { seed: 314, operations: 10_000, bug: None }.run(0);
    assert_eq!(outcome.violation, None);
}
