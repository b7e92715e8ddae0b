//! Plans as tables: facts in, steps out. No API server.

use holdfast_crds::{
    CloneSource, DeletionPolicy, DetachCause, Empty, FailoverPolicy, ForcedDetach, SnapshotSource,
    VolumeSource, VolumeSpec,
};

use holdfast_types::SnapshotUid;

use super::super::facts::{AttachedWriter, ContentFacts, VolumeIdentity};
use super::super::found_in_store::LastWriter;
use super::super::snapshot_fact::{SnapshotFact, TakenSnapshot};
use super::super::source_fact::SourceFact;
use std::time::Duration;

use super::*;

mod losses;
mod memory;

fn now() -> Time {
    Time("2026-01-01T00:00:00Z".parse().expect("a timestamp"))
}

fn spec() -> VolumeSpec {
    let spec = serde_json::json!({ "size": "1Gi", "objectStore": "store", "volumeID": "uid-1" });
    serde_json::from_value(spec).expect("a spec")
}

/// A new volume whose store is Ready.
fn new_volume() -> ClusterFacts {
    ClusterFacts {
        identity: VolumeIdentity {
            name: "data".to_owned(),
            uid: "uid-1".to_owned(),
            id: "uid-1".to_owned(),
            rival: None,
        },
        content: ContentFacts::NOT_READ,
        generation: 3,
        spec: spec(),
        status: VolumeStatus::default(),
        finalizer: false,
        deleting: false,
        force_detach: None,
        log_writer: None,
        released_epoch: None,
        lost: None,
        acknowledged: None,
        store: StoreFact::Ready,
        trash: Some(terms()),
        node_known: true,
    }
}

fn terms() -> TrashTerms {
    TrashTerms { keep: Duration::from_hours(24), owner: "store-uid".to_owned() }
}

/// A volume that exists in its store and is desired on `desired`, granted to `assigned`, served by `serving`.
fn existing(desired: &str, assigned: &str, serving: &str) -> ClusterFacts {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let mut facts = ClusterFacts { finalizer: true, ..new_volume() };
    facts.spec.node_name = text(desired);
    facts.status = VolumeStatus {
        volume_id: Some(facts.identity.id.clone()),
        assigned_node: text(assigned),
        node: text(serving),
        device_path: text(serving).map(|_| "/dev/ublkb0".to_owned()),
        conditions: vec![facts.conditions(&now()).build(PROVISIONED, ConditionStatus::True, "Created", "")],
        ..VolumeStatus::default()
    };
    facts
}

fn names(steps: &[OperatorStep]) -> Vec<&'static str> {
    steps
        .iter()
        .map(|step| match step {
            OperatorStep::Register => "register",
            OperatorStep::SetSize { .. } => "size",
            OperatorStep::Report(_) => "report",
            OperatorStep::Provision { .. } => "provision",
            OperatorStep::TakeSource { .. } => "take",
            OperatorStep::DropSource => "drop",
            OperatorStep::TakeBack { .. } => "back",
            OperatorStep::RemoveObjects { .. } => "remove",
            OperatorStep::RemoveFinalizer => "finalizer-",
        })
        .collect()
}

fn last_report(steps: &[OperatorStep]) -> &VolumeStatus {
    let reports = steps
        .iter()
        .rev()
        .find_map(|step| if let OperatorStep::Report(status) = step { Some(status) } else { None });
    reports.expect("a report")
}

fn reason_of<'a>(status: &'a VolumeStatus, type_: &str) -> (&'a str, &'a str) {
    let condition = find_condition(&status.conditions, type_).expect("the condition");
    (condition.status.as_str(), condition.reason.as_str())
}

/// Found in review: the policy refused all conditions but the node's own, so after a rollback an older daemon
/// could not remove one that it did not know, and none of its reports was accepted.
#[test]
fn the_policy_protects_exactly_the_operators_conditions() {
    let policies = include_str!("../../../../charts/holdfast/templates/policies.yaml");
    let listed = OPERATORS_CONDITIONS.map(|type_| format!("'{type_}'")).join(", ");
    assert!(policies.contains(&format!("expression: \"[{listed}]\"")), "{listed}");
}

/// Found in review: after a rollback, an operator could not read a Volume with a value that it did not know.
/// It must not treat the value as another one: nothing is created, moved or deleted.
#[test]
fn a_volume_with_a_value_of_a_later_release_is_untouched() {
    let later = |mut facts: ClusterFacts| {
        facts.spec.deletion_policy = DeletionPolicy::Unknown;
        facts
    };
    let reported = |facts: &ClusterFacts| {
        let steps = plan(facts, &now());
        assert_eq!(names(&steps), ["report"]);
        last_report(&steps).clone()
    };
    let status = reported(&later(new_volume()));
    assert_eq!((status.phase, status.volume_id.as_deref()), (Some(VolumePhase::Failed), None));
    assert_eq!(reason_of(&status, PROVISIONED), ("False", UNKNOWN_VALUE));
    let message = &find_condition(&status.conditions, READY).expect("Ready").message;
    assert!(message.starts_with("spec.deletionPolicy: "), "{message}");

    let mut facts = later(existing("b", "a", "a"));
    let status = reported(&facts);
    assert_eq!((status.assigned_node.as_deref(), status.volume_id.as_deref()), (Some("a"), Some("uid-1")));
    assert_eq!(reason_of(&status, PROVISIONED), ("True", "Created"));
    assert_eq!(reason_of(&status, READY), ("False", UNKNOWN_VALUE));
    (facts.status.conditions, facts.status.phase) = (status.conditions.clone(), status.phase);
    assert_eq!(reported(&facts), status, "it is written once");

    let deleted = ClusterFacts { deleting: true, ..later(existing("", "", "")) };
    let status = reported(&deleted);
    assert_eq!(reason_of(&status, PROVISIONED), ("True", "DeletionBlocked"));
    let unregistered = ClusterFacts { finalizer: false, ..deleted };
    assert_eq!(names(&plan(&unregistered, &now())), [""; 0]);
}

#[test]
fn a_new_volume_is_recorded_before_it_is_created() {
    let steps = plan(&new_volume(), &now());
    assert_eq!(names(&steps), ["register", "report", "provision", "report"]);
    let OperatorStep::Report(intent) = &steps[1] else { panic!("a report") };
    assert_eq!(intent.volume_id.as_deref(), Some("uid-1"));
    assert_eq!(intent.phase, Some(VolumePhase::Pending));
    assert_eq!(steps[2], OperatorStep::Provision { size_bytes: Some(1 << 30), snapshot: None });
    let done = last_report(&steps);
    assert_eq!(done.phase, Some(VolumePhase::Ready));
    assert_eq!(done.observed_generation, Some(3));
    assert_eq!(reason_of(done, PROVISIONED), ("True", "Created"));
}

#[test]
fn an_operator_killed_after_any_step_continues_from_there() {
    let mut facts = new_volume();
    facts.finalizer = true;
    assert_eq!(names(&plan(&facts, &now())), ["report", "provision", "report"]);
    facts.status.volume_id = Some("uid-1".to_owned());
    assert_eq!(names(&plan(&facts, &now())), ["provision", "report"]);
    assert_eq!(names(&plan(&existing("", "", ""), &now())), ["report"]);
}

#[test]
fn provisioning_needs_a_fit_store_and_names_the_field() {
    let not_ready =
        StoreFact::NotReady { reason: "CreateOnceIgnored".to_owned(), message: "spec.bucket: no".to_owned() };
    for (store, phase, reason) in [
        (StoreFact::Missing, VolumePhase::Pending, "ObjectStoreMissing"),
        (StoreFact::None, VolumePhase::Failed, "ObjectStoreMissing"),
        (StoreFact::Unprobed, VolumePhase::Pending, "ObjectStoreUnprobed"),
        (not_ready, VolumePhase::Pending, "ObjectStoreNotReady"),
    ] {
        let facts = ClusterFacts { store: store.clone(), ..new_volume() };
        let steps = plan(&facts, &now());
        assert_eq!(names(&steps), ["report"], "{store:?}");
        let status = last_report(&steps);
        assert_eq!(status.phase, Some(phase), "{store:?}");
        assert_eq!(status.volume_id, None);
        assert_eq!(reason_of(status, PROVISIONED), ("False", reason));
        assert!(status.conditions[0].message.starts_with("spec.objectStore: "), "{:?}", status.conditions[0]);
    }
}

#[test]
fn unsupported_specs_fail_and_name_the_field() {
    let mut facts = new_volume();
    facts.spec.size = Some("1".to_owned());
    let steps = plan(&facts, &now());
    assert_eq!(names(&steps), ["report"]);
    let status = last_report(&steps);
    assert_eq!(status.phase, Some(VolumePhase::Failed));
    assert!(status.conditions[0].message.starts_with("spec.size: "), "{:?}", status.conditions[0]);
    assert_eq!(new_volume().spec.source, VolumeSource::Empty(Empty {}));
}

#[test]
fn the_grant_moves_only_while_no_node_serves() {
    use VolumePhase::{Attached, Attaching, Detaching, Ready};
    // desired, assigned, serving -> granted, phase, Assigned
    for (desired, assigned, serving, granted, phase, condition) in [
        ("", "", "", None, Ready, ("False", "NotRequested")),
        ("a", "", "", Some("a"), Attaching, ("True", "Granted")),
        ("a", "a", "", Some("a"), Attaching, ("True", "Granted")),
        ("a", "a", "a", Some("a"), Attached, ("True", "Granted")),
        ("b", "a", "a", Some("a"), Detaching, ("False", "WaitingForDetach")),
        ("", "a", "a", Some("a"), Detaching, ("False", "WaitingForDetach")),
        ("b", "a", "", Some("b"), Attaching, ("True", "Granted")),
        ("", "a", "", None, Ready, ("False", "NotRequested")),
        // A node serves it without a grant: no other node may get it.
        ("b", "", "a", None, Detaching, ("False", "WaitingForDetach")),
        ("b", "b", "a", Some("b"), Detaching, ("False", "WaitingForDetach")),
    ] {
        let case = format!("desired {desired:?}, assigned {assigned:?}, serving {serving:?}");
        let steps = plan(&existing(desired, assigned, serving), &now());
        assert_eq!(names(&steps), ["report"], "{case}");
        let status = last_report(&steps);
        assert_eq!(status.assigned_node.as_deref(), granted, "{case}");
        assert_eq!(status.phase, Some(phase), "{case}");
        assert_eq!(reason_of(status, ASSIGNED), condition, "{case}");
    }
}

#[test]
fn a_claim_without_a_device_is_attaching() {
    let mut facts = existing("a", "a", "a");
    facts.status.device_path = None;
    assert_eq!(last_report(&plan(&facts, &now())).phase, Some(VolumePhase::Attaching));
}

#[test]
fn an_unreachable_store_changes_nothing_for_an_existing_volume() {
    let facts = ClusterFacts { store: StoreFact::Missing, ..existing("a", "a", "a") };
    assert_eq!(last_report(&plan(&facts, &now())).phase, Some(VolumePhase::Attached));
}

#[test]
fn an_unknown_node_is_granted_with_a_hint() {
    let facts = ClusterFacts { node_known: false, ..existing("typo", "", "") };
    let steps = plan(&facts, &now());
    let condition = find_condition(&last_report(&steps).conditions, ASSIGNED).expect("assigned");
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("True", NODE_UNKNOWN));
    assert!(condition.message.contains("spec.nodeName"), "{}", condition.message);
}

#[test]
fn growth_is_reported_until_the_device_has_it() {
    let mut facts = existing("a", "a", "a");
    facts.status.attached_size_bytes = Some(1 << 29);
    assert_eq!(reason_of(last_report(&plan(&facts, &now())), RESIZED), ("False", "WaitingForNode"));
    facts.status.attached_size_bytes = Some(1 << 30);
    assert_eq!(reason_of(last_report(&plan(&facts, &now())), RESIZED), ("True", "Grown"));
}

#[test]
fn deletion_waits_for_the_node_then_removes_objects_then_releases() {
    let deleting = |serving: &str| ClusterFacts { deleting: true, ..existing("a", "a", serving) };
    let waiting = plan(&deleting("a"), &now());
    assert_eq!(names(&waiting), ["report"]);
    assert_eq!(last_report(&waiting).assigned_node.as_deref(), Some("a"));
    assert_eq!(last_report(&waiting).phase, Some(VolumePhase::Deleting));
    assert_eq!(reason_of(last_report(&waiting), PROVISIONED), ("True", "WaitingForDetach"));
    let steps = plan(&deleting(""), &now());
    assert_eq!(names(&steps), ["report", "remove", "finalizer-"]);
    assert_eq!(last_report(&steps).assigned_node, None);
}

/// Regression: `Deleting` and the reason of the failure alternated without end and without a pause, because
/// our own write triggers the next attempt.
#[test]
fn a_removal_that_fails_is_reported_once() {
    let mut facts = ClusterFacts { deleting: true, ..existing("", "", "") };
    facts.status.phase = Some(VolumePhase::Ready);
    let began = plan(&facts, &now());
    assert_eq!(names(&began), ["report", "remove", "finalizer-"]);
    facts.status = last_report(&began).clone();
    facts.status.conditions[0].reason = "HasSnapshots".to_owned();
    assert_eq!(names(&plan(&facts, &now())), ["remove", "finalizer-"]);
    facts.status.conditions[0].reason = "DeletionBlocked".to_owned();
    assert_eq!(
        names(&plan(&facts, &now())),
        ["report", "remove", "finalizer-"],
        "what it waited for is over"
    );
}

#[test]
fn deletion_without_a_store_waits_and_says_what_helps() {
    for store in [StoreFact::Missing, StoreFact::NotReady { reason: "R".to_owned(), message: "m".to_owned() }]
    {
        let facts = ClusterFacts { deleting: true, store, ..existing("", "", "") };
        let steps = plan(&facts, &now());
        assert_eq!(names(&steps), ["report"]);
        let condition = find_condition(&last_report(&steps).conditions, PROVISIONED).expect("provisioned");
        assert_eq!(condition.reason, "DeletionBlocked");
        assert!(condition.message.contains("spec.deletionPolicy"), "{}", condition.message);
    }
}

#[test]
fn deletion_of_absent_or_retained_objects_needs_no_store() {
    let never = ClusterFacts { deleting: true, finalizer: true, store: StoreFact::Missing, ..new_volume() };
    assert_eq!(names(&plan(&never, &now())), ["finalizer-"]);
    let mut retained = ClusterFacts { deleting: true, store: StoreFact::Missing, ..existing("", "", "") };
    retained.spec.deletion_policy = DeletionPolicy::Retain;
    assert_eq!(names(&plan(&retained, &now())), ["finalizer-"]);
    let released = ClusterFacts { deleting: true, ..new_volume() };
    assert_eq!(names(&plan(&released, &now())), [""; 0]);
}

#[test]
fn a_plan_made_again_writes_the_same_status() {
    let mut facts = existing("a", "a", "a");
    let later = Time("2026-01-02T00:00:00Z".parse().expect("a timestamp"));
    let first = last_report(&plan(&facts, &now())).clone();
    facts.status =
        VolumeStatus { node: facts.status.node, device_path: facts.status.device_path, ..first.clone() };
    let second = last_report(&plan(&facts, &later)).clone();
    assert_eq!(first, second);
    assert_eq!(operators_part(&facts.status), second);
}

#[test]
fn only_needed_facts_are_looked_up() {
    assert!(new_volume().needs_store());
    assert!(!existing("a", "a", "a").needs_store());
    assert!(ClusterFacts { deleting: true, ..existing("a", "a", "a") }.needs_store());
    assert_eq!(existing("a", "a", "a").node_in_question(), None);
    assert_eq!(existing("b", "a", "a").node_in_question(), Some("b"));
    let facts = ClusterFacts { store: StoreFact::NotRead, ..existing("a", "a", "a") };
    assert_eq!(last_report(&plan(&facts, &now())).phase, Some(VolumePhase::Attached));
}

/// `kubectl wait`, and generic tools that check an object's health, only know this condition.
#[test]
fn ready_compares_the_volume_with_its_spec() {
    let attaching = {
        let mut facts = existing("a", "a", "a");
        facts.status.device_path = None;
        facts
    };
    let full = ClusterFacts { store: StoreFact::Missing, ..new_volume() };
    let deleted = ClusterFacts { deleting: true, ..existing("a", "a", "a") };
    for (facts, expected, says) in [
        (existing("", "", ""), ("True", "Detached"), "spec.nodeName names no node"),
        (existing("a", "a", "a"), ("True", "Attached"), "node a serves"),
        (existing("a", "", ""), ("False", "Attaching"), "node a may serve"),
        (attaching, ("False", "Attaching"), "see the condition Attached"),
        (existing("b", "a", "a"), ("False", "WaitingForDetach"), "node a still serves"),
        (existing("", "a", "a"), ("False", "WaitingForDetach"), "node a still serves"),
        (full, ("False", "ObjectStoreMissing"), "spec.objectStore"),
        (deleted, ("False", "WaitingForDetach"), "node a still serves"),
    ] {
        let steps = plan(&facts, &now());
        let status = last_report(&steps);
        let ready = find_condition(&status.conditions, READY).expect("the condition");
        assert_eq!((ready.status.as_str(), ready.reason.as_str()), expected, "{facts:?}");
        assert!(ready.message.contains(says), "{says:?} is not in {:?}", ready.message);
        assert_eq!(operators_part(status), *status, "it is part of what the operator writes");
    }
}

/// Regression: a saved Volume became a different, empty one when reapplied: its identity was the uid.
#[test]
fn a_volume_carries_its_identity_in_its_spec() {
    let mut facts = new_volume();
    facts.spec.volume_id = None;
    assert_eq!(names(&plan(&facts, &now())), ["register"], "nothing is created before it has one");
    let mut facts = existing("", "", "");
    facts.spec.volume_id = None;
    assert_eq!(names(&plan(&facts, &now())), ["register", "report"], "one of an earlier version");
}

/// A volume to adopt with this desired size, while the store holds `found`.
fn adopted(size: Option<&str>, found: FoundInStore) -> ClusterFacts {
    let content = ContentFacts { found: Some(found), ..ContentFacts::NOT_READ };
    let mut facts = ClusterFacts { content, finalizer: true, ..new_volume() };
    facts.spec.source = VolumeSource::Existing(Empty {});
    facts.spec.size = size.map(str::to_owned);
    facts
}

fn there() -> FoundInStore {
    let last = LastWriter { node: "gone".to_owned(), epoch: 7, since: None, is_attached: true };
    FoundInStore::Volume { size_bytes: 1 << 30, last: Some(last) }
}

#[test]
fn an_existing_volume_is_adopted_with_its_size() {
    assert_eq!(plan(&adopted(None, there()), &now()), [OperatorStep::SetSize { size_bytes: 1 << 30 }]);
    for size in ["1Gi", "2Gi"] {
        let mut facts = adopted(Some(size), there());
        assert!(facts.needs_found());
        let steps = plan(&facts, &now());
        assert_eq!(names(&steps), ["report", "back", "report"], "nothing is provisioned");
        let status = last_report(&steps).clone();
        assert_eq!((status.phase, status.volume_id.as_deref()), (Some(VolumePhase::Ready), Some("uid-1")));
        assert_eq!(reason_of(&status, PROVISIONED), ("True", "Adopted"));
        let message = status.conditions[0].message.clone();
        for part in ["1073741824 bytes", "node gone ", "epoch 7", "has not detached", "force-detach=gone"] {
            assert!(message.contains(part), "{message}");
        }
        (facts.status, facts.content.found) = (status, None);
        assert!(!facts.needs_found(), "the log is read once");
        assert_eq!(last_report(&plan(&facts, &now())).conditions[0].message, message);
    }
}

#[test]
fn an_impossible_adoption_names_the_field() {
    for (found, size, reason, part) in [
        (
            there(),
            "512Mi",
            "InvalidSize",
            "spec.size: the volume `uid-1` in ObjectStore `store` has 1073741824 bytes and cannot shrink to 536870912; write `1Gi` or more",
        ),
        (
            FoundInStore::Nothing,
            "1Gi",
            "VolumeNotFound",
            "spec.volumeID: ObjectStore `store` holds no volume `uid-1`",
        ),
        (
            FoundInStore::Tombstone,
            "1Gi",
            "VolumeDeleted",
            "spec.volumeID: the volume `uid-1` in ObjectStore `store` was deleted",
        ),
    ] {
        let steps = plan(&adopted(Some(size), found), &now());
        assert_eq!(names(&steps), ["report"], "{reason}");
        let status = last_report(&steps);
        assert_eq!((status.phase, status.volume_id.as_deref()), (Some(VolumePhase::Failed), None));
        assert_eq!(reason_of(status, PROVISIONED), ("False", reason));
        assert!(status.conditions[0].message.starts_with(part), "{}", status.conditions[0].message);
    }
}

/// A volume that starts from VolumeSnapshot `nightly`, with this desired size.
fn restored(size: Option<&str>, snapshot: SnapshotFact) -> ClusterFacts {
    let content = ContentFacts { snapshot, ..ContentFacts::NOT_READ };
    let mut facts = ClusterFacts { content, finalizer: true, ..new_volume() };
    facts.spec.source = VolumeSource::Snapshot(SnapshotSource { name: "nightly".to_owned() });
    facts.spec.size = size.map(str::to_owned);
    facts
}

const UID: SnapshotUid = SnapshotUid([7; 16]);

/// The source of a volume, whose VolumeSnapshot may still exist.
fn source(name: &str, is_known: bool) -> Option<SourceSnapshot> {
    Some(SourceSnapshot { name: name.parse().expect("a name"), uid: is_known.then_some(UID) })
}

/// A snapshot of 1 GiB in this ObjectStore.
fn taken(name: &str, store: &str) -> SnapshotFact {
    let name = name.parse().expect("the name of a snapshot");
    SnapshotFact::Ready(TakenSnapshot { name, uid: UID, object_store: store.to_owned(), size_bytes: 1 << 30 })
}

#[test]
fn a_volume_begins_with_a_snapshot_that_is_taken() {
    for (size, size_bytes) in [(None, None), (Some("1Gi"), Some(1 << 30)), (Some("2Gi"), Some(2 << 30))] {
        let facts = ClusterFacts { finalizer: false, ..restored(size, taken("data@17", "store")) };
        assert_eq!(facts.snapshot_in_question(), Some("nightly"));
        let steps = plan(&facts, &now());
        assert_eq!(names(&steps), ["register", "report", "provision", "report"], "{size:?}");
        let OperatorStep::Report(intent) = &steps[1] else { panic!("a report") };
        assert_eq!(intent.volume_id.as_deref(), Some("uid-1"));
        assert_eq!(intent.restored_from.as_deref(), Some("data@17"));
        let snapshot = source("data@17", true);
        assert_eq!(steps[2], OperatorStep::Provision { size_bytes, snapshot });
        let done = last_report(&steps);
        assert_eq!((done.phase, done.restored_from.as_deref()), (Some(VolumePhase::Ready), Some("data@17")));
        assert_eq!(reason_of(done, PROVISIONED), ("True", "Restored"));
    }
}

/// The operator dies after recording the snapshot. By then the VolumeSnapshot may be deleted or its name
/// reused: then only a volume that was already created is completed.
#[test]
fn an_interrupted_restore_continues_with_the_recorded_snapshot() {
    let begun = plan(&restored(None, taken("data@17", "store")), &now());
    let OperatorStep::Report(intent) = &begun[0] else { panic!("a report") };
    for later in [
        SnapshotFact::NotRead,
        SnapshotFact::Missing,
        SnapshotFact::Deleting,
        taken("other@3", "elsewhere"),
        taken("data@17", "elsewhere"),
        taken("data@17", "store"),
    ] {
        let mut facts = ClusterFacts { status: (**intent).clone(), ..restored(None, later.clone()) };
        assert_eq!(facts.snapshot_in_question(), Some("nightly"), "{later:?}");
        let steps = plan(&facts, &now());
        assert_eq!(names(&steps), ["provision", "report"], "{later:?}");
        let snapshot = source("data@17", later == taken("data@17", "store"));
        assert_eq!(steps[0], OperatorStep::Provision { size_bytes: None, snapshot });
        // It stays reported, regardless of later reports.
        facts.status = last_report(&steps).clone();
        assert_eq!(last_report(&plan(&facts, &now())).restored_from.as_deref(), Some("data@17"));
        facts.deleting = true;
        assert_eq!(last_report(&plan(&facts, &now())).restored_from.as_deref(), Some("data@17"));
    }
}

#[test]
fn a_snapshot_that_cannot_be_restored_names_the_field() {
    use VolumePhase::{Failed, Pending};
    let why = || "Taking: node a, which serves the volume, takes the snapshot".to_owned();
    for (fact, size, phase, reason, prefix, fix) in [
        (
            SnapshotFact::Missing,
            None,
            Failed,
            "SnapshotNotFound",
            "spec.source.snapshot.name: no VolumeSnapshot has the name `nightly`",
            "create it",
        ),
        (
            SnapshotFact::Deleting,
            None,
            Failed,
            "SnapshotDeleted",
            "spec.source.snapshot.name: VolumeSnapshot `nightly` is being deleted",
            "the name of another",
        ),
        (
            SnapshotFact::NotReady { why: why() },
            None,
            Pending,
            "SnapshotNotReady",
            "spec.source.snapshot.name: waiting for VolumeSnapshot `nightly` to be Ready (Taking: node a",
            "",
        ),
        (
            SnapshotFact::Failed { why: why() },
            None,
            Failed,
            "SnapshotFailed",
            "spec.source.snapshot.name: VolumeSnapshot `nightly` will not be taken (Taking: node a",
            "the name of another",
        ),
        (
            taken("data@17", "elsewhere"),
            None,
            Failed,
            "SnapshotInOtherStore",
            "spec.objectStore: VolumeSnapshot `nightly` is in ObjectStore `elsewhere`",
            "create the Volume with `elsewhere`",
        ),
        (
            taken("data@17", "store"),
            Some("512Mi"),
            Failed,
            "InvalidSize",
            "spec.size: VolumeSnapshot `nightly` has 1073741824 bytes",
            "write `1Gi` or more",
        ),
    ] {
        let steps = plan(&restored(size, fact), &now());
        assert_eq!(names(&steps), ["report"], "{reason}");
        let status = last_report(&steps);
        assert_eq!((status.phase, &status.volume_id, &status.restored_from), (Some(phase), &None, &None));
        assert_eq!(reason_of(status, PROVISIONED), ("False", reason));
        let message = &status.conditions[0].message;
        assert!(message.starts_with(prefix) && message.contains(fix), "{message}");
    }
}

#[test]
fn snapshots_are_looked_up_only_for_empty_volumes() {
    let facts = restored(None, SnapshotFact::NotRead);
    assert_eq!(reason_of(last_report(&plan(&facts, &now())), PROVISIONED), ("False", "Provisioning"));
    let unready = ClusterFacts { store: StoreFact::Unprobed, ..facts.clone() };
    let deleted = ClusterFacts { deleting: true, ..facts.clone() };
    for facts in [unready, deleted, existing("a", "a", "a"), new_volume()] {
        assert_eq!(facts.snapshot_in_question(), None);
    }
}

#[test]
fn an_identity_of_another_volume_is_not_provisioned() {
    for mut facts in [new_volume(), adopted(None, there())] {
        facts.identity.rival = Some("first".to_owned());
        let steps = plan(&facts, &now());
        assert_eq!(names(&steps), ["report"]);
        let status = last_report(&steps);
        assert_eq!((status.phase, status.volume_id.as_deref()), (Some(VolumePhase::Failed), None));
        assert_eq!(reason_of(status, PROVISIONED), ("False", "IdTaken"));
        assert!(status.conditions[0].message.starts_with("spec.volumeID: Volume `first` also has"));
    }
}

/// The remedy for `IdTaken` is to delete the Volume: that must not remove another owner's data.
#[test]
fn deletion_of_an_unprovisioned_volume_removes_only_its_own() {
    let mut facts = ClusterFacts { deleting: true, ..existing("", "", "") };
    let removes = |facts: &ClusterFacts, if_own, is_kept: bool| {
        let keep = is_kept.then(terms);
        plan(facts, &now()).contains(&OperatorStep::RemoveObjects { if_own, keep, cut_off: None })
    };
    assert!(removes(&facts, false, true));
    facts.identity.rival = Some("first".to_owned());
    assert!(removes(&facts, true, true), "of one of the two");
    facts.identity.rival = None;
    facts.status.conditions[0].status = "False".to_owned();
    assert!(removes(&facts, true, false), "it holds nothing");
}

#[test]
fn a_deleted_volume_goes_into_the_trash_of_its_store() {
    for (keep, part) in
        [(Some(terms()), "into the trash of ObjectStore store"), (None, "removing the volume's objects")]
    {
        let facts = ClusterFacts { deleting: true, trash: keep.clone(), ..existing("", "", "") };
        let steps = plan(&facts, &now());
        assert!(steps.contains(&OperatorStep::RemoveObjects { if_own: false, keep, cut_off: None }));
        let message = &last_report(&steps).conditions[0].message;
        assert!(message.contains(part), "{message}");
    }
    let mut retained = ClusterFacts { deleting: true, ..existing("", "", "") };
    retained.spec.deletion_policy = DeletionPolicy::Retain;
    assert_eq!(names(&plan(&retained, &now())), ["back", "finalizer-"], "it stays where it is");
}

/// Found by review: the trash entry existed, the finalizer was not removed yet, and the volume was removed a
/// day after its user had set `Retain`.
#[test]
fn a_volume_that_is_retained_at_last_leaves_the_trash() {
    let mut facts = ClusterFacts { deleting: true, ..existing("", "", "") };
    facts.status = last_report(&plan(&facts, &now())).clone();
    facts.store = StoreFact::Unprobed;
    let steps = plan(&facts, &now());
    assert_eq!(reason_of(last_report(&steps), PROVISIONED), ("True", "DeletionInterrupted"));
    facts.status = last_report(&steps).clone();
    facts.spec.deletion_policy = DeletionPolicy::Retain;
    assert_eq!(names(&plan(&facts, &now())), ["report"], "it may be in the trash");
    facts.store = StoreFact::Ready;
    assert_eq!(names(&plan(&facts, &now())), ["back", "finalizer-"]);
    assert!(
        plan(&facts, &now()).contains(&OperatorStep::TakeBack { is_begun: true }),
        "its entry may be late"
    );
    facts.trash = None;
    assert_eq!(names(&plan(&facts, &now())), ["back", "finalizer-"], "whatever the store keeps now");
    facts.store = StoreFact::Missing;
    assert_eq!(names(&plan(&facts, &now())), ["report"], "it waits for a store that is gone");
}

/// Found by review: after a node came back, the started attempt was forgotten.
#[test]
fn a_returned_node_does_not_hide_a_begun_deletion() {
    let mut facts = ClusterFacts { deleting: true, ..existing("", "", "") };
    facts.status = last_report(&plan(&facts, &now())).clone();
    facts.status.node = Some("a".to_owned());
    let steps = plan(&facts, &now());
    assert_eq!(reason_of(last_report(&steps), PROVISIONED), ("True", "DeletionInterrupted"));
    facts.status = VolumeStatus { node: None, ..last_report(&steps).clone() };
    (facts.store, facts.spec.deletion_policy) = (StoreFact::Unprobed, DeletionPolicy::Retain);
    assert_eq!(names(&plan(&facts, &now())), ["report"], "it may be in the trash");
}

/// Found by review: after a restore of the cluster, no object records that a volume is in the trash.
#[test]
fn retain_after_a_restored_cluster_takes_the_volume_back() {
    let mut facts = ClusterFacts { deleting: true, ..existing("", "", "") };
    facts.spec.deletion_policy = DeletionPolicy::Retain;
    let steps = plan(&facts, &now());
    assert_eq!(names(&steps), ["back", "finalizer-"]);
    assert!(steps.contains(&OperatorStep::TakeBack { is_begun: false }), "nothing is stored for it");
    facts.store = StoreFact::Missing;
    assert_eq!(names(&plan(&facts, &now())), ["finalizer-"], "nothing is known to wait for");
}

/// Found by review: the cluster that created the volume, or had adopted it by mistake, removed the data while
/// a writer of another cluster used it.
#[test]
fn no_volume_is_removed_below_its_writer() {
    for source in [VolumeSource::Empty(Empty {}), VolumeSource::Existing(Empty {})] {
        let mut facts = ClusterFacts { deleting: true, ..existing("", "", "") };
        facts.spec.source = source;
        is_not_removed_below_its_writer(facts);
    }
}

fn is_not_removed_below_its_writer(mut facts: ClusterFacts) {
    // The removal of a volume that was created here checks this itself.
    let is_adopted = matches!(facts.spec.source, VolumeSource::Existing(_));
    assert_eq!(facts.needs_last_writer(), is_adopted);
    // After a rejection, the plan reports the reason once, and does not retry continuously.
    let mut blocked = facts.clone();
    blocked
        .status
        .conditions
        .iter_mut()
        .for_each(|condition| condition.reason = "DeletionBlocked".to_owned());
    assert!(blocked.needs_last_writer());
    for was_cut_off in [
        ClusterFacts { force_detach: Some("away".to_owned()), ..facts.clone() },
        ClusterFacts {
            status: VolumeStatus {
                forced_detach: Some(lost_writer(DetachCause::NodeNotReady, 3)),
                ..facts.status.clone()
            },
            ..facts.clone()
        },
    ] {
        assert!(was_cut_off.needs_last_writer());
    }
    facts.log_writer = Some(AttachedWriter { node: "away".to_owned(), epoch: 7, data_seq: 7 });
    let steps = plan(&facts, &now());
    assert_eq!(names(&steps), ["report"]);
    let status = last_report(&steps);
    assert_eq!(reason_of(status, PROVISIONED), ("True", "DeletionBlocked"));
    let message = &status.conditions[0].message;
    for part in ["spec.deletionPolicy: node away ", "`Retain`", "holdfast.dev/force-detach=away"] {
        assert!(message.contains(part), "{message}");
    }
    let removed = ["report", "remove", "finalizer-"];
    let named = ClusterFacts { force_detach: Some("away".to_owned()), ..facts.clone() };
    assert_eq!(names(&plan(&named, &now())), removed);
    let remove = OperatorStep::RemoveObjects { if_own: false, keep: Some(terms()), cut_off: Some(7) };
    assert!(plan(&named, &now()).contains(&remove), "this writer, and none that comes after it");
    let released = ClusterFacts { log_writer: None, ..facts.clone() };
    assert_eq!(names(&plan(&released, &now())), removed);
    facts.spec.deletion_policy = DeletionPolicy::Retain;
    assert!(!facts.needs_last_writer());
    assert_eq!(names(&plan(&facts, &now())), ["back", "finalizer-"]);
}

/// A node of another cluster has the name of one that was force-detached here.
#[test]
fn a_writer_is_cut_off_by_its_epoch() {
    let mut facts = ClusterFacts { deleting: true, ..existing("", "", "") };
    let is_removed = |facts: &ClusterFacts| names(&plan(facts, &now())).contains(&"remove");
    let attached = |epoch| Some(AttachedWriter { node: "a".to_owned(), epoch, data_seq: 7 });
    facts.status.forced_detach = Some(lost_writer(DetachCause::NodeNotReady, 3));
    for (epoch, expected) in [(3, true), (4, false)] {
        facts.log_writer = attached(epoch);
        assert_eq!(is_removed(&facts), expected, "{epoch}: its record");
        let kept = last_report(&plan(&facts, &now())).forced_detach.clone();
        assert_eq!(kept, facts.status.forced_detach, "for the next attempt");
    }
    facts.force_detach = Some("a".to_owned());
    assert!(is_removed(&facts), "a person says so now");

    facts.status.forced_detach = Some(lost_writer(DetachCause::Annotation, 3));
    let steps = plan(&facts, &now());
    let message = &last_report(&steps).conditions[0].message;
    assert!(!is_removed(&facts) && message.contains("Remove that annotation first"), "{message}");
    facts.force_detach = None;
    facts.status = last_report(&plan(&facts, &now())).clone();
    facts.force_detach = Some("a".to_owned());
    assert!(is_removed(&facts), "it was set again");

    // A node of this cluster released its claim because the volume is deleted.
    facts = ClusterFacts { deleting: true, ..existing("", "", "") };
    facts.status.epoch = Some(3);
    for (epoch, expected) in [(3, true), (4, false)] {
        facts.log_writer = attached(epoch);
        assert!(facts.needs_last_writer());
        assert_eq!(is_removed(&facts), expected, "{epoch}: what it left");
    }

    facts = ClusterFacts { deleting: true, lost: Some(DetachCause::NodeNotReady), ..existing("", "", "a") };
    facts.status.epoch = Some(3);
    for (epoch, expected) in [(3, true), (4, false)] {
        facts.log_writer = attached(epoch);
        assert_eq!(is_removed(&facts), expected, "{epoch}: its claim");
    }
}

fn lost_writer(cause: DetachCause, epoch: u64) -> ForcedDetach {
    ForcedDetach {
        node: "a".to_owned(),
        cause,
        time: now(),
        epoch: Some(epoch),
        durability: None,
        is_last_commit_reported: false,
        dirty_bytes: None,
        durable_through: None,
    }
}

/// A damaged volume is trashed as before; an adopted one waits.
#[test]
fn a_damaged_log_stops_the_deletion_of_what_was_adopted() {
    let force_detach = Some("away".to_owned());
    let mut facts = ClusterFacts { deleting: true, force_detach, ..existing("", "", "") };
    assert!(facts.is_removed_damaged());
    facts.spec.source = VolumeSource::Existing(Empty {});
    assert!(!facts.is_removed_damaged());
}

#[test]
fn a_volume_above_the_largest_size_is_not_adopted() {
    let found = FoundInStore::Volume { size_bytes: 65 << 40, last: None };
    let steps = plan(&adopted(None, found), &now());
    assert_eq!(names(&steps), ["report"]);
    let status = last_report(&steps);
    assert_eq!(reason_of(status, PROVISIONED), ("False", "InvalidSize"));
    let message = &status.conditions[0].message;
    assert!(message.starts_with("spec.volumeID: ") && message.contains("more than the 64Ti"), "{message}");
}

/// A clone of Volume `original`, with our finalizer.
fn cloned(size: Option<&str>, snapshot: SnapshotFact, source: SourceFact) -> ClusterFacts {
    let content = ContentFacts { snapshot, source, ..ContentFacts::NOT_READ };
    let mut facts = ClusterFacts { finalizer: true, content, ..new_volume() };
    facts.spec.source = VolumeSource::Volume(CloneSource { name: "original".to_owned() });
    facts.spec.size = size.map(str::to_owned);
    facts
}

fn original(store: &str) -> SourceFact {
    let volume_id = "original-id".to_owned();
    SourceFact::Ready { object_store: store.to_owned(), volume_id, size_bytes: Some(1 << 30) }
}

/// The operator dies after each step; a Volume that reuses the source's name by then is ignored.
#[test]
fn a_clone_begins_with_its_snapshot_and_drops_it() {
    let unregistered =
        ClusterFacts { finalizer: false, ..cloned(None, SnapshotFact::Missing, original("store")) };
    assert_eq!(names(&plan(&unregistered, &now())), ["register"]);
    let facts = cloned(None, SnapshotFact::Missing, original("store"));
    let steps = plan(&facts, &now());
    assert_eq!(names(&steps), ["report", "take"]);
    let (name, volume_id) = ("original".to_owned(), "original-id".to_owned());
    assert_eq!(steps[1], OperatorStep::TakeSource { source: name, volume_id });
    let why = || "Taking: node a".to_owned();
    let waiting = cloned(None, SnapshotFact::NotReady { why: why() }, SourceFact::Missing);
    assert_eq!(names(&plan(&waiting, &now())), ["report"]);
    let mut facts = cloned(None, taken("first@17", "store"), SourceFact::Missing);
    let steps = plan(&facts, &now());
    assert_eq!(names(&steps), ["report", "provision", "drop", "report"]);
    assert_eq!(last_report(&steps).restored_from.as_deref(), Some("first@17"));
    let OperatorStep::Report(recorded) = &steps[0] else { panic!("a report") };
    facts.status = recorded.as_ref().clone();
    for snapshot in [SnapshotFact::Missing, SnapshotFact::Deleting, taken("other@3", "store")] {
        facts.content.snapshot = snapshot;
        let steps = plan(&facts, &now());
        assert_eq!(names(&steps), ["provision", "drop", "report"]);
        let snapshot = source("first@17", false);
        assert_eq!(steps[0], OperatorStep::Provision { size_bytes: None, snapshot });
    }
}

#[test]
fn a_deleted_clone_leaves_no_snapshot() {
    let mut facts = ClusterFacts { deleting: true, ..cloned(None, SnapshotFact::NotRead, original("store")) };
    assert_eq!(names(&plan(&facts, &now())), ["drop", "finalizer-"]);
    facts.status.volume_id = Some("uid-1".to_owned());
    assert_eq!(names(&plan(&facts, &now())), ["report", "drop", "remove", "finalizer-"]);
    facts.spec.deletion_policy = DeletionPolicy::Retain;
    assert_eq!(names(&plan(&facts, &now())), ["drop", "finalizer-"]);
}

#[test]
fn a_volume_that_cannot_be_cloned_names_the_field() {
    let clone = |source| cloned(None, SnapshotFact::Missing, source);
    let (mut itself, mut taken) = (clone(original("store")), clone(original("store")));
    itself.identity.name = "original".to_owned();
    taken.content.is_clone_name_taken = true;
    let failed = SnapshotFact::Failed { why: "VolumeReplaced: m".to_owned() };
    let small = cloned(Some("1Mi"), SnapshotFact::Missing, original("store"));
    for (facts, phase, reason, field) in [
        (clone(SourceFact::Missing), VolumePhase::Failed, "VolumeNotFound", "spec.source.volume.name: "),
        (clone(SourceFact::Deleting), VolumePhase::Failed, "VolumeDeleted", "spec.source.volume.name: "),
        (
            clone(SourceFact::NotProvisioned),
            VolumePhase::Pending,
            "VolumeNotReady",
            "spec.source.volume.name: ",
        ),
        (clone(SourceFact::Memory), VolumePhase::Failed, "InvalidSource", "spec.source.volume.name: "),
        (clone(original("other")), VolumePhase::Failed, "VolumeInOtherStore", "spec.objectStore: "),
        (itself, VolumePhase::Failed, "InvalidSource", "spec.source.volume.name: "),
        (taken, VolumePhase::Failed, "SnapshotNameTaken", "spec.source.volume.name: "),
        (
            cloned(None, failed, SourceFact::NotRead),
            VolumePhase::Failed,
            "SnapshotFailed",
            "spec.source.volume.name: ",
        ),
        (small, VolumePhase::Failed, "InvalidSize", "spec.size: "),
    ] {
        let steps = plan(&facts, &now());
        assert_eq!(names(&steps), ["report"], "{reason}");
        let status = last_report(&steps);
        assert_eq!((status.phase, reason_of(status, PROVISIONED)), (Some(phase), ("False", reason)));
        let message = &find_condition(&status.conditions, PROVISIONED).expect("reported").message;
        assert!(message.starts_with(field), "{message}");
    }
}
