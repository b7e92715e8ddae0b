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
    for done in [Some("Preparing"), Some("Prepared")] {
        assert_eq!(task("Prepare", done), Some(MemberStep::Cut(CutStep::Prepare)), "prepared ends by itself");
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
