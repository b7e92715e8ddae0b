//! Kubernetes events: one for every condition transition.

use holdfast_cluster::event::{changed_conditions, event};
use holdfast_crds::{
    ASSIGNED, Condition, DATA_LOST, GRANTED, NODE_UNKNOWN, PROVISIONED, READY, RESIZED, find_condition,
};
use kube::runtime::events::{Event, EventType};

use crate::snapshot::plan::TAKING;

/// Returns the events for the conditions that changed between two lists. Waiting, the initial size of a
/// device, and a grant without delay produce no event.
pub(crate) fn changes(before: &[Condition], after: &[Condition]) -> Vec<Event> {
    notable(before, after).map(as_event).collect()
}

/// Returns only the events about a claim's data: data that may be missing because a node was force-detached,
/// and the node that continues.
pub(crate) fn changes_of_data(before: &[Condition], after: &[Condition]) -> Vec<Event> {
    let is_cut_off = find_condition(after, DATA_LOST).is_some();
    notable(before, after)
        .filter(|new| new.type_ == DATA_LOST || (is_cut_off && new.type_ == ASSIGNED && new.status == "True"))
        .map(as_event)
        .collect()
}

fn notable<'a>(before: &'a [Condition], after: &'a [Condition]) -> impl Iterator<Item = &'a Condition> {
    changed_conditions(before, after)
        .filter(|new| !REASONS_WITHOUT_EVENT.contains(&new.reason.as_str()))
        .filter(|new| {
            new.type_ != RESIZED || new.status == "False" || find_condition(before, RESIZED).is_some()
        })
        .filter(|new| !is_prompt_grant(before, new))
}

fn as_event(condition: &Condition) -> Event {
    event(condition, if is_fault(condition) { EventType::Warning } else { EventType::Normal })
}

/// Returns true for a grant that waited neither for another node nor for this node to join.
fn is_prompt_grant(before: &[Condition], new: &Condition) -> bool {
    let waited = |old: &Condition| ["WaitingForDetach", NODE_UNKNOWN].contains(&old.reason.as_str());
    new.type_ == ASSIGNED && new.reason == GRANTED && !find_condition(before, ASSIGNED).is_some_and(waited)
}

fn is_fault(condition: &Condition) -> bool {
    condition.type_ == DATA_LOST
        || condition.reason == NODE_UNKNOWN
        || condition.status != "True" && [PROVISIONED, READY].contains(&condition.type_.as_str())
}

/// Condition reasons of normal operation.
const REASONS_WITHOUT_EVENT: [&str; 8] = [
    "Provisioning",
    "NotRequested",
    "NotProvisioned",
    "ObjectStoreUnprobed",
    "SnapshotNotReady",
    "WaitingForDetach",
    "Deleting",
    TAKING,
];

#[cfg(test)]
mod tests {
    use holdfast_crds::{ConditionBuilder, ConditionStatus, Time};

    use super::*;

    fn one(type_: &str, status: ConditionStatus, reason: &str) -> Vec<Condition> {
        let now = Time("2026-01-01T00:00:00Z".parse().expect("a timestamp"));
        vec![
            ConditionBuilder { previous: &[], observed_generation: Some(1), now: &now }
                .build(type_, status, reason, "text"),
        ]
    }

    #[test]
    fn events_name_changes_and_only_faults_are_warnings() {
        let pending = one(PROVISIONED, ConditionStatus::False, "ObjectStoreMissing");
        let created = one(PROVISIONED, ConditionStatus::True, "Created");
        let events = changes(&[], &pending);
        assert_eq!((events.len(), &events[0].type_), (1, &EventType::Warning));
        let events = changes(&pending, &created);
        assert_eq!((events.len(), &events[0].type_), (1, &EventType::Normal));
        assert!(changes(&created, &created).is_empty());
        assert!(changes(&[], &one(PROVISIONED, ConditionStatus::False, "Provisioning")).is_empty());
    }

    /// Regression: a claim's lifetime produced five events, three of them from normal operation.
    #[test]
    fn the_ordinary_course_is_no_event() {
        let grown = one(RESIZED, ConditionStatus::True, "Grown");
        assert!(changes(&[], &grown).is_empty(), "it was attached with its size");
        let small = one(RESIZED, ConditionStatus::False, "WaitingForNode");
        assert_eq!(changes(&small, &grown).len(), 1);
        let created = one(PROVISIONED, ConditionStatus::True, "Created");
        for reason in ["WaitingForDetach", "Deleting"] {
            for status in [ConditionStatus::True, ConditionStatus::False] {
                assert!(changes(&created, &one(PROVISIONED, status, reason)).is_empty());
            }
        }
        let granted = one(ASSIGNED, ConditionStatus::True, GRANTED);
        assert!(changes(&[], &granted).is_empty());
        for reason in ["NotRequested", "NotProvisioned"] {
            assert!(changes(&one(ASSIGNED, ConditionStatus::False, reason), &granted).is_empty());
        }
        let blocked = changes(&created, &one(PROVISIONED, ConditionStatus::False, "DeletionBlocked"));
        assert_eq!((blocked.len(), &blocked[0].type_), (1, &EventType::Warning));
    }

    #[test]
    fn lost_data_and_its_failover_concern_a_claim() {
        let waiting = one(ASSIGNED, ConditionStatus::False, "WaitingForDetach");
        let granted = one(ASSIGNED, ConditionStatus::True, GRANTED);
        assert_eq!(changes(&waiting, &granted).len(), 1);
        assert!(changes_of_data(&waiting, &granted).is_empty(), "its node released it");
        for (status, reason) in
            [(ConditionStatus::True, "ForceDetached"), (ConditionStatus::Unknown, "MayBeCommitted")]
        {
            let lost = one(DATA_LOST, status, reason);
            let events = changes_of_data(&waiting, &[granted.clone(), lost.clone()].concat());
            let reasons = events.iter().map(|event| event.reason.as_str()).collect::<Vec<_>>();
            assert_eq!(reasons, [GRANTED, reason]);
            assert_eq!(events[1].type_, EventType::Warning);
            assert!(changes_of_data(&lost, &lost).is_empty());
            assert!(changes_of_data(&lost, &[]).is_empty(), "a person has read it");
        }
    }

    #[test]
    fn a_claim_has_no_event_of_the_ordinary_course() {
        for (type_, status, reason) in [
            (PROVISIONED, ConditionStatus::True, "Created"),
            (PROVISIONED, ConditionStatus::False, "ObjectStoreMissing"),
            (PROVISIONED, ConditionStatus::False, "DeletionBlocked"),
            (ASSIGNED, ConditionStatus::True, NODE_UNKNOWN),
            (RESIZED, ConditionStatus::False, "WaitingForNode"),
        ] {
            let after = one(type_, status, reason);
            assert_eq!((changes(&[], &after).len(), changes_of_data(&[], &after).len()), (1, 0), "{reason}");
        }
    }

    #[test]
    fn a_grant_that_waited_is_an_event() {
        let granted = one(ASSIGNED, ConditionStatus::True, GRANTED);
        let unknown = one(ASSIGNED, ConditionStatus::True, NODE_UNKNOWN);
        let moved = changes(&one(ASSIGNED, ConditionStatus::False, "WaitingForDetach"), &granted);
        assert_eq!((moved.len(), &moved[0].type_), (1, &EventType::Normal));
        let typo = changes(&[], &unknown);
        assert_eq!((typo.len(), &typo[0].type_), (1, &EventType::Warning));
        assert_eq!(changes(&unknown, &granted).len(), 1, "it has joined");
    }
}
