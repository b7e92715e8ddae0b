//! Faults that affect pods, reported by the daemon that serves the volume.
//!
//! Owns: the memory of current faults, by Volume, so that each start, change and end causes one event.
//! Does not own: the conditions and the events about the Volume, both written by the daemon.
//! On failure: a restarted operator has no memory; it reports each current fault once more.

use std::collections::HashMap;

use holdfast_cluster::event::{changed_conditions, event};
use holdfast_crds::{Condition, SERVING_CONDITIONS, Volume, find_condition, is_true};
use kube::ResourceExt;
use kube::runtime::events::{Event, EventType};
use parking_lot::Mutex;

/// Conditions that are False, by the uid of their Volume.
#[derive(Debug, Default)]
pub(crate) struct FalseConditions(Mutex<HashMap<String, Vec<Condition>>>);

impl FalseConditions {
    /// Returns the faults of `volume` that began, changed or ended since the last call. If the condition
    /// disappears because no node serves the volume, no end is reported.
    pub(super) fn changes(&self, volume: &Volume) -> Vec<Event> {
        let Some(uid) = volume.uid() else { return Vec::new() };
        let conditions = volume.status.as_ref().map_or(&[][..], |status| &status.conditions);
        let is_deleted = volume.metadata.deletion_timestamp.is_some();
        let in_progress: Vec<Condition> = SERVING_CONDITIONS
            .iter()
            .filter_map(|type_| find_condition(conditions, type_))
            .filter(|condition| condition.status == "False" && !is_deleted)
            .cloned()
            .collect();
        let mut all = self.0.lock();
        let before = all.remove(&uid).unwrap_or_default();
        let begun = changed_conditions(&before, &in_progress).map(|new| event(new, EventType::Warning));
        let ended = before
            .iter()
            .filter(|old| is_true(conditions, &old.type_))
            .filter_map(|old| find_condition(conditions, &old.type_))
            .map(|new| event(new, EventType::Normal));
        let changes = begun.chain(ended).collect();
        if !in_progress.is_empty() {
            all.insert(uid, in_progress);
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use holdfast_crds::{ConditionBuilder, ConditionStatus, STORE_REACHABLE, Time, WRITABLE};
    use serde_json::json;

    use super::*;

    fn volume(conditions: &[(&str, ConditionStatus, &str)]) -> Volume {
        let now = Time("2026-01-01T00:00:00Z".parse().expect("a time"));
        let builder = ConditionBuilder { previous: &[], observed_generation: Some(1), now: &now };
        let spec = json!({ "size": "1Gi", "objectStore": "main" });
        let mut volume = Volume::new("pvc-1", serde_json::from_value(spec).expect("a spec"));
        volume.metadata.uid = Some("uid".to_owned());
        volume.status.get_or_insert_default().conditions = conditions
            .iter()
            .map(|(type_, status, reason)| builder.build(type_, *status, reason, "words"))
            .collect();
        volume
    }

    fn words(events: Vec<Event>) -> Vec<(EventType, String, String)> {
        events.into_iter().map(|event| (event.type_, event.action, event.reason)).collect()
    }

    fn one(type_: EventType, action: &str, reason: &str) -> Vec<(EventType, String, String)> {
        vec![(type_, action.to_owned(), reason.to_owned())]
    }

    /// Regression: a claim's owner saw a hanging pod without any explanation.
    #[test]
    fn a_fault_has_an_event_when_it_begins_changes_and_ends() {
        use ConditionStatus::{False, True};
        let faults = FalseConditions::default();
        let seen = |conditions: &[(&str, ConditionStatus, &str)]| words(faults.changes(&volume(conditions)));
        let fine = (STORE_REACHABLE, True, "Answering");
        assert_eq!(seen(&[]), []);
        assert_eq!(seen(&[fine, (WRITABLE, True, "Serving")]), [], "that is the ordinary course of things");
        let full = (WRITABLE, False, "CacheFull");
        assert_eq!(seen(&[fine, full]), one(EventType::Warning, WRITABLE, "CacheFull"));
        assert_eq!(seen(&[fine, full]), [], "its daemon reports again and again");
        let limit = (WRITABLE, False, "DirtyLimit");
        assert_eq!(seen(&[fine, limit]), one(EventType::Warning, WRITABLE, "DirtyLimit"));
        let away = (STORE_REACHABLE, False, "StoreUnreachable");
        assert_eq!(seen(&[away, limit]), one(EventType::Warning, STORE_REACHABLE, "StoreUnreachable"));
        let serving = (WRITABLE, True, "Serving");
        assert_eq!(seen(&[away, serving]), one(EventType::Normal, WRITABLE, "Serving"));
        assert_eq!(seen(&[]), [], "no node serves it");
        assert_eq!(seen(&[fine]), [], "that is another attach");
        assert!(faults.0.lock().is_empty());
    }

    #[test]
    fn a_deleted_volume_is_forgotten() {
        let faults = FalseConditions::default();
        let mut volume = volume(&[(WRITABLE, ConditionStatus::False, "CacheFull")]);
        assert_eq!(faults.changes(&volume).len(), 1);
        volume.metadata.deletion_timestamp = Some(Time("2026-01-01T00:00:00Z".parse().expect("a time")));
        assert!(faults.changes(&volume).is_empty());
        assert!(faults.0.lock().is_empty());
    }

    /// The operator's conditions have their own events.
    #[test]
    fn a_condition_of_the_operator_is_no_fault_of_the_node() {
        let faults = FalseConditions::default();
        let waits = volume(&[("Assigned", ConditionStatus::False, "WaitingForDetach")]);
        assert!(faults.changes(&waits).is_empty());
    }
}
