//! Nodes that are force-detached, by a user or by their signs, and the data missing because of it.

use super::*;
use crate::volume::forced_detach::MAX_EARLIER;

/// Node `a` serves with dirty data and is lost; the volume is desired on `b`.
fn lost(force_detach: &str) -> ClusterFacts {
    let mut facts = existing("b", "a", "a");
    facts.force_detach = (!force_detach.is_empty()).then(|| force_detach.to_owned());
    facts.status.dirty_bytes = Some(8192);
    facts.status.epoch = Some(3);
    facts.status.committed_seq = Some(7);
    facts.log_writer = Some(AttachedWriter { node: "a".to_owned(), epoch: 3, data_seq: 7 });
    facts.status.durable_through = Some(Time("2025-12-31T23:59:00Z".parse().expect("a timestamp")));
    facts
}

/// Applies the operator's part of the planned report, and keeps the rest of the status.
fn report(facts: &mut ClusterFacts) -> VolumeStatus {
    let reported = last_report(&plan(facts, &now())).clone();
    facts.status = VolumeStatus {
        node: facts.status.node.clone(),
        device_path: facts.status.device_path.clone(),
        dirty_bytes: facts.status.dirty_bytes,
        epoch: facts.status.epoch,
        committed_seq: facts.status.committed_seq,
        durable_through: facts.status.durable_through.clone(),
        ..reported.clone()
    };
    reported
}

#[test]
fn a_force_detach_names_the_node_and_reports_lost_data() {
    for other in ["", "b", "typo"] {
        let status = last_report(&plan(&lost(other), &now())).clone();
        assert_eq!(status.assigned_node.as_deref(), Some("a"), "{other:?}");
        let waiting = find_condition(&status.conditions, ASSIGNED).expect("assigned");
        assert!(waiting.message.contains("holdfast.dev/force-detach=a"), "{}", waiting.message);
        assert!(find_condition(&status.conditions, DATA_LOST).is_none());
    }
    let mut facts = lost("a");
    // The last record that the node knew was not a commit.
    facts.log_writer = Some(AttachedWriter { node: "a".to_owned(), epoch: 3, data_seq: 5 });
    let status = report(&mut facts);
    assert_eq!(status.assigned_node.as_deref(), Some("b"));
    assert_eq!(status.phase, Some(VolumePhase::Attaching));
    let reported = find_condition(&status.conditions, DATA_LOST).expect("reported").clone();
    assert_eq!((reported.status.as_str(), reported.reason.as_str()), ("True", "ForceDetached"));
    for part in ["node a ", "after 2025-12-31T23:59:00Z", "at least 8192 bytes", "fenced list"] {
        assert!(reported.message.contains(part), "{}", reported.message);
    }
    // The report is the same before and after the next node claims the volume, whatever that node reports.
    assert_eq!(report(&mut facts), status);
    facts.status.node = Some("b".to_owned());
    facts.status.epoch = Some(4);
    facts.status.dirty_bytes = Some(0);
    facts.status.durable_through = None;
    let served = report(&mut facts);
    assert_eq!((served.forced_detach, served.phase), (status.forced_detach, Some(VolumePhase::Attached)));
    assert_eq!(find_condition(&served.conditions, DATA_LOST), Some(&reported));
    // The annotation was removed: the loss is acknowledged.
    facts.force_detach = None;
    let read = report(&mut facts);
    assert_eq!((read.forced_detach, find_condition(&read.conditions, DATA_LOST)), (None, None));
}

/// Regression: reported figures are up to a minute old; bytes committed since were reported missing.
#[test]
fn recently_committed_data_is_not_reported_missing() {
    let mut facts = lost("a");
    facts.status.committed_seq = Some(6);
    let status = report(&mut facts);
    let said = find_condition(&status.conditions, DATA_LOST).expect("reported").clone();
    assert_eq!((said.status.as_str(), said.reason.as_str()), ("Unknown", "MayBeCommitted"));
    assert!(said.message.contains("after 2025-12-31T23:59:00Z may be missing"), "{}", said.message);
    // A record of an earlier version lacks the flag.
    let record = facts.status.forced_detach.as_mut().expect("it was cut off");
    assert!(!record.is_last_commit_reported);
    // The next node attached: the log no longer names the lost one.
    facts.log_writer = Some(AttachedWriter { node: "b".to_owned(), epoch: 5, data_seq: 8 });
    assert_eq!(find_condition(&report(&mut facts).conditions, DATA_LOST), Some(&said));
}

/// Found by review: the record, and thus the next attach's permission, was removed with the annotation.
#[test]
fn a_removed_annotation_does_not_end_an_unused_permission() {
    let mut facts = lost("a");
    let status = report(&mut facts);
    facts.force_detach = None;
    assert_eq!(report(&mut facts), status, "node a is still reported");
    // Node b claims the volume, and its first attach fails.
    facts.status.node = Some("b".to_owned());
    facts.status.epoch = None;
    facts.status.device_path = None;
    assert_eq!(report(&mut facts).forced_detach, status.forced_detach);
    facts.status.epoch = Some(4);
    let used = report(&mut facts);
    assert_eq!((used.forced_detach, find_condition(&used.conditions, DATA_LOST)), (None, None));
}

/// The node has got the volume back since.
#[test]
fn an_old_annotation_does_not_force_detach_a_returned_node() {
    for epoch in [Some(4), None] {
        let mut facts = lost("a");
        report(&mut facts);
        // `a` came back and got the volume again, like any node; then it is desired on `b`.
        facts.spec.node_name = Some("a".to_owned());
        facts.status.node = None;
        report(&mut facts);
        facts.status.node = Some("a".to_owned());
        facts.status.epoch = epoch;
        report(&mut facts);
        facts.spec.node_name = Some("b".to_owned());
        let status = report(&mut facts);
        assert_eq!(status.assigned_node.as_deref(), Some("a"), "{epoch:?}");
        assert_eq!(reason_of(&status, ASSIGNED), ("False", "WaitingForDetach"));
    }
}

/// Regression, found in review: the message asked for an annotation that the Volume had, and that no longer
/// counted.
#[test]
fn a_counted_annotation_is_to_be_removed_first() {
    let mut facts = lost("a");
    report(&mut facts);
    facts.spec.node_name = Some("a".to_owned());
    facts.status.node = None;
    report(&mut facts);
    (facts.status.node, facts.status.epoch) = (Some("a".to_owned()), Some(4));
    report(&mut facts);
    facts.spec.node_name = Some("b".to_owned());
    let message = |facts: &mut ClusterFacts| {
        let status = report(facts);
        find_condition(&status.conditions, ASSIGNED).expect("the condition").message.clone()
    };
    let again = "Remove that annotation first: it referred to an earlier epoch";
    assert!(message(&mut facts).ends_with(again), "{}", message(&mut facts));
    facts.force_detach = None;
    assert!(message(&mut facts).ends_with("holdfast.dev/force-detach=a"), "{}", message(&mut facts));
}

/// Regression: the annotation was ignored if it named the desired node, so that the loss of that node's disk
/// could not be accepted.
#[test]
fn a_node_without_its_disk_is_detached_and_granted_again() {
    let mut facts = lost("a");
    facts.spec.node_name = Some("a".to_owned());
    facts.status.epoch = Some(3);
    let status = report(&mut facts);
    let forced_detach = status.forced_detach.clone().expect("the node was force-detached");
    assert_eq!((forced_detach.node.as_str(), forced_detach.epoch), ("a", Some(3)));
    assert_eq!((status.assigned_node.as_deref(), status.phase), (Some("a"), Some(VolumePhase::Attaching)));
    assert_eq!(reason_of(&status, DATA_LOST), ("True", "ForceDetached"));
    assert_eq!(report(&mut facts), status);
    // It attaches; the annotation still exists.
    facts.status.epoch = Some(4);
    facts.status.device_path = Some("/dev/ublkb0".to_owned());
    let served = report(&mut facts);
    assert_eq!((served.phase, served.forced_detach), (Some(VolumePhase::Attached), status.forced_detach));
}

/// Found in review: once the grant had returned to a node whose detach did not end, no other node could get
/// the volume, whether the annotation stayed or was set again.
#[test]
fn a_grant_that_returned_to_a_stuck_node_moves_again() {
    let mut facts = lost("a");
    facts.spec.node_name = None;
    let status = report(&mut facts);
    assert_eq!((status.assigned_node.as_deref(), status.forced_detach.is_some()), (None, true));
    // The next pod starts on the same node, and then on another one.
    facts.spec.node_name = Some("a".to_owned());
    assert_eq!(report(&mut facts).assigned_node.as_deref(), Some("a"));
    facts.spec.node_name = None;
    assert_eq!(report(&mut facts).assigned_node, None);
    facts.spec.node_name = Some("b".to_owned());
    assert_eq!(report(&mut facts).assigned_node.as_deref(), Some("b"));
}

/// Regression: a node that attached and never reported its epoch could not be force-detached: the next node
/// was rejected repeatedly.
#[test]
fn a_node_without_an_epoch_is_force_detached_by_log() {
    let writer = |epoch| Some(AttachedWriter { node: "a".to_owned(), epoch, data_seq: 7 });
    // It is the node that claims the volume.
    let mut facts = lost("a");
    facts.status.epoch = None;
    assert!(facts.needs_log_writer());
    facts.log_writer = writer(7);
    let status = report(&mut facts);
    assert_eq!(status.forced_detach.and_then(|forced_detach| forced_detach.epoch), Some(7));

    // Another node claims it in the meantime, and is rejected.
    let mut facts = existing("b", "b", "b");
    facts.status.device_path = None;
    facts.force_detach = Some("a".to_owned());
    assert!(facts.needs_log_writer());
    assert_eq!(report(&mut facts).forced_detach, None, "the log names no such writer");
    facts.log_writer = writer(7);
    let status = report(&mut facts);
    let forced_detach = status.forced_detach.clone().expect("the node was force-detached");
    assert_eq!((forced_detach.node.as_str(), forced_detach.epoch), ("a", Some(7)));
    assert_eq!(status.assigned_node.as_deref(), Some("b"));
    assert_eq!(reason_of(&status, DATA_LOST), ("Unknown", "NotReported"));
    assert!(!facts.needs_log_writer(), "its epoch is known");

    // It gets the volume back: the permission for its old epoch must not apply to its new one.
    let mut facts = existing("a", "a", "a");
    facts.status.device_path = None;
    facts.force_detach = Some("a".to_owned());
    facts.status.forced_detach = Some(ForcedDetach { epoch: None, ..forced_detach });
    facts.log_writer = writer(9);
    assert_eq!(report(&mut facts).forced_detach.and_then(|forced_detach| forced_detach.epoch), None);
}

/// Node `a` is lost by its signs while the volume is desired on `b`.
fn lost_by_signs() -> ClusterFacts {
    let mut facts = ClusterFacts { lost: Some(DetachCause::OutOfService), ..lost("") };
    facts.log_writer = Some(AttachedWriter { node: "a".to_owned(), epoch: 4, data_seq: 7 });
    facts
}

#[test]
fn a_node_asked_to_release_a_volume_is_in_doubt() {
    assert_eq!(existing("b", "a", "a").node_in_doubt(), Some("a"));
    assert_eq!(existing("", "a", "a").node_in_doubt(), Some("a"));
    let deleting = ClusterFacts { deleting: true, ..existing("a", "a", "a") };
    assert_eq!(deleting.node_in_doubt(), Some("a"));
    assert_eq!(existing("a", "a", "a").node_in_doubt(), None, "it is to serve");
    assert_eq!(existing("b", "b", "").node_in_doubt(), None, "no node claims it");
    let mut manual = existing("b", "a", "a");
    manual.spec.failover_policy = FailoverPolicy::Manual;
    assert_eq!(manual.node_in_doubt(), None);
}

/// Regression: a lost node held its volumes until a user intervened.
#[test]
fn a_lost_node_is_cut_off_without_a_person() {
    let mut facts = lost_by_signs();
    let status = report(&mut facts);
    assert_eq!(status.assigned_node.as_deref(), Some("b"));
    let record = status.forced_detach.clone().expect("it was cut off");
    assert_eq!((record.cause, record.epoch), (DetachCause::OutOfService, Some(4)), "the log's epoch");
    let lost = find_condition(&status.conditions, DATA_LOST).expect("reported").clone();
    for part in ["node a ", "out of service", "at least 8192 bytes", "holdfast.dev/acknowledge-loss=4"] {
        assert!(lost.message.contains(part), "{}", lost.message);
    }
    // Its Node comes back, but its daemon does not: the permission stays.
    (facts.lost, facts.log_writer) = (None, None);
    assert_eq!(facts.node_in_doubt(), None);
    assert_eq!(report(&mut facts), status);
    // The next node serves: the loss is reported until it is acknowledged.
    (facts.status.node, facts.status.epoch) = (Some("b".to_owned()), Some(5));
    let served = report(&mut facts);
    assert_eq!(find_condition(&served.conditions, DATA_LOST), Some(&lost));
    facts.acknowledged = Some(3);
    assert!(report(&mut facts).forced_detach.is_some(), "another loss");
    facts.acknowledged = Some(4);
    let read = report(&mut facts);
    assert_eq!((read.forced_detach, find_condition(&read.conditions, DATA_LOST)), (None, None));
}

/// The node is alive: it made its final commit after the force-detach, and before another node attached.
#[test]
fn a_node_that_released_the_volume_after_all_lost_nothing() {
    let mut facts = ClusterFacts { log_writer: None, ..lost_by_signs() };
    facts.spec.node_name = None;
    let status = report(&mut facts);
    assert_eq!(status.assigned_node, None);
    facts.lost = None;
    (facts.status.node, facts.status.epoch, facts.status.device_path) = (None, None, None);
    assert!(facts.needs_log_writer());
    facts.log_writer = Some(AttachedWriter { node: "a".to_owned(), epoch: 3, data_seq: 7 });
    assert_eq!(report(&mut facts).forced_detach, status.forced_detach, "the log still calls it attached");
    (facts.log_writer, facts.released_epoch) = (None, Some(3));
    let back = report(&mut facts);
    assert_eq!((back.forced_detach, find_condition(&back.conditions, DATA_LOST)), (None, None));
}

/// Regression: the unacknowledged loss was forgotten when the next node was drained and released the volume.
#[test]
fn a_loss_stays_reported_until_it_is_acknowledged() {
    let mut facts = lost_by_signs();
    let lost = report(&mut facts).forced_detach.expect("it was cut off");
    let cut_off = lost.epoch.expect("it had attached");
    (facts.lost, facts.log_writer) = (None, None);
    (facts.status.node, facts.status.epoch) = (Some("b".to_owned()), Some(cut_off + 1));
    report(&mut facts);
    facts.spec.node_name = None;
    (facts.status.node, facts.status.device_path, facts.released_epoch) = (None, None, Some(cut_off + 1));
    assert!(facts.needs_log_writer());
    let drained = report(&mut facts);
    assert_eq!(drained.forced_detach, Some(lost));
    assert!(find_condition(&drained.conditions, DATA_LOST).is_some());
}

/// Regression: the second loss replaced the record and message of the first, unacknowledged one.
#[test]
fn a_second_loss_does_not_hide_an_unread_first() {
    let mut facts = lost_by_signs();
    let first = report(&mut facts).forced_detach.expect("it was cut off");
    (facts.lost, facts.status.node, facts.status.epoch) = (None, Some("b".to_owned()), Some(5));
    report(&mut facts);
    facts.spec.node_name = Some("c".to_owned());
    facts.lost = Some(DetachCause::NodeNotReady);
    facts.log_writer = Some(AttachedWriter { node: "b".to_owned(), epoch: 5, data_seq: 9 });
    let both = report(&mut facts);
    let second = both.forced_detach.clone().expect("it was cut off");
    assert_eq!((second.node.as_str(), &both.earlier_losses), ("b", &vec![first.clone()]));
    let message = |status: &VolumeStatus| {
        find_condition(&status.conditions, DATA_LOST).map(|lost| lost.message.clone()).unwrap_or_default()
    };
    for part in ["node b was cut off", "acknowledge-loss=5", "node a was cut off", "acknowledge-loss=4"] {
        assert!(message(&both).contains(part), "{part}: {}", message(&both));
    }
    // Nothing changes until a user acknowledges one, in any order.
    (facts.lost, facts.log_writer) = (None, None);
    (facts.status.node, facts.status.epoch) = (Some("c".to_owned()), Some(6));
    let served = report(&mut facts);
    assert_eq!((&served.earlier_losses, message(&served)), (&both.earlier_losses, message(&both)));
    let mut of_first = facts.clone();
    of_first.acknowledged = Some(4);
    let read = report(&mut of_first);
    assert_eq!((&read.forced_detach, read.earlier_losses.len()), (&both.forced_detach, 0));
    assert!(!message(&read).contains("node a"), "{}", message(&read));
    facts.acknowledged = Some(5);
    let read = report(&mut facts);
    assert_eq!((read.forced_detach, read.earlier_losses, read.conditions.len()), (None, Vec::new(), 3));
}

/// Regression: with forced detaches for months and no acknowledgement, the status listed each loss.
#[test]
fn many_unread_losses_are_summed_up() {
    let mut facts = lost_by_signs();
    for epoch in 4..24 {
        facts.status.node = Some(format!("n{epoch}"));
        (facts.status.epoch, facts.status.dirty_bytes) = (Some(epoch), (epoch != 6).then_some(100));
        (facts.lost, facts.log_writer) = (Some(DetachCause::NodeNotReady), None);
        report(&mut facts);
        facts.lost = None;
    }
    (facts.status.node, facts.status.epoch) = (Some("b".to_owned()), Some(24));
    let status = report(&mut facts);
    assert_eq!(status.earlier_losses.len(), MAX_EARLIER);
    let older = status.older_losses.clone().expect("more than are named");
    // Of 20 losses one is the newest, and eight are listed.
    assert_eq!((older.count, older.not_reported, older.dirty_bytes, older.epoch), (11, 1, 1000, Some(14)));
    let message = |status: &VolumeStatus| {
        find_condition(&status.conditions, DATA_LOST).map(|lost| lost.message.clone()).unwrap_or_default()
    };
    let said = message(&status);
    for part in ["node n23 was cut off", "node n15 was", "11 more times", "acknowledge-loss=14): 1000 bytes"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(said.len() < 4096, "{} bytes", said.len());
    // A loss that is part of the sum is not acknowledged alone.
    for (read, left) in [(9, Some(11)), (14, None)] {
        let mut facts = facts.clone();
        facts.acknowledged = Some(read);
        let status = report(&mut facts);
        assert_eq!((status.older_losses.map(|older| older.count), status.earlier_losses.len()), (left, 8));
    }
    facts.acknowledged = Some(23);
    let read = report(&mut facts);
    assert_eq!((read.forced_detach, read.earlier_losses.len(), read.older_losses), (None, 0, None));
    assert!(find_condition(&read.conditions, DATA_LOST).is_none());
}

/// The second node released the volume after all, and the first one's loss is still unacknowledged.
#[test]
fn a_second_loss_that_was_none_leaves_the_first() {
    let mut facts = lost_by_signs();
    let first = report(&mut facts).forced_detach.expect("it was cut off");
    (facts.lost, facts.status.node, facts.status.epoch) = (None, Some("b".to_owned()), Some(5));
    report(&mut facts);
    facts.spec.node_name = None;
    facts.lost = Some(DetachCause::NodeNotReady);
    facts.log_writer = Some(AttachedWriter { node: "b".to_owned(), epoch: 5, data_seq: 9 });
    report(&mut facts);
    (facts.lost, facts.log_writer, facts.released_epoch) = (None, None, Some(5));
    (facts.status.node, facts.status.epoch, facts.status.device_path) = (None, None, None);
    let released = report(&mut facts);
    assert_eq!((&released.forced_detach, &released.earlier_losses), (&None, &vec![first]));
    let lost = find_condition(&released.conditions, DATA_LOST).expect("the first is unread").clone();
    assert!(lost.message.contains("acknowledge-loss=4") && !lost.message.contains("node b"), "{lost:?}");
    facts.acknowledged = Some(4);
    assert_eq!(report(&mut facts).earlier_losses, []);
}

/// The lost node came back, got the volume again, and is lost again.
#[test]
fn a_node_is_lost_once_more() {
    let mut facts = lost_by_signs();
    report(&mut facts);
    facts.spec.node_name = Some("a".to_owned());
    (facts.lost, facts.status.epoch) = (None, Some(9));
    report(&mut facts);
    facts.spec.node_name = Some("b".to_owned());
    assert_eq!(facts.node_in_doubt(), Some("a"));
    facts.lost = Some(DetachCause::NodeDeleted);
    facts.log_writer = Some(AttachedWriter { node: "a".to_owned(), epoch: 9, data_seq: 7 });
    let again = report(&mut facts).forced_detach.expect("it was cut off");
    assert_eq!((again.cause, again.epoch), (DetachCause::NodeDeleted, Some(9)));
}

#[test]
fn unreported_data_of_a_lost_node_counts_as_unknown() {
    for (dirty, reason) in [(None, "NotReported"), (Some(0), "NothingReported")] {
        let mut facts = lost("a");
        facts.status.dirty_bytes = dirty;
        assert_eq!(reason_of(last_report(&plan(&facts, &now())), DATA_LOST), ("Unknown", reason));
    }
}

#[test]
fn a_volume_is_deleted_without_its_lost_node() {
    let facts = ClusterFacts { deleting: true, ..lost("a") };
    assert_eq!(names(&plan(&facts, &now())), ["report", "remove", "finalizer-"]);
}
