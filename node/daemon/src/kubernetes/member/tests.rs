use serde_json::json;

use super::*;
use crate::node::FailureKind;
use crate::volumes::tests::Fake;

const UID: SnapshotUid = SnapshotUid([7; 16]);

fn task(step: &str, progress: Option<&str>) -> Option<MemberStep> {
    let status = json!({ "groupStep": step, "groupProgress": progress });
    next(&serde_json::from_value(status).expect("a status"))
}

#[test]
fn a_node_makes_the_step_that_the_operator_wrote() {
    assert_eq!(next(&VolumeSnapshotStatus::default()), None, "the operator has not written one");
    // Without it, a deletion could not distinguish this node from one that takes a snapshot at once.
    assert_eq!(task("Prepare", None), Some(MemberStep::Announce));
    assert_eq!(task("Prepare", Some("Preparing")), Some(MemberStep::Cut(CutStep::Prepare)));
    assert_eq!(task("Prepare", Some("Prepared")), Some(MemberStep::StayPrepared), "prepared ends by itself");
    for done in [Some("Preparing"), Some("Prepared")] {
        assert_eq!(task("Hold", done), Some(MemberStep::Cut(CutStep::Hold)));
    }
    assert_eq!(task("Hold", Some("Held")), Some(MemberStep::Cut(CutStep::Hold)), "a hold lapses by itself");
    for done in [None, Some("Prepared"), Some("Held")] {
        assert_eq!(task("Release", done), Some(MemberStep::Cut(CutStep::Release)));
    }
    assert_eq!(task("Release", Some("Released")), Some(MemberStep::Await));
}

/// A second preparation would be reported before the operator has noticed the failed attempt, and would block
/// other groups from the volume.
#[test]
fn a_lapsed_preparation_is_not_repeated() {
    assert_eq!(task("Prepare", Some("Lapsed")), Some(MemberStep::Take), "as any other that lapsed");
}

/// The deletion of the object waits for the snapshot: the node may have started it.
#[test]
fn a_lapsed_cut_still_ends_in_a_snapshot() {
    assert_eq!(task("Hold", Some("Lapsed")), Some(MemberStep::Take));
    assert_eq!(task("Release", Some("Lapsed")), Some(MemberStep::Take));
}

#[tokio::test]
async fn a_failed_hold_lapses_and_a_failed_preparation_is_retried() {
    let (volumes, volume) = (Fake::default(), "v".parse().expect("an id"));
    assert_eq!(
        cut(&volumes, &volume, UID, CutStep::Prepare).await,
        StepOutcome::Reached(GroupProgress::Prepared)
    );
    assert_eq!(cut(&volumes, &volume, UID, CutStep::Hold).await, StepOutcome::Reached(GroupProgress::Held));
    for step in [CutStep::Hold, CutStep::Release] {
        volumes.fail(FailureKind::Busy, "it is being detached");
        assert_eq!(cut(&volumes, &volume, UID, step).await, StepOutcome::Reached(GroupProgress::Lapsed));
    }
    volumes.fail(FailureKind::Unavailable, "the store does not answer");
    let failed = cut(&volumes, &volume, UID, CutStep::Prepare).await;
    assert!(
        matches!(failed, StepOutcome::Failed(OperationFailure { reason: "Unavailable", .. })),
        "{failed:?}"
    );
    volumes.lapse_cuts();
    assert_eq!(
        cut(&volumes, &volume, UID, CutStep::Release).await,
        StepOutcome::Reached(GroupProgress::Lapsed)
    );
    assert_eq!(volumes.cuts().len(), 6);
}

/// A process that took over has no state of the cut: its snapshot would be of another point.
#[tokio::test]
async fn a_snapshot_without_a_common_point_is_not_reported() {
    let (volumes, volume) = (Fake::default(), "v".parse().expect("an id"));
    assert!(matches!(taken(&volumes, &volume, UID).await, StepOutcome::Taken(taken) if taken.uid == UID));
    volumes.lapse_cuts();
    assert_eq!(taken(&volumes, &volume, UID).await, StepOutcome::Reached(GroupProgress::Lapsed));
}

/// Regression, found in review: a prepared volume that began a commit of half a minute stayed reported as
/// prepared, and writes to the others of its group waited for it in vain.
#[tokio::test(start_paused = true)]
async fn a_prepared_volume_that_does_not_confirm_it_prepares_again() {
    let (volumes, volume) = (Fake::default(), "v".parse().expect("an id"));
    let reached = |progress| StepOutcome::Reached(progress);
    assert_eq!(stay_prepared(&volumes, &volume, UID).await, reached(GroupProgress::Prepared));
    volumes.hang();
    assert_eq!(stay_prepared(&volumes, &volume, UID).await, reached(GroupProgress::Preparing));
}

/// Regression, found in review: a commit of two minutes outlived its attempt, and the volume was busy with it
/// in each later one.
#[tokio::test]
async fn a_cut_without_its_object_does_not_block_the_next() {
    const NEXT: SnapshotUid = SnapshotUid([8; 16]);
    let (volumes, volume) = (Fake::default(), "v".parse().expect("an id"));
    let prepared = PreparedCuts::default();
    prepared.add(&volumes, &volume, UID, |_| false).await;
    prepared.add(&volumes, &volume, UID, |_| false).await;
    prepared.add(&volumes, &volume, NEXT, |known| known == UID).await;
    assert_eq!(volumes.released_cuts(), [], "another group may need it");
    prepared.add(&volumes, &volume, NEXT, |_| false).await;
    assert_eq!(volumes.released_cuts(), [(volume, UID)]);
}

/// Found in review: after a rollback, a daemon could not read a snapshot with a step that it does not know.
#[test]
fn a_step_of_a_later_release_is_left_alone() {
    for progress in [None, Some("Held"), Some("Lapsed")] {
        assert_eq!(task("OfALaterRelease", progress), None);
    }
}
