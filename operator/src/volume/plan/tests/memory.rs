//! Memory volumes: the plan neither queries nor waits for an object store.

use super::*;

/// A new memory volume.
fn memory() -> ClusterFacts {
    let spec = serde_json::json!({ "size": "1Gi", "backend": "memory", "volumeID": "uid-1" });
    let spec = serde_json::from_value(spec).expect("a spec");
    ClusterFacts { spec, store: StoreFact::None, trash: None, ..new_volume() }
}

/// A provisioned memory volume, desired on `desired` and served by `serving`.
fn provisioned(desired: &str, serving: &str) -> ClusterFacts {
    let served = existing(desired, serving, serving);
    let mut facts = ClusterFacts { status: served.status, finalizer: true, ..memory() };
    facts.spec.node_name = served.spec.node_name;
    facts.status.epoch = (!serving.is_empty()).then_some(1_800_000_000);
    facts
}

#[test]
fn a_memory_volume_is_provisioned_without_a_store() {
    assert_eq!(names(&plan(&memory(), &now())), ["register"], "its deletion waits for the node");
    let mut facts = ClusterFacts { finalizer: true, ..memory() };
    facts.spec.node_name = Some("a".to_owned());
    let steps = plan(&facts, &now());
    assert_eq!(names(&steps), ["report"]);
    let status = last_report(&steps);
    assert_eq!(reason_of(status, PROVISIONED), ("True", "Created"));
    assert_eq!((status.phase, status.assigned_node.as_deref()), (Some(VolumePhase::Attaching), Some("a")));
    assert_eq!(status.volume_id.as_deref(), Some("uid-1"));
    facts.status = status.clone();
    assert!(!facts.needs_log_writer() && !facts.needs_found() && !facts.needs_last_writer());
}

#[test]
fn a_limit_that_is_no_size_fails_by_its_field() {
    let mut facts = ClusterFacts { finalizer: true, ..memory() };
    facts.spec.memory = Some(serde_json::from_value(serde_json::json!({ "limit": "1" })).expect("a spec"));
    let steps = plan(&facts, &now());
    let status = last_report(&steps);
    assert_eq!(status.phase, Some(VolumePhase::Failed));
    assert!(status.conditions[0].message.starts_with("spec.memory.limit: "), "{:?}", status.conditions[0]);
}

#[test]
fn a_deleted_memory_volume_waits_for_its_node_alone() {
    let deleted = |facts| ClusterFacts { deleting: true, ..facts };
    assert_eq!(names(&plan(&deleted(provisioned("", "a")), &now())), ["report"]);
    assert_eq!(names(&plan(&deleted(provisioned("", "")), &now())), ["finalizer-"]);
    let lost = ClusterFacts { lost: Some(DetachCause::NodeDeleted), ..deleted(provisioned("", "a")) };
    assert_eq!(names(&plan(&lost, &now())), ["finalizer-"], "nothing of it is left elsewhere");
}

/// The node of a memory volume has nothing to upload. No condition reports unuploaded data, and no
/// acknowledgement is needed.
#[test]
fn a_lost_node_frees_a_memory_volume_for_another() {
    let mut facts = ClusterFacts { lost: Some(DetachCause::NodeNotReady), ..provisioned("b", "a") };
    assert!(!facts.needs_log_writer(), "there is no log");
    let steps = plan(&facts, &now());
    let status = last_report(&steps);
    assert_eq!(status.assigned_node.as_deref(), Some("b"));
    assert_eq!(find_condition(&status.conditions, DATA_LOST), None);
    let record = status.forced_detach.clone().expect("a record");
    assert_eq!((record.node.as_str(), record.epoch), ("a", Some(1_800_000_000)));
    // The next node claims it, and attaches it with a later epoch.
    facts.status = VolumeStatus { node: Some("b".to_owned()), epoch: None, ..status.clone() };
    facts.lost = None;
    assert!(last_report(&plan(&facts, &now())).forced_detach.is_some(), "it did not attach yet");
    facts.status.epoch = Some(1_800_000_001);
    assert_eq!(last_report(&plan(&facts, &now())).forced_detach, None);
    // The first node may have it again.
    facts.spec.node_name = None;
    facts.status = VolumeStatus { node: None, epoch: None, ..facts.status };
    facts.spec.node_name = Some("a".to_owned());
    assert_eq!(last_report(&plan(&facts, &now())).assigned_node.as_deref(), Some("a"));
}

/// Regression: without an epoch in the record, every next attach counted as the force-detached one.
#[test]
fn a_node_cut_off_before_its_report_leaves_an_epoch() {
    let mut facts = ClusterFacts { lost: Some(DetachCause::NodeNotReady), ..provisioned("b", "a") };
    (facts.status.epoch, facts.status.last_epoch) = (None, Some(1_800_000_007));
    let record = last_report(&plan(&facts, &now())).forced_detach.clone().expect("a record");
    assert_eq!((record.node.as_str(), record.epoch), ("a", Some(1_800_000_007)));
}

/// Regression: the message advised deletion with `Retain`, which a memory volume does not support.
#[test]
fn a_duplicate_memory_volume_gets_no_advice_to_retain() {
    let mut facts = ClusterFacts { finalizer: true, ..memory() };
    facts.identity.rival = Some("first".to_owned());
    let steps = plan(&facts, &now());
    let message = &last_report(&steps).conditions[0].message;
    assert!(message.contains("Delete one of the two, or create"), "{message}");
}
