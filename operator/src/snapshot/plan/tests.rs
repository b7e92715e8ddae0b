//! The plan for a snapshot in each state of its volume.

use holdfast_crds::{VolumeSnapshot, VolumeSnapshotSpec};
use k8s_openapi::jiff::Timestamp;

use super::*;
use crate::snapshot::facts::{also_of, rival_of};
use crate::snapshot::failure::SnapshotFailure;

const ID: &str = "8f14e45f-ceea-467f-a1d4-91e2f1f0a9c4";

fn now() -> Time {
    Time(Timestamp::UNIX_EPOCH)
}

/// A snapshot with our finalizer, of an unserved volume.
fn facts() -> SnapshotFacts {
    SnapshotFacts {
        generation: 1,
        spec: VolumeSnapshotSpec {
            volume: "data".to_owned(),
            group: None,
            snapshot_id: None,
            deletion_policy: DeletionPolicy::Delete,
        },
        status: VolumeSnapshotStatus::default(),
        finalizer: true,
        deleting: false,
        volume: Some(SourceVolume {
            id: Some(ID.to_owned()),
            object_store: "main".to_owned(),
            node: None,
            deleting: false,
            is_memory: false,
        }),
        of_volume_id: None,
        is_of_group: false,
        rival: None,
        also_of: None,
    }
}

/// The same, with its taker recorded.
fn recorded(node: Option<&str>) -> SnapshotFacts {
    let mut facts = facts();
    facts.status.volume_id = Some(ID.to_owned());
    facts.status.object_store = Some("main".to_owned());
    facts.status.node = node.map(str::to_owned);
    serve(&mut facts, node);
    facts
}

fn serve(facts: &mut SnapshotFacts, node: Option<&str>) {
    facts.volume.as_mut().expect("a volume").node = node.map(str::to_owned);
}

/// Returns the status that the plan reports first.
fn reported(facts: &SnapshotFacts) -> VolumeSnapshotStatus {
    match plan(facts, &now()).first() {
        Some(SnapshotStep::Report(status)) => status.as_ref().clone(),
        other => panic!("a report comes first: {other:?}"),
    }
}

fn reason(facts: &SnapshotFacts) -> String {
    reported(facts).conditions[0].reason.clone()
}

#[test]
fn no_snapshot_is_taken_before_it_is_recorded() {
    let bare = SnapshotFacts { finalizer: false, ..facts() };
    assert_eq!(plan(&bare, &now()), [SnapshotStep::AddFinalizer]);
    let status = reported(&facts());
    assert_eq!((status.volume_id.as_deref(), status.object_store.as_deref()), (Some(ID), Some("main")));
    assert_eq!(plan(&facts(), &now()).last(), Some(&SnapshotStep::Take));
}

#[test]
fn the_node_that_serves_the_volume_takes_it() {
    let mut attached = facts();
    serve(&mut attached, Some("a"));
    let status = reported(&attached);
    assert_eq!(status.node.as_deref(), Some("a"));
    assert_eq!(plan(&attached, &now()).len(), 1, "the operator only asks");
    assert_eq!(plan(&recorded(Some("a")), &now()), [], "the daemon reports from here on");
    assert_eq!(plan(&recorded(None), &now()), [SnapshotStep::Take]);
    let mut taken = recorded(Some("a"));
    taken.status.snapshot_id = Some(format!("{ID}@7"));
    taken.status = reported(&taken);
    assert_eq!((&taken.status.node, taken.status.snapshot_id.is_some()), (&None, true), "the node is done");
    assert_eq!(plan(&taken, &now()), [SnapshotStep::StoreOrigin], "so that another cluster can name it");
    taken.status.origin_stored = Some(true);
    serve(&mut taken, Some("b"));
    assert_eq!(plan(&taken, &now()), [], "what is taken is taken");
}

#[test]
fn an_existing_snapshot_is_adopted_and_not_taken() {
    let adopts = |name: &str| {
        let mut facts = facts();
        facts.spec.snapshot_id = Some(name.to_owned());
        facts
    };
    let (own, name) = (adopts(&format!("{ID}@7")), format!("{ID}@7").parse().expect("a name"));
    assert_eq!(plan(&own, &now()), [SnapshotStep::Adopt(name)]);
    let mut served = own.clone();
    serve(&mut served, Some("a"));
    assert_eq!(plan(&served, &now()), plan(&own, &now()), "no node is asked");
    assert_eq!(
        plan(&SnapshotFacts { finalizer: false, ..own.clone() }, &now()),
        [SnapshotStep::AddFinalizer]
    );
    assert_eq!(reason(&adopts("other@7")), "NotOfVolume");
    assert_eq!(reason(&SnapshotFacts { volume: None, ..own.clone() }), "VolumeNotFound");
    let deleting = SnapshotFacts { deleting: true, ..own };
    assert_eq!(plan(&deleting, &now()), [SnapshotStep::RemoveFinalizer], "it was not adopted");
}

#[test]
fn a_volume_that_moves_takes_its_snapshot_along() {
    let mut released = recorded(Some("a"));
    serve(&mut released, None);
    assert_eq!(reported(&released).node, None);
    assert_eq!(plan(&released, &now()).last(), Some(&SnapshotStep::Take));
    let mut moved = recorded(Some("a"));
    serve(&mut moved, Some("b"));
    assert_eq!(reported(&moved).node.as_deref(), Some("b"));
}

#[test]
fn an_obstacle_names_the_field_and_takes_nothing() {
    let volume = |change: fn(&mut SourceVolume)| {
        let mut facts = facts();
        change(facts.volume.as_mut().expect("a volume"));
        facts
    };
    let mut replaced = recorded(None);
    replaced.status.volume_id = Some("another".to_owned());
    // A Volume was retained, and created again with its identity in another bucket.
    let mut elsewhere = recorded(Some("a"));
    elsewhere.status.object_store = Some("old".to_owned());
    for (facts, expected) in [
        (elsewhere, "VolumeReplaced"),
        (SnapshotFacts { volume: None, ..facts() }, "VolumeNotFound"),
        (volume(|volume| volume.deleting = true), "VolumeDeleted"),
        (volume(|volume| volume.id = None), "VolumeNotReady"),
        (volume(|volume| volume.is_memory = true), "VolumeInMemory"),
        (SnapshotFacts { of_volume_id: Some("of another".to_owned()), ..facts() }, "VolumeReplaced"),
        (replaced, "VolumeReplaced"),
    ] {
        assert_eq!(reason(&facts), expected);
        assert!(reported(&facts).conditions[0].message.starts_with("spec.volume: "));
        assert_eq!(plan(&facts, &now()).len(), 1);
    }
}

#[test]
fn a_deletion_forgets_the_snapshot_before_the_object_goes() {
    let mut taken = recorded(None);
    taken.deleting = true;
    taken.status.snapshot_id = Some(format!("{ID}@7"));
    taken.status.conditions =
        vec![taken.conditions(&now()).build(READY, ConditionStatus::True, "Taken", "it is there")];
    taken.volume = None;
    let steps = plan(&taken, &now());
    assert_eq!(steps[1..], [SnapshotStep::Forget, SnapshotStep::RemoveFinalizer]);
    assert_eq!(reported(&taken).snapshot_id, taken.status.snapshot_id, "what is recorded stays");
    // Our own write triggers the next attempt: a reported failure is not replaced.
    taken.status = reported(&taken);
    assert_eq!(plan(&taken, &now()), steps[1..]);
    taken.spec.deletion_policy = DeletionPolicy::Retain;
    assert_eq!(plan(&taken, &now()), [SnapshotStep::RemoveFinalizer]);
    let unasked = SnapshotFacts { deleting: true, ..facts() };
    assert_eq!(plan(&unasked, &now()), [SnapshotStep::RemoveFinalizer]);
    assert_eq!(plan(&SnapshotFacts { finalizer: false, ..unasked }, &now()), []);
}

/// Found in review: after a rollback, an operator could not read a snapshot with a policy that it did not
/// know.
#[test]
fn a_policy_of_a_later_release_blocks_the_deletion() {
    let mut taken = recorded(None);
    taken.deleting = true;
    taken.status.snapshot_id = Some(format!("{ID}@7"));
    taken.spec.deletion_policy = DeletionPolicy::Unknown;
    assert_eq!(reason(&taken), UNKNOWN_VALUE);
    assert_eq!(plan(&taken, &now()).len(), 1, "neither forgotten nor released");
    let of_other = SnapshotFacts { also_of: Some("other".to_owned()), ..taken };
    assert_eq!(plan(&of_other, &now()), [SnapshotStep::RemoveFinalizer], "nothing would be deleted");
}

/// Otherwise, a snapshot in progress could be registered after the object's deletion, and stay.
#[test]
fn a_deletion_waits_for_the_node_that_takes_the_snapshot() {
    let mut requested = recorded(Some("a"));
    requested.deleting = true;
    for policy in [DeletionPolicy::Retain, DeletionPolicy::Delete] {
        requested.spec.deletion_policy = policy;
        assert_eq!(plan(&requested, &now()), [], "{policy:?}");
    }
    for node in [None, Some("b")] {
        serve(&mut requested, node);
        assert_eq!(reported(&requested).node, None, "node a is not asked any more when it comes back");
        assert_eq!(plan(&requested, &now()).last(), Some(&SnapshotStep::RemoveFinalizer), "{node:?}");
    }
    serve(&mut requested, Some("a"));
    requested.volume.as_mut().expect("a volume").id = Some("another".to_owned());
    assert_eq!(
        plan(&requested, &now()).last(),
        Some(&SnapshotStep::RemoveFinalizer),
        "it serves another volume"
    );
}

#[test]
fn a_failure_keeps_the_record_and_says_its_cause() {
    let id = ID.parse().expect("a volume id");
    let failure = SnapshotFailure::from(holdfast_log::SnapshotError::TooMany(id));
    let mut facts = recorded(None);
    let status = failure.status(&facts, &now()).expect("something to report");
    assert_eq!(status.conditions[0].reason, "TooManySnapshots");
    assert_eq!(status.volume_id.as_deref(), Some(ID));
    facts.deleting = true;
    let status = failure.status(&facts, &now()).expect("something to report");
    assert!(status.conditions[0].message.contains("`Retain`"), "{status:?}");
    assert_eq!(SnapshotFailure::Changed.status(&facts, &now()), None);
}

/// Regression, found in review: the message named the detach on a node that was gone, and not the attach that
/// ends the wait.
#[test]
fn a_volume_whose_node_was_cut_off_names_the_remedy() {
    let attached = holdfast_log::SnapshotError::Attached {
        volume: ID.parse().expect("a volume id"),
        node: "a".to_owned(),
        epoch: holdfast_types::Epoch(3),
    };
    let failure = SnapshotFailure::from(attached);
    let status = failure.status(&recorded(None), &now()).expect("something to report");
    let ready = &status.conditions[0];
    assert_eq!(ready.reason, "VolumeAttached");
    let remedy = "If that node was cut off, start a pod that uses the volume";
    assert!(ready.message.contains(remedy), "{}", ready.message);
    // The next attach serves the volume.
    let mut next = recorded(None);
    next.status = status;
    serve(&mut next, Some("b"));
    assert_eq!(reported(&next).node.as_deref(), Some("b"));
}

/// A node blocks writes of its volume, and registers the snapshot even if the attempt failed.
#[test]
fn a_deletion_waits_for_a_node_with_a_hold_step() {
    let mut requested = recorded(Some("a"));
    requested.spec.group = Some("g".to_owned());
    requested.is_of_group = true;
    requested.deleting = true;
    requested.status.group_step = Some(GroupStep::Prepare);
    for progress in [GroupProgress::Preparing, GroupProgress::Prepared] {
        requested.status.group_progress = Some(progress);
        assert_eq!(plan(&requested, &now()), [SnapshotStep::RemoveFinalizer], "nothing was begun");
    }
    requested.status.group_step = Some(GroupStep::Hold);
    requested.status.group_progress = Some(GroupProgress::Held);
    let released = reported(&requested);
    assert_eq!(released.group_step, Some(GroupStep::Release), "its writes do not wait any more");
    assert_eq!(released.group_progress, Some(GroupProgress::Held), "what the daemon said stays");
    requested.status = released;
    assert_eq!(plan(&requested, &now()), [], "the node registers it");
    requested.status.group_progress = Some(GroupProgress::Lapsed);
    assert_eq!(plan(&requested, &now()), []);
    requested.status.snapshot_id = Some(format!("{ID}@7"));
    let steps = plan(&requested, &now());
    assert_eq!(steps[1..], [SnapshotStep::Forget, SnapshotStep::RemoveFinalizer]);
}

/// A daemon without groups takes the snapshot at once; it would stay in the log.
#[test]
fn a_deletion_forgets_a_snapshot_of_an_older_daemon() {
    let mut requested = recorded(Some("a"));
    requested.spec.group = Some("g".to_owned());
    requested.is_of_group = true;
    requested.deleting = true;
    requested.status.group_step = Some(GroupStep::Prepare);
    assert_eq!(plan(&requested, &now()), [], "which one is asked is not known before it answers");
    let mut lapsed = requested.clone();
    lapsed.status.group_progress = Some(GroupProgress::Lapsed);
    assert_eq!(plan(&lapsed, &now()), [], "its successor may have found it, and reports it");
    let mut taken = requested.clone();
    taken.status.snapshot_id = Some(format!("{ID}@7"));
    let forgets = [SnapshotStep::Forget, SnapshotStep::RemoveFinalizer];
    assert_eq!(plan(&taken, &now())[1..], forgets);
    // It released the volume before it reported the snapshot.
    serve(&mut requested, None);
    assert_eq!(plan(&requested, &now())[1..], forgets);
}

/// The daemon finds the snapshot by this field.
#[test]
fn a_node_stays_asked_until_it_has_released_its_volume() {
    let mut taken = recorded(Some("a"));
    taken.spec.group = Some("g".to_owned());
    taken.is_of_group = true;
    taken.status.snapshot_id = Some(format!("{ID}@7"));
    for (step, progress) in
        [(GroupStep::Hold, GroupProgress::Held), (GroupStep::Release, GroupProgress::Held)]
    {
        (taken.status.group_step, taken.status.group_progress) = (Some(step), Some(progress));
        assert_eq!(plan(&taken, &now()), []);
    }
    for progress in [GroupProgress::Released, GroupProgress::Lapsed] {
        taken.status.group_progress = Some(progress);
        assert_eq!(reported(&taken).node, None);
    }
}

/// The group takes it together with the others.
#[test]
fn a_snapshot_of_a_group_is_not_taken_by_itself() {
    let mut member = facts();
    member.spec.group = Some("g".to_owned());
    assert_eq!(reason(&member), "NotInGroup", "no group created it");
    assert_eq!(plan(&member, &now()).len(), 1);
    member.is_of_group = true;
    for node in [None, Some("a")] {
        serve(&mut member, node);
        assert_eq!(plan(&member, &now()), []);
    }
    let mut orphan = recorded(Some("a"));
    orphan.spec.group = Some("g".to_owned());
    orphan.status.group_step = Some(GroupStep::Prepare);
    assert_eq!(reported(&orphan).node, None, "the node is not asked any more");
}

/// Regression: the size column stayed empty for all existing snapshots.
#[test]
fn a_snapshot_of_an_older_release_gets_its_size() {
    let mut taken = recorded(None);
    taken.status.snapshot_id = Some(format!("{ID}@7"));
    taken.status.size_bytes = Some(10 << 30);
    assert_eq!(reported(&taken).size.as_deref(), Some("10Gi"));
    taken.status = reported(&taken);
    assert_eq!(plan(&taken, &now()), [SnapshotStep::StoreOrigin]);
}

/// An operator that does not know the field takes a new snapshot, of later data, under another's handle.
#[test]
fn a_snapshot_of_an_older_operator_is_not_ready() {
    let mut taken = recorded(None);
    taken.spec.snapshot_id = Some(format!("{ID}@7"));
    taken.status.snapshot_id = Some(format!("{ID}@9"));
    taken.status.size_bytes = Some(1);
    let status = reported(&taken);
    assert!(!is_true(&status.conditions, READY) && status.conditions[0].reason == "OtherSnapshot");
    assert_eq!(plan(&taken, &now()).len(), 1, "its names are not stored either");
    taken.status.snapshot_id.clone_from(&taken.spec.snapshot_id);
    let name = format!("{ID}@7").parse().expect("a name");
    assert_eq!(plan(&taken, &now()), [SnapshotStep::Adopt(name)], "the uid was dropped");
}

/// Returns a VolumeSnapshot with these `spec.snapshotID` and `status.snapshotId`.
fn object(
    (name, volume): (&str, &str),
    created: i64,
    wanted: Option<&str>,
    recorded: Option<&str>,
) -> VolumeSnapshot {
    let spec = serde_json::json!({ "volume": volume, "snapshotID": wanted });
    let mut snapshot = VolumeSnapshot::new(name, serde_json::from_value(spec).expect("a spec"));
    snapshot.metadata.uid = Some(name.to_owned());
    snapshot.metadata.creation_timestamp = Timestamp::from_second(created).ok().map(Time);
    let status = VolumeSnapshotStatus { snapshot_id: recorded.map(str::to_owned), ..Default::default() };
    snapshot.status = Some(status);
    snapshot
}

/// Regression: deleting one of the two left the other Ready over data that a sweep had deleted.
#[test]
fn one_snapshot_is_adopted_by_one_object() {
    let snapshot = |name: &str, created: i64, recorded: Option<&str>| {
        object((name, "data"), created, Some("a@7"), recorded)
    };
    let (first, second) = (snapshot("b", 1, None), snapshot("a", 2, None));
    assert_eq!(rival_of(&second, [&first, &second]).as_deref(), Some("b"));
    assert_eq!(rival_of(&first, [&first, &second]), None);
    let has_it = snapshot("a", 2, Some("a@7"));
    assert_eq!(rival_of(&first, [&first, &has_it]).as_deref(), Some("a"), "it was adopted already");
    let mut refused = facts();
    refused.spec.snapshot_id = Some(format!("{ID}@7"));
    refused.rival = Some("b".to_owned());
    assert_eq!(reason(&refused), "IdTaken");
    assert!(reported(&refused).conditions[0].message.contains("`Retain`"));
}

/// Regression, found in review: pvc-1 was retained and adopted as `disk`; a second object adopted the
/// snapshot of the first, which names pvc-1, and its deletion destroyed the snapshot under the second.
#[test]
fn a_snapshot_under_another_volume_name_has_one_object() {
    let of_pvc = object(("of-pvc", "pvc-1"), 1, None, Some("a@7"));
    let adopts = object(("adopts", "disk"), 2, Some("a@7"), None);
    assert_eq!(rival_of(&adopts, [&of_pvc, &adopts]).as_deref(), Some("of-pvc"));
    let other = object(("other", "pvc-1"), 1, None, Some("a@9"));
    assert_eq!(rival_of(&adopts, [&other, &adopts]), None);
}

/// Regression, found in review: the first was adopted before the operator had seen the second.
#[test]
fn two_adopters_of_the_same_second_wait_for_each_other() {
    let [a, b] = ["a", "b"].map(|name| object((name, "data"), 1, Some("a@7"), None));
    assert_eq!(rival_of(&a, [&a, &b]).as_deref(), Some("b"));
    assert_eq!(rival_of(&b, [&a, &b]).as_deref(), Some("a"));
}

/// Regression, found in review: objects of an older release share a snapshot, and the deletion of one
/// destroyed it under the other.
#[test]
fn a_deletion_keeps_a_snapshot_that_another_object_has() {
    let taken = object(("taken", "pvc-1"), 1, None, Some("a@7"));
    let adopted = object(("adopted", "disk"), 2, Some("a@7"), Some("a@7"));
    let waits = object(("waits", "disk"), 3, Some("a@7"), None);
    assert_eq!(also_of(&taken, [&taken, &adopted]).as_deref(), Some("adopted"));
    assert_eq!(also_of(&adopted, [&taken, &adopted]).as_deref(), Some("taken"));
    assert_eq!(also_of(&taken, [&taken, &waits]).as_deref(), Some("waits"));
    assert_eq!(also_of(&taken, [&taken, &object(("other", "pvc-1"), 1, None, Some("a@9"))]), None);
    let mut gone = adopted;
    gone.metadata.deletion_timestamp = Some(now());
    assert_eq!(also_of(&taken, [&taken, &gone]), None, "the last one forgets it");
    let mut unnamed = object(("unnamed", "pvc-1"), 1, None, None);
    let mut named = object(("named", "disk"), 2, Some("a@7"), Some("a@7"));
    named.status.as_mut().expect("a status").snapshot_uid = unnamed.uid_in_store().map(Into::into);
    assert_eq!(also_of(&unnamed, [&unnamed, &named]).as_deref(), Some("named"), "it is the same by its uid");
    unnamed.metadata.uid = None;
    assert_eq!(also_of(&unnamed, [&object(("none", "disk"), 1, None, None)]), None);

    let mut deleted = recorded(None);
    deleted.deleting = true;
    deleted.status.snapshot_id = Some(format!("{ID}@7"));
    deleted.also_of = Some("adopted".to_owned());
    assert_eq!(plan(&deleted, &now()), [SnapshotStep::RemoveFinalizer]);
    deleted.also_of = None;
    assert!(plan(&deleted, &now()).contains(&SnapshotStep::Forget));
}
